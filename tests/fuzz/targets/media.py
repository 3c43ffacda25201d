"""RTP and RTCP, the jitter buffer, STUN on a browser's socket, and the payloads of all codecs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

import numpy as np
from aioice import Candidate

from gateway.errors import ProtocolError
from gateway.media import rtcp, rtp
from gateway.media.jitter_buffer import LOST, JitterBuffer
from gateway.media.rtp_session import RtpSession, RtpTerms
from gateway.webrtc.ice import IceConnection, IceSettings, _Socket
from tests.fuzz.target import Target, parts
from tests.fuzz.target import joined as case
from voicecodecs.registry import AudioFormat, decoder

RTP = struct.pack("!BBHII", 0x80, 0, 7, 160, 0xABCD) + bytes(160)
EXTENDED = struct.pack("!BBHII", 0xB1, 0x80, 8, 320, 0xABCD) + b"\0\0\0\1\xbe\xde\0\1abcd" + bytes(20) + b"\2\2"
EVENT = struct.pack("!BBHII", 0x80, 0xE5, 9, 480, 0xABCD) + struct.pack("!BBH", 5, 0x8A, 800)
NOISE = struct.pack("!BBHII", 0x80, 13, 10, 640, 0xABCD) + b"\x40"
BLOCK = rtcp.ReportBlock(1, 2, -3, 4, 5, 6, 7)
SR = rtcp.serialise(rtcp.SenderReport(1, 2 << 32, 3, 4, 5, (BLOCK, BLOCK)))
RR = rtcp.serialise(rtcp.ReceiverReport(1, (BLOCK,)))
BYE = rtcp.serialise(rtcp.Goodbye((1, 2)))
CHECK = bytes.fromhex("00010050 2112a442 000102030405060708090a0b".replace(" ", "")) + (
    struct.pack("!HH8s", 6, 8, b"ours:me!")
    + struct.pack("!HHI", 0x24, 4, 99)
    + struct.pack("!HHQ", 0x802A, 8, 77)
    + struct.pack("!HH8s", 0x20, 8, b"\0\1aaAAAA")
    + struct.pack("!HH20s", 8, 20, bytes(20))
    + struct.pack("!HHI", 0x8028, 4, 5)
)
ANSWER = bytes.fromhex("0111000c2112a442000102030405060708090a0b") + struct.pack("!HH8s", 9, 8, b"\0\0\4\1Busy")


_SOUND = "sound, numbers and keys of telephones"


class _Call:
    """Ear and path of a session: it counts what comes."""

    listening = True

    def __init__(self) -> None:
        self.heard = 0
        self.sent: list[bytes] = []

    def on_audio(self, payload: bytes) -> None:
        self.heard += 1

    def on_digit(self, digit: str) -> None:
        assert digit in "0123456789*#ABCD"

    def on_round_trip(self, seconds: float) -> None:
        assert 0 <= seconds < 61

    def send_rtp(self, datagram: bytes) -> bool:
        rtp.parse(datagram)
        return True

    def send_rtcp(self, datagram: bytes) -> None:
        self.sent.append(datagram)
        rtcp.parse(datagram)


def run_rtp(data: bytes) -> None:
    """A session takes any datagrams at any times: it raises nothing, and makes up a bounded number of frames."""
    call = _Call()
    terms = RtpTerms(
        audio=AudioFormat(),
        send_type=0,
        receives={0: AudioFormat()},
        dtmf=(101, 8000),
        receives_dtmf={101: 8000},
        noise_type=13,
    )
    session = RtpSession(terms, call, call, name="x", now=0.0, wall=1.7e9, luck=random.Random(1))
    now, datagrams = 0.0, parts(data)
    for datagram in datagrams:
        if not datagram:
            continue
        now += datagram[0] / 1000
        session.receive(datagram[1:], now)
        if session.deadline() <= now:
            session.on_timer(now)
    session.close(now)
    _ = session.stats
    assert call.heard <= 110 * len(datagrams), f"{call.heard} frames of {len(datagrams)} datagrams"
    for datagram in datagrams:
        with contextlib.suppress(ProtocolError):
            packet = rtp.parse(datagram)
            assert len(packet.payload) <= len(datagram) - 12


def run_rtcp(data: bytes) -> None:
    """A packet that was read and written again reads the same."""
    try:
        reports = rtcp.parse(data)
    except ProtocolError:
        return
    written = b"".join(map(rtcp.serialise, reports))
    assert not reports or rtcp.parse(written) == reports


def run_jitter(data: bytes) -> None:
    """Packets leave in order, each once, and none that never came."""
    order, now = JitterBuffer(8000), 0.0
    out: list[bytes] = []
    came: dict[bytes, int] = {}
    for number, (step, skew, wait) in enumerate(struct.iter_unpack("!bhB", data[: len(data) // 4 * 4])):
        now += wait / 500
        sequence = (number + step) & 0xFFFF
        name = struct.pack("!IH", number, sequence)
        came[name] = number
        out += order.add(sequence, (sequence * 160 + skew) & 0xFFFFFFFF, name, now=now)
        if order.deadline is not None and order.deadline <= now:
            out += order.expire(now=now)
        assert len(order._waiting) <= JitterBuffer._MAX_WAITING + 1
    got = [name for name in out if name != LOST]
    assert len(got) == len(set(got)) and came.keys() >= set(got)
    sequences = [struct.unpack("!IH", name)[1] for name in got]
    for before, after in zip(sequences, sequences[1:], strict=False):
        ahead = (after - before) & 0xFFFF
        assert 0 < ahead < 0x8000 or ahead >= 0x10000 - 300 or ahead >= JitterBuffer._RESTART, (before, after)


class _Ice(IceConnection):
    """A connection without sockets: it takes what its socket would pass on."""

    def __init__(self) -> None:
        super().__init__(IceSettings(), on_media=lambda data: True)
        self._local_username, self._local_password = "ours", "p" * 22

    def data_received(self, data: bytes, component: int) -> None:
        assert isinstance(data, bytes)


class _Out(asyncio.DatagramTransport):
    def __init__(self) -> None:
        self.answers = 0

    def sendto(self, data: bytes, addr: object = None) -> None:
        self.answers += 1


_OURS = Candidate("1", 1, "udp", 1, "192.0.2.9", 5000, "host")
_LOOP = asyncio.new_event_loop()


def run_stun(data: bytes) -> None:
    """Any datagram on a browser's socket is taken or dropped."""

    async def receive() -> None:
        ice = _Ice()
        socket = _Socket(ice, None)  # type: ignore[arg-type]
        socket.connection_made(_Out())
        socket.local_candidate = _OURS
        for datagram in parts(data):
            socket.datagram_received(datagram, ("192.0.2.4", 4000))
        socket.connection_lost(None)

    _LOOP.run_until_complete(receive())


