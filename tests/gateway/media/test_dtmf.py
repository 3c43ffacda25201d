"""Touch tones as RTP events, out and in."""

import random
import struct

import pytest

from gateway.media.dtmf import DIGITS, KeysByTwoWays, TelephoneEvents, event_packets
from gateway.media.rtp import OutgoingStream, RtpPacket, parse


def sent(digits: str, clock_hz: int = 8000) -> list[RtpPacket]:
    stream = OutgoingStream(ssrc=1, payload_type=0, clock_hz=clock_hz, frame_s=0.02, sequence=9, timestamp=0xFFFFFF00)
    stream.packet(bytes(160), now=99.98)
    return [
        parse(stream.event(101, packet.payload, begins=packet.begins, now=100.0 + packet.at_s))
        for packet in event_packets(digits, clock_hz)
    ]


def heard(packets: list[RtpPacket], clock_hz: int = 8000) -> str:
    """Digits of packets that come 20 ms apart."""
    events = TelephoneEvents()
    return "".join(
        events.add(packet.timestamp, packet.payload, sequence=packet.sequence, now=0.02 * n, clock_hz=clock_hz) or ""
        for n, packet in enumerate(packets)
    )


def test_one_digit_packet_by_packet() -> None:
    packets = list(event_packets("5", 8000, tone_ms=100))
    assert [packet.at_s for packet in packets] == [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14]
    assert [packet.payload.hex() for packet in packets] == [
        "050a00a0", "050a0140", "050a01e0", "050a0280", "050a0320", "058a0320", "058a0320", "058a0320",
    ]  # fmt: skip
    assert [packet.begins for packet in packets] == [True] + [False] * 7


def test_every_key_arrives_once() -> None:
    for clock_hz in (8000, 48000):
        assert heard(sent("0123456789*#ABCDabcd", clock_hz), clock_hz) == "0123456789*#ABCDABCD"


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
    assert TelephoneEvents().add(1, payload, sequence=1, now=0.0) is None


def test_a_bad_digit_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ValueError, match="character 2 of 4 is not a key") as caught:
        list(event_packets("12x4", 8000))
    assert "x" not in str(caught.value).replace("expected", "")


def test_a_tone_too_long_for_one_event() -> None:
    with pytest.raises(ValueError, match="expected 20 to 1365 at 48000 Hz"):
        list(event_packets("1", 48000, tone_ms=1400))


# --- senders and relays that number in their own way ---------------------------------------------------------------

Numbered = tuple[float, int, int, str, bool, int]
"""One packet: arrival in seconds, sequence number, timestamp, key, end bit, duration in clock units."""


def press(
    key: str,
    at_s: float,
    *,
    sequence: int,
    timestamp: int | None = None,
    tone_ms: int = 160,
    step_ms: int = 20,
    ends: int = 3,
    advance: str = "never",
    wraps: int = 0x10000,
) -> list[Numbered]:
    """Packets of a key that is pressed at ``at_s``.

    Args:
        timestamp: of the first packet; by default the time of the key.
        advance: the packets with timestamps of their own: ``never``, ``always``, ``ends``, ``last ends``.
        wraps: durations are taken modulo this.
    """
    begin = round(at_s * 8000) if timestamp is None else timestamp
    packets = []
    steps = tone_ms // step_ms
    for n in range(steps + ends):
        end = n >= steps
        advances = advance == "always" or (end and (advance == "ends" or (advance == "last ends" and n > steps)))
        packets.append((
            at_s + n * step_ms / 1000,
            sequence + n,
            begin + (n * step_ms * 8 if advances else 0),
            key,
            end,
            min(n + 1, steps) * step_ms * 8 % wraps,
        ))  # fmt: skip
    return packets


def decoded(packets: list[Numbered], *, begin: int = 0xFFFFF000) -> str:
    """Digits of packets; their timestamps wrap on the way."""
    events = TelephoneEvents()
    keys = ""
    for at, sequence, timestamp, key, end, duration in packets:
        payload = struct.pack("!BBH", DIGITS.index(key), 0x80 * end | 10, duration)
        keys += events.add((begin + timestamp) & 0xFFFFFFFF, payload, sequence=sequence & 0xFFFF, now=at) or ""
    return keys


def without(packets: list[Numbered], *positions: int) -> list[Numbered]:
    return [packet for n, packet in enumerate(packets) if n not in positions]


def renumbered(packets: list[Numbered], timestamp: int, *positions: int) -> list[Numbered]:
    return [(*p[:2], timestamp + n, *p[3:]) if n in positions else p for n, p in enumerate(packets)]


TWICE = [*press("5", 0.0, sequence=65530), *press("5", 0.3, sequence=65545)]

