"""Detection of the caller's speech from the network's probabilities. Pure; the network runs elsewhere.

The result is evidence. ``gateway.call.turn_taking.barge_in`` decides whether it interrupts the bot.

Silero's network answers once per window (256 samples at 8 kHz, 32 ms). While the bot is silent, ``min_speech_s`` of
speech windows confirm an onset. While the bot speaks, three more tests apply, because each wrong answer is a false cut:

* Echo of the bot: see ``gateway.uplink.echo_guard``.
* Background voice: the caller is louder than the mean of the last seconds by some decibels, and not much fainter than
  in the answers before. An answer is what was said while the bot was silent, if the bot then spoke.
* Hum ("mhm"): a closed mouth has almost no energy above 400 Hz. The parts of a hum that have some are its breaths,
  which are fainter than the rest of the hum. One loud window with an open mouth is enough to suspect an interruption
  and to pause. So is one with a close vowel as in "please", whose second formant above 1.6 kHz hums do not have. A
  turn is cut only after three open windows, or after a long hum. A sound that ends before is dismissed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MIN_SILENCE_S = 0.3
"""Silence that ends the caller's speech, seconds."""

WINDOW_SAMPLES = 256
SAMPLE_RATE = 8000
WINDOW_S = WINDOW_SAMPLES / SAMPLE_RATE
LULL_S = 0.16
"""Silence within speech after which the turn model is asked, seconds. Few stop consonants last as long."""

_RELEASE = 0.15  # hysteresis: speech continues while its probability is above the threshold minus this
FAINT_DB = -48.0  # a fainter sound over the bot's voice is the tail of an echo, or is not meant for the bot
_OPEN_DB = -8.0  # share of the energy above 400 Hz in a window with an open mouth
_FRONT_DB = -18.0  # share of the energy above 1600 Hz in a close vowel
_OPEN_BELOW_PEAK_DB = 4.0  # an open window is at most this much fainter than the loudest window of the onset
_SURELY_NEAR_DB = -32.0  # but one as loud as this may always be the caller
_RISES, _FALLS = 0.5, 0.2  # weights of an answer that is louder or fainter than those before
_LULL_DB = 20.0  # this far below the loudest window of the speech, a window counts as silent
_BACKGROUND_S = 2.0  # time constant of the background's mean power
_FIRST_BACKGROUND_S = (
    0.5  # weight in seconds of the background before the call, taken to be as loud as the first window
)
_FIRST_BACKGROUND_DB = (
    -60.0,
    -40.0,
)  # bounds of that level: a room may be noisy from the start, or the caller may speak at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Thresholds for speech over the bot's voice. Fields that are None keep the detector's own value."""

    threshold: float | None = None
    """Least probability."""
    min_speech_s: float | None = None
    """Length that confirms an onset, seconds."""
    sure_windows: int = 3
    """Windows with an open mouth that confirm it."""
    above_background_db: float = 8.0
    """Level above the mean of the last seconds."""
    below_answers_db: float = 10.0
    """Level below the caller's answers at which a voice is another one. One above ``_SURELY_NEAR_DB`` may still
    interrupt, but if it is too short for that, no recogniser is asked about it."""


SENSITIVITIES: Mapping[str, Sensitivity] = {
    "high": Sensitivity(),
    "medium": Sensitivity(threshold=0.5, min_speech_s=0.192, sure_windows=5, above_background_db=10.0),
    "low": Sensitivity(
        threshold=0.6, min_speech_s=0.384, sure_windows=9, above_background_db=12.0, below_answers_db=7.0
    ),
}
"""The sets of ``interruptSensitivity``. ``high`` is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measurements of one window of the caller's audio."""

    end: float
    """Monotonic second of its last sample."""
    probability: float
    level_db: float
    """RMS relative to full scale, dB."""
    bright_db: float
    """Energy above 400 Hz relative to the total, dB."""
    front_db: float
    """Energy above 1600 Hz relative to the total, dB."""
    talking_over: bool
    """True if the bot spoke, or its echo could be heard, during the window."""


class Evidence(enum.Enum):
    """Certainty that the caller speaks."""

    NONE = "none"
    SOUND = "sound"  # it may become speech
    SUSPICION = "suspicion"  # reported as a reason to pause
    SPEECH = "speech"


