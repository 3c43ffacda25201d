"""A whole call on the virtual clock: ``Turns`` and ``Playout`` are the real ones, engine, peer and manager are played
here by the rules that the real ones follow. Used by the behaviour tests and by the random interleavings."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.call.turn_taking.heard import Position
from gateway.call.turn_taking.instructions import new_turns
from gateway.call.turn_taking.turn import FirstPacket, Turn, TurnDefaults
from gateway.call.turn_taking.turns import Effects
from gateway.media.playout import Playout, StartPolicy
from gateway.seams.messages import Inbound, Outbound, TurnEvent
from tts_engine.api import AudioChunk, TextSpan

PTIME_S = 0.02
RATE = 8000
FRAME = 160
WORD_FRAMES = 10


def words(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word."""
    spans, start = [], None
    for index, char in enumerate(text + " "):
        if char.isspace():
            if start is not None:
                spans.append((start, index))
            start = None
        elif start is None:
            start = index
    return spans


@dataclass
class Job:
    """The engine's side of a turn: one chunk of ten frames per word, as soon as the word is complete."""

    turn: Turn
    text: str = ""
    ended: bool = False
    spoken: int = 0
    stopped: bool = False


@dataclass
class VirtualCall(Effects):
    """Effects recorded, time moved by hand."""

    defaults: TurnDefaults = field(default_factory=TurnDefaults)
    lead_s: float = 0.0
    has_marks: bool = False
    can_clear: bool = True
    now: float = 100.0

    def __post_init__(self) -> None:
        self.told: list[Outbound] = []
        self.sent: list[tuple[float, bytes]] = []
        self.flushes: list[float] = []
        self.told_before_flush = 0
        """Number of messages that the manager had received at the last flush."""
        self.ended_before_flush = 0
        """Number of turns that had been counted at the last flush."""
        self.jobs: dict[str, Job] = {}
        self.hung_up: list[str | None] = []
        self.ended_turns: list[tuple[str, str, str]] = []
        self.first_packets: list[FirstPacket] = []
        self.gaps: list[float] = []
        self.dropped = 0
        self.peer_marks: list[tuple[int, str]] = []
        self.playout = Playout(
            ptime_s=PTIME_S,
            lead_s=self.lead_s,
            start=StartPolicy(quantile=1.0, max_delay_s=0.0),
            has_marks=self.has_marks,
            can_clear=self.can_clear,
            send_mark=lambda name: self.peer_marks.append((len(self.sent), name)),
        )
        self.turns, self.instructions = new_turns(
            self.defaults, self.playout, self, self.tell, sample_rate=RATE, frame_samples=FRAME
        )

    def tell(self, message: Outbound) -> None:
        self.told.append(message)

    # Effects
    def open(self, turn: Turn) -> None:
        assert turn.id not in self.jobs, f"{turn.id} opened twice"
        self.jobs[turn.id] = Job(turn, turn.speakable.text if turn.kind == "text" else turn.text, turn.complete)

    def feed(self, turn: Turn, text: str) -> None:
        self.jobs[turn.id].text += text

    def end_text(self, turn: Turn) -> None:
        self.jobs[turn.id].ended = True

    def stop(self, turn: Turn, heard: Position, now: float) -> None:
        self.jobs[turn.id].stopped = True

    def flush(self, now: float) -> None:
        self.playout.flushed(now)
        self.flushes.append(now)
        self.told_before_flush = len(self.told)
        self.ended_before_flush = len(self.ended_turns)
        self.peer_marks.clear()

    def fell_silent(self, since: float | None, now: float) -> None:
        pass

    def wake(self, now: float) -> None:
        pass

    def hang_up(self, handoff_data: str | None) -> None:
        self.hung_up.append(handoff_data)

    def first_packet(self, turn: Turn, measured: FirstPacket, now: float) -> None:
        self.first_packets.append(measured)

    def gap(self, turn: Turn, length_s: float) -> None:
        self.gaps.append(length_s)

    def ended(self, turn: Turn, reason: str, heard: Position, since: float | None, now: float) -> None:
        self.ended_turns.append((turn.id, turn.state.place.value, reason))

    def dropped_tokens(self, count: int) -> None:
        self.dropped += count

    # The world
    def say(self, *messages: Inbound) -> None:
        for message in messages:
            self.instructions.on_message(message, self.now)

    def work(self, turn_id: str, chunks: int = 10_000) -> None:
        """Let the engine deliver up to ``chunks`` words of a turn."""
        job = self.jobs[turn_id]
        ready = words(job.text) if job.ended else words(job.text)[: -1 if not job.text[-1:].isspace() else None]
        while job.spoken < len(ready) and chunks and not job.stopped and job.turn.live:
            start, end = ready[job.spoken]
            first = job.spoken * WORD_FRAMES * FRAME
            job.spoken += 1
            chunks -= 1
            self.turns.on_chunk(
                job.turn,
                AudioChunk(
                    frames=[job.turn.id.encode()] * WORD_FRAMES,
                    first_sample=first,
                    samples=WORD_FRAMES * FRAME,
                    spans=[TextSpan(start, end, first, first + WORD_FRAMES * FRAME)],
                ),
                self.now,
            )
        if job.ended and job.spoken == len(ready) and not job.stopped and job.turn.live:
            self.turns.on_engine_done(job.turn, self.now)

    def work_all(self) -> None:
        for turn_id in list(self.jobs):
            self.work(turn_id)

    def tick(self) -> None:
        """Do the work of one visit of the ticker."""
        for _ in range(200):
            due = self.playout.deadline(self.now)
            if due is None or due > self.now:
                break
            frame = self.playout.pop_due(self.now)
            if frame is None:
                break
            self.sent.append((self.now, frame))
            self.playout.frame_sent()
        self.turns.settle(self.now)
        self.follow()

    def follow(self) -> None:
        """Tell the words that have begun to sound."""
        self.turns.report_words(self.now)

    def run(self, seconds: float, *, step_s: float = 0.002) -> None:
        """Let time pass, in ticks. The peer returns marks when it has played up to them."""
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            while self.peer_marks and self.playout.pacer.played_frames(self.now) >= self.peer_marks[0][0]:
                self.playout.mark_reached(self.peer_marks.pop(0)[1], self.now)
            self.tick()

    def events(self, turn: str) -> list[str]:
        return [m.event for m in self.told if isinstance(m, TurnEvent) and m.turn == turn]
