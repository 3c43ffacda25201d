"""Phones for the mixer: each says a tone, and what it hears is looked at by its spectrum."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gateway.media.ticker import Ticker
from gateway.mixing.room import Room
from gateway.mixing.seat import Seat
from gateway.seams.leg import UnbufferedLeg
from voicecodecs.registry import AudioFormat, decoder, encoder

PCMU = AudioFormat("PCMU")
PCMA = AudioFormat("PCMA")
G722 = AudioFormat("G722", 16000)
OPUS = AudioFormat("OPUS", 48000)
L16 = AudioFormat("L16", 24000)


def tone(hz: float, rate: int, seconds: float, level: float = 0.25) -> NDArray[np.int16]:
    at = np.arange(round(rate * seconds)) / rate
    return (np.sin(2 * np.pi * hz * at) * level * 32767).astype(np.int16)


def level_of(pcm: NDArray[np.int16], hz: float, rate: int) -> float:
    """The amplitude of a tone in a sound, 1 for full scale."""
    window = np.hanning(len(pcm))
    at = np.arange(len(pcm)) / rate
    found = np.abs(np.sum(pcm * window * np.exp(-2j * np.pi * hz * at))) / np.sum(window)
    return float(2 * found / 32767)


class Leg(UnbufferedLeg):
    """A media leg that keeps what it is sent."""

    def __init__(self, fmt: AudioFormat, *, in_real_time: bool = True) -> None:
        self._format = fmt
        self.in_real_time = in_real_time
        self.sent: list[tuple[bytes, float]] = []
        self.marks: list[tuple[str, int]] = []
        """Names, and the number of frames sent before."""

    @property
    def outbound(self) -> AudioFormat:
        return self._format

    def reception(self) -> None:
        return None

    def send_frame(self, payload: bytes, now: float) -> bool:
        self.sent.append((payload, now))
        return True

    def send_mark(self, name: str) -> None:
        self.marks.append((name, len(self.sent)))

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None: ...

    def heard(self) -> NDArray[np.int16]:
        """The samples of all frames after the first 0.3 s of sound."""
        decode = decoder(self._format).decode
        pcm = np.concatenate([decode(payload) for payload, _ in self.sent])
        return pcm[round(0.3 * self._format.sample_rate) :]

    def hears(self, hz: float) -> float:
        """The amplitude at which this leg hears a tone."""
        return level_of(self.heard(), hz, self._format.sample_rate)


class Phone:
    """A leg with one who says a tone on it.

    Args:
        hz: the tone. 0: silence, and nothing is sent.
        jitter_s: each payload comes later by up to this.
        lost: share of the payloads that come as lost.
    """

    def __init__(
        self,
        fmt: AudioFormat,
        hz: float,
        *,
        inbound: AudioFormat | None = None,
        jitter_s: float = 0.0,
        lost: float = 0.0,
        level: float = 0.25,
        in_real_time: bool = True,
        clock: float = 1.0,
        payload_ms: int = 20,
    ) -> None:
        self.leg = Leg(fmt, in_real_time=in_real_time)
        self.fmt = inbound or fmt
        self.seat = Seat(self.leg, self.fmt)
        self._luck = random.Random(1)
        self._hz = hz
        self._jitter_s = jitter_s
        self._lost = lost
        self._level = level
        self._clock = clock
        self._payload_ms = payload_ms
        self.said: list[bytes] = []

    def arrivals(self, begins: float, seconds: float) -> list[tuple[float, Callable[[float], None]]]:
        if not self._hz:
            return []
        fmt = AudioFormat(self.fmt.encoding, self.fmt.sample_rate, self._payload_ms)
        pcm = tone(self._hz, fmt.sample_rate, seconds, self._level)
        encode = encoder(fmt).encode
        frames = [
            encode(pcm[at : at + fmt.frame_samples])
            for at in range(0, len(pcm) - fmt.frame_samples + 1, fmt.frame_samples)
        ]
        found: list[tuple[float, Callable[[float], None]]] = []
        latest = 0.0
        for number, frame in enumerate(frames):
            payload = b"" if self._luck.random() < self._lost else frame
            at = begins + (number + 1) * self._payload_ms / 1000 * self._clock + self._luck.random() * self._jitter_s
            latest = max(latest, at)  # a leg passes payloads in order
            self.said.append(payload)
            found.append((latest, partial(self.seat.on_audio, payload)))
        return found


class HandTimer:
    """A frame timer that is turned by hand."""

    def __init__(self) -> None:
        self.time = 100.0
        self.ticks = 0
        self.paced: Room | None = None

    def now(self) -> float:
        return self.time

    def add(self, paced, send, after, *, pacing_error=None):
        self.paced, self._send = paced, send
        return self

    def wake(self, handle, *, now: float) -> None: ...

    def remove(self, handle) -> None:
        self.paced = None

    def run(
        self, room: Room, phones: list[Phone], seconds: float, *more: tuple[float, Callable[[float], object]]
    ) -> None:
        """Let the phones speak for a while."""
        until = self.time + seconds
        events = sorted(
            itertools.chain(*(phone.arrivals(self.time, seconds) for phone in phones), more), key=lambda each: each[0]
        )
        for at, act in [*events, (until, lambda now: None)]:
            while (due := room.deadline(self.time)) is not None and due <= min(at, until):
                self.time = max(self.time, due)
                token = room.pop_due(self.time)
                assert token is not None
                self.ticks += 1
                self._send(token, self.time)
            if at > until:
                break
            self.time = max(self.time, at)
            act(self.time)


def room_on(timer: HandTimer) -> Room:
    return Room(cast(Ticker, timer))


def joined(*phones: Phone) -> tuple[HandTimer, Room]:
    """A room in which all phones hear one another; their names are ``a``, ``b``, ``c``."""
    timer = HandTimer()
    room = room_on(timer)
    names = "abcdef"[: len(phones)]
    for name, phone in zip(names, phones, strict=True):
        room.enter(name, phone.seat)
    for one, other in itertools.combinations(names, 2):
        room.join(one, other)
    return timer, room
