"""The other end of one outgoing call: passes speech, words and tones to ``Answering`` and runs its timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.call.answering.plan import AnswerPlan
from gateway.call.answering.verdict import Answering, AnswerVerdict
from gateway.seams.messages import Answered, AnsweredBy, Beep, Outbound
from gateway.seams.uplink import LineTone
from gateway.uplink.vad import MIN_SILENCE_S


class AnswerMeter(Protocol):
    """Counts verdicts and recording tones."""

    def answered(self, by: AnsweredBy) -> None: ...
    def beep(self) -> None: ...


class OtherEnd:
    """The other end of one outgoing call. Call ``start`` once.

    Args:
        language: language of the route.
        plan: acts on the verdicts.
        tell: sends a message to the manager.
        clock: the time of the VAD's events, seconds.
    """

    def __init__(
        self,
        language: str,
        plan: AnswerPlan,
        *,
        tell: Callable[[Outbound], None],
        meter: AnswerMeter,
        clock: Callable[[], float],
    ) -> None:
        self._plan = plan
        self._tell = tell
        self._meter = meter
        self._changed: Callable[[], None] = lambda: None
        self._needed_vad = True
        self._reported: AnsweredBy | None = None
        self._now = clock
        self._answering = Answering(clock(), language, end_lag_s=MIN_SILENCE_S)
        self._silent_since: float | None = None  # begin of the present lull
        self._timer: asyncio.TimerHandle | None = None

    @property
    def needs_vad(self) -> bool:
        """True if speech can change the verdict, or something is said once the other end is silent."""
        return self._answering.needs_speech or self._plan.needs_vad

    @property
    def needs_words(self) -> bool:
        """True if words can change the verdict, so that they are wanted while the other end speaks."""
        return self.needs_vad or self._answering.needs_words(self._now())

    @property
    def answered_by(self) -> AnsweredBy | None:
        """The latest verdict. None: there is none yet."""
        verdict = self._answering.verdict
        return None if verdict is None else verdict.by

    def start(self, changed: Callable[[], None]) -> None:
        """Decide from now on. ``changed`` is called when ``needs_vad`` has another value."""
        self._changed = changed
        self._answering.wait(self._now())
        self._set_timer()

    def close(self) -> None:
        """Cancel the timers, so that no more verdicts come."""
        self._cancel_timer()
        self._plan.close()

    def on_speech_started(self, *, onset: float) -> None:
        """The other end has spoken since ``onset``."""
        self._silent_since = None
        self._plan.on_speech(True, onset)
        self._take(self._answering.speech(True, onset))

    def on_speech_ended(self) -> None:
        """The other end has been silent for the VAD's silence."""
        self._plan.on_speech(False)
        # The VAD takes 0.2 s after the last word for speech; the lull began with the silence.
        since, self._silent_since = self._silent_since, None
        self._take(self._answering.speech(False, self._now() - MIN_SILENCE_S if since is None else since))

    def on_lull(self, *, since: float) -> None:
        """The other end has been silent since ``since``, perhaps only between two words."""
        self._silent_since = since

    def on_speech_resumed(self) -> None:
        """The other end speaks again after a lull."""
        self._silent_since = None

    def on_words(self, text: str) -> None:
        """The recogniser has the words of an utterance, or more of them."""
        self._take(self._answering.words(text, self._now()))

    def on_tone(self, tone: LineTone, *, ended_at: float) -> None:
        """A tone of the line has ended."""
        if tone.kind == "beep":
            self._meter.beep()
            self._tell(Beep(length_s=tone.length_s))
        self._take(self._answering.tone(tone.kind, ended_at))
        if tone.kind == "beep":
            self._plan.on_beep()

    def _take(self, verdict: AnswerVerdict | None) -> None:
        if verdict is not None:
            self._report(verdict)
        self._set_timer()

    def _report(self, verdict: AnswerVerdict) -> None:
        if verdict.by != self._reported:
            self._reported = verdict.by
            self._meter.answered(verdict.by)
        self._tell(Answered(by=verdict.by, confidence=verdict.confidence, text=verdict.text, waiting=verdict.waiting))
        self._plan.on_answered(verdict)

    def _set_timer(self) -> None:
        """Decide what is due, and set the timer for the next decision."""
        self._cancel_timer()
        now = self._now()
        while (due := self._answering.deadline()) is not None and due <= now:
            if (verdict := self._answering.expire(due)) is not None:
                self._report(verdict)
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(due - now, self._set_timer)
        if self.needs_vad != self._needed_vad:
            self._needed_vad = self.needs_vad
            self._changed()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
