"""Media that moves or changes its codec in a call, judged by the packets at the phone."""

import asyncio
import time

import numpy as np
import pytest

from sip_bridge.call import SipCall
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Response
from tests.sip_bridge.phone import Bridge, Phone, bridge, offer, until
from tests.sip_bridge.test_bridge import phone_of
from tests.sip_bridge.test_outgoing import ended, fresh, place, reply, trunked
from voicecodecs.g711 import decode_alaw, decode_ulaw, encode_alaw
from voicecodecs.registry import AudioFormat, decoder, encoder

LOUD = bytes(range(0, 160))
"""A frame of PCMU that is not silence."""


async def changes(phone: Phone, method: str, body: bytes) -> Response:
    """A re-INVITE with its ACK, or an UPDATE."""
    phone.send(phone.request(method, body=body))
    ok = await phone.response(200)
    if method == "INVITE":
        phone.ack(ok)
    return ok


async def says(phone: Phone, call: SipCall, frame: bytes = LOUD) -> tuple[int, bytes]:
    """Payload type and payload of the first packet with sound that comes to the phone."""
    while True:
        call.send_frame(frame, time.monotonic())
        data = await phone.packet()
        if len(data) > 30 and data[12:] != bytes([0xFF]) * 160:
            return data[1] & 0x7F, data[12:]


def talk(phone: Phone, numbers: range, *, payload_type: int = 0, ssrc: int = 7, payload: bytes = LOUD) -> None:
    for n in numbers:
        phone.speak(payload, payload_type=payload_type, sequence=n, timestamp=160 * n, ssrc=ssrc)


async def heard(made: Bridge, count: int) -> None:
    await until(lambda: len([each for each in made.session.heard if each]) >= count)


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
@pytest.mark.parametrize("other_host", [False, True])
async def test_audio_goes_to_the_new_address_while_the_old_stream_still_comes(method: str, other_host: bool) -> None:
    """RFC 3264 section 8.3.1, as when a switch connects two phones directly, or ends its hold music."""
    async with bridge() as made:
        with phone_of(made) as phone, Phone(phone.server[1], address="127.0.0.2" if other_host else "127.0.0.1") as new:
            await phone.call()
            talk(phone, range(1, 6))
            await heard(made, 5)
            call = made.session.call
            await changes(phone, method, offer(new.rtp_port, host=new.address, version=2))
            new.media = phone.media
            talk(phone, range(6, 30))
            await heard(made, 29)  # the old stream is not cut off
            phone.waiting()
            assert (await says(new, call))[1] == LOUD
            assert not phone.waiting()
            talk(new, range(500, 505), ssrc=9)
            await heard(made, 34)
            before = len(made.session.heard)
            talk(phone, range(30, 40))
            talk(new, range(505, 510), ssrc=9)
            await heard(made, 39)
            assert len(made.session.heard) == before + 5  # of the new one only
            assert not phone.waiting()
            await phone.bye()


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
async def test_hold_music_from_another_server_and_back(method: str) -> None:
    async with bridge() as made:
        with phone_of(made) as phone, phone_of(made) as music:
            await phone.call()
            music.media = phone.media
            call = made.session.call
            talk(phone, range(1, 6))
            await heard(made, 5)
            await changes(phone, method, offer(music.rtp_port, more="a=sendonly", version=2))
            talk(music, range(1, 20), ssrc=8)
            await changes(phone, method, offer(phone.rtp_port, version=3))
            talk(music, range(20, 40), ssrc=8)
            assert (await says(phone, call))[1] == LOUD
            talk(phone, range(6, 10))
            assert (await says(phone, call))[1] == LOUD
            await phone.bye()


