"""What the caller says, and what follows from it: prompts, interruptions, acknowledgements that are let pass.

The VAD says when the caller speaks, the recogniser what. An utterance goes from the first onset to the end of a silence
that is long enough; it becomes one final prompt. Words that come while we speak interrupt first (what may be
interrupted), so that ``interrupt`` always precedes the ``prompt`` that it belongs to.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.call.barge_in import Event
from gateway.call.turns import Turns
from gateway.config import BargeInConfig, RecogniserConfig, RouteConfig
from gateway.seams.messages import Info, Outbound, Prompt
from gateway.seams.recogniser import Recogniser, RecognitionStream


class Timer(Protocol):
    """What ``call_later`` returns."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """How a route listens."""

    recogniser: Recogniser
    language: str
    hints: tuple[str, ...]
    partial_prompts: bool
    speaker_events: bool
    agreement: re.Pattern[str] | None
    """Matches what counts as a mere acknowledgement, as ``_plain`` writes it; None: nothing does."""
    quiet_s: float
    """From the end of speech, as the VAD tells it, to the end of the utterance."""
    lasts_s: float
    """Who speaks over us for so long interrupts without a word too; 0: speech itself has decided."""
    most_frames: int
    """Of 20 ms, in one utterance."""


def hearing(route: RouteConfig, recogniser: Recogniser, config: RecogniserConfig, barge_in: BargeInConfig) -> Hearing:
    """A route's part of the configuration."""
    own = route.barge_in.false_alarm_ms
    false_alarm_ms = barge_in.false_alarm_ms if own is None else own
    phrases = "|".join(re.escape(_plain(phrase)) for phrase in config.backchannels)
    return Hearing(
        recogniser=recogniser,
        language=route.language,
        hints=route.hints,
        partial_prompts=route.partial_prompts,
        speaker_events="speaker-events" in route.events,
        agreement=re.compile(rf"(?:(?:{phrases})(?: |$))+") if route.ignore_backchannel and phrases else None,
        quiet_s=max(0, config.end_of_speech_ms - barge_in.min_silence_ms) / 1000,
        lasts_s=max(false_alarm_ms, config.agreement_ms if route.ignore_backchannel else 0) / 1000,
        most_frames=round(config.max_utterance_s * 50),
    )


def _plain(text: str) -> str:
    """Lower case words, one space between them."""
    return " ".join(re.findall(r"[\w']+", text.lower()))


@dataclass(slots=True)
class _Utterance:
    """What the caller says in one go."""

    onset: float
    over_us: bool
    """We were speaking when it began."""
    frames: int = 0
    cuts: bool = False
    """It has said words that interrupt."""
    unwanted: bool = False
    """It ended while something played that it may neither interrupt nor be told about."""


