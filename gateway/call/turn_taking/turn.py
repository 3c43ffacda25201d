"""One turn: its state, as a transition table; its text, its sound, and how it ended. Pure.

Every accepted turn ends in exactly one of FINISHED, INTERRUPTED, FAILED. The table says what may happen to a turn;
``gateway.call.turn_taking.turns`` decides when that happens.
"""

from __future__ import annotations

import enum
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gateway.call.turn_taking.barge_in import Rules
from gateway.call.turn_taking.speakable import Lexicon, Speakable
from gateway.media.playout import FirstFrame, Track
from gateway.seams.messages import Interruptible
from tts_engine.api import AudioChunk, TextSpan


class Place(enum.Enum):
    """Where a turn is on its way to the caller. In the last three it has ended."""

    HELD = "held"  # synthesised ahead, unheard, until commit or discard
    QUEUED = "queued"  # waits for the turns before it
    SPEAKING = "speaking"  # its sound is going out; its track says whether the engine will send more
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Work(enum.Enum):
    """What the engine does for a turn, and whether more text will come."""

    WRITING = "writing"  # the text goes on; the engine has not been asked yet
    WRITTEN = "written"  # the text is complete; the engine has not been asked yet
    STREAMING = "streaming"  # the text goes on; the engine makes sound of it meanwhile
    MAKING = "making"  # the text is complete; the engine makes the sound, or has made it


class State(NamedTuple):
    """Where a turn is, and what is done for it. A turn that has ended keeps the ``work`` at which it ended."""

    place: Place
    work: Work


class Event(enum.Enum):
    """What can happen to a turn."""

    COMPLETE = "complete"  # no more text will come
    MAKE = "make"  # the engine, or whoever makes such sound, is asked for it
    COMMIT = "commit"
    FRONT = "front"  # the turns before it are done
    PLAYED_OUT = "played out"
    CUT = "cut"  # speech, dtmf, cancel, preempt, discard, hang-up
    FAIL = "fail"  # the engine, the clip or the text was bad


STAGES = ("moved", "transit", "token", "fetch", "text", "admission", "queue", "engine", "loop", "codec", "send")
"""The parts of the time to the first packet, in the order in which a turn passes them. ``docs/latency.md`` explains
them. ``transit`` holds the way back too."""

LIVE = (Place.HELD, Place.QUEUED, Place.SPEAKING)
_ASKED = (Work.STREAMING, Work.MAKING)

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State(place, work), event): State(to_place or place, to_work or work)
    for event, places, works, to_place, to_work in (
        (Event.COMPLETE, LIVE, (Work.WRITING,), None, Work.WRITTEN),
        (Event.COMPLETE, LIVE, (Work.STREAMING,), None, Work.MAKING),
        (Event.MAKE, LIVE, (Work.WRITING,), None, Work.STREAMING),
        (Event.MAKE, LIVE, (Work.WRITTEN,), None, Work.MAKING),
        (Event.COMMIT, (Place.HELD,), tuple(Work), Place.QUEUED, None),
        (Event.FRONT, (Place.QUEUED,), tuple(Work), Place.SPEAKING, None),
        (Event.PLAYED_OUT, (Place.SPEAKING,), (Work.MAKING,), Place.FINISHED, None),
        (Event.CUT, LIVE, tuple(Work), Place.INTERRUPTED, None),
        (Event.FAIL, LIVE, _ASKED, Place.FAILED, None),
    )
    for place in places
    for work in works
}
"""The legal changes; where a row names no new place or work, it stays."""

Kind = Literal["text", "play", "digits"]
Reason = Literal["speech", "dtmf", "cancel", "preempted", "discarded", "hangup", "ended"]


@dataclass(frozen=True, slots=True)
class TurnDefaults:
    """The route's values for turns that bring none of their own."""

    interruptible: Interruptible = "any"
    preemptible: bool = False
    dtmf_detection: bool = True
    report_input: Interruptible = "none"
    language: str = ""
    voice: str = ""
    speaker_events: bool = False
    tokens_played: bool = False
    stale_s: float = 0.3
    end_drain: bool = True
    turn_chars: int = 20_000
    turns_queued: int = 64
    ahead_turns: int = 1
    held_turns: int = 4
    barge_in: Rules = Rules()
    lexicon: Lexicon | None = None


@dataclass(slots=True)
class FirstPacket:
    """Where the time to the first packet of a turn went."""

    at: float
    """When the first frame was sent."""
    total_s: float
    stages_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds of ``STAGES``; they add up to ``total_s``."""
    follows: bool = False
    """Whether the turn's sound was there before the previous turn had ended, so that nobody waited for it."""


