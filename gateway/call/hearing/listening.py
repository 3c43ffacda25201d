"""Conversion of the caller's speech to prompts and interruptions. Acknowledgements change nothing.

A short sound over the bot's voice may be a word or a hum. The VAD cannot tell, so the recogniser is asked at once; a
bot that has paused for the sound stays silent meanwhile. Words that are no acknowledgement then cut, as those of an
utterance do. The sound begins an utterance that the caller may continue after a silence.

The VAD reports when the caller speaks, the recogniser which words. An utterance lasts from its first onset until a long
enough silence has passed; it becomes one final prompt. Silence is counted in the caller's audio: while no audio
arrives, the caller may be speaking. Words that arrive while the bot speaks cut the interruptible turns first, so
``interrupt`` always precedes the ``prompt`` that it belongs to.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gateway.call.hearing.echo import is_echo, may_become_echo
from gateway.call.hearing.end_of_thought import Patience
from gateway.call.hearing.expectation import ANYTHING, AnswerProgress, expected, progress
from gateway.call.hearing.wordings import is_made_of, may_become_made_of, plain, wording
from gateway.call.turn_taking.barge_in import CallerEvent
from gateway.call.turn_taking.turns import Turns
from gateway.config import BargeInConfig, RecogniserConfig, RouteConfig
from gateway.seams.messages import Info, Outbound, Prompt
from gateway.seams.recogniser import MAX_UTTERANCE_S, Recogniser, RecognitionStream
from gateway.seams.turn_model import Look, TurnModel
from gateway.uplink.vad import MIN_SILENCE_S

_STALL_S = 0.6
"""Lateness above which missing audio counts as silence, seconds. A shorter network stall does not end an utterance."""

_AGREEMENT_MS = 1000
"""Speech over the bot's that suspends its voice before a word is known, with ``ignore_backchannel``, milliseconds."""


Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]

_IN_TRANSIT_S = 0.08
"""Audio that is always in transit through jitter buffer, windows and the VAD's thread, seconds. It counts as heard."""
_RECHECK_S = 0.02
"""Interval of checks for missing audio, seconds."""
_CONTINUES_WITHIN_S = 0.7
"""Longest time between the end of an utterance and new speech that continues it, seconds. An answer may have begun by
then, but the caller has not understood it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSettings:
    """The settings with which a route listens."""

    recogniser: Recogniser
    language: str
    hints: tuple[str, ...]
    partial_prompts: bool
    speaker_events: bool
    ignores_backchannel: bool
    """True if an acknowledgement over the bot's voice neither interrupts nor becomes a prompt."""
    backchannels: frozenset[str]
    """Acknowledgements besides those of the language, in the spelling of ``plain``."""
    patience: Patience
    """The silences that end an utterance."""
    vad_silence_s: float
    """Silence that has passed when the VAD reports the end of speech, seconds."""
    stall_s: float
    """Audio missing for longer than this counts as silence, seconds."""
    turn_model: TurnModel | None
    """Estimates whether a thought is complete. None: every silence is the usual one."""
    silence_only: bool = False
    """True if the manager has turned the turn model off."""
    lasts_s: float
    """Speech over the bot's for this many seconds suspends the bot's voice before a word is known. 0: the onset of
    speech has already decided."""
    words_s: float
    """Longest wait for the words of an utterance, seconds."""
    most_frames: int
    """Most frames of 20 ms in one utterance."""
    agreement_s: float = 1.0
    """The least ``lasts_s`` if the manager turns ``ignoreBackchannel`` on, seconds."""
    drops_echo: bool = False
    """Drop transcripts that echo what the bot has just said."""
    reads_words: bool = False
    """True if the words so far help to decide whether a thought is over."""

    def with_silence(self, seconds: float) -> ListeningSettings:
        """Return a copy in which at least this silence ends an utterance."""
        return replace(self, patience=self.patience.at_least(seconds))