class Listening:
    """One call's. ``start`` it once; see ``RecognitionEvents``.

    Args:
        decide: takes what is known of the caller, with the onset of what was heard, and does what follows.
        later: the loop's ``call_later``.
    """

    def __init__(
        self,
        hearing: Hearing,
        turns: Turns,
        *,
        tell: Callable[[Outbound], None],
        decide: Callable[[Event, float | None], None],
        later: Later | None = None,
    ) -> None:
        self._hearing = hearing
        self._turns = turns
        self._tell = tell
        self._decide = decide
        self._later: Later = later or asyncio.get_running_loop().call_later
        self._language = hearing.language
        self._stream: RecognitionStream | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._current: _Utterance | None = None
        self._finished: deque[_Utterance] = deque()  # whose words have not come; the stream bounds them
        self._end: Timer | None = None

    def start(self) -> None:
        """Connect to the recogniser. Raises ``RecognitionError``."""
        self._open(self._language)

    def use_language(self, tag: str) -> None:
        """From now on the caller speaks another language. What was being said is lost.

        Raises:
            RecognitionError: the recogniser does not know it; nothing has changed.
        """
        old = self._stream
        self._open(tag)
        if self._finished:
            self._finished.clear()  # their words do not come any more
            self._heard_nothing()
        if self._current is not None:
            self._current.frames = 0
        if old is not None:
            task = asyncio.create_task(old.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self, language: str) -> None:
        hearing = self._hearing
        self._stream = hearing.recogniser.open(
            self, language=language, hints=hearing.hints, partials=hearing.partial_prompts or hearing.lasts_s > 0
        )
        self._language = language

    async def aclose(self) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._stream is not None:
            await self._stream.aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)

    # --- the VAD's side ----------------------------------------------------------------------------------------------

    def on_speech_started(self, *, onset: float) -> None:
        """The caller has begun, or goes on after a short silence."""
        if self._end is not None:
            self._end.cancel()
        if self._current is None:
            self._current = _Utterance(onset, over_us=self._turns.speaking() is not None)
            self._tell_speaking("on")
        self._decide(Event.SPEECH, onset)

    def on_speech(self, pcm: bytes) -> None:
        """20 ms of it."""
        utterance = self._current
        if utterance is None or self._stream is None:
            return
        self._stream.push(pcm)
        utterance.frames += 1
        if utterance.frames >= self._hearing.most_frames:
            self._finish(utterance)
            self._current = _Utterance(utterance.onset, over_us=utterance.over_us, cuts=utterance.cuts)

    def on_speech_ended(self) -> None:
        """The caller is silent, perhaps only to take a breath."""
        self._decide(Event.SILENCE, None)
        if self._current is not None and self._stream is not None:
            self._stream.pause()
            self._current.unwanted = self._is_unwanted()
            self._end = self._later(self._hearing.quiet_s, self._on_quiet)

    def _on_quiet(self) -> None:
        if self._current is not None:
            utterance, self._current = self._current, None
            self._decide(Event.THOUGHT_ENDED, None)
            self._tell_speaking("off")
            self._finish(utterance)

    def _finish(self, utterance: _Utterance) -> None:
        if self._stream is not None:
            self._finished.append(utterance)
            self._stream.finish()

    # --- the recogniser's side ---------------------------------------------------------------------------------------

    def on_partial(self, text: str) -> None:
        """The words of an utterance up to now."""
        utterance = self._finished[0] if self._finished else self._current
        if utterance is None or self._is_agreement(utterance, text, begun=self._turns.barge_in.caller_speaks):
            return
        if not utterance.cuts:
            utterance.cuts = True
            self._decide(Event.WORDS, utterance.onset)
        # Of an utterance that is over, the final prompt is on its way.
        if self._hearing.partial_prompts and not self._finished and not self._is_unwanted():
            self._tell(Prompt(voice_prompt=text, lang=self._language, last=False))
            self._turns.on_prompt_sent()

    def on_final(self, text: str) -> None:
        """All words of the oldest utterance that is over."""
        if not self._finished:
            return  # of the stream before a change of language
        utterance = self._finished.popleft()
        if not text or self._is_agreement(utterance, text):
            self._heard_nothing()
            return
        if utterance.unwanted:
            self._heard_nothing()
            return
        # Also what we began to say meanwhile: the answer to this must not wait behind it.
        self._decide(Event.WORDS, utterance.onset)
        self._tell(Prompt(voice_prompt=text, lang=self._language, last=True))
        self._turns.on_prompt_sent()

    # --- what follows ------------------------------------------------------------------------------------------------

    def _heard_nothing(self) -> None:
        """What was said is over, and means nothing to us."""
        if self._current is None:
            self._decide(Event.NO_WORDS, None)

    def _is_agreement(self, utterance: _Utterance, text: str, *, begun: bool = False) -> bool:
        pattern = self._hearing.agreement
        if pattern is None or not utterance.over_us:
            return False
        plain = _plain(text)
        # One word that is still being said may become an acknowledgement: half a "yeah" is heard as many things.
        return pattern.fullmatch(plain) is not None or (begun and " " not in plain)

    def _is_unwanted(self) -> bool:
        turns = self._turns
        blocked = turns.speaking() is not None and not turns.interruptible_by("speech")
        return blocked and turns.defaults.report_input not in ("any", "speech")

    def _tell_speaking(self, value: str) -> None:
        if self._hearing.speaker_events:
            self._tell(Info(name="clientSpeaking", value=value))
