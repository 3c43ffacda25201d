"""The arrival of a caller's sound: counts of RFC 3550, over several streams, and for messages without numbers."""

from __future__ import annotations

import pytest

from gateway.media.arrival import Arrival, MessageArrival
from gateway.media.rtp import IncomingStream
from voicecodecs.registry import AudioFormat


def stream(*packets: tuple[int, float], ssrc: int = 1) -> IncomingStream:
    """A stream of 20 ms of 8 kHz: number and lateness (s) of each packet that came."""
    made = IncomingStream(ssrc=ssrc, clock_hz=8000)
    for number, late_s in packets:
        made.add(number, number * 160, now=number * 0.02 + late_s)
    return made


def test_streams_of_a_call_are_added_up() -> None:
    arrival = Arrival()
    assert arrival.reception() is None
    arrival.begin(stream((0, 0.0), (1, 0.016), (3, 0.0)))  # one is lost; the others came 16 ms off each other
    arrival.begin(stream((7, 0.0), (8, 0.0), (9, 0.0), ssrc=2))
    arrival.remote = (4, 0.003)
    got = arrival.reception()
    assert got is not None
    assert (got.received, got.lost, got.remote_lost, got.remote_jitter_s) == (6, 1, 4, 0.003)
    assert got.jitter_s == pytest.approx(2 * 0.016 / 4), "the mean of four differences, two of which were none"
    assert got.max_jitter_s == pytest.approx(0.001 + (0.016 - 0.001) / 16)


def test_the_highest_jitter_stays_when_the_network_is_calm_again() -> None:
    wild = stream(*((number, 0.016 * (number % 2)) for number in range(51)))
    calm = stream(*((number, 0.016 * (number % 2) if number < 50 else 0.0) for number in range(500)))
    assert calm.max_jitter_s == pytest.approx(wild.jitter_s) and calm.jitter_s < 1e-6


def test_a_duplicate_makes_up_for_no_loss_of_another_stream() -> None:
    arrival = Arrival()
    arrival.begin(stream((0, 0.0), (0, 0.0), (1, 0.0)))
    arrival.begin(stream((0, 0.0), (2, 0.0), ssrc=2))
    got = arrival.reception()
    assert got is not None and got.lost == 1


def test_messages_that_nobody_listened_to_are_no_jitter() -> None:
    arrival = MessageArrival(AudioFormat("PCMU", 8000))
    for at in (0.0, 0.02, 0.04):
        arrival.add(bytes(160), now=at)
    for _ in range(3):
        arrival.skip()
    for at in (7.0, 7.02):
        arrival.add(bytes(160), now=at)
    got = arrival.reception()
    assert got is not None and got.received == 5 and got.jitter_s == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("fmt", "sizes"),
    [
        (AudioFormat("PCMU", 8000), [160] * 3),
        (AudioFormat("PCMU", 8000), [160, 800, 160]),  # 20, 100, 20 ms
        (AudioFormat("L16", 16000), [640] * 3),
        (AudioFormat("OPUS", 48000), [37, 91, 3]),
    ],
    ids=["frames", "pieces", "L16", "Opus"],
)
def test_messages_that_come_when_they_are_due_have_no_jitter_and_no_losses(fmt: AudioFormat, sizes: list[int]) -> None:
    arrival, at = MessageArrival(fmt), 5.0
    assert arrival.reception() is None
    for size in sizes:
        arrival.add(bytes(size), now=at)
        at += size / fmt.frame_bytes * 0.02 if fmt.frame_bytes else 0.02
    got = arrival.reception()
    assert got is not None and (got.received, got.lost, got.remote_lost) == (3, None, None)
    assert got.jitter_s == pytest.approx(0, abs=1e-9)
    arrival.add(bytes(sizes[0]), now=at + 0.03)
    late = arrival.reception()
    assert late is not None and late.jitter_s == pytest.approx(0.01) and late.max_jitter_s == pytest.approx(0.03 / 16)
