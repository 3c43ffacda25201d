"""The active speaker of a room: each change is reported, at most once a second."""

from __future__ import annotations

import numpy as np

from gateway.mixing.active_speaker import EVERY_S, ActiveSpeaker
from gateway.mixing.sources import TICK_S
from tests.gateway.mixing.legs import tone


class Talk:
    """A room in which legs are as loud as they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []
        self.now = 0.0
        self.speakers = ActiveSpeaker(lambda name: self.told.append((self.now, name)))

    def lasts(self, seconds: float, **levels: float) -> None:
        """Levels: amplitudes by leg, 1 is full scale."""
        pcm = tone(500, 8000, TICK_S)
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for name, level in levels.items():
                self.speakers.hear(name, (pcm * level).astype(np.int16))
            self.speakers.tick(self.now)

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.told]


def test_the_loudest_is_reported_once() -> None:
    talk = Talk()
    talk.lasts(3.0, a=0.5, b=0.01)
    assert talk.names == ["a"] and talk.told[0][0] < 0.6
    assert talk.speakers.speaking == "a"


def test_silence_noise_and_a_cough_are_nobody() -> None:
    talk = Talk()
    talk.lasts(3.0, a=0.001)
    talk.lasts(0.2, a=0.5)
    talk.lasts(1.0)
    assert talk.names == []


def test_two_who_interrupt_each_other_are_reported_at_most_once_a_second() -> None:
    talk = Talk()
    for _ in range(40):
        talk.lasts(0.5, a=0.5)
        talk.lasts(0.5, b=0.5)
    times = [at for at, _ in talk.told]
    assert set(talk.names) == {"a", "b"}
    assert all(later - earlier >= EVERY_S - 1e-9 for earlier, later in zip(times, times[1:], strict=False))


def test_who_speaks_again_after_a_silence_is_reported_again_and_who_has_left_is_not() -> None:
    talk = Talk()
    talk.lasts(1.0, a=0.5)
    talk.lasts(3.0)
    talk.lasts(1.0, a=0.5)
    assert talk.names == ["a", "a"]
    talk.speakers.forget("a")
    assert talk.speakers.speaking == ""
    talk.lasts(2.0, b=0.1)
    assert talk.names == ["a", "a", "b"]
