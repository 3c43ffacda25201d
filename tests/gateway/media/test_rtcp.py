"""RTCP: packets byte by byte, two reporters against each other on a virtual clock, garbage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProtocolError
from gateway.media.rtcp import (
    Goodbye,
    ReceiverReport,
    Report,
    ReportBlock,
    Reporter,
    SenderReport,
    is_rtcp,
    parse,
    serialise,
)
from gateway.media.rtp import IncomingStream, OutgoingStream
from gateway.media.rtp import parse as parse_rtp

WALL = 1_700_000_000.0


def stream(ssrc: int) -> OutgoingStream:
    return OutgoingStream(ssrc=ssrc, payload_type=0, clock_hz=8000, frame_s=0.02, sequence=100, timestamp=5000)


def test_a_sender_report_byte_by_byte() -> None:
    block = ReportBlock(0xAABBCCDD, 64, -2, 0x10005, 160, 0x11112222, 0x8000)
    data = serialise(SenderReport(1, 0xE0000000_80000000, 160, 2, 320, (block,)))
    assert data == bytes.fromhex(
        "81c8000c 00000001 e000000080000000 000000a0 00000002 00000140"
        "aabbccdd 40fffffe 00010005 000000a0 11112222 00008000"
    )
    assert parse(data) == [SenderReport(1, 0xE0000000_80000000, 160, 2, 320, (block,))]


def test_a_compound_with_kinds_that_do_not_concern_us() -> None:
    names = bytes.fromhex("81ca0002 00000001 01020000")
    app = bytes.fromhex("80cc0001 00000001")
    data = serialise(ReceiverReport(1)) + names + app + serialise(Goodbye((1, 2)))
    assert parse(data) == [ReceiverReport(1), Goodbye((1, 2))]


@pytest.mark.parametrize(
    "data",
    [
        "",
        "81c8",
        "01c90001 00000001",  # version 0
        "80c90002 00000001",  # longer than it is
        "81c90001 00000001",  # a block that is not there
        "80c80001 00000001",  # a sender report without its numbers
        "82cb0001 00000001",  # one source of two
        "80c90001 00000001 80",
    ],
)
def test_malformed(data: str) -> None:
    with pytest.raises(ProtocolError, match="RTCP"):
        parse(bytes.fromhex(data))


def test_told_apart_from_rtp_on_one_port() -> None:
    assert is_rtcp(serialise(ReceiverReport(1)))
    assert not is_rtcp(stream(1).packet(b"x", now=0.0))
    assert not is_rtcp(b"")


def test_two_ends_measure_loss_and_round_trip() -> None:
    """20 ms each way; every fourth packet from us is lost, none from the peer."""
    ours, theirs = stream(1), stream(2)
    us = Reporter(ours, "us", now=100.0, wall=WALL, share=0.5)
    peer = Reporter(theirs, "peer", now=7000.0, wall=12345.0, share=0.5)  # another monotonic clock, another wall clock
    from_us, from_peer = IncomingStream(ssrc=1, clock_hz=8000), IncomingStream(ssrc=2, clock_hz=8000)
    for index in range(100):
        at = index * 0.02
        packet = parse_rtp(ours.packet(bytes(160), now=100.0 + at))
        if index % 4 != 1:
            from_us.add(packet.sequence, packet.timestamp, now=7000.02 + at)
        packet = parse_rtp(theirs.packet(bytes(160), now=7000.0 + at))
        from_peer.add(packet.sequence, packet.timestamp, now=100.02 + at)
    report = us.report([from_peer], now=102.5, share=0.5)
    assert peer.received(report, now=7002.52) is None
    (sender,) = parse(report)
    assert isinstance(sender, SenderReport)
    assert (sender.packets, sender.octets, sender.blocks[0].lost) == (100, 16000, 0)
    # The talkspurt of 2 s began at 100.0; the timestamp runs on through the silence after it.
    assert sender.rtp_timestamp == 5000 + round(2.5 * 8000)
    assert sender.ntp >> 32 == int(WALL + 2.5) + 2_208_988_800
    trip_s = us.received(peer.report([from_us], now=7003.52, share=0.5), now=103.54)
    assert us.remote is not None
    assert (us.remote.ssrc, us.remote.fraction_lost, us.remote.lost) == (1, 64, 25)
    assert us.round_trip_s == trip_s == pytest.approx(0.04, abs=0.001)
    assert peer.round_trip_s is None  # it had told nothing before our report


def test_when_reports_are_due() -> None:
    assert [Reporter(stream(1), "us", now=10.0, wall=WALL, share=share).due for share in (0.0, 1.0)] == [11.25, 13.75]
    assert Reporter(stream(1), "us", now=10.0, wall=WALL, share=0.0, every_s=1.0).due == 10.25
    reporter = Reporter(stream(1), "us", now=10.0, wall=WALL, share=0.0)
    for share, due in ((0.0, 22.5), (1.0, 27.5)):
        reporter.report([], now=20.0, share=share)
        assert reporter.due == due


def test_goodbye_comes_last_in_a_compound() -> None:
    data = Reporter(stream(9), "us", now=0.0, wall=WALL, share=0.0).goodbye([], now=1.0)
    assert parse(data) == [ReceiverReport(9), Goodbye((9,))]
    assert data[1] == 201 and data[8:].startswith(bytes.fromhex("81ca0003 00000009 01027573"))
    assert len(data) % 4 == 0


def test_a_report_of_another_stream_or_an_impossible_time_is_not_ours() -> None:
    reporter = Reporter(stream(1), "us", now=0.0, wall=WALL, share=0.0)
    reporter.report([], now=1.0, share=0.0)
    for block in (ReportBlock(7, 0, 0, 0, 0, 1, 0), ReportBlock(1, 0, 0, 0, 0, 0, 0), ReportBlock(1, 0, 0, 0, 0, 1, 0)):
        reporter.received(serialise(ReceiverReport(2, (block,))), now=2.0)
    told = int((1.0 + WALL + 2_208_988_800) * 65536)
    for last_report, now in ((told + 99 * 65536, 2.0), (told, 62.0)):  # from the future, and more than a minute
        reporter.round_trip_s = None
        block = ReportBlock(1, 0, 0, 0, 0, last_report & 0xFFFFFFFF, 0)
        reporter.received(serialise(ReceiverReport(2, (block,))), now=now)
        assert reporter.round_trip_s is None


BLOCKS = st.builds(
    ReportBlock,
    *[st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(-(2**23), 2**23 - 1)],
    *[st.integers(0, 2**32 - 1)] * 4,
)
WORD = st.integers(0, 2**32 - 1)
REPORTS = st.one_of(
    st.builds(
        SenderReport, WORD, st.integers(0, 2**64 - 1), WORD, WORD, WORD, st.lists(BLOCKS, max_size=31).map(tuple)
    ),
    st.builds(ReceiverReport, WORD, st.lists(BLOCKS, max_size=31).map(tuple)),
    st.builds(Goodbye, st.lists(WORD, max_size=31).map(tuple)),
)


@given(st.lists(REPORTS, min_size=1, max_size=4))
def test_round_trip_of_any_compound(reports: list[Report]) -> None:
    assert parse(b"".join(map(serialise, reports))) == reports


@given(st.binary(max_size=80), st.integers(200, 207), st.integers(0, 20))
def test_garbage_raises_only_protocol_error(data: bytes, kind: int, words: int) -> None:
    for packet in (data, struct.pack("!BBH", 0x81, kind, words) + data):
        try:
            parse(packet)
        except ProtocolError:
            pass
