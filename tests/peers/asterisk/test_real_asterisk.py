"""Calls of a real Asterisk, with the dialplan that users get: both ways in, what is heard, and what is handed back."""

from __future__ import annotations

import re
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.asterisk.peer import Asterisk, asterisk
from tests.peers.ears import transcript, understood
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_asterisk
from tests.peers.tones import tone
from tests.waiting import until
from voicecodecs.pcm import to_float32

pytestmark = [pytest.mark.asterisk, needs_asterisk, pytest.mark.asyncio(loop_scope="module")]

SAMPLES = Path(__file__).parents[3] / "configs/asterisk"
KEY = {"Authorization": "Bearer a key for tests"}
SPOKEN = "Your parcel was shipped on Friday and will arrive by Monday morning at the latest."


(IVR,) = re.findall(r"^```ini\n(.*?)^```", (SAMPLES.parents[1] / "docs/ivr.md").read_text(), flags=re.M | re.S)
(WALK,) = re.findall(
    r"^```ini\n(.*?)^```", (SAMPLES.parents[1] / "docs/asterisk-in-10-minutes.md").read_text(), flags=re.M | re.S
)
TCP, HTTP = free_port(), free_port()
CONFIG = f"""
engine: {{kind: embedded, timeouts: {{hang_s: 120}}}}  # a loaded machine is only slow
audiosocket: {{port: {TCP}, route: default}}
carriers: {{asterisk: {{username: talkspurt, password: change me, media_url: "ws://127.0.0.1:{HTTP}/media"}}}}
auth: {{api_keys: [{{key: a key for tests}}]}}
calling: {{allowed_targets: [agent-7]}}
routes: {{default: {{events: [tokens-played]}}}}
clips: {{folder: FOLDER}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("gateway")
    with wave.open(str(folder / "1000.wav"), "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes((8000 * np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000)).astype("<i2").tobytes())
    async with serve(folder / "server", CONFIG.replace("FOLDER", str(folder))) as running:
        running.headers = KEY
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def switch(live: Live, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Asterisk]:
    folder = tmp_path_factory.mktemp("asterisk")
    sample = (SAMPLES / "extensions.conf").read_text()
    sample = sample.replace("127.0.0.1:8080", live.address).replace("127.0.0.1:9092", f"127.0.0.1:{TCP}")
    tests = f"""
[globals]
TALKSPURT_KEY=a key for tests
[ear]
exten => silent,1,Answer()
 same => n,Record({folder}/heard.wav,0,30,kqx)
exten => keys,1,Answer()
 same => n(wait),Wait(0.1)
 same => n,GotoIf($["${{PRESS}}"="now"]?:wait)
 same => n,SendDTMF(7)
 same => n,Record({folder}/heard.wav,0,30,kqx)
