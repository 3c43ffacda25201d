"""A phone of others hears what we say, in each codec, and is heard."""

import asyncio
import select
import wave
from pathlib import Path

import aiohttp
import pytest

from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import Live
from tests.peers.programs import needs_baresip
from tests.peers.sip.baresip import baresip
from tests.peers.sip.conftest import SENTENCE
from tests.sip_bridge.phone import Phone, offer
from tests.waiting import until
from voicecodecs.registry import AudioFormat, decoder

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    needs_baresip,
]


async def test_a_sentence_is_intelligible_in_every_codec(server: tuple[Live, int], tmp_path: Path) -> None:
    live, port = server

    async def call(codec: str, name: str) -> Path:
        async with baresip(tmp_path / name, codec=codec) as phone:
            phone.command("dial", f"sip:100@127.0.0.1:{port}")
            await phone.until("CALL_CLOSED")
        return phone.heard

    codecs = {"pcmu": "pcmu", "g722": "g722/16000/1", "opus": "opus/48000/2"}
    recordings = await asyncio.gather(*(call(codec, name) for name, codec in codecs.items()))
    for name, path in zip(codecs, recordings, strict=True):
        heard = transcript_of(path)
        assert understood(SENTENCE, heard), (name, heard)
    await until(lambda: live.metric_is("talkspurt_calls_active", 0, transport="sip"))


async def test_keys_of_the_phone_are_read_back(server: tuple[Live, int], tmp_path: Path) -> None:
    _, port = server
    async with baresip(tmp_path / "phone") as phone:
        phone.command("dial", f"sip:200@127.0.0.1:{port}")
        await phone.until("CALL_ESTABLISHED")
        phone.command("sndcode", "379")  # it plays them one after the other
        await phone.until("CALL_CLOSED")
    heard = transcript_of(phone.heard)
    assert understood("You typed 3 7 9", heard), heard


async def played(live: Live, word: str) -> bool:
    """True if the one call has heard its turn up to the word."""
    async with aiohttp.ClientSession(live.http) as http:
        async with http.get("/v1/calls") as answer:
            calls = (await answer.json())["calls"]
        for call in calls:
            async with http.get(f"/v1/calls/{call['callId']}") as answer:
                return word in (await answer.json()).get("playedText", "")
    return False


async def test_a_phone_holds_and_resumes_over_srtp(server: tuple[Live, int], tmp_path: Path) -> None:
    live, port = server
    async with baresip(tmp_path / "phone", account=";mediaenc=srtp-mand") as phone:
        phone.command("dial", f"sip:100@127.0.0.1:{port}")
        await phone.until("CALL_ESTABLISHED")
        await until(lambda: played(live, "fox"), "the sentence's beginning")
        phone.command("hold")
        await phone.until("CALL_REMOTE_SDP", 2)
        phone.command("resume")
        await phone.until("CALL_CLOSED")
    assert "SRTP is Enabled" in (phone.folder / "output").read_text()
    # What comes after a hold is played, but this phone's recorder has closed its file by then.
    heard = transcript_of(phone.heard)
    assert understood("The quick brown", heard), heard


async def test_speech_waits_while_the_caller_holds_and_is_heard_whole(server: tuple[Live, int], tmp_path: Path) -> None:
    _, port = server
    heard: list[bytes] = []
    with Phone(port) as phone:
        phone.target = f"sip:100@127.0.0.1:{port}"

        async def record() -> None:
            while True:
                heard.append((await phone.packet())[12:])

        recording = asyncio.create_task(record())
        await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
        await until(lambda: len(heard) >= 75, "a second and a half")
        for more in ("a=sendonly", "a=sendrecv"):
            phone.send(phone.request("INVITE", body=offer(phone.rtp_port, codecs="0 101", more=more)))
            phone.ack(await phone.response(200))
            if more == "a=sendonly":
                while select.select([phone.rtp], [], [], 0)[0]:  # what came before the answer is read first
                    await asyncio.sleep(0)
                at_hold = len(heard)
                await asyncio.sleep(1)  # nothing comes, which has no event
                assert len(heard) <= at_hold + 2
        await phone.hung_up()
        recording.cancel()
    pcm = decoder(AudioFormat()).decode(b"".join(heard))
    with wave.open(str(tmp_path / "heard.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(pcm.tobytes())
    transcript = transcript_of(tmp_path / "heard.wav")
    assert understood(SENTENCE, transcript), transcript
