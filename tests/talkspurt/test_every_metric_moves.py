"""Real calls over real sockets, by Twilio's media stream and by SIP, and what they leave in ``/metrics``.

Nothing here feeds a series itself: one that is not fed stays where it was, and is named.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from talkspurt.build import Gateway
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.peer_socket import PeerSocketError
from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import TestCall
from tests.sip_bridge.phone import Phone
from tests.waiting import until
from tts_engine.tone import ToneSynthesizer

MOVES = """
talkspurt_call_causes_total
talkspurt_calls_active talkspurt_calls_total talkspurt_calls_rejected_total talkspurt_first_packet_seconds_count
talkspurt_first_packet_stage_seconds_count talkspurt_pacing_error_seconds_count talkspurt_tick_lateness_seconds_count
talkspurt_gaps_total talkspurt_gap_seconds_count talkspurt_cut_seconds_count talkspurt_turns_total
talkspurt_dialogue_connected talkspurt_dialogue_reconnects_total talkspurt_dialogue_missed_total
talkspurt_playout_buffer_seconds_count
talkspurt_carrier_mark_delay_seconds_count talkspurt_dropped_total talkspurt_rtp_lost_total
talkspurt_rtp_jitter_seconds_count
talkspurt_stale_tokens_total talkspurt_sip_kept talkspurt_model_turns_total talkspurt_model_failures_total
talkspurt_engine_first_chunk_seconds_count talkspurt_engine_queue_seconds_count talkspurt_engine_freed_seconds_count
talkspurt_engine_realtime_factor_count talkspurt_engine_cache_bytes talkspurt_text_cache_requests_total
cv_audio_first_byte_seconds_count talkspurt_engine_drafts_total
""".split()
STANDS = {"talkspurt_build_info", "talkspurt_calls_limit", "talkspurt_tasks"}
OTHERWISE = {
    "talkspurt_background_restarts_total": "no background task ends",
    "talkspurt_engine_admission_seconds_count": "every turn finds a place here, so no one waits",
    "talkspurt_engine_admission_waiting": "the same",
    "talkspurt_engine_refused_total": "the same",
    "talkspurt_engine_batch_size_count": "only CosyVoice works in batches",
    "talkspurt_engine_unheard_seconds_total": "the tone is made before it is cut",
    "talkspurt_engine_free_blocks": "only CosyVoice has a cache of blocks",
    "talkspurt_engine_recomputed_chunks_total": "the same",
    "talkspurt_engine_no_place_total": "the same",
    "talkspurt_text_normaliser_requests_total": "only CosyVoice takes this way, maybe in another test of this process",
    "talkspurt_gpu_memory_used_bytes": "only CosyVoice samples its GPU, maybe in another test of this process",
    "talkspurt_gpu_memory_total_bytes": "the same",
    "talkspurt_gpu_utilisation_ratio": "the same",
    "talkspurt_dialogue_failed_total": "the lost manager comes back",
    "talkspurt_send_stalls_total": "loopback takes every frame",
    "talkspurt_carrier_oddities_total": "the simulated Twilio follows the documents",
    "talkspurt_call_log_lost_total": "no call log is configured",
    "talkspurt_records_lost_total": "the disk takes every record",
    "talkspurt_records_late_total": "the disk takes every record in time",
    "talkspurt_record_deliveries_total": "no webhook is configured",
    "talkspurt_records_pending": "the same",
    "talkspurt_database_answers": "no database is shared",
    "talkspurt_database_waiting": "the same",
    "talkspurt_recordings_lost_total": "no call is recorded",
    "talkspurt_audio_socket_refused_seconds_total": "no route sends raw sound",
    "talkspurt_rooms": "no one joins a named room",
    "talkspurt_room_legs": "the same",
    "talkspurt_answers_total": "no call is outgoing",
    "talkspurt_sip_refers_total": "no call is transferred",
    "talkspurt_beeps_total": "no machine answers",
    "talkspurt_listeners_total": "there is no listener",
    "talkspurt_listener_drops_total": "there is no listener",
    "talkspurt_model_trial_returns_total": "no model is on trial",
    "talkspurt_engine_linked": "an engine over TCP has no link",
    "talkspurt_moved_turns_total": "one engine has no other at which a turn could go on",
}

SECTIONS: dict[str, Any] = {
    "engine": {"kind": "embedded"},  # what is configured; what speaks is the tone
    "carriers": {"twilio": {"verify": False}},
    "sip": {
        "port": 0,
        "rtp_ports": "44000-44999",
        "trunks": {"office": {"addresses": ["127.0.0.0/8"], "answer_at_once": True}},
    },
}
LONG = "One two three four five six seven eight nine ten eleven twelve."


Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""The samples by name and labels."""


