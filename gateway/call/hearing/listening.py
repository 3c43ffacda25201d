"""What the caller says, and what follows from it: prompts, interruptions, and acknowledgements that change nothing.

The VAD says when the caller speaks, the recogniser what. An utterance goes from the first onset to the end of a silence
that is long enough; it becomes one final prompt. Silence is counted in the caller's audio: while that does not come,
nobody knows whether the caller is silent. Words that come while we speak interrupt first (what may be interrupted), so
that ``interrupt`` always precedes the ``prompt`` that it belongs to.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from gateway.call.hearing.echo import is_echo, may_become_echo
from gateway.call.hearing.end_of_thought import Patience
from gateway.call.turn_taking.barge_in import Event
from gateway.call.turn_taking.turns import Turns
from gateway.config import BargeInConfig, RecogniserConfig, RouteConfig
from gateway.seams.messages import Info, Outbound, Prompt
from gateway.seams.recogniser import Recogniser, RecognitionStream
from gateway.seams.turn_model import Look, TurnModel
from gateway.upward import upward


class Timer(Protocol):
    """What ``call_later`` returns."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]

_BEHIND_S = 0.08
"""So much audio is always on its way through jitter, windows and the VAD's thread, and counts as if it were here."""
_AGAIN_S = 0.02
"""So often it is seen whether audio has come that is missing."""
_GOES_ON_S = 0.7
"""A caller who speaks again so soon after an utterance was judged to be over goes on with it: an answer may have begun,
but nobody has understood it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """How a route listens."""

    recogniser: Recogniser
    language: str
    hints: tuple[str, ...]
    partial_prompts: bool
    speaker_events: bool
    agreement: re.Pattern[str] | None
    """Matches a mere acknowledgement in the spelling of ``_plain``. None: nothing counts as one."""
    patience: Patience
    """How long a silence ends an utterance."""
    vad_silence_s: float
    """Seconds of silence that have passed when the VAD says that speech has ended."""
    stall_s: float
    """Audio that does not come for longer than these seconds counts as silence."""
    turn_model: TurnModel | None
    """Says whether a thought is complete. None: all silences are the usual one."""
    lasts_s: float
    """A caller who speaks over us for this many seconds interrupts even without a word. 0: the onset of speech has
    decided already."""
    most_frames: int
    """Most frames of 20 ms in one utterance."""
    acknowledgements: re.Pattern[str] | None = None
    """What ``agreement`` is where acknowledgements are to be ignored."""
    agreement_s: float = 1.0
    """What ``lasts_s`` is at least where acknowledgements are to be ignored."""
    drops_echo: bool = False
    """Whether transcripts that echo what we have just said count as nothing."""

    def with_silence(self, seconds: float) -> Hearing:
        """Return the same with another usual silence that ends an utterance."""
        return replace(self, patience=replace(self.patience, usual_s=seconds))


def hearing(
    route: RouteConfig,
    recogniser: Recogniser,
    config: RecogniserConfig,
    barge_in: BargeInConfig,
    turn_model: TurnModel | None = None,
) -> Hearing:
    """Make a route's ``Hearing`` from the configuration."""
    own = route.barge_in.false_alarm_ms
    false_alarm_ms = barge_in.false_alarm_ms if own is None else own
    phrases = "|".join(re.escape(_plain(phrase)) for phrase in config.backchannels)
    acknowledgements = re.compile(rf"(?:(?:{phrases})(?: |$))+") if phrases else None
    return Hearing(
        recogniser=recogniser,
        language=route.language,
        hints=route.hints,
        partial_prompts=route.partial_prompts,
        speaker_events="speaker-events" in route.events,
        agreement=acknowledgements if route.ignore_backchannel else None,
        patience=Patience(
            usual_s=config.end_of_speech_ms / 1000,
            finished_s=config.end_of_thought.finished_ms / 1000,
            hesitating_s=config.end_of_thought.hesitating_ms / 1000,
            finished_from=config.end_of_thought.finished_from,
            hesitating_below=config.end_of_thought.hesitating_below,
        ),
        vad_silence_s=barge_in.min_silence_ms / 1000,
        stall_s=config.stall_ms / 1000,
        turn_model=turn_model if route.end_of_thought else None,
        lasts_s=max(false_alarm_ms, config.agreement_ms if route.ignore_backchannel else 0) / 1000,
        most_frames=round(config.max_utterance_s * 50),
        acknowledgements=acknowledgements,
        agreement_s=config.agreement_ms / 1000,
        drops_echo=route.echo_prompt_filtering,
    )