def hearing(
    route: RouteConfig,
    recogniser: Recogniser,
    config: RecogniserConfig,
    barge_in: BargeInConfig,
    turn_model: TurnModel | None = None,
) -> ListeningSettings:
    """Return a route's ``ListeningSettings`` from the configuration."""
    own = route.barge_in.false_alarm_ms
    false_alarm_ms = barge_in.false_alarm_ms if own is None else own
    return ListeningSettings(
        recogniser=recogniser,
        language=route.language,
        hints=route.hints,
        partial_prompts=route.partial_prompts,
        speaker_events="speaker-events" in route.events,
        ignores_backchannel=route.ignore_backchannel,
        backchannels=frozenset(map(plain, config.backchannels)),
        patience=Patience(
            usual_s=config.end_of_speech_ms / 1000,
            finished_s=config.end_of_thought.finished_ms / 1000,
            hesitating_s=config.end_of_thought.hesitating_ms / 1000,
        ),
        vad_silence_s=MIN_SILENCE_S,
        stall_s=_STALL_S,
        turn_model=turn_model if route.end_of_thought else None,
        lasts_s=max(false_alarm_ms, _AGREEMENT_MS if route.ignore_backchannel else 0) / 1000,
        words_s=config.final_timeout_ms / 1000,
        most_frames=round(MAX_UTTERANCE_S * 50),
        agreement_s=_AGREEMENT_MS / 1000,
        drops_echo=route.echo_prompt_filtering,
        reads_words=route.end_of_thought,
    )


@dataclass(slots=True)
class _Utterance:
    """The caller's speech between two long silences."""

    onset: float
    over_bot: bool
    """True if the bot was speaking when the utterance began."""
    ended: float = math.inf
    """Time at which the utterance was judged to be over."""
    stopped: float = math.inf
    """Time at which the caller fell silent for it, if known."""
    frames: int = 0
    sound: list[bytes] = field(default_factory=list)
    """The frames, for the turn model."""
    cuts: bool = False
    """True if words of the utterance have interrupted the bot."""
    words: str = ""
    """The recogniser's latest words of it."""
    short: bool = False
    """True if the VAD took none of it for speech."""
    unwanted: bool = False
    """True if it ended during a turn that speech may not interrupt, while the route reports no speech."""