CASES: dict[str, tuple[str, list[Numbered]]] = {
    "as RFC 4733 says": ("55", TWICE),
    "every packet has a new timestamp": (
        "5542",
        [
            packet
            for n, key in enumerate("5542")
            for packet in press(key, 0.3 * n, sequence=20 * n, advance="always")
        ],
    ),
    "the end packets have new timestamps": (
        "55",
        [*press("5", 0.0, sequence=0, advance="ends"), *press("5", 0.3, sequence=20, advance="ends")],
    ),
    "the repeated end packets have new timestamps": (
        "55",
        [*press("5", 0.0, sequence=0, advance="last ends"), *press("5", 0.3, sequence=20, advance="last ends")],
    ),
    "the repeated end packets have timestamps of another clock": (
        "5", renumbered(press("5", 0.0, sequence=0), 77_777_777, 9, 10)
    ),
    "the repeated end packets have older timestamps": ("5", renumbered(press("5", 1.0, sequence=0), 100, 9, 10)),
    "a long key whose end packets have new timestamps": (
        "5", press("5", 0.0, sequence=0, tone_ms=3000, advance="ends")
    ),
    "no end packets": ("55", [*press("5", 0.0, sequence=0, ends=0), *press("5", 0.3, sequence=20, ends=0)]),
    "no end packets, short pause": (
        "55",
        [*press("5", 0.0, sequence=0, tone_ms=80, ends=0), *press("5", 0.13, sequence=20, tone_ms=80, ends=0)],
    ),
    "lost end packets": ("55", [*TWICE[:8], *TWICE[11:]]),
    "the first packets are lost": ("55", without(TWICE, *range(0, 8), *range(11, 19))),
    "only end packets, once each": (
        "555", [packet for n in range(3) for packet in press("5", 0.2 * n, sequence=20 * n, ends=1)[-1:]]
    ),
    "only end packets, three each": (
        "555", [packet for n in range(3) for packet in press("5", 0.25 * n, sequence=20 * n)[-3:]]
    ),
    "one packet and one end much later": ("5", without(press("5", 0.0, sequence=0, tone_ms=4000), *range(1, 200))),
    "the duration wraps": ("5", press("5", 0.0, sequence=0, tone_ms=10_000, wraps=0x10000)),
    "the event continues in a segment": (
        "5",
        [
            *press("5", 0.0, sequence=0, tone_ms=8180, ends=0),
            *press("5", 8.18, sequence=409, timestamp=65440, tone_ms=400),
        ],
    ),
    "the event continues in a segment of the longest duration, and packets are lost": (
        "5",
        [
            *press("5", 0.0, sequence=0, tone_ms=8100, ends=0),
            *press("5", 8.3, sequence=415, timestamp=0xFFFF, tone_ms=400)[2:],
        ],
    ),
    "all keys have one timestamp": (
        "1225",
        [
            packet
            for n, key in enumerate("1225")
            for packet in press(key, 0.3 * n, sequence=20 * n, timestamp=0)
        ],
    ),
    "another key with the timestamp of the last": (
        "12", [*press("1", 0.0, sequence=0, timestamp=0), *press("2", 0.3, sequence=20, timestamp=0)]
    ),
    "the clock starts anew": (
        "55", [*press("5", 0.0, sequence=0, timestamp=900_000), *press("5", 5.0, sequence=200, timestamp=0)]
    ),
    "every packet twice": ("55", [packet for packet in TWICE for _ in range(2)]),
    "neighbours in the wrong order": (
        "55", [packet for n in range(0, 22, 2) for packet in (TWICE[n + 1], TWICE[n])]
    ),
    "the duration stays while timestamps advance": (
        "55",
        [
            (at, sequence, timestamp, key, end, 160)
            for n in range(2)
            for at, sequence, timestamp, key, end, _ in press("5", 0.3 * n, sequence=20 * n, advance="always")
        ],
    ),
    "every event is numbered from the same sequence number": (
        "552", [packet for n, key in enumerate("552") for packet in press(key, 0.3 * n, sequence=1)]
    ),
    "all packets have one sequence number": (
        "552",
        [(at, 7, *p) for n, key in enumerate("552") for at, _, *p in press(key, 0.3 * n, sequence=0)],
    ),
    "the numbering jumps back between two keys": (
        "56", [*press("5", 0.0, sequence=500), *press("6", 0.3, sequence=460)]
    ),
    "packets every 50 ms": (
        "55",
        [*press("5", 0.0, sequence=0, tone_ms=250, step_ms=50), *press("5", 0.6, sequence=20, tone_ms=250, step_ms=50)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_digit_a_key_whatever_the_numbering(case: str) -> None:
    keys, packets = CASES[case]
    assert decoded(packets) == keys


@pytest.mark.parametrize("case", [case for case in CASES if "lost" not in case])
@pytest.mark.parametrize("lost", range(0, 12))
def test_a_lost_packet_makes_no_digit_more_or_less(case: str, lost: int) -> None:
    keys, packets = CASES[case]
    if len(packets) <= 3:
        return
    assert decoded(without(packets, lost)) == keys


@pytest.mark.parametrize(
    ("came", "counted"),
    [
        ([(0.0, "1", "RTP"), (0.1, "1", "INFO"), (0.3, "1", "RTP"), (0.4, "1", "INFO")], "11"),
        ([(0.0, "1", "INFO"), (0.1, "1", "RTP"), (0.3, "2", "INFO"), (0.4, "2", "RTP")], "12"),
        ([(0.0, "1", "RTP"), (0.2, "1", "RTP"), (0.3, "1", "INFO"), (0.5, "1", "INFO")], "11"),
        ([(0.0, "1", "RTP"), (0.2, "2", "RTP"), (0.3, "1", "INFO"), (0.5, "2", "INFO")], "12"),
        ([(0.0, "1", "INFO"), (0.3, "2", "RTP"), (0.6, "3", "INFO")], "123"),
        ([(0.0, "1", "INFO"), (2.5, "1", "RTP"), (5.0, "1", "INFO")], "111"),
        ([(0.0, "1", "INFO"), (0.1, "1", "INFO")], "11"),
    ],
)
def test_a_key_that_comes_by_two_ways_counts_once(came: list[tuple[float, str, str]], counted: str) -> None:
    keys = KeysByTwoWays()
    assert "".join(digit for now, digit, by in came if keys.is_new(digit, by, now=now)) == counted


def test_after_a_new_agreement_the_same_key_by_another_way_counts() -> None:
    keys = KeysByTwoWays()
    assert keys.is_new("1", "INFO", now=0.0)
    keys.clear()
    assert keys.is_new("1", "RTP", now=0.1)
