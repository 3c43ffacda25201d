"""Statistics of one call, for REST, the console and the metrics. This module decides nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.call.journal import Journal
from gateway.call.turn_taking.turn import INTERRUPTIONS, FirstPacket, Place, Turn
from gateway.call.turn_taking.turns import Turns
from gateway.histogram import Histogram
from gateway.seams.messages import AnsweredBy
from gateway.seams.tracing import Tracer, TurnTrace


class Meter(Protocol):
    """Metrics over all calls. ``gateway.metrics`` implements this Protocol."""

    def pacing_error(self, transport: str) -> Histogram: ...
    def first_packet(self, *, transport: str, engine: str, seconds: float, stages_ms: dict[str, float]) -> None: ...
    def playout_buffer(self, *, seconds: float) -> None: ...
    def gap(self, *, transport: str, seconds: float) -> None: ...
    def turn_ended(self, *, outcome: str) -> None: ...
    def call_rejected(self, reason: str) -> None: ...
    def dialogue_failed(self, *, route: str) -> None: ...
    def cut(self, *, reason: str, seconds: float) -> None: ...
    def mark_delay(self, *, seconds: float) -> None: ...
    def tokens_dropped(self, count: int) -> None: ...

    def sound_refused(self, seconds: float) -> None: ...
    def answered(self, by: AnsweredBy) -> None: ...
    def beep(self) -> None: ...
    def listener_joined(self) -> None: ...
    def listener_dropped(self, count: int) -> None: ...
    def stalled(self, *, transport: str) -> None: ...
    def bridge_leg(self, event: str) -> None: ...


SPOKEN_CHARS = 500


@dataclass(frozen=True, slots=True)
class SpokenText:
    """Position of a call in its text. Each string has at most ``SPOKEN_CHARS`` characters."""

    turn: str
    """Id of the turn that is being heard, or else of the last one that was."""
    played: str
    """Text of that turn that the caller has heard, including the current word."""
    queued: str
    """Text that will be spoken next: the rest of that turn, then the later turns, one a line."""
    outcome: str
    """End of that turn: ``finished``, ``interrupted``, ``failed``; empty while it is being heard."""


@dataclass(slots=True)
class CallStats:
    """Statistics of one call for REST and the console; the meter counts the same events over all calls."""

    transport: str
    meter: Meter
    call_id: str = ""
    route: str = ""
    tracer: Tracer | None = None
    journal: Journal | None = None
    """History for the call log. None: there is no log."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    turns: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    characters: int = 0
    """Characters of the turns that the caller heard."""
    frames: int = 0
    """Frames of sound that were sent."""
    cuts: int = 0
    longest_first_packet_ms: float | None = None
    first_packet_ms: list[float] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)
    """Stages of the latest of these delays."""
    last_cut_ms: float | None = None
    stalls: int = 0
    last_turn: str = ""
    """Id of the last ended turn that was heard; the next two fields hold its heard text and its end."""
    last_heard: str = ""
    last_outcome: str = ""
    silent_at: float = 0.0
    """Time of the last cut by the caller or the manager, on the clock of the turns."""

    def first_packet(self, turn: Turn, measured: FirstPacket, *, now: float) -> None:
        """Record the first sound of a turn. A turn that follows another without silence has no delay to record."""
        if self.journal is not None:
            self.journal.first_packet(turn, measured, now)
        if not measured.follows:
            self.first_packet_ms.append(round(measured.total_s * 1000, 1))
            del self.first_packet_ms[:-100]
            self.longest_first_packet_ms = max(self.first_packet_ms[-1], self.longest_first_packet_ms or 0.0)
            self.stages_ms = measured.stages_ms
            self.meter.first_packet(
                transport=self.transport,
                engine=turn.engine,
                seconds=measured.total_s,
                stages_ms=measured.stages_ms,
            )

    def gap(self, turn: Turn, length_s: float) -> None:
        """Record a gap in the middle of a turn."""
        if self.journal is not None:
            self.journal.gap(turn, length_s)
        self.gaps += 1
        self.gap_s += length_s
        self.meter.gap(transport=self.transport, seconds=length_s)

    def stalled(self) -> None:
        """Record a frame that the socket did not take because its buffer was full."""
        self.stalls += 1
        self.meter.stalled(transport=self.transport)

    def fell_silent(self, since: float | None, now: float) -> None:
        """Record that speech stopped at ``now``. ``since``: time at which the caller or the manager caused it; None:
        neither did."""
        if since is not None:
            self.silent_at = now
            self.last_cut_ms = (now - since) * 1000

    def ended(self, turn: Turn, reason: str, since: float | None, *, heard_chars: int, now: float) -> None:
        """Record the end of a turn; ``reason`` is empty unless the turn was cut."""
        self.frames += turn.track.sent
        self.cuts += reason in INTERRUPTIONS
        if turn.track.sent:
            self.characters += len(turn.text) if turn.kind == "text" else 0
            heard = len(turn.text) if turn.state.place is Place.FINISHED else heard_chars
            self.last_turn, self.last_outcome = turn.id, turn.state.place.value
            self.last_heard = _tail(turn.text[:heard]) if turn.kind == "text" else ""
        if self.journal is not None:
            self.journal.turn_ended(turn, reason, heard_chars=heard_chars, now=now)
        self.meter.turn_ended(outcome=turn.state.place.value)
        if self.tracer is not None:
            self.tracer.turn(self._trace(turn, reason, now))
        if reason in INTERRUPTIONS and since is not None:
            # If a suspension became a cut, the last frame left when the suspension began.
            self.meter.cut(reason=reason, seconds=(self.silent_at if self.silent_at >= since else now) - since)

    def _trace(self, turn: Turn, reason: str, now: float) -> TurnTrace:
        first = turn.measured
        return TurnTrace(
            call_id=self.call_id,
            route=self.route,
            transport=self.transport,
            kind=turn.kind,
            outcome=turn.state.place.value,
            reason=reason,
            begun_at=turn.accepted_at if first is None else first.at - first.total_s,
            ended_at=now,
            first_at=None if first is None else first.at,
            engine=turn.engine,
            stages_ms={} if first is None else first.stages_ms,
            gaps=turn.track.gaps,
        )

    def spoken_text(self, turns: Turns, now: float) -> SpokenText:
        """Return what the caller has heard and what will be spoken next. Digits and clips are left out: they have no
        text."""
        speaking = turns.speaking()
        waiting = [turn.text for turn in turns.in_line if turn.kind == "text" and turn is not speaking]
        if speaking is None:
            return SpokenText(self.last_turn, self.last_heard, _head(waiting), self.last_outcome)
        text = speaking.text if speaking.kind == "text" else ""
        heard = turns.heard(speaking, now).chars
        return SpokenText(speaking.id, _tail(text[:heard]), _head([text[heard:], *waiting]), "")


def _tail(text: str) -> str:
    return text[-SPOKEN_CHARS:]


def _head(turns: Sequence[str]) -> str:
    return "\n".join(text[:SPOKEN_CHARS] for text in turns[:SPOKEN_CHARS])[:SPOKEN_CHARS]