exten => account,1,Answer()
 same => n(wait),Wait(0.1)
 same => n,GotoIf($["${{PRESS}}"="now"]?:wait)
 same => n,SendDTMF(4711#)
 same => n,Record({folder}/heard.wav,0,30,kqx)
exten => tone,1,Answer()
 same => n,Playtones(700)
 same => n,Record({folder}/heard.wav,0,30,kqx)
[app]
exten => slin,1,Answer()
 same => n,AudioSocket(${{UUID()}},127.0.0.1:{TCP})
[driver]
exten => _[a-z].,1,Answer()
 same => n,Dial(AudioSocket/127.0.0.1:{TCP}/${{UUID()}}/c(${{EXTEN}}))
[json]
exten => _[a-z].,1,Answer()
 same => n,Dial(WebSocket/talkspurt/c(${{EXTEN}})f(json))
[plain]
exten => _[a-z].,1,Answer()
 same => n,Dial(WebSocket/talkspurt/c(${{EXTEN}})f(plain-text))
[queues]
exten => billing,1,Verbose(1,left: in the queue with account ${{ACCOUNT}})
exten => agent-7,1,Verbose(1,left: with agent 7)
{IVR}
{WALK.replace("127.0.0.1:9092", f"127.0.0.1:{TCP}")}
[alone]
exten => _[a-z].,1,Answer()
 same => n,Set(TALKSPURT_HTTP=http://127.0.0.1:{free_port()})
 same => n,Gosub(talkspurt,${{EXTEN}},1(default))
 same => n,Verbose(1,left: reason=${{TALKSPURT_REASON}} and the caller is still there)
 same => n,Hangup()
[bot]
exten => _[a-z].,1,Answer()
 same => n,Set(CALLERID(num)=+15550100)
 same => n,Set(ACCOUNT=a & b)
 same => n,Gosub(talkspurt,${{EXTEN}},1(default))
 same => n,Verbose(1,left: reason=${{TALKSPURT_REASON}} result=${{TALKSPURT_RESULT}} target=${{TALKSPURT_TARGET}}.)
 same => n,Hangup()
"""
    client = (SAMPLES / "websocket_client.conf").read_text().replace("127.0.0.1:8080", live.address)
    files = {
        "extensions.conf": sample + tests,
        "websocket_client.conf": client,
        "http.conf": (SAMPLES / "http.conf").read_text().replace("8088", str(HTTP)),
    }
    async with asterisk(folder, files) as running:
        yield running


class Bot:
    """A dialogue manager for the next call."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._manager = SimulatedManager(self._on_setup)
        self.call: ManagedCall | None = None
        self.messages: list[Any] = []

    async def __aenter__(self) -> Bot:
        await self._manager.dial_in(f"{self._live.ws}/v1/dialogue?route=default", headers=KEY)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._manager.aclose()

    def _on_setup(self, call: ManagedCall) -> None:
        self.call = call
        call.on_message = lambda message, now: self.messages.append(message)

    async def answer(self) -> ManagedCall:
        await until(lambda: self.call, "setup")
        assert self.call is not None
        return self.call


def recorded(switch: Asterisk) -> tuple[np.ndarray, int]:
    """Return the sound that the latest caller heard, and its rate."""
    with wave.open(str(switch.folder / "heard.wav")) as source:
        rate, data = source.getframerate(), source.readframes(source.getnframes())
    return to_float32(np.frombuffer(data, "<i2")), rate


async def left(switch: Asterisk, what: str) -> None:
    """Wait until the dialplan has seen this left by the bot of the latest call; the log is written a little later."""
    await until(lambda: re.findall(r"app_verbose.c: left: (.*)", switch.log())[-1:] == [what], f"left: {what}")


@pytest.mark.parametrize(
    ("way", "codec"), [("audiosocket", "L16/8000"), ("websocket", "L16/16000"), ("incoming", "L16/16000")]
)
async def test_a_sentence_is_understood_and_a_result_goes_back(
    live: Live, switch: Asterisk, way: str, codec: str
) -> None:
    async with Bot(live) as bot:
        await switch.originate("silent@ear", f"{way}@bot")
        call = await bot.answer()
        assert call.setup["transport"] == ("audiosocket" if way == "audiosocket" else "asterisk")
        assert (call.setup["from"], call.setup["codec"]) == ("+15550100", codec)
        assert call.setup["customParameters"] == {"account": "a & b"}
        turn = call.speak(SPOKEN)
        await until(lambda: turn.outcome, "the turn's end")
        assert turn.outcome == "finished"
        call.send("end", handoffData='{"balance": "12,50 & more"}')
        await switch.over()
    await left(switch, 'reason=ended result={"balance": "12,50 & more"} target=.')
    heard = transcript(*recorded(switch))
    assert understood(SPOKEN, heard), heard


async def test_without_a_gateway_the_dialplan_goes_on(live: Live, switch: Asterisk) -> None:
    await switch.originate("silent@ear", "audiosocket@alone")
    await until(
        lambda: "left: reason=unreachable and the caller is still there" in switch.log(), "the dialplan to go on"
    )
    await switch.over()


async def test_the_extension_of_the_ten_minutes_is_answered_by_the_bot(live: Live, switch: Asterisk) -> None:
    await switch.cli("dialplan reload")
    shown = await switch.cli("dialplan show 700@internal")
    assert [line for line in ("1. Answer()", "2. Dial(", "3. Hangup()") if line not in shown] == [], shown
    async with Bot(live) as bot:
        await switch.originate("silent@ear", "700@internal")
        call = await bot.answer()
        turn = call.speak(SPOKEN)
        await until(lambda: turn.outcome, "the turn's end")
        call.send("end")
        await switch.over()
    heard = transcript(*recorded(switch))
    assert understood(SPOKEN, heard), heard


@pytest.mark.parametrize(
    ("way", "codec"),
    [
        ("slin@app", "L16/8000"),
        ("slin@driver", "L16/8000"),
        ("slin16@driver", "L16/16000"),
        ("slin48@driver", "L16/48000"),
        ("ulaw@json", "PCMU/8000"),
        ("alaw@plain", "PCMA/8000"),
        ("g722@plain", "G722/16000"),
        ("slin24@json", "L16/24000"),
        ("slin48@plain", "L16/48000"),
    ],
)
async def test_a_tone_stays_one_in_both_directions(live: Live, switch: Asterisk, way: str, codec: str) -> None:
    """Wrong rates shift it, a wrong byte order drowns it, lost bytes shorten it."""
    async with Bot(live) as bot:
        await switch.originate("tone@ear", way)
        call = await bot.answer()
        assert call.setup["codec"] == codec
        theirs = bytearray()
        call.on_audio = theirs.extend
        call.send("subscribe", media=True, sampleRate=16000)
        call.send("play", source="1000.wav")
        call.send("mark", name="played")
        await until(lambda: any(m["type"] == "mark" for m in bot.messages), "the clip's end")
        await until(lambda: len(theirs) >= 2 * 16000, "a second of the caller")
        call.send("end")
        await switch.over()
    seconds, hz = tone(to_float32(np.frombuffer(theirs, "<i2")), 16000)
    assert seconds > 0.5 and abs(hz - 700) <= 2
    seconds, hz = tone(*recorded(switch))
    assert abs(seconds - 1.0) < 0.1, "a second, of which nothing was lost and nothing repeated"
    assert abs(hz - 1000) <= 2


@pytest.mark.parametrize("way", ["audiosocket", "websocket", "incoming"])
async def test_a_key_interrupts_and_the_call_is_transferred(live: Live, switch: Asterisk, way: str) -> None:
    async with Bot(live) as bot:
        await switch.originate("keys@ear", f"{way}@bot")
        call = await bot.answer()
        turn = call.speak(" ".join([SPOKEN] * 3))
        await until(lambda: any(m.get("name") == "tokensPlayed" for m in bot.messages), "words that were heard")
        await switch.press()
        await until(lambda: turn.outcome, "the key")
        assert turn.outcome == "interrupted"
        assert 0 < len(turn.heard_text) < len(turn.text) and turn.text.startswith(turn.heard_text)
        assert [m["digit"] for m in bot.messages if m["type"] == "dtmf"] == ["7"]
        call.send("transfer", target="agent-7", handoffData="angry")
        await switch.over()
    await left(switch, "reason=transferred result=angry target=agent-7.")


@pytest.mark.parametrize("way", ["audiosocket", "websocket", "incoming"])
async def test_a_caller_who_hangs_up_ends_the_call_and_leaves_nothing(live: Live, switch: Asterisk, way: str) -> None:
    async with Bot(live) as bot:
        await switch.originate("silent@ear", f"{way}@bot")
        call = await bot.answer()
        await switch.cli("channel request hangup all")
        await until(lambda: call.ended, "ended")
        assert call.ended == "hangup"
        await switch.over()


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"type_": "end", "handoffData": '{"queue": "billing"}'}, "in the queue with account 4711"),
        ({"type_": "transfer", "target": "agent-7"}, "with agent 7"),
    ],
)
async def test_an_ivr_asks_hands_over_and_goes_on(
    live: Live, switch: Asterisk, message: dict[str, str], where: str
) -> None:
    async with Bot(live) as bot:
        begun = switch.log().count("Read(")
        await switch.originate("account@ear", "100@ivr")
        await until(lambda: switch.log().count("Read(") > begun, "the question")
        await switch.press()
        call = await bot.answer()
        assert call.setup["customParameters"] == {"account": "4711"}
        call.send(**message)
        await switch.over()
    await left(switch, where)


async def test_marks_came_back_and_no_frame_was_lost(live: Live) -> None:
    assert await live.metric("talkspurt_carrier_mark_delay_seconds_count") >= 2, "one for each sentence by WebSocket"
    assert await live.metric("talkspurt_send_stalls_total") == 0


async def test_a_channel_that_is_not_there_is_not_attached_to(live: Live, switch: Asterisk) -> None:
    for call, status in (("no-such-channel", 404), ("../ari", 422)):
        body = {"dialect": "asterisk", "call": call}
        assert await live.status("/v1/calls/attach", method="POST", json=body, headers=KEY) == status
    other = {"dialect": "freeswitch", "call": "x"}
    assert await live.status("/v1/calls/attach", method="POST", json=other, headers=KEY) == 404


async def test_nothing_was_wrong_for_asterisk(switch: Asterisk) -> None:
    theirs = re.findall(r"(?:ERROR|WARNING)\S+ (?:res_audiosocket|chan_websocket).c: (.*)", switch.log())
    assert theirs == ["no-such-channel: WebSocket instance not found"], "the one of the test before"