class Listening:
    """The speech of one caller; implements ``RecognitionEvents``. Call ``start`` once.

    Args:
        decide: passes an event and its onset to the interruption machine and acts on the verdict.
        end_speech: tells the VAD that the caller's speech is over.
        clock: the time of the VAD's events, seconds.
        heard_s: returns the seconds of the caller's audio that the VAD has judged.
        later: the loop's ``call_later``.
    """

    def __init__(
        self,
        hearing: ListeningSettings,
        turns: Turns,
        *,
        tell: Callable[[Outbound], None],
        decide: Callable[[CallerEvent, float | None], None],
        end_speech: Callable[[], None],
        clock: Callable[[], float],
        heard_s: Callable[[], float],
        later: Later | None = None,
    ) -> None:
        self._hearing = hearing
        self._turns = turns
        self.words_wanted: Callable[[], bool] = lambda: False
        """Returns True if another part of the call wants words while the caller speaks."""
        self.on_words: Callable[[str], None] = lambda text: None
        """Takes the words of each utterance so far, also those that become no prompt, but not the bot's."""
        self.on_stopped: Callable[[float], None] = lambda at: None
        """Takes the time at which the caller stopped, when the words of that utterance become a prompt."""
        self._tell = tell
        self._decide = decide
        self._end_speech = end_speech
        self._now = clock
        self._heard_s = heard_s
        self._later: Later = later or asyncio.get_running_loop().call_later
        self._language = hearing.language
        self._hints: dict[str, tuple[str, ...]] = {}
        """Hints by the language for which the manager declared them."""
        self._settings_changed = False
        """True if the settings have changed since the stream was opened."""
        self._stream: RecognitionStream | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._current: _Utterance | None = None
        self._finished: deque[_Utterance] = deque()  # over, waiting for their words; the stream bounds their number
        self._prompt_ended = -math.inf
        """Time at which the utterance of the latest final prompt was judged to be over."""
        self._end_timer: asyncio.TimerHandle | None = None
        self._silent_since: float | None = None
        """Start of the current silence. None: the caller speaks."""
        self._silent_from_s = 0.0
        """Start of the current silence in the caller's audio, seconds."""
        self._audio_check: asyncio.TimerHandle | None = None
        """Checks that audio still arrives while the caller speaks."""
        self._vad_silent = True
        self._withheld: list[bytes] = []
        """Audio of the current silence. The recogniser receives it only if the caller speaks again, so the words that
        it finalises in the pause cover the whole utterance."""
        self._gives_partials = False
        """True if the recogniser has given words before the end of an utterance."""
        self._words_are_fresh = False
        """True if the recogniser has given words since the current silence began."""
        self._told_likely = False
        """True if the manager knows that the thought may be over with the current silence."""
        self._look: Look | None = None
        self._finished_probability: float | None = None
        """The turn model's probability that the thought is finished, for the current silence."""

    @property
    def has_turn_model(self) -> bool:
        """True if a turn model is asked during pauses."""
        return self._hearing.turn_model is not None and not self._hearing.silence_only

    def start(self) -> None:
        """Connect to the recogniser. Raises ``RecognitionError``."""
        self._open(self._language)

    def use_language(self, tag: str) -> None:
        """Recognise another language from now on. The current utterance is lost.

        Raises:
            RecognitionError: the recogniser does not know the language; nothing has changed.
        """
        old = self._stream
        self._open(tag)
        if self._finished:
            self._finished.clear()  # the old stream sends no more words
            self._heard_nothing()
        if self._current is not None:
            self._current.frames = 0
        self._close(old)

    def configure(
        self, hearing: ListeningSettings, hints: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> None:
        """Use other settings from now on, also for the current silence; ``hints`` are keyed by language. The recogniser
        is reopened between two utterances."""
        self._hearing = hearing
        self._hints.update(hints)
        if not self.has_turn_model:
            self._drop_answer()
        if self._current is not None and self._silent_since is not None:
            self._set_end_timer()
        self._settings_changed = True
        self._reopen_if_changed()

    def _drop_answer(self) -> None:
        """Judge the current silence without the turn model. A lull is then no silence: it was only for the model."""
        if not self._vad_silent and self._silent_since is not None:
            self.on_speech_resumed()
        self._finished_probability = None
        if self._look is not None:
            self._look.cancel()

    def _reopen_if_changed(self) -> None:
        if self._settings_changed and self._stream is not None and self._current is None and not self._finished:
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
            self,
            language=language,
            hints=self._hints.get(language, hearing.hints),
            partials=True,  # the first words decide whether the caller interrupts
        )
        self._language = language
        self._settings_changed = False

    async def aclose(self) -> None:
        self._end_silence()
        if self._audio_check is not None:
            self._audio_check.cancel()
        stream, self._stream = self._stream, None  # the stream refers to this object
        if stream is not None:
            await stream.aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def refresh(self) -> None:
        """Tell the recogniser whether words are wanted while the caller speaks: until the first ones, when they may cut
        something, or when another part wants them. Those at pauses and at the end are always wanted. Words while the
        caller speaks cost a recogniser on this machine five times as much."""
        utterance = self._current
        if utterance is not None and self._stream is not None:
            self._stream.want_partials(
                not self._gives_partials
                or self._hearing.partial_prompts
                or self.words_wanted()
                or (not utterance.cuts and any(turn.interruptible in ("any", "speech") for turn in self._turns.in_line))
            )

    # --- the VAD's side ----------------------------------------------------------------------------------------------

    def on_speech_started(self, *, onset: float) -> None:
        """The caller has started to speak, or continues after a short silence."""
        self._withheld.clear()  # the VAD sends the audio before the onset again
        self._end_silence()
        self._vad_silent = False
        if self._current is None or self._current.short:
            self._current = self._current or _Utterance(onset, over_bot=self._turns.speaking() is not None)
            self._current.short = False
            self._tell_speaking("on")
            self.refresh()
        if self._audio_check is None:
            self._look_for_audio()
        self._decide(CallerEvent.SPEECH, onset)

    def on_short_sound(self, *, onset: float, sound: Sequence[bytes]) -> None:
        """Ask the recogniser about a sound over the bot's voice that was not sure to be speech. During an utterance it
        is a part of that."""
        if self._stream is None or not sound:
            return
        if self._current is None:
            self._current = _Utterance(onset, over_bot=True, short=True)
        self._end_silence()
        for pcm in sound:
            self.on_speech(pcm)
        self._silent(self._current, self._now(), 0.0)
        self._set_end_timer()
        self._decide(CallerEvent.SHORT_SOUND, None)

    def on_speech(self, pcm: bytes) -> None:
        """Take 20 ms of the caller's speech."""
        utterance = self._current
        if utterance is None or self._stream is None:
            return
        if self._silent_since is None or self._vad_silent:
            self._stream.push(pcm)
        else:
            self._withheld.append(pcm)
        utterance.frames += 1
        if self.has_turn_model:
            utterance.sound.append(pcm)
        if utterance.frames >= self._hearing.most_frames:
            self._finish(utterance)
            self._current = _Utterance(utterance.onset, over_bot=utterance.over_bot, cuts=utterance.cuts)

    def on_lull(self, *, since: float, silence_s: float) -> None:
        """The caller has been silent since ``since``, perhaps only between two words: ask the turn model."""
        utterance, model = self._current, self._hearing.turn_model
        if utterance is None or model is None or not self.has_turn_model:
            return
        self._silent(utterance, since, silence_s)
        self._look = model.look(utterance.sound, self._on_thought_judged)

    def on_speech_resumed(self) -> None:
        """The caller speaks again after a lull."""
        if self._current is None or self._stream is None:
            return
        for pcm in self._withheld:
            self._stream.push(pcm)
        self._end_silence()

    def on_speech_ended(self) -> None:
        """The VAD reports silence, perhaps only a breath."""
        self._decide(CallerEvent.SILENCE, None)
        self._vad_silent = True
        if self._current is not None:
            silence_s = self._hearing.vad_silence_s
            # A lull is judged by the level of the audio alone; the VAD's time replaces it.
            self._silent(self._current, self._now() - silence_s, silence_s)
            self._set_end_timer()

    def _silent(self, utterance: _Utterance, since: float, silence_s: float) -> None:
        begins = self._silent_since is None
        self._silent_since = since
        self._silent_from_s = self._heard_s() - silence_s
        if not begins:
            return
        utterance.unwanted = self._is_unwanted()
        self._words_are_fresh = self._told_likely = False
        if self._stream is not None:
            self._stream.pause()

    def _end_silence(self) -> None:
        self._silent_since = None
        self._finished_probability = None
        self._withheld.clear()
        for pending in (self._look, self._end_timer):
            if pending is not None:
                pending.cancel()

    def _on_thought_judged(self, probability: float) -> None:
        self._finished_probability = probability
        utterance = self._current
        if utterance is not None and self._silent_since is not None:
            self._set_end_timer()
            if utterance.cuts and not self._told_likely and self._may_be_over():
                self._tell_partial(utterance)

    def _set_end_timer(self) -> None:
        """Set the timer for the end of the utterance. Before the VAD reports silence, only a finished thought sets
        it."""
        if self._end_timer is not None:
            self._end_timer.cancel()
        if self._vad_silent or self._may_be_over():
            self._end_timer = self._later(max(0.0, self._missing_s()), self._on_quiet)

    def _missing_s(self) -> float:
        """Return how much longer the current silence has to last, seconds."""
        assert self._silent_since is not None
        passed_s = self._now() - self._silent_since
        heard_s = self._heard_s() - self._silent_from_s + _IN_TRANSIT_S
        silence_s = min(passed_s, max(heard_s, passed_s - self._hearing.stall_s))
        return self._needed_s() - silence_s

    def _needed_s(self) -> float:
        """Return the silence that ends the current utterance now, seconds."""
        follow = self._gives_partials and not self._words_are_fresh
        return self._hearing.patience.silence_s(self._finished_probability, self._progress(), words_follow=follow)

    def _may_be_over(self) -> bool:
        return self._hearing.patience.is_finished(self._finished_probability, self._progress())

    def _progress(self) -> AnswerProgress:
        """Return how far the words of the current utterance answer what the bot expects."""
        utterance, hearing, asked = self._current, self._hearing, self._turns.asked
        if utterance is None or not hearing.reads_words or hearing.silence_only:
            return AnswerProgress.UNKNOWN
        wanted = ANYTHING if asked is None else expected(asked.expect, asked.text, asked.language or self._language)
        return progress(utterance.words, wanted, self._language)

    def _look_for_audio(self, before_s: float = -1.0) -> None:
        """End the utterance if the caller's audio has stopped, which the VAD cannot detect."""
        self._audio_check = None
        if self._current is None or self._vad_silent:
            return
        heard_s = self._heard_s()
        if heard_s == before_s:
            self._end_utterance()
        else:
            again_s = self._hearing.patience.usual_s + self._hearing.stall_s
            self._audio_check = self._later(again_s, lambda: self._look_for_audio(heard_s))

    def _on_quiet(self) -> None:
        if self._current is None:
            return
        if (missing_s := self._missing_s()) > 1e-6:  # the caller's audio is late
            self._end_timer = self._later(min(missing_s, _RECHECK_S), self._on_quiet)
        else:
            self._end_utterance()

    def _end_utterance(self) -> None:
        """End the utterance."""
        if self._current is not None:
            utterance, self._current = self._current, None
            if self._silent_since is not None:
                utterance.stopped = self._silent_since
            self._end_silence()
            if not self._vad_silent:
                self._end_speech()
            if not utterance.short:
                self._decide(CallerEvent.THOUGHT_ENDED, None)
                self._tell_speaking("off")
            self._finish(utterance)

    def _finish(self, utterance: _Utterance) -> None:
        utterance.ended = self._now()
        if self._stream is not None:
            self._finished.append(utterance)
            self._stream.finish()

    # --- the recogniser's side ---------------------------------------------------------------------------------------

    def on_partial(self, text: str) -> None:
        """Take the words of an utterance up to now."""
        self._gives_partials = True
        utterance = self._finished[0] if self._finished else self._current
        if utterance is None:
            return
        if self._is_agreement(utterance, text, begun=True):
            if utterance is self._current and utterance.short and self._is_agreement(utterance, text):
                self._decide(CallerEvent.NO_WORDS, None)
            return
        if self._is_echo(utterance, text, begun=True):
            return
        changed = text != utterance.words
        utterance.words = text
        self.on_words(text)
        if utterance is self._current and self._silent_since is not None:
            self._words_are_fresh = True
            self._set_end_timer()
        if not utterance.cuts:
            utterance.cuts = True
            self._decide(CallerEvent.WORDS, utterance.onset)
            self.refresh()
        # The final prompt of a finished utterance is on its way, so its partial ones are not sent.
        if utterance is self._current and (changed or (self._may_be_over() and not self._told_likely)):
            self._tell_partial(utterance)

    def on_final(self, text: str) -> None:
        """Take all words of the oldest finished utterance."""
        if not self._finished:
            return  # words of the stream before a change of language
        self._judge(self._finished.popleft(), text)
        self._reopen_if_changed()

    def _judge(self, utterance: _Utterance, text: str) -> None:
        echoes = self._is_echo(utterance, text)
        if text and not echoes:
            self.on_words(text)
        if not text or self._is_agreement(utterance, text) or echoes or utterance.unwanted:
            if not utterance.short:
                self._heard_nothing()
            return
        # This also cuts what the bot began to say meanwhile: the answer to this utterance must not wait for it.
        self._decide(CallerEvent.WORDS, utterance.onset)
        self.on_stopped(min(utterance.stopped, utterance.ended))
        self._tell_prompt(utterance, text, last=True)
        self._prompt_ended = utterance.ended

    # --- what follows ------------------------------------------------------------------------------------------------

    def _tell_partial(self, utterance: _Utterance) -> None:
        if self._hearing.partial_prompts and not self._is_unwanted():
            self._told_likely = self._may_be_over()
            self._tell_prompt(utterance, utterance.words, last=False, likely_last=self._told_likely)

    def _tell_prompt(self, utterance: _Utterance, text: str, *, last: bool, likely_last: bool = False) -> None:
        continues = utterance.onset - self._prompt_ended < _CONTINUES_WITHIN_S
        heard = self._stream.heard_language if self._stream is not None else ""
        self._tell(
            Prompt(
                voice_prompt=text, lang=heard or self._language, last=last, continues=continues, likely_last=likely_last
            )
        )
        self._turns.expect_answer()

    def _heard_nothing(self) -> None:
        """Report an utterance that had no words that count."""
        if self._current is None or self._current.short:
            self._decide(CallerEvent.NO_WORDS, None)

    def _is_agreement(self, utterance: _Utterance, text: str, *, begun: bool = False) -> bool:
        """Return True if words of an utterance that began while the bot spoke only acknowledge. ``begun``: more words
        may follow."""
        if not utterance.over_bot or not (self._hearing.ignores_backchannel or utterance.short):
            return False
        said = plain(text)
        known = wording(self._language).backchannels | self._hearing.backchannels
        if is_made_of(said, known):
            return True
        # A word that the caller is still saying may become another one: half a "yeah" is recognised as many words.
        half = begun and self._turns.caller_speaks and " " not in said
        return half or (begun and utterance.short and may_become_made_of(said, known))

    def _is_echo(self, utterance: _Utterance, text: str, *, begun: bool = False) -> bool:
        """Return True if words of an utterance that began while the bot spoke are the bot's. ``begun``: more words may
        follow."""
        if not self._hearing.drops_echo or not utterance.over_bot:
            return False
        heard, said = plain(text).split(), plain(self._turns.said).split()
        return is_echo(heard, said) or (begun and may_become_echo(heard, said))

    def _is_unwanted(self) -> bool:
        turns = self._turns
        blocked = turns.speaking() is not None and not turns.interruptible_by("speech")
        return blocked and turns.defaults.report_input not in ("any", "speech")

    def _tell_speaking(self, value: str) -> None:
        if self._hearing.speaker_events:
            self._tell(Info(name="clientSpeaking", value=value))
