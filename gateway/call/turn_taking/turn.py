"""One turn: its state as a transition table, its text, its sound and its end. Pure.

Every accepted turn ends in exactly one of FINISHED, INTERRUPTED, FAILED. The table says which changes are legal;
``gateway.call.turn_taking.turns`` decides when they happen.
"""

from __future__ import annotations

import enum
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, NamedTuple

from gateway.call.turn_taking.barge_in import Rules
from gateway.call.turn_taking.speakable import Lexicon, Speakable
from gateway.media.own_sound import OwnSound
from gateway.media.playout import FirstFrame, Track
from gateway.seams.messages import ExpectedReply, Interruptible
from tts_engine.api import AudioChunk, TextSpan


class Place(enum.Enum):
    """Position of a turn on its way to the caller. The last three mean that it has ended."""

    HELD = "held"  # synthesised ahead, not heard until commit or discard
    QUEUED = "queued"  # waits for the turns before it
    SPEAKING = "speaking"  # its sound is being sent; its track says whether the engine will send more
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Work(enum.Enum):
    """Progress of the engine's work for a turn, and whether more text will come."""

    WRITING = "writing"  # more text will come; the engine has not been asked yet
    WRITTEN = "written"  # the text is complete; the engine has not been asked yet
    STREAMING = "streaming"  # more text will come; the engine makes sound of it meanwhile
    MAKING = "making"  # the text is complete; the engine makes the sound, or has made it


class State(NamedTuple):
    """Place and work of a turn. An ended turn keeps its last ``work``."""

    place: Place
    work: Work


class Event(enum.Enum):
    """An event in the life of a turn."""

    COMPLETE = "complete"  # no more text will come
    MAKE = "make"  # the engine or the clips are asked for its sound
    COMMIT = "commit"
    FRONT = "front"  # the turns before it are done
    PLAYED_OUT = "played out"
    CUT = "cut"  # speech, dtmf, cancel, preempt, discard, hang-up
    FAIL = "fail"  # of the engine, the clip or the text


STAGES = ("moved", "transit", "token", "fetch", "text", "admission", "queue", "engine", "loop", "codec", "send")
"""The parts of the time to the first packet, in the order in which a turn passes them; see ``docs/latency.md``.
``transit`` includes the way back."""

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
"""The legal transitions. A row without a new place or work keeps the old one."""

Kind = Literal["text", "play", "digits", "audio"]
Reason = Literal["speech", "dtmf", "cancel", "preempted", "discarded", "hangup", "ended"]
INTERRUPTIONS = ("speech", "dtmf", "cancel")
"""The reasons that come from the caller or the manager while a turn is heard."""


@dataclass(frozen=True, slots=True)
class TurnDefaults:
    """The route's values for turns that do not set their own."""

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
    withdraws: bool = False
    """True if a caller who interrupts withdraws the manager's ``end`` and ``transfer``."""
    no_input_s: float = 0.0
    """Silence of both sides after which the manager is told, seconds. 0: never."""
    turn_chars: int = 20_000
    turns_queued: int = 64
    ahead_turns: int = 1
    held_turns: int = 4
    barge_in: Rules = Rules()
    lexicon: Lexicon | None = None


@dataclass(slots=True)
class FirstPacket:
    """The time to a turn's first packet, by stage."""

    at: float
    """Time at which the first frame was sent."""
    total_s: float
    stages_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds by stage of ``STAGES``; they add up to ``total_s``."""
    follows: bool = False
    """True if the turn's sound was ready before the previous turn had ended, so the caller did not wait for it."""