async def read(made: Gateway) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families((await made.http.exposition()).decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


class Voice:
    """Hums. The first clause of three chunks stops in its middle until its listener has run dry; each one after it
    stops there for good, so only a cut ends it."""

    def __init__(self) -> None:
        self.made: Gateway | None = None
        self.synthesizer = ToneSynthesizer(delay_s=lambda chunk: float(chunk == 2), sleep=self._pause)
        self._pauses = 0

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            return
        self._pauses += 1
        if self._pauses > 1:
            await asyncio.Event().wait()
        assert self.made is not None
        (session,) = self.made.directory
        playout = session.speech.playout
        await until(
            lambda: session.stats.first_packet_ms and not playout.buffered_s() and not playout.pacer.running,
            "a listener who has heard all that was sent",
        )


async def a_managed_call(url: str) -> None:
    """A turn with a gap, the same again, one by tokens, one that a key cuts, one that its manager cuts; tokens of both
    come late."""
    live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
    async with TestCall(live, "bot") as call:
        await until(lambda: any(message.get("name") == "roundTripDelayMs" for message in call.messages), "an info")
        for _ in range(2):
            assert (await call.spoken(LONG)).outcome == "finished"
        begun = call.call.open_turn("")
        call.call.send("text", token="Hello.", last=False, turn=begun.turn)
        await until(lambda: "firstPacketMs" in begun.reported, "its first packet")
        call.call.send("text", token=" Bye.", last=True, turn=begun.turn)
        await until(lambda: begun.outcome, "its end")
        for cut in ("dtmf", "cancel"):
            turn = call.call.open_turn("")
            call.call.send("text", token=f"{cut} {LONG} ", last=False, turn=turn.turn)
            await until(lambda turn=turn: "firstPacketMs" in turn.reported, "its first packet")
            if cut == "dtmf":
                call.leg.press("5")
            else:
                call.call.send("cancel")
            await until(lambda turn=turn: turn.outcome, "the cut")
            call.call.send("text", token="Late.", last=True, turn=turn.turn)
        assert [turn.outcome for turn in call.call.turns.values()] == ["finished"] * 3 + ["interrupted"] * 2


async def a_sip_call(made: Gateway) -> Samples:
    """Two packets of five are lost. Returns the figures while it lasts."""
    assert made.sip is not None
    with Phone(made.sip.endpoint.port) as phone:
        await phone.call()
        for sequence in (1, 2, 5):
            phone.speak(bytes(160), sequence=sequence, timestamp=160 * sequence)
        phone.speak(bytes(160), payload_type=77)
        (session,) = made.directory
        leg: Any = session.seat.leg
        await until(lambda: leg.rtp.session.stats.packets_received == 3, "the packets")
        during = await read(made)
        await phone.bye()
    await until(lambda: not len(made.directory), "the end")
    return during


async def a_call_whose_manager_is_lost_once(made: Gateway, url: str) -> None:
    leg = CarrierLeg(TwilioCarrier(2, {}))
    await leg.connect(f"{url.replace('http', 'ws')}/media/twilio/out")
    leg.press("5")  # the first line closes before it reads this, so the second one gets it
    await until(lambda: made.dialogue.stats.replayed, "the manager's return")
    await leg.aclose()
    await until(lambda: not len(made.directory), "the end")


async def refused_calls(url: str) -> None:
    """One at its webhook, one at its media socket, one at a browser's offer."""
    async with aiohttp.ClientSession(url) as http:
        async with http.get("/webhooks/twilio/nosuch") as answer:
            assert answer.status == 404
        async with http.post("/v1/webrtc/offer", json={"sdp": "no", "type": "offer"}) as answer:
            assert answer.status == 422
    with pytest.raises(PeerSocketError):
        await CarrierLeg(TwilioCarrier(3, {})).connect(f"{url.replace('http', 'ws')}/media/twilio/nosuch")


@asynccontextmanager
async def manager_that_is_lost_once() -> AsyncIterator[str]:
    """The address of a dialogue manager that closes its first line as a server does that breaks down."""
    lines: list[web.WebSocketResponse] = []

    async def answer(request: web.Request) -> web.WebSocketResponse:
        line = web.WebSocketResponse()
        await line.prepare(request)
        lines.append(line)
        await line.receive()  # setup
        if len(lines) == 1:
            await line.close(code=1011)
        async for _ in line:
            pass
        return line

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"ws://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


async def test_every_series_that_calls_can_move_moves(tmp_path: Path) -> None:
    voice = Voice()
    async with manager_that_is_lost_once() as manager:
        routes = {
            "default": {"dialogue": {"give_up_s": 60}},
            "bot": {"events": ["debugging"]},
            "out": {"dialogue": {"url": manager}},
        }
        async with api_gateway(tmp_path, clones=False, synthesizer=voice.synthesizer, routes=routes, **SECTIONS) as (
            made,
            _,
            url,
        ):
            voice.made = made
            before = await read(made)
            await a_managed_call(url)
            during = await a_sip_call(made)
            await a_call_whose_manager_is_lost_once(made, url)
            await refused_calls(url)
            after: Samples = {}
            still = set(MOVES)

            async def moved() -> bool:
                after.update(await read(made))
                still.difference_update(
                    name for name in MOVES if not before.get(name) == during.get(name) == after[name]
                )
                return not still

            with suppress(AssertionError):
                await until(moved)
            assert not still

    assert all(sum(after[name].values()) > 0 for name in STANDS)
    ours = {name for name in after if name.startswith(("talkspurt_", "cv_"))}
    counts = {name for name in ours if not name.endswith(("_created", "_bucket", "_sum"))}
    assert counts <= {*MOVES, *STANDS, *OTHERWISE}
    assert {dict(labels)["engine"] for labels in after["talkspurt_first_packet_seconds_count"]} == {"tone"}
    refused = {labels[0][1]: value for labels, value in after["talkspurt_calls_rejected_total"].items()}
    assert refused == {"unknown_route": 2, "invalid_sdp": 1}
