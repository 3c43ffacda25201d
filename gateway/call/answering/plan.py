"""Carries out a route's ``answer`` on one outgoing call: what the bot does by who has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.call.answering.verdict import AnswerVerdict
from gateway.call.turn_taking.instructions import Instructions
from gateway.config import AnswerConfig
from gateway.seams.messages import End

SCREENING_PAUSE_S = 0.7
"""Silence of a screening assistant, beyond that of the VAD, after which it expects an answer."""
GREETING_PAUSE_S = 1.5
"""Silence after which the greeting of a machine is over."""
NO_BEEP_S = 5.0
"""Silence after which a machine records, although no recording tone was heard."""
LONGEST_GREETING_S = 60.0
"""Longest wait for a recording tone; then the call ends without a message."""
LONGEST_PROMPT_S = 10.0
"""Longest wait for a screening assistant to finish; then the bot speaks."""


class AnswerPlan:
    """The plan for one outgoing call. ``OtherEnd`` reports what it hears.

    Args:
        settings: the route's ``answer``.
        instructions: of the call.
        clock: the ticker's ``now``.
    """

    def __init__(self, settings: AnswerConfig, instructions: Instructions, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._instructions = instructions
        self._now = clock
        self._say: Callable[[], None] | None = None  # once the other end is silent
        self._pause_s = 0.0
        self._speaks = False
        self._onset = 0.0
        self._announced_at: float | None = None  # a queue or an assistant has answered
        self._is_over = False
        self._pause: asyncio.TimerHandle | None = None
        self._longest: asyncio.TimerHandle | None = None
        instructions.withhold(settings.wait, clock())

    @property
    def needs_vad(self) -> bool:
        """True if something is said once the other end is silent."""
        return self._say is not None

    def close(self) -> None:
        """Cancel the timers."""
        for timer in (self._pause, self._longest):
            if timer is not None:
                timer.cancel()

    # --- what is heard -----------------------------------------------------------------------------------------------

    def on_speech(self, speaks: bool, onset: float = 0.0) -> None:
        """The other end speaks, since ``onset``, or has been silent for the silence of the VAD."""
        self._speaks = speaks
        self._onset = onset if speaks else self._onset
        self._await_pause()

    def on_beep(self) -> None:
        """A recording tone has ended."""
        if self._say is not None and self._say != self._introduce:
            self._say()

    def on_answered(self, verdict: AnswerVerdict) -> None:
        """Act on a verdict; a later one replaces it."""
        if self._is_over:
            return
        settings, now, by = self._settings, self._now(), verdict.by
        self._wait_for(None)
        if verdict.is_doubted and (settings.message or by in settings.hang_up):
            return  # a person may have answered; another verdict follows
        if by in settings.hang_up:
            self._end()
        elif by == "machine" and settings.message:
            self._instructions.take_over(now)
            self._instructions.withhold(True, now)
            self._wait_for(self._leave_message, NO_BEEP_S, LONGEST_GREETING_S, self._end)
        elif by == "machine" and settings.wait:
            self._instructions.withhold(True, now)
            self._wait_for(self._release, GREETING_PAUSE_S, LONGEST_GREETING_S, self._release)
        elif by == "screening" and settings.screening:
            self._announced_at = now
            self._instructions.withhold(True, now)
            self._wait_for(self._introduce, SCREENING_PAUSE_S, LONGEST_PROMPT_S, self._introduce)
        elif by == "ivr" and settings.wait:
            self._announced_at = now
            self._instructions.withhold(True, now)
        else:
            if by == "human" and self._announced_at is not None:
                # The manager has answered an announcement; the person has not heard it.
                self._instructions.drop_withheld(self._announced_at, self._onset, now)
            self._release()

    # --- what is done ------------------------------------------------------------------------------------------------

    def _release(self) -> None:
        self._wait_for(None)
        self._instructions.withhold(False, self._now())

    def _introduce(self) -> None:
        self._wait_for(None)
        self._instructions.say_first("screening", self._settings.screening, self._now())

    def _leave_message(self) -> None:
        self._end(self._settings.message)

    def _end(self, last_words: str = "") -> None:
        self._is_over = True
        self._wait_for(None)
        now = self._now()
        self._instructions.take_over(now)
        if last_words:
            self._instructions.say_first("message", last_words, now)
        self._instructions.on_message(End(commit=True), now)

    def _wait_for(
        self,
        say: Callable[[], None] | None,
        pause_s: float = 0.0,
        longest_s: float = 0.0,
        late: Callable[[], None] | None = None,
    ) -> None:
        """Call ``say`` after a pause of the other end, and ``late`` if none comes. None: wait for nothing."""
        self.close()
        self._say, self._pause_s, self._longest = say, pause_s, None
        if late is not None:
            self._longest = asyncio.get_running_loop().call_later(longest_s, late)
        self._await_pause()

    def _await_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._pause = None
        if self._say is not None and not self._speaks:
            self._pause = asyncio.get_running_loop().call_later(self._pause_s, self._say)
