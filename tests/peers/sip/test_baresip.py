"""A phone of others hears what we say, in each codec, and is heard."""

import asyncio
import re
import wave
from pathlib import Path
from typing import Any

import pytest

from tests.peers.live_server import Live, until
from tests.peers.programs import needs_baresip
from tests.peers.sip.baresip import baresip
from tests.peers.sip.conftest import share_heard
from tests.sip_bridge.phone import Phone, offer
from voicecodecs.registry import AudioFormat, decoder

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    needs_baresip,
]


async def test_a_sentence_is_intelligible_in_every_codec(
    server: tuple[Live, int], recognised: Any, tmp_path: Path
) -> None:
    live, port = server

    async def call(codec: str, name: str) -> Path:
        async with baresip(tmp_path / name, codec=codec) as phone:
            phone.command("dial", f"sip:100@127.0.0.1:{port}")
            await phone.until("CALL_CLOSED")
        return phone.heard

    codecs = {"pcmu": "pcmu", "g722": "g722/16000/1", "opus": "opus/48000/2"}
    recordings = await asyncio.gather(*(call(codec, name) for name, codec in codecs.items()))
    for name, path in zip(codecs, recordings, strict=True):
        heard = recognised(path)
        assert share_heard(heard) >= 0.85, (name, heard)
    await until(lambda: live.metric_is("talkspurt_calls_active", 0, transport="sip"))


async def test_keys_of_the_phone_are_read_back(server: tuple[Live, int], recognised: Any, tmp_path: Path) -> None:
    _, port = server
    async with baresip(tmp_path / "phone") as phone:
        phone.command("dial", f"sip:200@127.0.0.1:{port}")
        await phone.until("CALL_ESTABLISHED")
        for digit in "379":
            phone.command("sndcode", digit)
            await asyncio.sleep(0.4)
        await phone.until("CALL_CLOSED")
    heard = " ".join(recognised(phone.heard))
    assert re.search("typed?.*(seven|7) (nine|9)", heard), heard


async def test_a_phone_holds_and_resumes_over_srtp(server: tuple[Live, int], recognised: Any, tmp_path: Path) -> None:
    _, port = server
    async with baresip(tmp_path / "phone", account=";mediaenc=srtp-mand") as phone:
        phone.command("dial", f"sip:100@127.0.0.1:{port}")
        await phone.until("CALL_ESTABLISHED")
        await asyncio.sleep(1.5)
        phone.command("hold")
        await asyncio.sleep(0.5)
        phone.command("resume")
        await phone.until("CALL_CLOSED")
    assert "SRTP is Enabled" in (phone.folder / "output").read_text()
    # What comes after a hold is played, but this phone's recorder has closed its file by then.
    assert {"quick", "brown"} <= set(recognised(phone.heard))


async def test_speech_waits_while_the_caller_holds_and_is_heard_whole(
    server: tuple[Live, int], recognised: Any, tmp_path: Path
) -> None:
    _, port = server
    heard: list[bytes] = []
    with Phone(port) as phone:
        phone.target = f"sip:100@127.0.0.1:{port}"

        async def record() -> None:
            while True:
                heard.append((await phone.packet())[12:])

        recording = asyncio.create_task(record())
        await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
        for more, pause_s in (("a=sendonly", 1.0), ("a=sendrecv", 0.0)):
            await asyncio.sleep(1.5)
            phone.send(phone.request("INVITE", body=offer(phone.rtp_port, codecs="0 101", more=more)))
            phone.ack(await phone.response(200))
            at_hold = len(heard)
            await asyncio.sleep(pause_s)
            assert pause_s == 0.0 or len(heard) <= at_hold + 2
        await phone.hung_up()
        recording.cancel()
    pcm = decoder(AudioFormat()).decode(b"".join(heard))
    with wave.open(str(tmp_path / "heard.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(pcm.tobytes())
    words = recognised(tmp_path / "heard.wav")
    assert share_heard(words) >= 0.85, words
