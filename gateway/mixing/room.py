"""A room: legs that are joined, on the frame timer of the process. Pure but for the timer that it is given.

A leg enters with its ``Seat`` and a name. What it says is the source of that name, and what the bot says on it the
source ``voice_of(name)``. At first a leg hears only its own bot. ``join`` lets two legs hear each other; ``mixer`` sets
anything else: a whisper is a voice that one listener hears, a mute a source that no one hears.
"""

from __future__ import annotations

from gateway.histogram import Histogram
from gateway.media.ticker import Handle, Ticker
from gateway.mixing.mixer import Mixer
from gateway.mixing.seat import Seat, voice_of
from gateway.mixing.sources import TICK_S, PlayedSource

_LATE_S = 0.5
"""Lateness from which on ticks are left out: the process stood still, and what it missed is stale."""


class Room:
    """The joined legs, each with its own codec and rate. ``close`` releases all.

    Args:
        timer: calls the room every 20 ms while something is mixed.
        pacing_error: observes the lateness of each tick, seconds.
    """

    def __init__(self, timer: Ticker, *, pacing_error: Histogram | None = None) -> None:
        self.late_s = 0.0
        """Lateness of the last tick, seconds."""
        self.mixer = Mixer(self._changed)
        self._timer = timer
        self._seats: dict[str, Seat] = {}
        self._due_s: float | None = None
        self._visit: Handle | None = timer.add(self, self._tick, _nothing, pacing_error=pacing_error)

    @property
    def names(self) -> list[str]:
        """Names of the legs, in the order in which they entered."""
        return list(self._seats)

    def enter(self, name: str, seat: Seat) -> None:
        """Let a leg in. It hears its own bot.

        Raises:
            ValueError: the name is taken, or the leg is in a room.
        """
        if name in self._seats:
            raise ValueError(f"{name} is in the room already")
        seat.enter(name, self.mixer)
        self._seats[name] = seat
        self.mixer.hear(name, voice_of(name))

    def leave(self, name: str) -> None:
        """Let a leg out. Its bot's frames go to it directly again. No effect if it is not here."""
        seat = self._seats.pop(name, None)
        if seat is not None:
            seat.leave(self._timer.now())

    def join(self, one: str, other: str, *, with_bot: bool = True) -> None:
        """Let two legs hear each other, and with ``with_bot`` each also the other's bot."""
        for listener, speaker in ((one, other), (other, one)):
            self.mixer.hear(listener, speaker)
            if with_bot:
                self.mixer.hear(listener, voice_of(speaker))

    def part(self, one: str, other: str) -> None:
        """Let two legs not hear each other any more, nor each other's bots."""
        for listener, speaker in ((one, other), (other, one)):
            self.mixer.unhear(listener, speaker)
            self.mixer.unhear(listener, voice_of(speaker))

    def play(self, name: str, clip: PlayedSource, to: str) -> None:
        """Play a clip or tone to one leg, under a name of its own. The same name replaces it."""
        self.mixer.remove_source(name)
        self.mixer.add_source(name, clip)
        self.mixer.hear(to, name)

    def stop(self, name: str) -> None:
        """Stop a clip. No effect if it is over."""
        self.mixer.remove_source(name)

    def close(self) -> None:
        """Let all legs out, and leave the timer."""
        for name in self.names:
            self.leave(name)
        visit, self._visit = self._visit, None
        if visit is not None:
            self._timer.remove(visit)

    # --- the timer's side --------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        if self._visit is None:
            return
        if self.mixer.idle:
            self._due_s = None
        elif self._due_s is None:
            now = self._timer.now()
            self._due_s = now
            self._timer.wake(self._visit, now=now)

    def deadline(self, now: float) -> float | None:
        """Return the time of the next tick. None: none is needed."""
        return self._due_s

    def pop_due(self, now: float) -> bytes | None:
        """Return a token if a tick is due; the timer then calls ``_tick``."""
        if self._due_s is None or now < self._due_s:
            return None
        if now - self._due_s > _LATE_S:
            self._due_s = now
        self.late_s = now - self._due_s
        return b""

    def _tick(self, _token: bytes, now: float) -> bool:
        due_s = self._due_s
        if due_s is not None:
            self._due_s = due_s + TICK_S
            self.mixer.tick(due_s)
        return True


def _nothing(_now: float) -> None:
    return None