class Turn:
    """One turn. ``defaults`` and ``language`` hold until a message brings other values."""

    def __init__(
        self, turn_id: str, kind: Kind, defaults: TurnDefaults, *, language: str, now: float, held: bool
    ) -> None:
        self.id = turn_id
        self.kind: Kind = kind
        self.state = State(Place.HELD if held else Place.QUEUED, Work.WRITING)
        self.accepted_at = now
        self.text = ""
        """All tokens so far, verbatim."""
        self.speakable = Speakable(defaults.lexicon)
        """What of ``text`` is spoken, where it is text to be spoken."""
        self.arrivals: list[tuple[int, float]] = []
        """(characters so far, when they arrived): the delay of the first packet is measured from these times."""
        self.interruptible: Interruptible = defaults.interruptible
        self.preemptible = defaults.preemptible
        self.language = language
        self.voice = defaults.voice
        self.speed = 1.0
        self.instruct = ""
        self.source = ""
        self.loop = 1
        self.waits_for_caller = False
        """Whether the turn does not begin while the caller speaks. True for a turn without an id of the manager's,
        since it may answer something that the caller no longer means."""
        self.silent = False
        """True: the manager is told no events of this turn (fallback text, digits)."""
        self.track = Track(weakref.ref(self))  # a circle would outlive the turn (tts_engine.service.garbage)
        self.spans: list[TextSpan] = []
        self.segments: deque[tuple[int, int]] = deque()
        """(sample, character) at which the words of each chunk end, until ``tokensPlayed`` has told them."""
        self.told_whole = False
        """Whether ``tokensPlayed`` tells the turn in one piece, as that of a greeting is with Twilio."""
        self.reported_chars = 0
        self.captioned_spans = 0
        self.captioned_chars = 0
        self.marks: list[tuple[int, str]] = []
        """Marks of the turn: (characters before the mark, name)."""
        self.front_at: float | None = None
        self.engine = ""
        """What makes the turn's sound, as its first chunk tells it."""
        self.measured: FirstPacket | None = None
        self.first_stages_ms: Mapping[str, float] = {}
        self.first_chunk_at: float | None = None
        self.first_chunk_chars = 0

    @property
    def live(self) -> bool:
        """Whether the turn has not ended yet."""
        return self.state.place in LIVE

    @property
    def complete(self) -> bool:
        """Whether all text of the turn has come."""
        return self.state.work in (Work.WRITTEN, Work.MAKING)

    @property
    def asked(self) -> bool:
        """Whether the engine, or whoever makes such sound, was asked for it."""
        return self.state.work in _ASKED

    def apply(self, event: Event) -> None:
        """Follow the table.

        Raises:
            RuntimeError: the table has no such transition (a bug of ours).
        """
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            place, work = self.state
            raise RuntimeError(f"{event.name} is not possible: turn {self.id} is {place.value}, {work.value}") from None

    def write(self, text: str, now: float) -> str:
        """Add text that arrived; return what is to be spoken in addition."""
        self.text += text
        self.arrivals.append((len(self.text), now))
        return self.speakable.feed(text) if self.kind == "text" else ""

    def add_sound(self, chunk: AudioChunk, now: float, *, ptime_s: float) -> None:
        """Add sound that arrived. Its spans count what is spoken; from here on they count ``text``."""
        written = self.speakable.written if self.kind == "text" else int
        spans = [
            TextSpan(written(s.start_char), written(s.end_char), s.first_sample, s.end_sample, s.exact)
            for s in chunk.spans
        ]
        self.spans.extend(spans)
        if self.first_chunk_at is None and chunk.frames:
            self.first_chunk_at = now
            self.engine = chunk.engine
            self.first_stages_ms = chunk.stages_ms
            self.first_chunk_chars = written(chunk.clause_end_char) or (spans[-1].end_char if spans else 0)
        if spans:  # the words of a whole clause may come with the first sound of the clause
            self.segments.append((spans[-1].end_sample, spans[-1].end_char))
        self.track.push(chunk.frames, now=now, ptime_s=ptime_s)

    def first_packet(self, first: FirstFrame) -> FirstPacket | None:
        """Measure how long the first packet took. None: the turn has ended meanwhile, or has no sound."""
        if not self.live or self.first_chunk_at is None:
            return None
        # The message counts that completed the text of the first chunk.
        complete_at = next((at for chars, at in self.arrivals if chars >= self.first_chunk_chars), self.accepted_at)
        # A turn has to wait while the turn before it is heard; that wait does not count as latency.
        waited_since = max(complete_at, self.accepted_at, self.front_at or 0.0, first.free_at)
        total_s = max(0.0, first.at - waited_since)
        stages = dict(self.first_stages_ms)
        stages["transit"] = max(0.0, (self.first_chunk_at - complete_at) * 1000 - sum(stages.values()))
        stages["send"] = (first.at - self.first_chunk_at) * 1000
        self.measured = FirstPacket(
            first.at, total_s, _last(stages, total_s * 1000), follows=first.free_at > self.first_chunk_at
        )
        return self.measured


def _last(stages: dict[str, float], total_ms: float) -> dict[str, float]:
    """Return the last ``total_ms`` of the stages: what was done before anybody waited is no part of the wait."""
    too_much = sum(stages.values()) - total_ms
    left = {}
    for stage in sorted(stages, key=lambda name: STAGES.index(name) if name in STAGES else 0):
        left[stage] = max(0.0, stages[stage] - max(0.0, too_much))
        too_much -= stages[stage]
    return left