class SpeechDetector:
    """Detector of the onset and the end of one caller's speech.

    Args:
        threshold: least probability that counts as speech.
        min_speech_s: length of speech that confirms an onset.
        pause_s: length of speech over the bot's that is reported as a suspicion. 0: no suspicions.
        min_silence_s: length of silence that ends speech.
        max_hum_s: a longer hum counts as speech.
        lull_s: silence within speech that is reported as a lull. 0: no lulls.
        sensitivity: thresholds for speech over the bot's.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.4,
        min_speech_s: float = 0.096,
        pause_s: float = 0.064,
        min_silence_s: float = MIN_SILENCE_S,
        max_hum_s: float = 0.9,
        lull_s: float = 0.0,
        sensitivity: Sensitivity = SENSITIVITIES["high"],
    ) -> None:
        self.evidence = Evidence.NONE
        self.sensitivity = sensitivity
        """May be replaced at any time."""
        self._threshold = threshold
        self._min_speech_s = min_speech_s
        self._pause_s = pause_s
        self._min_silence_s = min_silence_s
        self._max_hum_s = max_hum_s
        self._lull_s = lull_s
        self.short_sound_from: float | None = None
        """Onset of the sound over the bot's voice that the last window ended, if it may have been a short word such as
        "no". None: no sound ended, or it was too short, too faint or the bot's echo."""
        self._background = self._background_before = 0.0
        self._background_s = 0.0
        self._answers_db: float | None = None
        """Level of the loudest window of the answers, on average."""
        self._said_db: float | None = None
        """Level of the loudest window of speech to which the bot has not answered yet."""
        self.forget()

    @property
    def idle(self) -> bool:
        """True if no sound is being tracked."""
        return self.evidence is Evidence.NONE

    @property
    def speaking(self) -> bool:
        """True if the caller speaks."""
        return self.evidence is Evidence.SPEECH

    def forget(self, evidence: Evidence = Evidence.NONE) -> None:
        """Reset: the sound has ended, or (``SPEECH``) is confirmed."""
        self.evidence = evidence
        self._onset = 0.0
        self._speech_s = self._silence_s = self._faint_s = 0.0
        self._open_windows = 0
        self._loudest_open_db = -200.0
        self._peak_db = -200.0

    def end(self, at: float) -> tuple[str, float] | None:
        """Reset at monotonic second ``at``. Return ``("ended", at)`` after a start, ``("dismissed", at)`` after a
        suspicion, otherwise None."""
        before = self.evidence
        if before is Evidence.SUSPICION:  # the caller's hum is not background either
            self._background = self._background_before
        self.forget()
        return {Evidence.SPEECH: ("ended", at), Evidence.SUSPICION: ("dismissed", at)}.get(before)

    def feed(self, window: Window, *, is_echo: Callable[[], bool] = lambda: False) -> tuple[str, float] | None:
        """Take one window. ``is_echo`` is called rarely.

        Returns:
            While the bot speaks, ``("suspected", onset)``, later ``("started", onset)`` or ``("dismissed", end)``.
            Otherwise ``("started", onset)`` at once. After a start, ``("lulled", begin)`` for short silences,
            ``("resumed", end)`` if speech continues after one, and ``("ended", end)``. ``("hummed", onset)`` after a
            sound over the bot's voice that was not suspected and may have been a short word. None: nothing to report.
        """
        self.short_sound_from = None
        if not self._background_s:
            quietest, loudest = _FIRST_BACKGROUND_DB
            self._background = 10 ** (min(max(window.level_db, quietest), loudest) / 10)
            self._background_s = _FIRST_BACKGROUND_S
        self._learn_level(window)
        threshold = self._threshold
        if window.talking_over and not self.speaking:
            threshold = max(threshold, self.sensitivity.threshold or 0.0)
        voiced = window.probability >= threshold - (0.0 if self.idle else _RELEASE)
        voiced &= window.level_db > FAINT_DB or not window.talking_over
        if self.speaking:
            self._silence_s = 0.0 if voiced else self._silence_s + WINDOW_S
            if self._silence_s >= self._min_silence_s:
                return self.end(window.end)
            return self._lull(window, voiced=voiced) if self._lull_s else None
        before = self._background
        self._background_s = min(self._background_s + WINDOW_S, _BACKGROUND_S)
        self._background += (10 ** (window.level_db / 10) - self._background) * WINDOW_S / self._background_s
        if not voiced:
            self._silence_s += WINDOW_S
            # One weak window inside a word does not end it.
            return self._end_sound(window, is_echo) if self._silence_s > WINDOW_S else None
        if self.idle:
            self.evidence = Evidence.SOUND
            self._onset = window.end - WINDOW_S
            self._background_before = before
        self._silence_s = 0.0
        self._speech_s += WINDOW_S
        self._peak_db = max(self._peak_db, window.level_db)
        if window.probability >= threshold and window.level_db >= self._peak_db - _OPEN_BELOW_PEAK_DB:
            self._open_windows += window.bright_db > _OPEN_DB
            if window.bright_db > _OPEN_DB or window.front_db > _FRONT_DB:
                self._loudest_open_db = max(self._loudest_open_db, window.level_db)
        if not window.talking_over:
            return self._start() if self._lasts(self._min_speech_s) else None
        if not self._loud:
            return None
        least_s = max(self._min_speech_s, self.sensitivity.min_speech_s or 0.0)
        if self._lasts(least_s) and (
            self._open_windows >= self.sensitivity.sure_windows or self._speech_s > self._max_hum_s
        ):
            return self.end(window.end) if is_echo() else self._start()
        worth_a_pause = self._pause_s and self._lasts(self._pause_s) and self._loud_open_window
        if self.evidence is Evidence.SOUND and worth_a_pause and not is_echo():
            self.evidence = Evidence.SUSPICION
            return "suspected", self._onset
        return None

    def _learn_level(self, window: Window) -> None:
        """Learn the caller's level from speech while the bot is silent, once the bot has answered."""
        if not window.talking_over:
            if self.speaking:
                self._said_db = max(window.level_db, window.level_db if self._said_db is None else self._said_db)
        elif self._said_db is not None and not self.speaking:
            before = self._said_db if self._answers_db is None else self._answers_db
            self._answers_db = before + (self._said_db - before) * (_RISES if self._said_db > before else _FALLS)
            self._said_db = None

    @property
    def _least_level_db(self) -> float:
        """The least level of the loudest window of an onset over the bot's voice."""
        # Speech of 0.4 s would itself be a part of the background.
        background = self._background_before if self.sensitivity.min_speech_s else self._background
        least_db = 10 * math.log10(background) + self.sensitivity.above_background_db
        if self._answers_db is None:
            return least_db
        return max(least_db, min(self._answers_db - self.sensitivity.below_answers_db, _SURELY_NEAR_DB))

    def _lull(self, window: Window, *, voiced: bool) -> tuple[str, float] | None:
        """Report short silences. The network still reports speech for 0.2 s after the last sound (median), but the
        level falls at once."""
        self._peak_db = max(self._peak_db, window.level_db)
        before_s = self._faint_s
        if voiced and window.level_db >= self._peak_db - _LULL_DB:
            self._faint_s = 0.0
            return ("resumed", window.end) if before_s + 1e-9 >= self._lull_s else None
        self._faint_s += WINDOW_S
        if before_s + 1e-9 < self._lull_s <= self._faint_s + 1e-9:
            return "lulled", window.end - self._faint_s
        return None

    def _end_sound(self, window: Window, is_echo: Callable[[], bool]) -> tuple[str, float] | None:
        onset = self._onset
        heard = not self.idle and window.talking_over and self._lasts(self._min_speech_s)
        if heard and self._loud and self._near and not is_echo():
            self.short_sound_from = onset
        return self.end(window.end) or (None if self.short_sound_from is None else ("hummed", onset))

    @property
    def _loud(self) -> bool:
        """True if the sound is louder than what is usual in the background."""
        return self._peak_db >= self._least_level_db

    @property
    def _near(self) -> bool:
        """True if the sound is about as loud as the caller's answers. Before the first answer: if it is loud."""
        if self._answers_db is None:
            return self._peak_db >= _SURELY_NEAR_DB
        return self._peak_db >= self._answers_db - self.sensitivity.below_answers_db

    @property
    def _loud_open_window(self) -> bool:
        """True if a window with an open mouth or a close front vowel was about as loud as the loudest of the onset."""
        return self._loudest_open_db >= self._peak_db - _OPEN_BELOW_PEAK_DB

    def _lasts(self, seconds: float) -> bool:
        return self._speech_s + 1e-9 >= seconds

    def _start(self) -> tuple[str, float]:
        onset = self._onset
        self._background = self._background_before  # the caller's words are not background
        self.forget(Evidence.SPEECH)
        return "started", onset
