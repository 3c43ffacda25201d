import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ProtocolError
from gateway.media.rtp import IncomingStream, OutgoingStream, RtpPacket, parse


def stream(**changed: int) -> OutgoingStream:
    start = {"ssrc": 7, "payload_type": 111, "clock_hz": 48000, "sequence": 10, "timestamp": 1000} | changed
    return OutgoingStream(frame_s=0.02, **start)


def marker(packet: bytes) -> bool:
    return bool(packet[1] & 0x80)


def test_a_packet_is_read_back_as_it_was_written() -> None:
    assert parse(stream().packet(b"speech", now=5.0)) == RtpPacket(111, 10, 1000, 7, b"speech")


def test_frames_of_a_talkspurt_follow_each_other_by_the_timetable() -> None:
    out = stream()
    begun = 5000.1  # of a number that floats round
    packets = [out.packet(b"x", now=begun + 0.02 * n) for n in range(5000)]
    assert [parse(p).timestamp for p in packets] == [1000 + 960 * n for n in range(5000)]
    assert [marker(p) for p in packets] == [True] + [False] * 4999


def test_frames_that_are_sent_ahead_follow_each_other_too() -> None:
    out = stream()
    packets = [out.packet(b"x", now=at) for at in (5.0, 5.0, 5.0, 5.02, 5.041)]
    assert [parse(p).timestamp for p in packets] == [1000 + 960 * n for n in range(5)]
    assert [marker(p) for p in packets] == [True, False, False, False, False]


def test_a_talkspurt_that_begins_just_after_the_last_one_has_its_own_time() -> None:
    out = stream()
    out.packet(b"x", now=5.0)
    packets = [out.packet(b"x", now=at) for at in (5.025, 5.045)]
    assert [parse(p).timestamp for p in packets] == [1000 + 1200, 1000 + 1200 + 960]
    assert [marker(p) for p in packets] == [True, False]


def test_silence_advances_the_timestamp_and_the_next_talkspurt_is_marked() -> None:
    out = stream()
    out.packet(b"x", now=5.0)
    after = out.packet(b"x", now=8.02)  # due at 5.02: three seconds of silence
    assert parse(after).timestamp == 1000 + 960 + 3 * 48000
    assert parse(after).sequence == 11  # nothing was sent, so nothing is missing
    assert marker(after)


def test_the_sender_reports_clock_runs_on_through_silence() -> None:
    out = stream()
    out.packet(b"x", now=5.0)
    assert out.timestamp_at(5.0) == 1000
    assert out.timestamp_at(7.0) == 1000 + 2 * 48000


def test_numbers_wrap() -> None:
    out = stream(sequence=0x7FFF, timestamp=0xFFFFFFFF - 100)
    for n in range(0x8001):
        out.packet(b"x", now=n * 0.02)
    last = parse(out.packet(b"x", now=0x8001 * 0.02))
    assert last.sequence == 0
    assert last.timestamp == (0xFFFFFFFF - 100 + 0x8001 * 960) & 0xFFFFFFFF


@given(st.binary(max_size=60))
def test_any_bytes_are_a_packet_or_a_protocol_error(data: bytes) -> None:
    try:
        assert len(parse(data).payload) <= len(data)
    except ProtocolError:
        pass


def test_extensions_and_padding_are_left_out() -> None:
    header = bytes([0xB1, 0]) + bytes(10) + b"csrc" + b"\xbe\xde\x00\x01" + b"extn"
    assert parse(header + b"voice" + b"\0\0\x03").payload == b"voice"


@pytest.mark.parametrize("data", [b"", bytes(12), b"\x80" * 11, b"\x8f" + bytes(20), b"\x90" + bytes(13)])
def test_a_packet_that_ends_too_early_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(data)


def test_losses_and_jitter_are_counted_as_the_rfc_says() -> None:
    seen = IncomingStream(ssrc=1, clock_hz=8000)
    for n in range(65530, 65530 + 100):
        if n % 10:  # every tenth is lost
            seen.add(n & 0xFFFF, n * 160, now=n * 0.02)
    assert seen.expected == 99  # the last one seen ends the count, and 65530 itself was lost
    assert seen.lost == 9
    assert seen.fraction_lost() == (9 << 8) // 99
    assert seen.fraction_lost() == 0  # nothing since
    assert seen.jitter == pytest.approx(0, abs=1e-3)
    late = IncomingStream(ssrc=1, clock_hz=8000)
    for n in range(2000):
        late.add(n, n * 160, now=n * 0.02 + (0.01 if n % 2 else 0.0))
    assert late.jitter == pytest.approx(80, rel=0.01)  # 10 ms either way


@pytest.mark.parametrize("jump", [-30000, -3000, -1000, -101, 3000, 20000])
def test_a_sender_that_numbers_anew_loses_nothing_by_that(jump: int) -> None:
    """RFC 3550 appendix A.1: two packets in sequence begin a new numbering."""
    seen = IncomingStream(ssrc=1, clock_hz=8000)
    for n in range(500):
        seen.add((40_000 + n + (jump if n >= 100 else 0)) & 0xFFFF, n * 160, now=n * 0.02)
    assert (seen.expected, seen.lost) == (500, 0)
    assert seen.highest & 0xFFFF == (40_499 + jump) & 0xFFFF


def test_stray_and_late_packets_are_not_a_new_numbering() -> None:
    seen = IncomingStream(ssrc=1, clock_hz=8000)
    for n in [*range(200), 9000, 190, 191, 192]:
        seen.add(n, n * 160, now=4.0)
    assert seen.highest == 199


def test_a_lost_frame_leaves_its_number_and_its_time_out() -> None:
    out = stream()
    out.packet(b"x", now=5.0)
    out.skip(now=5.02)
    after = out.packet(b"x", now=5.04)
    assert (parse(after).sequence, parse(after).timestamp, marker(after)) == (12, 1000 + 2 * 960, False)
    out.skip(now=9.0)
    again = out.packet(b"x", now=9.0)
    assert (parse(again).sequence, marker(again)) == (13, True), "no receiver awaits a number after silence"
