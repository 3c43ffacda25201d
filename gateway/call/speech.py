"""The speech of one call. ``Speech`` carries out the decisions of ``Turns`` and owns a task for each turn in synthesis.

Text goes to the engine; files, digits and the manager's own sound go to the clips. Their frames go into the playout,
and the ticker sends them to the leg. While the playout holds ``BUFFER_S`` of a turn, reading from the engine pauses.
Nothing here waits inside a tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.call.hearing.caller import Caller
from gateway.call.stats import CallStats
from gateway.call.transfers import Transfers
from gateway.call.turn_taking.heard import Position
from gateway.call.turn_taking.instructions import new_turns
from gateway.call.turn_taking.turn import FirstPacket, Reason, Turn, TurnDefaults
from gateway.call.turn_taking.turns import Effects
from gateway.config import PlayoutConfig
from gateway.errors import ClipError
from gateway.media.own_sound import OwnSound
from gateway.media.playout import Playout, StartPolicy
from gateway.media.ticker import Ticker
from gateway.mixing.seat import Seat
from gateway.model_trial import ModelTrials, Trial
from gateway.principal import sees_voice
from gateway.seams.messages import Outbound
from tts_engine.api import SpeechEngine, Utterance, UtteranceRequest
from tts_engine.correlation import CORRELATION, Correlation
from tts_engine.errors import EngineError, NotFound
from voicecodecs.fade import HEARD_FRAMES, faded
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)

BUFFER_S = 20.0
"""Most audio kept per call, seconds. While the buffer is full, no more is read from the engine."""

_POSITION_EVERY_S = 0.2


class ClipSource(Protocol):
    """Source of utterances that are not synthesised: files and tones."""

    async def open(self, source: str, fmt: AudioFormat, loop: int, *, route: str = "", call_id: str = "") -> Utterance:
        """Open a clip that plays ``loop`` times. Raises ``ClipError``."""
        ...

    async def digits(self, digits: str, fmt: AudioFormat, *, silent: bool = False) -> Utterance: ...

    def own_sound(
        self,
        sound: OwnSound,
        fmt: AudioFormat,
        *,
        buffered_s: Callable[[], float],
        complete: Callable[[], None],
        route: str = "",
        call_id: str = "",
    ) -> Utterance: ...

    async def samples(self, source: str, *, route: str = "", call_id: str = "") -> tuple[NDArray[np.int16], int]:
        """Return the samples of a clip, and their rate, hertz. Raises ``ClipError``."""
        ...

    async def aclose(self) -> None: ...


@dataclass(kw_only=True)
class Means:
    """The parts that make and send speech; all calls of a process share them."""

    engine: SpeechEngine
    clips: ClipSource
    ticker: Ticker
    playout: PlayoutConfig
    start: StartPolicy
    voices: Mapping[str, str] = field(default_factory=dict)
    """Prefix of the voice ids of a route's tenant, by the name of the route. A route that is missing may use all
    voices."""
    trials: ModelTrials = field(default_factory=ModelTrials)
    """The calls that use a model on trial."""


@dataclass(slots=True)
class _Making:
    """The synthesis of one turn."""

    task: asyncio.Task[None]
    """Opens the utterance itself, since a task that is cancelled before it starts cannot close anything."""
    utterance: Utterance | None = None
    pending: list[str] = field(default_factory=list)
    """Text for the utterance while it is not open yet. It is fed in the pieces in which it came, like later text."""


class Speech(Effects):
    """The speech of one call; implements the ``Effects`` of ``Turns``. Call ``close`` first, then ``aclose``.

    Args:
        correlation: ids of the call; the engine receives them with each utterance.
        tell: sends a message to the dialogue manager.
        priority: see ``UtteranceRequest``.
        trial: the trial of a model that the call is part of.
    """

    caller: Caller
    transfers: Transfers
    """Set both before the first turn."""

    def __init__(
        self,
        correlation: Correlation,
        leg: Seat,
        limits: TurnDefaults,
        means: Means,
        stats: CallStats,
        *,
        tell: Callable[[Outbound], None],
        voices: str = "",
        priority: int = 5,
        trial: Trial | None = None,
    ) -> None:
        self._correlation = correlation
        self._call_id = correlation.call_id
        self._priority = priority
        self._trial = trial
        self._voices = voices
        self.leg = leg
        self._means = means
        self._stats = stats
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first turn has ended in any way."""
        self._now: Callable[[], float] = means.ticker.now
        fmt = leg.outbound
        self.playout = Playout(
            ptime_s=fmt.ptime_ms / 1000,
            # A peer that plays long frames as wholes needs the next one before the last one ends.
            lead_s=min(leg.max_lead_ms, max(means.playout.lead_ms, fmt.ptime_ms if fmt.ptime_ms > 60 else 0)) / 1000,
            start=means.start,
            has_marks=leg.has_marks,
            can_clear=leg.can_clear,
            mark_timeout_s=means.playout.mark_timeout_s,
            send_mark=leg.send_mark,
        )
        self.turns, self.instructions = new_turns(
            limits, self.playout, self, tell, sample_rate=fmt.sample_rate, frame_samples=fmt.frame_samples
        )
        self._making: dict[str, _Making] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._next_position_at = 0.0
        self._next_words_at = 0.0
        """Time at which the next word or segment of the speaking turn is due to be reported; infinity: none is due
        before the next wake-up."""
        self._dtmf_by_leg: set[str] = set()
        """Ids of digit turns that the leg sends itself, outside the audio, when their place in the audio is reached."""
        self._handle = means.ticker.add(
            self.playout, self._send_frame, self.settle, pacing_error=stats.meter.pacing_error(stats.transport)
        )

    def close(self, reason: Reason, now: float) -> None:
        """End every turn and take no new one."""
        self.turns.close(reason, now)
        for making in self._making.values():
            making.task.cancel()

    async def aclose(self) -> None:
        """Wait for the end of all tasks, then leave the ticker and the turns."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._means.ticker.remove(self._handle)
        self.turns.release()

    # --- the leg's side --------------------------------------------------------------------------------------------

    def mark_reached(self, name: str, now: float) -> None:
        """The peer has played up to a mark of the playout."""
        self.playout.mark_reached(name, now)
        if self.playout.last_mark_delay_s is not None:
            self._stats.meter.mark_delay(seconds=max(0.0, self.playout.last_mark_delay_s))
            self.playout.last_mark_delay_s = None
        self.settle(now)

    def put_on_hold(self, on_hold: bool, now: float) -> None:
        """The leg cannot carry sound now, or can again. Speech stops where it is and resumes from there."""
        if on_hold != self.playout.on_hold:
            self.playout.on_hold = on_hold
            if on_hold:
                self._flush_playout(now)
            self.wake(now)

    def playback(self, *, started: bool, now: float) -> None:
        """The peer has begun to play after silence (``started``), or has played all that it received."""
        if started:
            self.playout.playback_started(now)
        else:
            self.playout.playback_completed(now)
            self.settle(now)

    # --- what Turns wants done (Effects) ---------------------------------------------------------------------------

    def open(self, turn: Turn) -> None:
        """Start making a turn's sound."""
        self._stats.turns += 1
        making = self._making[turn.id] = _Making(asyncio.create_task(self._make(turn), name=f"turn {turn.id}"))
        if turn.kind == "text":
            making.pending.append(turn.speakable.text)
        self._tasks.add(making.task)
        making.task.add_done_callback(self._tasks.discard)

    def feed(self, turn: Turn, text: str) -> None:
        """Send the engine more text of a turn."""
        making = self._making.get(turn.id)
        if making is not None:
            if making.utterance is None:
                making.pending.append(text)
            else:
                making.utterance.feed(text)

    def end_text(self, turn: Turn) -> None:
        """Tell the engine that a turn's text is complete."""
        making = self._making.get(turn.id)
        if making is not None and making.utterance is not None:
            making.utterance.end_text()

    def stop(self, turn: Turn, heard: Position, now: float) -> None:
        """Stop making a turn's sound."""
        making = self._making.pop(turn.id, None)
        if making is not None:
            if making.utterance is not None:
                making.utterance.played(heard.samples, at=now)
            making.task.cancel()

    def flush(self, now: float) -> None:
        """Fall silent now: clear the peer's buffer, then send the shortest fade that the codec allows."""
        before = self.playout.sent_last(HEARD_FRAMES)
        sounding = self._flush_playout(now)
        self.leg.send_clear()
        # The fade takes a whole frame: a long one would delay the next turn more than a click at the cut is worth.
        if sounding is not None and self._means.playout.fade_ms and self.leg.outbound.ptime_ms <= 60:
            tail = faded(self.leg.outbound, sounding, ms=self._means.playout.fade_ms, heard=before)
            at = min(now, self.playout.pacer.dry_s)  # after the last frame, even if the next one is late
            if tail is not None and self.leg.send_frame(tail, at) and not self.leg.joined:
                self.caller.spoke(tail, at, at)

    def fell_silent(self, since: float | None, now: float) -> None:
        """Count a flush."""
        self._stats.fell_silent(since, now)

    def _flush_playout(self, now: float) -> bytes | None:
        self.caller.unheard(self.playout.unheard_s(now))
        return self.playout.flushed(now)

    def wake(self, now: float) -> None:
        """Check the playout again in the next slot."""
        if self._next_words_at == inf:
            self._next_words_at = now
        self._means.ticker.wake(self._handle, now=now)
        self.caller.refresh(now)

    def first_packet(self, turn: Turn, measured: FirstPacket, now: float) -> None:
        """Count a first packet and report the position to the engine; send digits that the leg carries itself."""
        if turn.id in self._dtmf_by_leg:
            self._dtmf_by_leg.discard(turn.id)
            self.leg.send_dtmf(turn.text)
        self._stats.first_packet(turn, measured, now=now)
        self._report_position(turn, now)

    def gap(self, turn: Turn, length_s: float) -> None:
        """Count a gap in the middle of a turn."""
        self._stats.gap(turn, length_s)
        if turn.kind == "text":
            self._means.trials.gap(turn.engine)

    def ended(self, turn: Turn, reason: str, heard: Position, since: float | None, now: float) -> None:
        """Count a turn and release the utterance that made it."""
        self._making.pop(turn.id, None)
        self._stats.ended(turn, reason, since, heard_chars=heard.chars, now=now)
        if not self.greeted.done():
            self.greeted.set_result(None)
        self.transfers.turn_ended()

    def hang_up(self, handoff_data: str | None) -> None:
        """All speech before the manager's ``end`` has been spoken."""
        self.transfers.speech_complete(handoff_data)

    def dropped_tokens(self, count: int) -> None:
        """Count late tokens that were dropped."""
        self._stats.meter.tokens_dropped(count)

    def refused_sound(self, seconds: float) -> None:
        """Count sound of the manager that there was no room for."""
        self._stats.meter.sound_refused(seconds)

    # --- making sound ----------------------------------------------------------------------------------------------

    async def _make(self, turn: Turn) -> None:
        CORRELATION.set(self._correlation)
        try:
            async with await self._source(turn) as utterance:
                if not self._opened(turn, utterance):
                    return
                async for chunk in utterance:
                    if turn.track.sent:
                        self._stats.meter.playout_buffer(seconds=self._buffered_s(turn))
                    self.turns.on_chunk(turn, chunk, self._now())
                    self._means.ticker.catch_up()  # an engine may deliver chunks for many calls at once
                    if self._buffered_s(turn) > BUFFER_S:
                        self._has_room.clear()
                        await self._has_room.wait()
            self.turns.on_engine_done(turn, self._now())
        except (EngineError, ClipError) as exc:
            code = exc.code if isinstance(exc, EngineError) else "CLIP"
            log.warning("turn failed", extra={"call": self._call_id, "turn": turn.id, "code": code, "why": str(exc)})
            self.turns.on_failed(turn, code=code, description=str(exc), now=self._now())
        except asyncio.CancelledError:
            raise
        except Exception:  # an internal error must end this turn, not the call
            log.exception("turn failed", extra={"call": self._call_id})
            self.turns.on_failed(turn, code="INTERNAL", description="internal error", now=self._now())

    def _opened(self, turn: Turn, utterance: Utterance) -> bool:
        """Feed a new utterance the text that waits for it. False: the turn was stopped meanwhile."""
        # Not in _make: there a cancellation, the frame in its traceback and the task would form a reference cycle.
        making = self._making.get(turn.id)
        if making is None:
            return False
        making.utterance = utterance
        for text in making.pending:
            utterance.feed(text)
        making.pending.clear()
        if turn.complete:
            utterance.end_text()
        return True

    def _buffered_s(self, turn: Turn) -> float:
        return len(turn.track.frames) * self.playout.pacer.ptime_s

    async def _source(self, turn: Turn) -> Utterance:
        fmt = self.leg.outbound
        if turn.kind == "play":
            return await self._means.clips.open(
                turn.source, fmt, turn.loop, route=self._correlation.route, call_id=self._call_id
            )
        if turn.sound is not None:
            return self._means.clips.own_sound(
                turn.sound, fmt, buffered_s=partial(self._buffered_s, turn),
                complete=partial(self.turns.complete_text, turn),
                route=self._correlation.route, call_id=self._call_id,
            )  # fmt: skip
        if turn.kind == "digits":
            by_leg = self.leg.carries_dtmf(turn.text)
            if by_leg:
                self._dtmf_by_leg.add(turn.id)
            return await self._means.clips.digits(turn.text, fmt, silent=by_leg)
        if not sees_voice(self._voices, turn.voice):
            raise NotFound(f"no voice {turn.voice[:40]!r}")
        return self._means.engine.open(
            UtteranceRequest(
                utterance_id=f"{self._call_id}.{turn.id}",
                format=fmt,
                voice=turn.voice,
                language=turn.language,
                speed=turn.speed,
                instruct=turn.instruct,
                ahead=turn.front_at is None,
                priority=self._priority,
                model=self._means.trials.model_of_turn(self._trial),
            )
        )

    # --- the ticker's side -----------------------------------------------------------------------------------------

    def _send_frame(self, frame: bytes, now: float) -> bool:
        playout = self.playout
        sounds_s = playout.pacer.sounds_s
        at = (
            now if now < sounds_s else sounds_s
        )  # a late frame counts from its planned time if it still arrives in time
        sent = self.leg.send_frame(frame, at)
        if playout.marks_due:
            playout.frame_sent()
        if not sent:
            self._stats.stalled()
        elif not self.leg.joined:  # the mix is reported by the seat
            self.caller.spoke(frame, at, sounds_s)
        return sent

    def settle(self, now: float) -> None:
        """Report the position that the caller has reached; called at the end of each visit of the ticker."""
        if self.playout.events:
            self.turns.settle(now)
            self._next_words_at = now
        if now >= self._next_words_at:
            self._next_words_at = self.turns.report_words(now)
        if now >= self._next_position_at:
            self._next_position_at = now + _POSITION_EVERY_S
            self.turns.report_marks(now)
            speaking = self.turns.speaking()
            if speaking is not None:
                self._report_position(speaking, now)
            if not self._has_room.is_set() and self.playout.buffered_s() < BUFFER_S:
                self._has_room.set()

    def _report_position(self, turn: Turn, now: float) -> None:
        making = self._making.get(turn.id)
        if making is not None and making.utterance is not None:
            making.utterance.played(self.turns.heard(turn, now).samples, at=now)