_FORMATS = [AudioFormat(), AudioFormat("PCMA"), AudioFormat("G722", 16000), AudioFormat("OPUS", 48000)]
_FORMATS += [AudioFormat("OPUS", 24000), AudioFormat("L16", 16000)]


def run_payload(data: bytes) -> None:
    """A payload is sound of a bounded length, or a ``ValueError``."""
    fmt = _FORMATS[data[0] % len(_FORMATS)] if data else _FORMATS[0]
    hear = decoder(fmt)
    for payload in parts(data[1:]):
        with contextlib.suppress(ValueError):
            pcm = hear.decode(payload)
            assert pcm.dtype == np.int16 and pcm.ndim == 1 and len(pcm) <= max(2 * len(payload), 0.12 * fmt.sample_rate)


TARGETS = [
    Target(
        name="rtp", run=run_rtp, without_text=_SOUND,
        seeds=(case(*(b"\x14" + one for one in (RTP, EXTENDED, EVENT, NOISE, SR, RR))),),
        covers=("gateway/media/rtp.py", "gateway/media/rtp_session.py", "gateway/media/dtmf.py",
                "codecs/voicecodecs/comfort_noise.py"),
    ),
    Target(
        name="rtcp", run=run_rtcp, without_text=_SOUND,
        seeds=(SR + BYE, RR + BYE, SR + RR), covers=("gateway/media/rtcp.py",),
    ),
    Target(
        name="jitter-buffer", run=run_jitter, without_text=_SOUND, covers=("gateway/media/jitter_buffer.py",),
        seeds=(bytes(4 * 40), bytes((1, 0, 0, 10, 255, 0, 0, 10, 0, 0, 160, 5)) * 8, bytes((60, 0, 0, 50)) * 30),
    ),
    Target(
        name="stun", run=run_stun, without_text="datagrams are passed on or answered with bytes",
        covers=("gateway/webrtc/ice.py",), seeds=(CHECK, ANSWER, case(CHECK, ANSWER)),
        words=(b"\x21\x12\xa4\x42", b"\x00\x24", b"\x80\x28", b"\x80\x2a", b"\x00\x08"),
    ),
    Target(
        name="caller-audio", run=run_payload, without_text=_SOUND,
        wanted=10_000, quick=150, covers=("codecs/voicecodecs/*.py",),
        seeds=(*(bytes((at,)) + case(bytes(160), bytes(80)) for at in range(6)), b"\x03" + case(b"\xf8\xff\xfe",
               b"\x78\x01")),
    ),
]  # fmt: skip
