"""Copies of calls at a session recording server of few lines."""

import asyncio
import base64
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import sip_bridge.siprec.client
from gateway.seams.leg import CallInfo
from sip_bridge.siprec.client import Recording
from tests.sip_bridge.phone import Bridge, Phone, bridge, until
from tests.sip_bridge.siprec.recorder import Recorder, header, pitch

CALL = CallInfo(
    call_id="VX" + "ab" * 16, route="default", transport="twilio", from_="+4930111", to="+4930222", caller_name='A<&"'
)
NS = {"r": "urn:ietf:params:xml:ns:recording:1"}


def stereo(packets: int, *, at: int = 0) -> bytes:
    """20 ms pieces: 440 Hz left, 1000 Hz right, at 16000 Hz."""
    time = (np.arange(320 * packets) + at) / 16000
    both = np.stack([np.sin(2 * np.pi * hertz * time) for hertz in (440, 1000)], axis=1)
    return (8000 * both).astype(np.int16).tobytes()


@asynccontextmanager
async def copying(recorder: Recorder, **more: Any) -> AsyncIterator[tuple[Bridge, Recording, list[str]]]:
    lost: list[str] = []
    async with bridge(**more) as made:
        recording = made.bridge.recordings.record(CALL, recorder.uri, rate=16000, on_lost=lost.append)
        yield made, recording, lost
        recording.end()
        await until(lambda: not len(made.bridge.recordings))


async def taken(recorder: Recorder, recording: Recording) -> bytes:
    """The recorder takes the copy; its INVITE."""
    invite = await recorder.heard(b"INVITE")
    recorder.answer(invite, "100 Trying")
    recorder.answer(invite, "200 OK", recorder.description())
    await recorder.heard(b"ACK")
    await until(lambda: recording.dialog is not None)
    return invite


async def ended(recorder: Recorder, recording: Recording) -> None:
    recording.end()
    recorder.answer(await recorder.heard(b"BYE"), "200 OK")


def parts(invite: bytes) -> dict[str, bytes]:
    """The bodies of a multipart message by type."""
    boundary = re.search(r"boundary=(\S+)", header(invite, "Content-Type"))
    assert boundary
    found = {}
    for part in invite.partition(b"\r\n\r\n")[2].split(f"--{boundary[1]}".encode())[1:-1]:
        head, _, body = part.partition(b"\r\n\r\n")
        found[header(head, "Content-Type")] = body.removesuffix(b"\r\n")
        if b"xml" in head:
            assert header(head, "Content-Disposition") == "recording-session"
    return found


async def test_both_sides_are_sent_as_labelled_streams_with_their_parties() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (made, recording, lost):
            invite = await taken(recorder, recording)
            assert header(invite, "Require") == "siprec" and header(invite, "Contact").endswith(">;+sip.src")
            body = parts(invite)
            sdp = body["application/sdp"].decode()
            assert re.findall(r"a=label:(\d)", sdp) == ["1", "2"] and sdp.count("a=sendonly") == 2
            assert sdp.count("m=audio") == 2 and sdp.count("v=0") == 1
            root = ET.fromstring(body["application/rs-metadata+xml"])
            assert root.tag == "{urn:ietf:params:xml:ns:recording:1}recording"
            session = root.find("r:session", NS)
            assert session is not None and base64.b64decode(session.get("session_id") or "") == b"\xab" * 16
            streams = {each.findtext("r:label", "", NS): each.get("stream_id") for each in root.findall("r:stream", NS)}
            spoken = {}
            for each in root.findall("r:participant", NS):
                name = each.find("r:nameID", NS)
                sent = root.findtext(
                    f"r:participantstreamassoc[@participant_id='{each.get('participant_id')}']/r:send", "", NS
                )
                assert name is not None
                spoken[sent] = (name.get("aor"), name.findtext("r:name", "", NS))
            assert spoken[streams["1"] or ""] == ("sip:+4930111@127.0.0.1", 'A<&"')
            assert spoken[streams["2"] or ""] == ("sip:+4930222@127.0.0.1", "")
            for at in range(30):
                recording.put(stereo(1, at=at * 320))
            assert pitch(await recorder.sound(recorder.left, 26)) == pytest.approx(440, abs=3)
            assert pitch(await recorder.sound(recorder.right, 26)) == pytest.approx(1000, abs=3)
            await ended(recorder, recording)
        assert lost == []


async def test_a_pause_is_told_and_nothing_is_sent_meanwhile() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, recording, lost):
            await taken(recorder, recording)
            recording.pause(True)
            again = await recorder.heard(b"INVITE")
            assert again.count(b"a=inactive") == 2 and again.count(b"a=label") == 2
            recorder.answer(again, "200 OK", recorder.description("inactive"))
            await recorder.heard(b"ACK")
            recorder.is_quiet(recorder.left)
            recording.put(stereo(10))
            await asyncio.sleep(0)
            assert recorder.is_quiet(recorder.left)
            recording.pause(False)
            again = await recorder.heard(b"INVITE")
            assert again.count(b"a=sendonly") == 2
            recorder.answer(again, "200 OK", recorder.description())
            await recorder.heard(b"ACK")
            await until(lambda: all(not each.leg._agreed.on_hold for each in recording._streams))  # type: ignore[union-attr]
            for at in range(12):
                recording.put(stereo(1, at=at * 320))
            assert await recorder.sound(recorder.left, 8)
            await ended(recorder, recording)
        assert lost == []


async def test_a_recorder_that_knows_no_pause_is_kept() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, recording, lost):
            await taken(recorder, recording)
            recording.pause(True)
            recorder.answer(await recorder.heard(b"INVITE"), "488 Not Acceptable Here")
            await recorder.heard(b"ACK")
            await until(lambda: recording._told_paused)
            await ended(recorder, recording)
        assert lost == []


