"""RTP legs over real sockets: two of our legs, agreed by offer and answer, and strangers."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from gateway.media import rtp_session
from gateway.media.latch import Latch
from gateway.media.rtcp import is_rtcp
from gateway.media.rtp import OutgoingStream
from gateway.media.srtp import Srtp
from sip_bridge.io.ports import PortPool
from sip_bridge.io.rtp_leg import RtpLeg, _Port
from sip_bridge.message.sdp import Direction, Negotiation, parse
from tests.waiting import PATIENCE_S, until
from voicecodecs.g711 import decode_ulaw


class Heard:
    """The reports of a leg."""

    listening = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.digits = ""
        self.silent = 0
        self.closed: list[str] = []
        self.changed = asyncio.Event()

    def on_audio(self, payload: bytes) -> None:
        if payload == bytes([0xFF]) * 160:
            self.silent += 1  # also what stands for a sender that has stopped
        else:
            self.frames.append(payload)
        self.changed.set()

    def on_digit(self, digit: str) -> None:
        self.digits += digit
        self.changed.set()

    def on_round_trip(self, seconds: float) -> None: ...

    def on_leg_closed(self, reason: str) -> None:
        self.closed.append(reason)
        self.changed.set()

    async def until(self, frames: int = 0, digits: str = "", closed: int = 0) -> None:
        while len(self.frames) < frames or self.digits != digits or len(self.closed) < closed:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), PATIENCE_S)


POOL = PortPool("127.0.0.1", 41000, 41999)


@asynccontextmanager
async def call(srtp: str = "optional", silence_s: float = 30.0) -> AsyncIterator[tuple[RtpLeg, RtpLeg, Heard, Heard]]:
    ports = (POOL.take(), POOL.take())
    sides = [Negotiation(host="127.0.0.1", port=pair.port, srtp=srtp) for pair in ports]  # type: ignore[arg-type]
    sides[0].accept(parse(sides[1].answer(parse(sides[0].offer()))))
    heard = [Heard(), Heard()]
    legs = [RtpLeg(each, Latch("any"), silence_s=silence_s) for each in heard]
    try:
        for leg, side, pair in zip(legs, sides, ports, strict=True):
            leg.open(pair)
            assert side.agreed is not None
            leg.negotiated(side.agreed)
        yield legs[0], legs[1], heard[0], heard[1]
    finally:
        for leg in legs:
            leg.close()


@pytest.mark.parametrize("srtp", ["optional", "required"])
async def test_frames_and_digits_arrive(srtp: str) -> None:
    async with call(srtp) as (ours, theirs, heard, told):
        for index in range(5):
            assert ours.send_frame(bytes([index]) * 160, time.monotonic())
        await told.until(frames=5)
        assert [frame[0] for frame in told.frames] == list(range(5))
        assert ours.send_dtmf("1#")
        assert ours.send_frame(bytes(160), time.monotonic())  # the digit stands in its place
        await told.until(frames=5, digits="1#")
        assert theirs.send_frame(bytes(160), time.monotonic())
        await heard.until(frames=1)


async def test_a_new_key_of_one_side_does_not_restart_the_count_of_the_other() -> None:
    """Issues 2682 of pjsip/pjproject and 1443 of sipwise/rtpengine: after a long call, its sound ends with a re-INVITE
    in which one side has a new key."""
    async with call("required") as (ours, theirs, heard, told):
        assert ours.session is not None and theirs.session is not None
        ours.session.outgoing._sequence = 0xFFFE
        for index in range(4):  # the numbers begin again from zero
            ours.send_frame(bytes([index]) * 160, time.monotonic())
        await told.until(frames=4)
        assert ours._agreed is not None and theirs._agreed is not None and theirs._agreed.send_crypto is not None
        fresh = replace(theirs._agreed.send_crypto, key=bytes(len(theirs._agreed.send_crypto.key)))
        assert theirs._agreed.receive_crypto is not None and theirs.session.srtp is not None
        counted, peers = (
            theirs.session.srtp,
            Srtp.keyed(fresh.suite, send_key=fresh.key, receive_key=theirs._agreed.receive_crypto.key),
        )
        peers.keep(counted, outgoing=False, incoming=True)
        theirs.session.srtp = peers
        ours.negotiated(replace(ours._agreed, receive_crypto=fresh))
        ours.send_frame(bytes([4]) * 160, time.monotonic())
        theirs.send_frame(bytes([5]) * 160, time.monotonic())
        await told.until(frames=5)
        await heard.until(frames=1)
        assert told.frames[-1][0] == 4 and heard.frames[-1][0] == 5


async def test_what_is_no_rtp_of_the_call_is_dropped() -> None:
    async with call("required") as (ours, theirs, heard, _):
        assert theirs.session is not None and theirs._latch.remote is not None
        plain = theirs.session.outgoing.packet(bytes(160), now=0.0)
        for junk in (b"", b"x", plain, b"\x80\xc8\0\x01" + bytes(4), bytes(2000)):
            theirs._rtp.send(junk, theirs._latch.remote)
        theirs.send_frame(bytes(160), time.monotonic())
        await heard.until(frames=2)
        assert ours.session is not None and ours.session.dropped.total() >= 3
        assert heard.frames == [b"", bytes(160)]  # the one that did not come encrypted counts as lost


async def test_a_stranger_is_not_heard_once_the_caller_was() -> None:
    async with call() as (ours, theirs, heard, _):
        theirs.send_frame(b"\x01" * 160, time.monotonic())
        await heard.until(frames=1)
        assert theirs.session is not None and theirs._latch.remote is not None
        copy = OutgoingStream(
            ssrc=theirs.session.outgoing.ssrc, payload_type=0, clock_hz=8000, frame_s=0.02, sequence=1, timestamp=1
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.1", 0))
            for _ in range(10):
                stranger.sendto(copy.packet(b"\x02" * 160, now=0.0), theirs._latch.remote)
        theirs.send_frame(b"\x03" * 160, time.monotonic())
        await heard.until(frames=2)
        assert {frame[0] for frame in heard.frames} == {1, 3}
        assert ours.session is not None and ours.session.dropped == {"stranger": 10}


async def test_nothing_is_sent_on_hold_and_it_goes_on_after() -> None:
    async with call() as (ours, _, _, told):
        agreed = ours._agreed
        assert agreed is not None
        assert ours.session is not None
        stream = ours.session.outgoing
        ours._latch.remote = followed = ("127.0.0.1", 9)
        for host in (agreed.host, "0.0.0.0"):
            ours.negotiated(replace(agreed, host=host, direction=Direction.RECVONLY))
            assert not ours.send_frame(bytes(160), time.monotonic())
            assert not ours.send_dtmf("1")
            assert ours._latch.remote == followed
        ours._latch.remote = ("127.0.0.1", agreed.port)
        ours.negotiated(agreed)
        assert ours.session.outgoing is stream
        assert ours.send_frame(bytes(160), time.monotonic())
        await told.until(frames=1)


async def test_silence_ends_the_media_but_not_on_hold() -> None:
    async with call(silence_s=0.0) as (_, _, heard, _):
        await heard.until(closed=1)
        assert heard.closed == ["media timeout"]


@pytest.mark.parametrize("rings_s", [0.0, 31.0, 55.0, 170.0])
async def test_silence_counts_from_the_answer_on(rings_s: float) -> None:
    """Issue 710 of asterisk/asterisk: a call that had rung for longer than the timeout ended with its answer."""
    async with call(silence_s=30.0) as (ours, _, heard, _):
        assert ours.session is not None
        began = ours.session.heard_at
        answered_at = began + rings_s
        ours._answered = lambda: now > answered_at
        now = began
        while now < answered_at + 29.9:
            ours.on_timer(now)
            now += 0.1
        assert heard.closed == []
        ours.on_timer(answered_at + 30.2)
        assert heard.closed == ["media timeout"]


@pytest.mark.parametrize("direction", [Direction.SENDONLY, Direction.INACTIVE])
async def test_a_peer_that_only_listens_is_not_missed(direction: Direction) -> None:
    """Issue 90 of AlticeLabsPublic/asterisk-i, issue 2172 of BelledonneCommunications/linphone-android."""
    async with call(silence_s=30.0) as (ours, _, heard, _):
        assert ours.session is not None and ours._agreed is not None
        ours.negotiated(replace(ours._agreed, direction=direction))
        ours.on_timer(ours.session.heard_at + 3600)
        assert heard.closed == []


async def test_a_report_is_due_and_the_last_one_says_goodbye() -> None:
    async with call() as (ours, theirs, heard, _):
        reports: list[bytes] = []
        received = theirs._rtcp._receive
        theirs._rtcp._receive = lambda data, source: (reports.append(data), received(data, source))[1]  # type: ignore[func-returns-value]
        ours.send_frame(bytes(160), time.monotonic())
        assert ours.session is not None
        ours.session.reporter.due = 0.0
        await until(lambda: reports, "a report")
        assert is_rtcp(reports[0]) and reports[0][1] == 200
        ours.close()
        await until(lambda: len(reports) == 2, "the last report")
        assert reports[1][-8:-4] == bytes.fromhex("81cb0001")


async def test_closing_gives_the_ports_back() -> None:
    async with call():
        assert POOL.in_use == 2
    assert POOL.in_use == 0


async def test_a_lost_packet_is_told_when_its_time_is_over_and_audio_goes_on() -> None:
    async with call() as (ours, _, _, told):
        assert ours.session is not None
        ours.send_frame(bytes(160), time.monotonic())
        ours.session.outgoing.packet(bytes(160), now=0.0)  # this number is never sent
        ours.send_frame(bytes([2]) * 160, time.monotonic())
        await told.until(frames=3)
        assert [frame[:1] for frame in told.frames] == [b"\0", b"", b"\2"]


async def test_a_sender_that_stops_is_heard_as_its_comfort_noise() -> None:
    async with call() as (ours, theirs, _, told):
        assert theirs._agreed is not None and theirs._agreed.noise_type == 13
        ours.send_frame(bytes(160), time.monotonic())
        await told.until(frames=20)
        pcm = np.concatenate([decode_ulaw(frame) for frame in told.frames[1:]]).astype(np.float64)
        assert 20 * np.log10(np.sqrt(np.mean(pcm**2)) / 32767) == pytest.approx(-70, abs=4)


async def test_silence_of_ours_keeps_the_way_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtp_session, "KEEP_ALIVE_S", 0.05)
    async with call() as (ours, theirs, _, told):
        await until(lambda: ours.session and ours.session.stats.packets_received >= 4, "packets")
        assert told.frames == [] and theirs.session is not None
        assert theirs.session.outgoing.octets == theirs.session.outgoing.packets  # comfort noise, a byte each


async def test_without_comfort_noise_the_way_is_kept_open_with_silent_audio() -> None:
    async with call() as (ours, _, _, told):
        assert ours._agreed is not None
        ours.negotiated(replace(ours._agreed, noise_type=None))
        await until(lambda: told.silent, "silent audio")


async def test_no_report_is_sent_where_no_port_is() -> None:
    """A peer may name the last port for its audio; its reports would have the next one."""
    async with call() as (ours, *_):
        assert ours._agreed is not None
        ours.negotiated(replace(ours._agreed, port=65535, rtcp_port=65536))
        ours.send_rtcp(b"report")


async def test_packets_that_wait_are_read_a_few_at_a_time_and_a_full_port_catches_up() -> None:
    """One packet a turn is less than comes, on a machine whose turns are long."""
    turn, read = 0, list[int]()

    def count(data: bytes, source: tuple[str, int]) -> None:
        read.append(turn)

    port, loop = _Port(count), asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours, socket.socket(type=socket.SOCK_DGRAM) as theirs:
        ours.bind(("127.0.0.1", 0))
        ours.setblocking(False)
        for _ in range(48):
            theirs.sendto(b"packet", ours.getsockname())
        port.open(ours, loop)
        async with asyncio.timeout(PATIENCE_S):
            while len(read) < 48:
                turn += 1
                await asyncio.sleep(0)
        port.close(loop)
    together = [read.count(number) for number in sorted(set(read))]
    assert together[:7] == [1] * 7 and max(together) == 3 and len(together) <= 22