async def test_a_200_at_another_address_than_the_early_media() -> None:
    async with trunked() as (made, phone):
        with Phone(0) as server:
            attempt = await place(made, phone, trunk="office")
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 180)
            reply(phone, invite, 183, body=offer(server.rtp_port))
            port = parse_sdp(invite.body).media[0]
            phone.media = server.media = port
            talk(server, range(1, 10))
            await asyncio.sleep(0)
            reply(phone, invite, 200, body=offer(phone.rtp_port))
            await fresh(phone, "ACK")
            await until(lambda: bool(made.sessions))
            talk(server, range(10, 30))
            call = made.session.call
            assert (await says(phone, call))[1] == LOUD
            talk(phone, range(1, 6), ssrc=8)
            assert (await says(phone, call))[1] == LOUD
            call.hang_up("end")
            phone.answer(await fresh(phone, "BYE"), 200)
            assert (await ended(made, attempt))[0] == "answered"


FORMATS = {8: AudioFormat("PCMA"), 9: AudioFormat("G722", 16000), 107: AudioFormat("OPUS", 48000)}


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
@pytest.mark.parametrize("payload_type", FORMATS)
async def test_another_codec_in_mid_call(method: str, payload_type: int) -> None:
    """The session keeps its format: what is heard and spoken is converted."""
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            call = made.session.call
            assert (await says(phone, call))[0] == 0
            body = offer(phone.rtp_port, codecs=f"{payload_type} 101", version=2)
            ok = await changes(phone, method, body)
            assert parse_sdp(ok.body).media[0].formats == (str(payload_type), "101")
            phone.waiting()
            sent, payload = await says(phone, call)
            assert sent == payload_type
            if payload_type == 8:
                assert payload == encode_alaw(decode_ulaw(LOUD))
            assert len(decoder(FORMATS[payload_type]).decode(payload)) == FORMATS[payload_type].frame_samples
            speak = encoder(FORMATS[payload_type]).encode
            silence = FORMATS[payload_type].frame_samples
            made.session.heard.clear()
            pcm = (decode_ulaw(LOUD)[:1].repeat(silence) // 4).astype("int16")
            step = FORMATS[payload_type].rtp_clock_hz // 50
            for n in range(5):
                phone.speak(speak(pcm), payload_type=payload_type, sequence=n, timestamp=n * step, ssrc=5)
            await heard(made, 5)
            assert {len(each) for each in made.session.heard} == {160}
            # And back, with packets of the other codec still under way.
            await changes(phone, method, offer(phone.rtp_port, version=3))
            phone.speak(speak(pcm), payload_type=payload_type, sequence=5, timestamp=5 * step, ssrc=5)
            phone.waiting()
            assert (await says(phone, call)) == (0, LOUD)
            await heard(made, 6)
            await phone.bye()


@pytest.mark.parametrize(("codecs", "sent"), [("8 0 101", 8), ("0 8 101", 0), ("9 8 0", 9), ("107 0", 107)])
async def test_the_first_codec_of_an_answer_is_sent_and_any_other_is_heard(codecs: str, sent: int) -> None:
    """RFC 3264 sections 5.1 and 7, for a late offer: the answer comes in the ACK."""
    async with bridge() as made:
        with phone_of(made) as phone:
            ok = await phone.invited(body=b"")
            phone.ack(ok, body=offer(phone.rtp_port, codecs=codecs))
            await until(lambda: bool(made.sessions) and made.session.call.state.name == "UP")
            call = made.session.call
            noise = np.random.default_rng(1).integers(-8000, 8000, call.outbound.frame_samples).astype(np.int16)
            assert (await says(phone, call, encoder(call.outbound).encode(noise)))[0] == sent
            for n, payload_type in enumerate((0, 8, 0, 8)):
                phone.speak(LOUD, payload_type=payload_type, sequence=n, timestamp=160 * n)
            await until(lambda: len(made.session.heard) >= (4 if sent in (0, 8, 9) else 3))
            if sent == 0:
                assert made.session.heard[0] == LOUD
                assert (decode_ulaw(made.session.heard[1]) == decode_ulaw(encode_of(decode_alaw(LOUD)))).all()
            await phone.bye()


def encode_of(pcm: object) -> bytes:
    return encoder(AudioFormat("PCMU")).encode(pcm)  # type: ignore[arg-type]
