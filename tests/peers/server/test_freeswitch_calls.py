"""Whole calls of both FreeSWITCH modules, led over an event socket: started, heard, interrupted, ended, transferred."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import aiohttp
import pytest
import pytest_asyncio

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.gateway.carriers.freeswitch_peer import PASSWORD, FreeSwitch
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENTENCE = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def switch() -> AsyncIterator[FreeSwitch]:
    async with FreeSwitch() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(switch: FreeSwitch, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    esl = f"{{port: {switch.port}, password: {PASSWORD}, context: ivr, after: AFTER}}"
    config = f"""
engine: {{kind: tone}}
carriers:
  freeswitch: {{esl: {esl.replace("AFTER", '""')}}}
  freeswitch_fork: {{esl: {esl.replace("AFTER", "after_bot")}}}
calling: {{allowed_targets: ["+15550199", "desk@example.com"]}}
routes: {{default: {{}}}}
"""
    async with serve(tmp_path_factory.mktemp("freeswitch"), config) as running:
        yield running


class Channel:
    """A call on the switch, its bot, and the stream that the switch opens when it is told to."""

    def __init__(self, live: Live, switch: FreeSwitch, dialect: str, number: int) -> None:
        self.live, self.switch, self.dialect = live, switch, dialect
        self.leg = CarrierLeg(CARRIERS[dialect](number, {}))
        self.uuid = self.leg.carrier.call_sid
        self.started: list[str] = []
        self.messages: list[Any] = []
        self._call: ManagedCall | None = None
        self._manager = SimulatedManager(self._on_setup)

    async def __aenter__(self) -> Channel:
        self.switch.channels[self.uuid] = {}
        self.switch.commands.clear()
        self.switch.on_start = self._start
        await self._manager.dial_in(f"{self.live.ws}/v1/dialogue?route=default")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leg.aclose()
        await self._manager.aclose()
        self.switch.channels.pop(self.uuid, None)

    def _on_setup(self, call: ManagedCall) -> None:
        self._call = call
        call.on_message = lambda message, now: self.messages.append(message)

    async def _start(self, module: str, uuid: str, words: list[str]) -> str:
        assert module == {"freeswitch": "uuid_audio_stream", "freeswitch-fork": "uuid_audio_fork"}[self.dialect]
        self.started = words
        # Our name for this machine is the listener's port 0: a real one has server.public_url or media_url.
        url = words[0].replace("127.0.0.1:0", self.live.address)
        await self.leg.connect(url, timeout_s=PATIENCE_S)
        return "+OK Success\n"

    async def attach(self, **parameters: str) -> int:
        body = {"dialect": self.dialect, "call": self.uuid, "customParameters": parameters}
        async with aiohttp.ClientSession() as http, http.post(f"{self.live.http}/v1/calls/attach", json=body) as answer:
            return answer.status

    async def answered(self, **parameters: str) -> ManagedCall:
        assert await self.attach(**parameters) == 202
        await until(lambda: self._call, "setup")
        assert self._call is not None
        return self._call

    async def commanded(self, *names: str) -> list[str]:
        """Wait until a command of the last of these names came; the arguments of each."""
        await until(lambda: any(c.startswith(names[-1] + " ") for c in self.switch.commands), names[-1])
        return [c.partition(" ")[2] for name in names for c in self.switch.commands if c.startswith(name + " ")]


@pytest.mark.parametrize("dialect", ["freeswitch", "freeswitch-fork"])
async def test_a_stream_is_started_and_brings_what_was_asked_along(
    live: Live, switch: FreeSwitch, dialect: str
) -> None:
    async with Channel(live, switch, dialect, 1) as channel:
        call = await channel.answered(account="a & b; c", **{"talkspurt.From": "+15550100"})
        assert (call.setup["callSid"], call.setup["from"]) == (channel.uuid, "+15550100")
        assert call.setup["customParameters"] == {"account": "a & b; c"}
        url, mix, rate, *options = channel.started
        assert (mix, rate) == ("mono", "8k")
        assert parse_qs(urlsplit(url).query)["uuid"] == [channel.uuid]
        if dialect == "freeswitch":
            assert not options and switch.channels[channel.uuid]["STREAM_PLAYBACK"] == "true"
        else:
            assert options == ["talkspurt", "{}", "true", "true", "8000"], "the last three count only behind the others"


@pytest.mark.parametrize("dialect", ["freeswitch", "freeswitch-fork"])
async def test_a_key_on_the_event_socket_interrupts_and_the_switch_is_flushed(
    live: Live, switch: FreeSwitch, dialect: str
) -> None:
    async with Channel(live, switch, dialect, 2) as channel:
        call = await channel.answered()
        turn = call.speak(SENTENCE)
        await until(lambda: channel.leg.messages > 20)
        switch.event("DTMF", "another-channel", DTMF_Digit="1")
        switch.event("DTMF", channel.uuid, DTMF_Digit="5")
        await until(lambda: turn.outcome)
        assert turn.outcome == "interrupted"
        assert [m["digit"] for m in channel.messages if m["type"] == "dtmf"] == ["5"]
        if dialect == "freeswitch":
            await until(lambda: f"uuid_audio_stream {channel.uuid} break" in switch.commands)
            assert await channel.commanded("uuid_audio_stream") == [f"{channel.uuid} start {' '.join(channel.started)}",
                                                                    f"{channel.uuid} break"]  # fmt: skip
        else:
            await until(lambda: channel.leg.clears)  # mod_audio_fork has a message for that
            assert channel.leg.clears == 1


async def test_the_end_hangs_the_channel_up_with_its_result_in_variables(live: Live, switch: FreeSwitch) -> None:
    async with Channel(live, switch, "freeswitch", 3) as channel:
        call = await channel.answered()
        variables = switch.channels[channel.uuid]
        call.send("end", handoffData='{"a": "${system(ls)};b=c\'"}')
        await until(lambda: channel.uuid not in switch.channels, "uuid_kill")
        assert unquote(variables["talkspurt_handoff"]) == '{"a": "${system(ls)};b=c\'"}'
        assert not set("${};'\" ") & set(variables["talkspurt_handoff"]), "nothing that a dialplan would expand"
        assert variables["talkspurt_reason"] == "end"
        assert channel.switch.commands[-2:] == [f"uuid_audio_stream {channel.uuid} stop", f"uuid_kill {channel.uuid}"]
        await until(lambda: channel.leg.closed_at is not None)


async def test_where_calls_go_on_they_do(live: Live, switch: FreeSwitch) -> None:
    async with Channel(live, switch, "freeswitch-fork", 4) as channel:
        call = await channel.answered()
        call.send("end", handoffData="paid")
        assert (await channel.commanded("uuid_transfer")) == [f"{channel.uuid} after_bot XML ivr"]
        assert switch.channels[channel.uuid]["talkspurt_handoff"] == "paid"
        assert f"uuid_audio_fork {channel.uuid} stop talkspurt" in switch.commands, "without its name none is found"


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("+15550199", "+15550199 XML ivr"),
        ("sip:desk@example.com;transport=tcp", "bridge:sofia/external/sip:desk@example.com;transport=tcp inline"),
    ],
)
async def test_a_transfer_moves_the_channel_and_does_not_kill_it(
    live: Live, switch: FreeSwitch, target: str, arguments: str
) -> None:
    async with Channel(live, switch, "freeswitch", 5) as channel:
        call = await channel.answered()
        call.send("transfer", target=target, handoffData="angry")
        assert await channel.commanded("uuid_transfer") == [f"{channel.uuid} {arguments}"]
        await until(lambda: call.ended)
        assert call.ended == "transferred"
        variables = switch.channels[channel.uuid]
        assert (variables["talkspurt_reason"], variables["talkspurt_handoff"]) == ("transferred", "angry")
        assert unquote(variables["talkspurt_target"]) == target


async def test_a_target_that_cannot_be_dialled_is_an_error_and_the_call_goes_on(live: Live, switch: FreeSwitch) -> None:
    async with Channel(live, switch, "freeswitch", 6) as channel:
        call = await channel.answered()
        call.send("transfer", target="1000 XML default\n\nexit")
        await until(lambda: call.errors)
        assert not call.ended and not any(c.startswith("uuid_transfer") for c in switch.commands)


async def test_digits_are_sent_by_the_switch(live: Live, switch: FreeSwitch) -> None:
    async with Channel(live, switch, "freeswitch", 7) as channel:
        call = await channel.answered()
        call.send("sendDigits", digits="12#")
        assert await channel.commanded("uuid_send_dtmf") == [f"{channel.uuid} 12#"]


async def test_a_channel_that_is_not_there_is_told(live: Live, switch: FreeSwitch) -> None:
    async with Channel(live, switch, "freeswitch", 9) as channel:
        del switch.channels[channel.uuid]
        assert await channel.attach() == 502
        channel.uuid = "x y"
        assert await channel.attach() == 422


async def test_a_call_ends_when_the_switch_is_back(live: Live, switch: FreeSwitch) -> None:
    async with Channel(live, switch, "freeswitch", 10) as channel:
        call = await channel.answered()
        await switch.go_down()
        await asyncio.sleep(0)
        call.send("end")
        await until(lambda: channel.leg.closed_at is not None)
        assert channel.uuid in switch.channels
        await switch.listen()
        await until(lambda: channel.uuid not in switch.channels, "uuid_kill")