def _plain(text: str) -> str:
    """Return the words of ``text`` in lower case, with one space between them and no punctuation."""
    return " ".join(re.findall(r"[\w']+", text.lower()))


@dataclass(slots=True)
class _Utterance:
    """What the caller says without a long silence in between."""

    onset: float
    over_us: bool
    """Whether we were speaking when the utterance began."""
    ended: float = math.inf
    """When it was judged to be over."""
    frames: int = 0
    sound: list[bytes] = field(default_factory=list)
    """The frames, where a turn model may be asked about them."""
    cuts: bool = False
    """Whether words of the utterance have interrupted us."""
    unwanted: bool = False
    """Whether it ended while a turn played that speech may not interrupt and during which no speech is reported."""


class Listening:
    """What one call's caller says; implements ``RecognitionEvents``. Call ``start`` once.

    Args:
        decide: takes an event of the interruption machine, with the onset of what was heard, and acts on it.
        end_speech: tells the VAD that the caller's speech is over.
        clock: the time of the VAD's events, seconds.
        heard_s: seconds of the caller's audio that the VAD has judged.
        later: the loop's ``call_later``.
    """

    def __init__(
        self,
        hearing: Hearing,
        turns: Turns,
        *,
        tell: Callable[[Outbound], None],
        decide: Callable[[Event, float | None], None],
        end_speech: Callable[[], None],
        clock: Callable[[], float],
        heard_s: Callable[[], float],
        later: Later | None = None,
    ) -> None:
        self._hearing = hearing
        self._turns = turns
        self._tell = tell
        self._decide = decide
        self._end_speech = end_speech
        self._now = clock
        self._heard_s = heard_s
        self._later: Later = later or asyncio.get_running_loop().call_later
        self._language = hearing.language
        self._hints: dict[str, tuple[str, ...]] = {}
        """Hints by the language that the manager declared them for."""
        self._outdated = False
        """Whether the stream was opened with settings that have changed since."""
        self._stream: RecognitionStream | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._current: _Utterance | None = None
        self._finished: deque[_Utterance] = deque()  # over, but their words have not come; the stream bounds them
        self._prompt_ended = -math.inf
        """When the utterance of the latest final prompt was judged to be over."""
        self._end: Timer | None = None
        self._silent_since: float | None = None
        """When the silence under way began. None: the caller speaks."""
        self._silent_from_s = 0.0
        """Where in the caller's audio it began."""
        self._stopped: Timer | None = None
        """Looks whether audio still comes while the caller speaks."""
        self._vad_ended = True
        self._withheld: list[bytes] = []
        """The silence under way. The recogniser gets it only if speech goes on, so the words that it works out in the
        pause are those of the whole utterance."""
        self._look: Look | None = None
        self._finished_probability: float | None = None
        """The turn model's answer about the silence under way: a probability."""

    @property
    def knows_thoughts(self) -> bool:
        """Whether a turn model is asked in pauses."""
        return self._hearing.turn_model is not None

    def start(self) -> None:
        """Connect to the recogniser. Raises ``RecognitionError``."""
        self._open(self._language)

    def use_language(self, tag: str) -> None:
        """From now on the caller speaks another language. The utterance that is being said is lost.

        Raises:
            RecognitionError: the recogniser does not know the language, and nothing has changed.
        """
        old = self._stream
        self._open(tag)
        if self._finished:
            self._finished.clear()  # their words do not come any more
            self._heard_nothing()
        if self._current is not None:
            self._current.frames = 0
        self._close(old)

    def configure(self, hearing: Hearing, hints: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> None:
        """Listen in another way from now on; ``hints`` are those of single languages. The recogniser learns of it
        between two utterances."""
        self._hearing = hearing
        self._hints.update(hints)
        self._outdated = True
        self._renew()

    def _renew(self) -> None:
        if self._outdated and self._stream is not None and self._current is None and not self._finished:
            old = self._stream
            self._open(self._language)
            self._close(old)

    def _close(self, stream: RecognitionStream | None) -> None:
        if stream is not None:
            task = asyncio.create_task(stream.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self, language: str) -> None:
        hearing = self._hearing
        self._stream = hearing.recogniser.open(
            upward(self),
            language=language,
            hints=self._hints.get(language, hearing.hints),
            partials=hearing.partial_prompts or hearing.lasts_s > 0,
        )
        self._language = language
        self._outdated = False

    async def aclose(self) -> None:
        self._speaks_on()
        if self._stopped is not None:
            self._stopped.cancel()
        if self._stream is not None:
            await self._stream.aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)

    # --- the VAD's side ----------------------------------------------------------------------------------------------

    def on_speech_started(self, *, onset: float) -> None:
        """The caller has begun, or goes on after a short silence."""
        self._withheld.clear()  # the stretch before the onset comes again
        self._speaks_on()
        self._vad_ended = False
        if self._current is None:
            self._current = _Utterance(onset, over_us=self._turns.queue.speaking() is not None)
            self._tell_speaking("on")
        if self._stopped is None:
            self._look_for_audio()
        self._decide(Event.SPEECH, onset)

    def on_speech(self, pcm: bytes) -> None:
        """20 ms of the caller's speech."""
        utterance = self._current
        if utterance is None or self._stream is None:
            return
        if self._silent_since is None or self._vad_ended:
            self._stream.push(pcm)
        else:
            self._withheld.append(pcm)
        utterance.frames += 1
        if self.knows_thoughts:
            utterance.sound.append(pcm)
        if utterance.frames >= self._hearing.most_frames:
            self._finish(utterance)
            self._current = _Utterance(utterance.onset, over_us=utterance.over_us, cuts=utterance.cuts)

    def on_lull(self, *, since: float, silence_s: float) -> None:
        """The caller has been silent since then, perhaps only between two words: ask the turn model."""
        utterance, model = self._current, self._hearing.turn_model
        if utterance is None or model is None:
            return
        self._silent(utterance, since, silence_s)
        self._look = model.look(utterance.sound, self._on_thought_judged)

    def on_speech_resumed(self) -> None:
        """The caller speaks on after a lull."""
        if self._current is None or self._stream is None:
            return
        for pcm in self._withheld:
            self._stream.push(pcm)
        self._speaks_on()

    def on_speech_ended(self) -> None:
        """The caller is silent, perhaps only to take a breath."""
        self._decide(Event.SILENCE, None)
        self._vad_ended = True
        if self._current is not None:
            silence_s = self._hearing.vad_silence_s
            # The VAD is surer than the level of the sound, which is all that a lull is.
            self._silent(self._current, self._now() - silence_s, silence_s)
            self._wait()

    def _silent(self, utterance: _Utterance, since: float, silence_s: float) -> None:
        begins = self._silent_since is None
        self._silent_since = since
        self._silent_from_s = self._heard_s() - silence_s
        if not begins:
            return
        utterance.unwanted = self._is_unwanted()
        if self._stream is not None:
            self._stream.pause()

    def _speaks_on(self) -> None:
        self._silent_since = None
        self._finished_probability = None
        self._withheld.clear()
        for pending in (self._look, self._end):
            if pending is not None:
                pending.cancel()

    def _on_thought_judged(self, probability: float) -> None:
        self._finished_probability = probability
        if self._current is not None and self._silent_since is not None:
            self._wait()

    def _wait(self) -> None:
        """Wait until the silence is long enough. Only a finished thought ends before the VAD says "silence"."""
        if self._end is not None:
            self._end.cancel()
        if self._vad_ended or self._hearing.patience.is_finished(self._finished_probability):
            self._end = self._later(max(0.0, self._missing_s()), self._on_quiet)

    def _missing_s(self) -> float:
        """Return how much longer the silence under way has to be."""
        assert self._silent_since is not None
        passed_s = self._now() - self._silent_since
        heard_s = self._heard_s() - self._silent_from_s + _BEHIND_S
        silence_s = min(passed_s, max(heard_s, passed_s - self._hearing.stall_s))
        return self._hearing.patience.silence_s(self._finished_probability) - silence_s

    def _look_for_audio(self, before_s: float = -1.0) -> None:
        """End the utterance of a caller whose audio has stopped, which the VAD cannot tell."""
        self._stopped = None
        if self._current is None or self._vad_ended:
            return
        heard_s = self._heard_s()
        if heard_s == before_s:
            self._over()
        else:
            again_s = self._hearing.patience.usual_s + self._hearing.stall_s
            self._stopped = self._later(again_s, lambda: self._look_for_audio(heard_s))

    def _on_quiet(self) -> None:
        if self._current is None:
            return
        if (missing_s := self._missing_s()) > 1e-6:  # the caller's audio is late
            self._end = self._later(min(missing_s, _AGAIN_S), self._on_quiet)
        else:
            self._over()

    def _over(self) -> None:
        """The utterance is over."""
        if self._current is not None:
            utterance, self._current = self._current, None
            self._speaks_on()
            if not self._vad_ended:
                self._end_speech()
            self._decide(Event.THOUGHT_ENDED, None)
            self._tell_speaking("off")
            self._finish(utterance)

    def _finish(self, utterance: _Utterance) -> None:
        utterance.ended = self._now()
        if self._stream is not None:
            self._finished.append(utterance)
            self._stream.finish()

    # --- the recogniser's side ---------------------------------------------------------------------------------------

    def on_partial(self, text: str) -> None:
        """The words of an utterance up to now."""
        utterance = self._finished[0] if self._finished else self._current
        if utterance is None or self._is_agreement(utterance, text, begun=self._turns.floor.barge_in.caller_speaks):
            return
        if self._is_echo(utterance, text, begun=True):
            return
        if not utterance.cuts:
            utterance.cuts = True
            self._decide(Event.WORDS, utterance.onset)
        # Once an utterance is over, its final prompt is on its way, and no partial one is wanted.
        if self._hearing.partial_prompts and not self._finished and not self._is_unwanted():
            self._tell_prompt(utterance, text, last=False)

    def on_final(self, text: str) -> None:
        """All words of the oldest utterance that is over."""
        if not self._finished:
            return  # the words belong to the stream before a change of language
        self._judge(self._finished.popleft(), text)
        self._renew()

    def _judge(self, utterance: _Utterance, text: str) -> None:
        if not text or self._is_agreement(utterance, text) or self._is_echo(utterance, text) or utterance.unwanted:
            self._heard_nothing()
            return
        # This cuts also what we began to say meanwhile: the answer to this utterance must not wait behind it.
        self._decide(Event.WORDS, utterance.onset)
        self._tell_prompt(utterance, text, last=True)
        self._prompt_ended = utterance.ended

    # --- what follows ------------------------------------------------------------------------------------------------

    def _tell_prompt(self, utterance: _Utterance, text: str, *, last: bool) -> None:
        continues = utterance.onset - self._prompt_ended < _GOES_ON_S
        self._tell(Prompt(voice_prompt=text, lang=self._language, last=last, continues=continues))
        self._turns.untagged.expect_answer()

    def _heard_nothing(self) -> None:
        """The utterance is over, and had no words that count."""
        if self._current is None:
            self._decide(Event.NO_WORDS, None)

    def _is_agreement(self, utterance: _Utterance, text: str, *, begun: bool = False) -> bool:
        pattern = self._hearing.agreement
        if pattern is None or not utterance.over_us:
            return False
        plain = _plain(text)
        # A single word that is not finished may become an acknowledgement: half a "yeah" is recognised as many words.
        return pattern.fullmatch(plain) is not None or (begun and " " not in plain)

    def _is_echo(self, utterance: _Utterance, text: str, *, begun: bool = False) -> bool:
        """Whether words that began while we spoke are ours. ``begun``: more of them may come."""
        if not self._hearing.drops_echo or not utterance.over_us:
            return False
        heard, said = _plain(text).split(), _plain(" ".join(self._turns.heard.said)).split()
        return is_echo(heard, said) or (begun and may_become_echo(heard, said))

    def _is_unwanted(self) -> bool:
        turns = self._turns
        blocked = turns.queue.speaking() is not None and not turns.queue.interruptible_by("speech")
        return blocked and turns.defaults.report_input not in ("any", "speech")

    def _tell_speaking(self, value: str) -> None:
        if self._hearing.speaker_events:
            self._tell(Info(name="clientSpeaking", value=value))