class Turn:
    """One turn. ``defaults`` and ``language`` hold until a message sets other values."""

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
        """The spoken form of ``text``, for turns of kind ``text``."""
        self.arrivals: list[tuple[int, float]] = []
        """(characters so far, arrival time): the delay of the first packet is measured from these times."""
        self.interruptible: Interruptible = defaults.interruptible
        self.preemptible = defaults.preemptible
        self.language = language
        self.voice = defaults.voice
        self.speed = 1.0
        self.instruct = ""
        self.source = ""
        self.loop = 1
        self.sound: OwnSound | None = None
        """The manager's own sound, for turns of kind ``audio``."""
        self.expect: ExpectedReply | None = None
        """The answer that the manager expects. None: it has not said."""
        self.waits_for_caller = False
        """True if the turn must not begin while the caller speaks. Set for turns without the manager's id, which may
        answer something that the caller no longer means."""
        self.goes_first = False
        """True if the turn also begins while others are withheld; see ``Turns.withheld``."""
        self.silent = False
        """True: the manager receives no events of this turn (fallback text, digits)."""
        # A weak reference, because a cycle would outlive the turn (tts_engine.service.garbage).
        self.track = Track(weakref.ref(self), is_clip=kind in ("play", "digits"))
        self.spans: list[TextSpan] = []
        self.segments: deque[tuple[int, int]] = deque()
        """(sample, character) at the end of each chunk's words, until ``tokensPlayed`` has reported them."""
        self.told_whole = False
        """True if ``tokensPlayed`` reports the turn in one piece, as Twilio does for a greeting."""
        self.reported_chars = 0
        self.reported_spans = 0
        self.captioned_spans = 0
        self.captioned_chars = 0
        self.marks: list[tuple[int, str]] = []
        """Marks of the turn: (characters before the mark, or milliseconds for kind ``audio``; name)."""
        self.front_at: float | None = None
        self.engine = ""
        """The engine that makes the turn's sound, as named by its first chunk."""
        self.measured: FirstPacket | None = None
        self.first_stages_ms: Mapping[str, float] = {}
        self.first_chunk_at: float | None = None
        self.first_chunk_chars = 0

    @property
    def live(self) -> bool:
        """True if the turn has not ended."""
        return self.state.place in LIVE

    @property
    def complete(self) -> bool:
        """True if all text of the turn has come."""
        return self.state.work in (Work.WRITTEN, Work.MAKING)

    @property
    def asked(self) -> bool:
        """True if the engine or the clips were asked for the turn's sound."""
        return self.state.work in _ASKED

    def apply(self, event: Event) -> None:
        """Apply a transition of the table.

        Raises:
            RuntimeError: the table has no such transition (an internal error).
        """
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            place, work = self.state
            raise RuntimeError(f"{event.name} is not possible: turn {self.id} is {place.value}, {work.value}") from None

    def write(self, text: str, now: float) -> str:
        """Add text that arrived; return the text to be spoken in addition."""
        self.text += text
        self.arrivals.append((len(self.text), now))
        return self.speakable.feed(text) if self.kind == "text" else ""

    def add_sound(self, chunk: AudioChunk, now: float, *, ptime_s: float) -> None:
        """Add sound that arrived. Its spans count spoken characters; they are converted to characters of ``text``."""
        written = self.speakable.written if self.kind == "text" else int
        spans = [
            TextSpan(written(s.start_char), written(s.end_char), s.first_sample, s.end_sample, s.exact)
            for s in chunk.spans
        ]
        self.spans.extend(spans)
        chars = written(chunk.clause_end_char) or (spans[-1].end_char if spans else 0)
        if self.first_chunk_at is None and chunk.frames:
            self.first_chunk_at = now
            self.engine = chunk.engine
            self.first_stages_ms = chunk.stages_ms
            self.first_chunk_chars = chars
        if spans:  # all words of a clause may come with its first sound
            self.segments.append((spans[-1].end_sample, spans[-1].end_char))
        # What a manager streams or a clip's server sends is not in the engine's hands.
        text_at = self._complete_at(chars) if self.kind == "text" else now
        self.track.push(chunk.frames, now=now, ptime_s=ptime_s, text_at=text_at)

    def _complete_at(self, chars: int) -> float:
        """Return the time at which the text up to ``chars`` had come."""
        at = bisect_left(self.arrivals, chars, key=itemgetter(0))
        return self.arrivals[at][1] if at < len(self.arrivals) else self.accepted_at

    def first_packet(self, first: FirstFrame) -> FirstPacket | None:
        """Measure the time to the first packet. None: the turn has ended meanwhile, or has no sound."""
        if not self.live or self.first_chunk_at is None:
            return None
        # The time counts from the message that completed the text of the first chunk.
        complete_at = self._complete_at(self.first_chunk_chars)
        # A turn has to wait while the turn before it is heard; that wait does not count as latency.
        waited_since = max(complete_at, self.accepted_at, self.front_at or 0.0, first.free_at)
        total_s = max(0.0, first.at - waited_since)
        stages = dict(self.first_stages_ms)
        stages["transit"] = max(0.0, (self.first_chunk_at - complete_at) * 1000 - sum(stages.values()))
        stages["send"] = (first.at - self.first_chunk_at) * 1000
        self.measured = FirstPacket(
            first.at, total_s, _last_part(stages, total_s * 1000), follows=first.free_at > self.first_chunk_at
        )
        return self.measured


def _last_part(stages: dict[str, float], total_ms: float) -> dict[str, float]:
    """Return the last ``total_ms`` of the stages: work done before the caller began to wait does not count."""
    too_much = sum(stages.values()) - total_ms
    left = {}
    for stage in sorted(stages, key=lambda name: STAGES.index(name) if name in STAGES else 0):
        left[stage] = max(0.0, stages[stage] - max(0.0, too_much))
        too_much -= stages[stage]
    return left
