"""The whole system over real sockets: webhook to media stream, REST and events, engine crash, drain, heard text."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import os
import signal
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.peer_socket import PeerSocketError
from tests.peers.ears import transcript, words_until_end
from tests.peers.live_server import Live, RawSocket, Refused, TestCall, serve, start_message
from tests.waiting import until
from voicecodecs import g711
from voicecodecs.pcm import to_float32

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "carrier secret"
KEY = "a long random key"
CONFIG = f"""
server: {{drain_s: 20, public_url: "https://voice.example.com", stream_token_secret: tokens}}
engine: {{kind: tone}}
carriers: {{twilio: {{auth_token: "{TOKEN}", after_url: "AFTER_URL"}}}}
auth: {{api_keys: [{{key: "{KEY}"}}]}}
calling: {{allowed_targets: ["+15550199", desk@example.com]}}
routes: {{default: {{}}, sales: {{}}}}
playout: {{mark_timeout_s: 0.3}}  # the raw carrier returns no marks
"""
BEARER = {"Authorization": f"Bearer {KEY}"}


FORMS: list[dict[str, str]] = []
"""Forms that the operator's application got at ``after_url``."""


async def application(request: web.Request) -> web.Response:
    FORMS.append({name: str(value) for name, value in (await request.post()).items()})
    return web.Response(text="<Response><Say>Next</Say></Response>", content_type="text/xml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    app = web.Application()
    app.router.add_post("/next", application)
    async with TestServer(app) as server:
        config = CONFIG.replace("AFTER_URL", str(server.make_url("/next?a=1")))
        async with serve(tmp_path_factory.mktemp("signed"), config) as running:
            yield running


def signed(url: str, form: Mapping[str, str] | None = None) -> dict[str, str]:
    """Twilio's own recipe, written down again (Twilio, *Webhooks security*)."""
    message = url + "".join(name + value for name, value in sorted((form or {}).items()))
    digest = hmac.new(TOKEN.encode(), message.encode(), hashlib.sha1).digest()
    return {"X-Twilio-Signature": base64.b64encode(digest).decode()}


async def webhook(live: Live, path: str, form: dict[str, str], headers: dict[str, str] | None = None) -> Any:
    """Post as Twilio would; the answer's XML."""
    headers = signed(f"https://voice.example.com{path}", form) if headers is None else headers
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{live.http}{path}", data=form, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return ElementTree.fromstring(await answer.text())


class Incoming:
    """A call as Twilio makes one: the webhook, the stream that its answer names, a dialogue manager with a key."""

    def __init__(self, live: Live, route: str, number: int) -> None:
        self.live = live
        self.route = route
        self.call_sid = f"CA{number:032x}"
        self.number = number

    async def __aenter__(self) -> Incoming:
        self.form = {"CallSid": self.call_sid, "From": "+15550100", "To": "+15550101", "CallStatus": "ringing"}
        answer = await webhook(self.live, f"/webhooks/twilio/{self.route}?customer=42", self.form)
        stream = answer.find("Connect/Stream")
        assert [child.tag for child in answer] == ["Connect", "Redirect"] and stream is not None
        self.after = urlsplit(answer.find("Redirect").text).path
        url = urlsplit(stream.get("url"))
        assert (url.scheme, url.netloc) == ("wss", "voice.example.com")
        parameters = {p.get("name"): p.get("value") for p in stream.findall("Parameter")}
        self.manager = await RawSocket.connect(
            self.live.address, f"/v1/dialogue?route={self.route}", headers=list(BEARER.items())
        )
        self.carrier = await RawSocket.connect(self.live.address, url.path)
        self.carrier.json(**start_message(self.number, customParameters=parameters))
        self.setup = await self.manager.message("setup")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.carrier.abort()
        self.manager.abort()

    def say(self, type_: str, **fields: Any) -> None:
        self.manager.json(type=type_, sessionId=self.setup["sessionId"], **fields)

    async def what_follows(self) -> Any:
        return await webhook(self.live, self.after, {"CallSid": self.call_sid})


# --- Twilio's way in and out -----------------------------------------------------------------------------------------


async def test_a_signed_webhook_opens_a_stream_and_its_parameters_reach_the_setup(live: Live) -> None:
    async with Incoming(live, "sales", 1) as call:
        setup = call.setup
        assert (setup["callSid"], setup["from"], setup["to"]) == (call.call_sid, "+15550100", "+15550101")
        assert setup["customParameters"] == {"customer": "42"}
        call.say("text", token="Hello.", last=True)
        assert (await call.carrier.message("media"))["media"]["payload"]


async def test_end_hands_off_after_queued_speech(live: Live) -> None:
    async with Incoming(live, "default", 2) as call:
        call.say("text", token="Bye.", last=True)
        call.say("end", handoffData='{"reason": "a person & more"}')
        assert (await call.manager.message("ended"))["reason"] == "end"
        assert await call.carrier.closed() == 1000
        assert (await call.what_follows()).find("Say").text == "Next"
        assert FORMS[-1] == {
            "CallSid": call.call_sid,
            "SessionId": call.setup["sessionId"],
            "SessionStatus": "ended",
            "HandoffData": '{"reason": "a person & more"}',
        }
        assert (await call.what_follows()).find("Say").text == "Next", "a repetition gets the same answer"
        assert len(FORMS) == 1


@pytest.mark.parametrize(("number", "target", "noun"), [(3, "+15550199", "Number"), (6, "sip:desk@example.com", "Sip")])
async def test_transfer_dials(live: Live, number: int, target: str, noun: str) -> None:
    async with Incoming(live, "default", number) as call:
        call.say("transfer", target=target)
        assert await call.carrier.closed() == 1000
        assert (await call.what_follows()).find(f"Dial/{noun}").text == target


async def test_a_caller_who_hangs_up_leaves_nothing_to_follow(live: Live) -> None:
    async with Incoming(live, "default", 4) as call:
        call.carrier.json(event="stop", streamSid=f"MZ{4:032x}")
        assert (await call.manager.message("ended"))["reason"] == "hangup"
        assert (await call.what_follows()).find("Hangup") is not None


@pytest.mark.parametrize(
    "headers",
    [{}, {"X-Twilio-Signature": "bm8="}, {"X-Twilio-Signature": "na\u00efve"}, signed("https://elsewhere/", {})],
    ids=["none", "wrong", "not ASCII", "of another address"],
)
@pytest.mark.parametrize("path", ["", "/default", "/default/after", "/default/status"])
async def test_a_webhook_without_the_carriers_signature_is_refused(
    live: Live, path: str, headers: dict[str, str]
) -> None:
    assert await live.status(f"/webhooks/twilio{path}", method="POST", data={"CallSid": "CA1"}, headers=headers) == 403


async def media_status(live: Live, path: str, **headers: str) -> int:
    try:
        peer = await RawSocket.connect(
            live.address, path, headers=[(k.replace("_", "-"), v) for k, v in headers.items()]
        )
    except Refused as refused:
        return refused.status
    peer.abort()
    return 101


async def test_a_media_socket_needs_the_carriers_signature_or_a_token_of_its_own_route(live: Live) -> None:
    answer = await webhook(live, "/webhooks/twilio/sales", {"CallSid": "CA1"})
    path = urlsplit(answer.find("Connect/Stream").get("url")).path
    token = path.rpartition("/")[2]
    forged = path[:-1] + ("A" if path[-1] != "A" else "B")
    good = signed("wss://voice.example.com/media/twilio/sales")["X-Twilio-Signature"]
    assert await media_status(live, path) == 101
    assert await media_status(live, f"/media/twilio/sales?token={token}") == 101
    assert await media_status(live, "/media/twilio/sales", X_Twilio_Signature=good) == 101
    for bad in ("/media/twilio/sales", f"/media/twilio/default/{token}", forged, path + "%ff", path[:-9]):
        assert await media_status(live, bad) == 403, bad
    for signature in ("bm8=", "na\u00efve", signed("wss://elsewhere/")["X-Twilio-Signature"]):
        assert await media_status(live, "/media/twilio/sales", X_Twilio_Signature=signature) == 403


@pytest.mark.parametrize("path", ["/v1/calls", "/v1/events", "/metrics", "/v1/dialogue?route=default", "/docs"])
@pytest.mark.parametrize("key", ["", "wrong", "na\u00efve"])
async def test_protected_routes_need_the_key(live: Live, path: str, key: str) -> None:
    assert await live.status(path, headers={"Authorization": f"Bearer {key}"} if key else {}) == 401
    assert await live.status("/readyz") == 200


async def test_a_key_that_is_no_text_at_all_is_refused_like_any_other(live: Live) -> None:
    assert await media_status(live, "/v1/dialogue?route=default", Authorization="Bearer na\u00efve") == 401


async def test_beyond_loopback_without_a_key_only_the_probes_answer(tmp_path: Path) -> None:
    config = "server: {host: 0.0.0.0, drain_s: 1}\nengine: {kind: tone}"
    async with serve(tmp_path, config) as open_:
        for path in ("/v1/calls", "/metrics", "/v1/dialogue?route=default", "/docs"):
            assert await open_.status(path) == 403
        assert [await open_.status(path) for path in ("/healthz", "/readyz")] == [200, 200]


# --- REST and events -------------------------------------------------------------------------------------------------


class Events:
    """A reader of server-sent events."""

    def __init__(self, live: Live, path: str) -> None:
        self.seen: list[dict[str, Any]] = []
        self.ended = False
        self._task = asyncio.create_task(self._read(f"{live.http}{path}"))
        self.connected = asyncio.Event()

    async def _read(self, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url, headers=BEARER) as answer:
            assert answer.status == 200
            try:
                async for line in answer.content:
                    self.connected.set()
                    if line.startswith(b"data: "):
                        self.seen.append(json.loads(line[6:]))
            except aiohttp.ClientError:
                pass
            self.ended = True

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_rest_speaks_into_a_call_watches_it_and_hangs_up(live: Live) -> None:
    of_all = Events(live, "/v1/events")
    await of_all.connected.wait()
    async with Incoming(live, "default", 5) as call, aiohttp.ClientSession(live.http, headers=BEARER) as http:
        sid = call.setup["sessionId"]
        of_one = Events(live, f"/v1/calls/{sid}/events")
        await of_one.connected.wait()
        async with http.post(f"/v1/calls/{sid}/messages", json={"type": "text", "token": "Hi.", "last": True}) as done:
            assert done.status == 202
        await until(lambda: any(event.get("event") == "finished" for event in of_one.seen), "the end of the turn")
        assert {event["sessionId"] for event in of_one.seen} == {sid}
        assert [e["event"] for e in of_one.seen if e["type"] == "turn"] == ["accepted", "started", "finished"]
        async with http.get("/v1/calls") as answer:
            assert [view["callId"] for view in (await answer.json())["calls"] if view["callId"] == sid] == [sid]
        async with http.post(f"/v1/calls/{sid}/messages", json={"type": "text"}) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (422, "token")
        async with http.delete(f"/v1/calls/{sid}") as answer:
            assert answer.status == 204
        assert await call.carrier.closed() == 1000
        await until(lambda: of_one.ended, "the end of the call's events")
        assert of_one.seen[-1]["type"] == "ended"
        async with http.get(f"/v1/calls/{sid}") as answer:
            assert answer.status == 404
    await until(lambda: any(e["type"] == "ended" and e["sessionId"] == sid for e in of_all.seen), "ended")
    await of_all.close()


# --- crash, drain, signals -------------------------------------------------------------------------------------------

PLAIN = """
engine: {kind: tone}
carriers: {twilio: {verify: false}}
server: {drain_s: 60}
routes: {default: {}, talk: {}}
"""
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."


async def test_a_crash_of_the_engine_fails_the_turn_and_the_call_goes_on(tmp_path: Path) -> None:
    # The embedded voice, since it makes little more than it plays: the tone engine would be done before it is killed.
    async with serve(tmp_path, PLAIN.replace("tone", "embedded")) as live, TestCall(live, "talk") as call:
        # Clauses that are spoken one after the other: some are still to be made when the engine goes.
        turn = call.call.open_turn(LONG)
        call.call.send("text", token=f"{LONG} ", turn=turn.turn)
        await until(lambda: call.leg.messages > 5, "speech")
        os.kill(live.engine_pid(), signal.SIGKILL)
        call.call.send("text", token=LONG, last=True, turn=turn.turn)
        await until(lambda: turn.outcome, "the end of the turn")
        assert turn.outcome == "failed" and turn.reported["code"] and turn.reported["description"]
        assert call.leg.closed_at is None

        # Until the new engine is there a turn fails, and says so.
        async def spoken() -> bool:
            turn = await call.spoken("I am back.")
            assert turn.outcome == "finished" or turn.reported["description"]
            return turn.outcome == "finished"

        await until(spoken, "the new engine")
        assert call.leg.closed_at is None
        await until(lambda: live.status_is("/readyz", 200), "readiness")


@pytest.mark.slow
async def test_sigterm_lets_live_calls_finish_refuses_new_ones_and_exits_0(tmp_path: Path) -> None:
    async with serve(tmp_path, PLAIN) as live:
        watcher = Events(live, "/v1/events")
        await watcher.connected.wait()
        idle = await RawSocket.connect(live.address, "/v1/dialogue?route=default")
        async with TestCall(live, "talk") as call:
            turn = call.call.speak(LONG)
            await until(lambda: call.leg.messages > 5, "speech")
            live.process.send_signal(signal.SIGTERM)
            await until(lambda: live.not_ready_is("draining"), "the drain")  # a busy machine is not ready before it
            with pytest.raises(PeerSocketError, match="503"):
                await CarrierLeg(TwilioCarrier(2, {})).connect(f"{live.ws}/media/twilio/talk")
            assert await live.status("/healthz") == 200
            await until(lambda: turn.outcome, "the end of the turn")
            heard_ms = sum(sum(spurt.samples) for spurt in call.leg.spurts) / 8
            assert (turn.outcome, heard_ms) == ("finished", turn.reported["audioMs"])
        # It got its signal. Who still reads events, and a manager who stays dialled in, do not keep it.
        assert await live.stop() == 0
        assert await idle.closed() == 1000
        await watcher.close()


async def test_calls_that_outlive_the_drain_are_hung_up(tmp_path: Path) -> None:
    async with serve(tmp_path, PLAIN.replace("drain_s: 60", "drain_s: 0.5")) as live:
        async with TestCall(live, "talk") as call:
            live.process.send_signal(signal.SIGTERM)
            await until(lambda: call.call.ended, "the end of the call")
            assert call.call.ended == "drained"
            await until(lambda: call.leg.closed_at is not None, "the end of the stream")
        assert await live.stop() == 0


async def test_sigint_exits_130(tmp_path: Path) -> None:
    async with serve(tmp_path, PLAIN) as live:
        assert await live.stop(signal.SIGINT) == 130


# --- heard text ------------------------------------------------------------------------------------------------------

SPOKEN = "Your parcel was shipped on Friday and will arrive by Monday morning at the latest."


@pytest.mark.slow
async def test_heard_text_is_what_the_callers_own_buffer_played(tmp_path: Path) -> None:
    async with serve(tmp_path, PLAIN.replace("tone", "embedded")) as live, TestCall(live, "talk", uplink=True) as call:
        wrong = [await cut_at(call, cut_ms) for cut_ms in (900, 1700, 2600)]
    # The middle one: where a machine stalls in the moment of a cut, both sides' clocks run on. The gateway's own
    # arithmetic is tested on a virtual clock.
    wrong_ms, wrong_words = np.median(wrong, axis=0)
    assert wrong_ms <= 400 and wrong_words <= 2, wrong


async def cut_at(call: TestCall, cut_ms: int) -> tuple[float, int]:
    """Cut a turn when so much of it was played; by how many ms and words the gateway is wrong about what was heard."""
    leg = call.leg
    before = len(leg.spurts)
    turn = call.call.speak(SPOKEN)
    await until(lambda: len(leg.spurts) > before, "speech")
    first = leg.playout.end - sum(leg.spurts[-1].samples)
    await until(lambda: leg.playout.position(time.monotonic()) - first > cut_ms * 8, "the moment to cut")
    call.call.send("cancel")
    await until(lambda: turn.outcome and turn.heard_text, "the interrupt")
    (interrupt,) = [m for m in call.messages if m["type"] == "interrupt" and m["turn"] == turn.turn]
    assert turn.outcome == "interrupted" and SPOKEN.startswith(turn.heard_text)
    # What the caller's own model has played, the fade of some milliseconds included, without the pauses in it.
    pauses = sum(spurt.dry_samples for spurt in leg.spurts[before + 1 :])
    played_ms = (leg.playout.end - first - pauses) / 8
    heard = transcript(to_float32(g711.decode_ulaw(bytes(leg.playout.heard[first : leg.playout.end]))), 8000)
    words = len(turn.heard_text.split()) - words_until_end(SPOKEN, heard)
    return abs(interrupt["durationUntilInterruptMs"] - played_ms), abs(words)


# --- barge-in --------------------------------------------------------------------------------------------------------


def loud_echo(leg: CarrierLeg, delay_ms: int = 120) -> Callable[[], bytes]:
    """Return the sound at this caller, later and 12 dB lower: a phone on a table.

    A frame that this process sends late, since it stood still, is silent: no telephone has an echo of seconds.
    """
    frames = itertools.count()
    begin: list[int] = []

    def frame() -> bytes:
        now = leg.playout.position(time.monotonic())
        if not begin:
            begin.append(now)
        at = begin[0] + 160 * next(frames)
        heard = b""
        if (echoed := at - delay_ms * 8) >= 0 and now - at < 8 * 100:
            heard = bytes(leg.playout.heard[echoed : echoed + 160])
        return g711.encode_ulaw((g711.decode_ulaw(heard) * 0.25).astype(np.int16)).ljust(160, b"\xff")

    return frame


async def test_the_echo_of_a_turns_beginning_does_not_cut_it(tmp_path: Path) -> None:
    async with serve(tmp_path, PLAIN.replace("tone", "embedded")) as live, TestCall(live, "talk", uplink=True) as call:
        call.leg.ambience = loud_echo(call.leg)
        for text in ("Once more.", "Can you hear me?", "Please hold the line.", "Your number is four two."):
            turn = await call.spoken(text)
            assert turn.outcome == "finished", turn.reported
            end = call.leg.playout.end + 8 * 1000  # the caller hears a second of silence, and so does his microphone
            await until(lambda end=end: call.leg.playout.position(time.monotonic()) > end)
    assert not [message for message in call.messages if message["type"] == "interrupt"]
    assert call.leg.clears == 0, "not even a pause"
