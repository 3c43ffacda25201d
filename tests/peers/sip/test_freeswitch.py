"""Phones with wideband codecs behind a real FreeSWITCH, on the trunk that users get: both ends hear each other."""

import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import yaml
from numpy.typing import NDArray

from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_baresip, needs_freeswitch
from tests.peers.sip.baresip import baresip
from tests.peers.sip.freeswitch import freeswitch
from tests.peers.tones import tone
from tests.waiting import until
from tts_engine.tone import tone_hz
from voicecodecs.pcm import to_float32

pytestmark = [
    pytest.mark.freeswitch,
    pytest.mark.asyncio(loop_scope="module"),
    needs_baresip,
    needs_freeswitch,
]

SAMPLE = Path(__file__).parents[3] / "configs/callcenter-sip.yaml"
TEXT = "one two three four five six seven eight nine ten"
PHONE_HZ = 5000
"""No narrowband codec carries it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Live, Path, int]]:
    """The server, the folder of its recordings, and FreeSWITCH's port."""
    folder, port = tmp_path_factory.mktemp("freeswitch"), free_port()
    codecs = yaml.safe_load(SAMPLE.read_text())["sip"]["trunks"]["pbx"]["codecs"]
    config = f"""
engine: {{kind: tone}}
sip: {{port: {port}, rtp_ports: 20000-20999, trunks: {{pbx: {{addresses: [127.0.0.1], codecs: {codecs}}}}}}}
recording: {{folder: "{folder}/recordings"}}
routes: {{default: {{recording: true, interruptible: none}}}}
"""
    async with serve(folder / "server", config) as running, freeswitch(folder / "switch", port) as switch:
        yield running, folder / "recordings", switch


def sound(path: Path, channel: int) -> tuple[NDArray[np.float32], int]:
    """A channel of a WAV file, and its rate."""
    with wave.open(str(path)) as source:
        pcm = np.frombuffer(source.readframes(source.getnframes()), "<i2").reshape(-1, source.getnchannels())
        return to_float32(np.ascontiguousarray(pcm[:, channel])), source.getframerate()


@pytest.mark.parametrize(("codec", "rate", "channels"), [("opus/48000/2", 48000, 2), ("g722/16000/1", 16000, 1)])
async def test_a_wideband_phone_and_the_bot_hear_each_other(
    live: tuple[Live, Path, int], tmp_path: Path, codec: str, rate: int, channels: int
) -> None:
    running, recordings, switch = live
    calls: list[ManagedCall] = []
    messages: list[Any] = []

    def on_setup(call: ManagedCall) -> None:
        calls.append(call)
        call.on_message = lambda message, now: messages.append(message)

    says = (8000 * np.sin(2 * np.pi * PHONE_HZ * np.arange(60 * rate) / rate)).astype("<i2")
    earlier = set(recordings.glob("*.wav"))
    manager = SimulatedManager(on_setup)
    await manager.dial_in(f"{running.ws}/v1/dialogue?route=default")
    async with baresip(tmp_path / "phone", codec=codec, says=np.repeat(says, channels).tobytes()) as phone:
        phone.command("dial", f"sip:2000@127.0.0.1:{switch}")
        await phone.until("CALL_ESTABLISHED")
        await until(lambda: calls, "setup")
        turn = calls[0].speak(TEXT)
        await until(lambda: turn.outcome, "the turn's end")
        assert turn.outcome == "finished"
        phone.command("sndcode", "3")
        await until(lambda: any(message.get("digit") == "3" for message in messages), "the key")
        phone.command("hangup")
        await phone.until("CALL_CLOSED")
    await manager.aclose()
    heard_s, heard_hz = tone(*sound(phone.heard, 0))
    assert heard_hz == pytest.approx(tone_hz(TEXT), abs=10) and heard_s > 1, "what the phone heard"
    (recording,) = await until(lambda: set(recordings.glob("*.wav")) - earlier, "the recording")
    pcm, line_hz = sound(recording, 0)
    heard_s, heard_hz = tone(pcm, line_hz)
    assert line_hz == rate, "the phone's codec is kept"
    assert heard_hz == pytest.approx(PHONE_HZ, abs=10) and heard_s > 1, "what the bot heard"