@pytest.mark.parametrize("status", ["403 Forbidden", "503 Service Unavailable", "486 Busy Here"])
async def test_a_recorder_that_refuses_is_told(status: str) -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (made, _, lost):
            recorder.answer(await recorder.heard(b"INVITE"), status)
            await until(lambda: lost)
            assert status[:3] in lost[0]
            assert made.bridge.kept["ports"] == 0


async def test_a_recorder_that_takes_neither_stream_is_hung_up() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, _, lost):
            invite = await recorder.heard(b"INVITE")
            recorder.answer(invite, "200 OK", recorder.description(ports=(0, 0)))
            await recorder.heard(b"ACK")
            recorder.answer(await recorder.heard(b"BYE"), "200 OK")
            await until(lambda: lost)


async def test_one_stream_alone_is_sent() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, recording, lost):
            invite = await recorder.heard(b"INVITE")
            recorder.answer(invite, "200 OK", recorder.description(ports=(0, recorder.right.getsockname()[1])))
            await recorder.heard(b"ACK")
            await until(lambda: recording._streams[1]._packetizer is not None)
            for at in range(30):
                recording.put(stereo(1, at=at * 320))
            assert pitch(await recorder.sound(recorder.right, 26)) == pytest.approx(1000, abs=3)
            await ended(recorder, recording)
        assert lost == []


async def test_the_call_goes_on_when_the_recorder_hangs_up() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (made, recording, lost):
            invite = await taken(recorder, recording)
            with Phone(made.bridge.endpoint.port) as phone:
                await phone.call()
                recorder.ask(invite, "BYE")
                assert header(await recorder.heard(b"SIP/2.0 200"), "CSeq") == "8 BYE"
                await until(lambda: lost)
                recording.put(stereo(1))  # it is not heard
                assert made.session.closed == []
                await phone.bye()


async def test_a_recorder_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sip_bridge.siprec.client, "_ANSWER_S", 0.2)
    with Recorder() as recorder:
        async with copying(recorder) as (_, _, lost):
            invite = await recorder.heard(b"INVITE")
            recorder.answer(invite, "100 Trying")
            cancel = await recorder.heard(b"CANCEL")
            await until(lambda: lost)
            recorder.answer(cancel, "200 OK")
            recorder.answer(invite, "200 OK", recorder.description())  # it crossed our CANCEL
            await recorder.heard(b"ACK")
            recorder.answer(await recorder.heard(b"BYE"), "200 OK")


async def test_a_call_that_ends_first_takes_its_copy_back() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, recording, lost):
            invite = await recorder.heard(b"INVITE")
            recorder.answer(invite, "100 Trying")
            recording.end()
            recorder.answer(await recorder.heard(b"CANCEL"), "200 OK")
            recorder.answer(invite, "487 Request Terminated")
            await recorder.heard(b"ACK")
        assert lost == []


async def test_an_ack_that_was_lost_is_repeated() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, recording, _):
            invite = await taken(recorder, recording)
            recorder.answer(invite, "200 OK", recorder.description())
            await recorder.heard(b"ACK")
            await ended(recorder, recording)


async def test_requests_of_the_recorder() -> None:
    with Recorder() as recorder:
        async with copying(recorder) as (_, recording, _):
            invite = await taken(recorder, recording)
            recorder.ask(invite, "OPTIONS")
            assert "INVITE" in header(await recorder.heard(b"SIP/2.0 200"), "Allow")
            recorder.ask(invite, "INFO")
            await recorder.heard(b"SIP/2.0 405")
            recorder.ask(invite, "UPDATE", recorder.description("inactive"))
            assert (await recorder.heard(b"SIP/2.0 200")).count(b"a=inactive") == 2
            recorder.ask(invite, "INVITE", recorder.description())
            answer = await recorder.heard(b"SIP/2.0 200")
            assert answer.count(b"a=sendonly") == 2 and answer.count(b"a=label") == 2
            await recorder.heard(b"SIP/2.0 200")  # repeated, until the ACK
            recorder.cseq -= 1
            recorder.ask(invite, "ACK")
            recorder.ask(invite, "INVITE")
            assert (await recorder.heard(b"SIP/2.0 200")).count(b"a=sendonly") == 2
            recorder.cseq -= 1
            recorder.ask(invite, "ACK", recorder.description())
            recorder.ask(invite, "UPDATE", b"v=0\r\nm=audio 9 RTP/AVP 0\r\nc=IN IP4 127.0.0.1\r\n")
            await recorder.heard(b"SIP/2.0 488")
            recorder.ask(invite, "UPDATE", b"?", "application/rs-metadata-request")
            await recorder.heard(b"SIP/2.0 200")
            told = await recorder.heard(b"UPDATE")
            assert b"<recording " in told
            recorder.answer(told, "200 OK")
            await ended(recorder, recording)


async def test_a_recorder_at_a_trunk_gets_its_account_and_its_encryption() -> None:
    with Recorder() as recorder:
        trunk = {"proxy": recorder.uri, "srtp": "required", "username": "src", "password": "secret"}
        async with copying(recorder, trunk=trunk) as (_, recording, _):
            invite = await recorder.heard(b"INVITE")
            assert invite.count(b"RTP/SAVP") == 2 and invite.count(b"a=crypto") == 4
            challenge = 'WWW-Authenticate: Digest realm="srs", nonce="n", algorithm=MD5'
            recorder.answer(invite, "401 Unauthorized", b"", challenge)
            again = await recorder.heard(b"INVITE")
            assert 'username="src"' in header(again, "Authorization")
            recorder.answer(again, "403 Forbidden")
