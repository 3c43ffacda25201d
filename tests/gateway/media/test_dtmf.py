"""Touch tones as RTP events, out and in."""

import random

import pytest

from gateway.media.dtmf import TelephoneEvents, event_packets
from gateway.media.rtp import OutgoingStream, RtpPacket, parse


def sent(digits: str, clock_hz: int = 8000) -> list[RtpPacket]:
    stream = OutgoingStream(ssrc=1, payload_type=0, clock_hz=clock_hz, frame_s=0.02, sequence=9, timestamp=0xFFFFFF00)
    stream.packet(bytes(160), now=99.98)
    return [
        parse(stream.event(101, packet.payload, begins=packet.begins, now=100.0 + packet.at_s))
        for packet in event_packets(digits, clock_hz)
    ]


def heard(packets: list[RtpPacket]) -> str:
    events = TelephoneEvents()
    return "".join(events.add(packet.timestamp, packet.payload) or "" for packet in packets)


def test_one_digit_packet_by_packet() -> None:
    packets = list(event_packets("5", 8000, tone_ms=100))
    assert [packet.at_s for packet in packets] == [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14]
    assert [packet.payload.hex() for packet in packets] == [
        "050a00a0", "050a0140", "050a01e0", "050a0280", "050a0320", "058a0320", "058a0320", "058a0320",
    ]  # fmt: skip
    assert [packet.begins for packet in packets] == [True] + [False] * 7


def test_every_key_arrives_once() -> None:
    for clock_hz in (8000, 48000):
        assert heard(sent("0123456789*#ABCDabcd", clock_hz)) == "0123456789*#ABCDABCD"


def test_the_same_key_twice_is_two_digits() -> None:
    assert heard(sent("11w1")) == "111"


def test_packets_of_one_digit_share_its_time() -> None:
    packets = sent("1w2")
    times = list(dict.fromkeys(packet.timestamp for packet in packets))
    assert len(times) == 2
    # 8 steps of tone, two more of its end, the gap and the pause: 200 + 80 + 500 ms.
    assert (times[1] - times[0]) & 0xFFFFFFFF == 780 * 8
    assert [packet.sequence for packet in packets] == list(range(10, 10 + len(packets)))


def test_audio_after_a_digit_begins_a_talkspurt_on_the_same_clock() -> None:
    stream = OutgoingStream(ssrc=1, payload_type=0, clock_hz=8000, frame_s=0.02, sequence=0, timestamp=0)
    first = stream.event(101, bytes(4), begins=True, now=10.0)
    second = stream.event(101, bytes(4), begins=False, now=10.1)
    audio = stream.packet(bytes(160), now=10.5)
    assert [data[1] >> 7 for data in (first, second, audio)] == [1, 0, 1]
    assert [parse(data).timestamp for data in (first, second, audio)] == [0, 0, 4000]


@pytest.mark.parametrize("seed", range(20))
def test_loss_and_reordering_make_no_digit_twice(seed: int) -> None:
    rng = random.Random(seed)
    packets = sent("4711")
    kept = [packet for packet in packets if rng.random() > 0.3]
    kept += rng.sample(kept, 5)  # duplicates
    at = {id(packet): packet.sequence + rng.random() * 3 for packet in kept}
    assert heard(sorted(kept, key=lambda packet: at[id(packet)])) == "4711"


def test_the_late_end_of_a_digit_after_the_next_began() -> None:
    packets = sent("12")
    end = packets[10]
    assert heard([*packets[:10], *packets[11:15], end, *packets[15:]]) == "12"


@pytest.mark.parametrize("payload", [b"", b"\x01\x0a\x00", b"\x10\x0a\x00\xa0", b"\xff\xff\xff\xff"])
def test_what_is_no_digit(payload: bytes) -> None:
    assert TelephoneEvents().add(1, payload) is None


def test_a_bad_digit_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ValueError, match="character 2 of 4 is not a key") as caught:
        list(event_packets("12x4", 8000))
    assert "x" not in str(caught.value).replace("expected", "")


def test_a_tone_too_long_for_one_event() -> None:
    with pytest.raises(ValueError, match="expected 20 to 1365 at 48000 Hz"):
        list(event_packets("1", 48000, tone_ms=1400))
