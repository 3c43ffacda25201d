"""Turn-taking by words, on the virtual clock: ``Turns``, ``Playout`` and ``Listening`` are the real ones; the caller's
onsets and the recogniser's words are played here."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.call.defaults import interruption_rules
from gateway.call.hearing.listening import Listening, hearing
from gateway.call.turn_taking.barge_in import CallerEvent
from gateway.call.turn_taking.turn import TurnDefaults
from gateway.config import BargeInConfig, RecogniserConfig, RouteConfig
from gateway.seams.messages import BothSilent, Info, Interrupt, Prompt, Text
from gateway.seams.recogniser import RecognitionEvents
from gateway.seams.turn_model import TurnModel
from tests.gateway.call.turn_taking.virtual_call import VirtualCall

FRAME = bytes(640)


@dataclass
class Words:
    """The recogniser: says what the test says."""

    events: list[RecognitionEvents] = field(default_factory=list)
    opened: list[dict[str, Any]] = field(default_factory=list)
    pushed: int = 0
    paused: int = 0
    finished: int = 0
    closed: int = 0
    dropped: int = 0
    ready: bool = True
    heard_language: str = ""
    partials_wanted: bool = True

    def knows(self, language: str) -> bool:
        return True

    def open(self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool) -> Words:
        self.opened.append({"language": language, "hints": hints, "partials": partials})
        self.events.append(events)
        return self

    def push(self, pcm: bytes) -> None:
        self.pushed += 1

    def pause(self) -> None:
        self.paused += 1

    def want_partials(self, wanted: bool) -> None:
        self.partials_wanted = wanted

    def finish(self) -> None:
        self.finished += 1

    async def aclose(self) -> None:
        self.closed += 1


class Alarm:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        self.run = None


class ListeningCall(VirtualCall):
    """A virtual call that listens."""

    def __init__(
        self,
        route: dict[str, Any],
        barge_in: dict[str, Any] | None = None,
        turn_model: TurnModel | None = None,
        **defaults: Any,
    ) -> None:
        config, recogniser = RecogniserConfig(), BargeInConfig.model_validate(barge_in or {})
        made = RouteConfig.model_validate(route)
        self.words = Words()
        self.ended_early = 0
        self.stalled_at = math.inf
        """The time at which the caller's audio stopped coming."""
        heard = hearing(made, self.words, config, recogniser, turn_model)
        super().__init__(TurnDefaults(barge_in=interruption_rules(made, recogniser, heard), **defaults))
        self.alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self.listening = Listening(
            heard,
            self.turns,
            tell=self.tell,
            decide=self._decide,
            end_speech=self._end_speech,
            clock=lambda: self.now,
            heard_s=lambda: min(self.now, self.stalled_at),
            later=self._later,
        )
        self.listening.start()

    def _decide(self, event: CallerEvent, onset: float | None = None) -> None:
        self.turns.on_caller(event, self.now, onset=onset)
        due = self.turns.deadline()
        if due is not None:
            self._later(due - self.now, lambda: self._due(due))

    def _end_speech(self) -> None:
        self.ended_early += 1

    def _due(self, due: float) -> None:
        if self.turns.deadline() == due:
            self._decide(CallerEvent.DEADLINE)

    def _later(self, delay_s: float, run: Callable[[], None]) -> Any:
        alarm = Alarm(run)
        heapq.heappush(self.alarms, (self.now + delay_s, next(self._numbers), alarm))
        return alarm

    def run(self, seconds: float, *, step_s: float = 0.002) -> None:
        end = self.now + seconds
        while self.alarms and self.alarms[0][0] <= end:
            at, _, alarm = heapq.heappop(self.alarms)
            super().run(max(0.0, at - self.now), step_s=step_s)
            if alarm.run is not None:
                alarm.run()
        super().run(end - self.now, step_s=step_s)

    def speak(self, text: str, **fields: Any) -> None:
        """Our voice, for 0.2 s a word."""
        self.say(Text(token=text, last=True, **fields))
        self.work_all()
        self.run(0.3)

    def starts(self) -> None:
        self.listening.on_speech_started(onset=self.now - 0.1)

    def stops(self) -> None:
        self.listening.on_speech_ended()

    def utters(self, text: str, *, partial: str = "") -> None:
        """A whole utterance, up to the answer of the recogniser."""
        self.starts()
        self.listening.on_speech(FRAME)
        self.run(0.2)
        if partial:
            self.listening.on_partial(partial)
        self.stops()
        self.run(0.6)
        self.listening.on_final(text)

    def order(self) -> list[str]:
        """The manager's messages about the caller, in order."""
        return [type(message).__name__ for message in self.told if isinstance(message, Interrupt | Prompt)]

    @property
    def prompts(self) -> list[tuple[str, bool]]:
        return [(message.voice_prompt, message.last) for message in self.told if isinstance(message, Prompt)]


LONG = "one two three four five six seven eight nine ten"


def test_utterance_becomes_a_prompt_after_the_silence_that_ends_it() -> None:
    call = ListeningCall({"language": "en-GB", "hints": ["Ada"]})
    assert call.words.opened == [{"language": "en-GB", "hints": ("Ada",), "partials": True}]
    call.starts()
    call.listening.on_speech(FRAME)
    call.run(1.0)
    call.stops()
    call.run(0.29)
    assert (call.words.paused, call.words.finished) == (1, 0)
    call.run(0.02)  # 300 ms of silence were known when the VAD said so
    assert call.words.finished == 1 and call.words.pushed == 1
    call.listening.on_final("Hello.")
    (prompt,) = [message for message in call.told if isinstance(message, Prompt)]
    assert prompt == Prompt(voice_prompt="Hello.", lang="en-GB", last=True)


def test_a_breath_does_not_end_an_utterance() -> None:
    call = ListeningCall({})
    call.starts()
    call.run(0.5)
    call.stops()
    call.run(0.2)
    call.starts()
    call.run(0.5)
    call.stops()
    call.run(0.31)
    assert call.words.finished == 1


def test_endless_utterance_is_cut_into_prompts() -> None:
    call = ListeningCall({})
    call.starts()
    for _ in range(1600):
        call.listening.on_speech(FRAME)
    assert call.words.finished == 2  # every 15 s
    call.listening.on_final("One.")
    call.listening.on_final("Two.")
    call.stops()
    call.run(1.0)
    call.listening.on_final("Three.")
    assert call.prompts == [("One.", True), ("Two.", True), ("Three.", True)]
    assert [goes_on for _, goes_on in continuing(call)] == [False, True, True]


def continuing(call: ListeningCall) -> list[tuple[str, bool]]:
    return [(message.voice_prompt, message.continues) for message in call.told if isinstance(message, Prompt)]


@pytest.mark.parametrize(("pause_s", "continues"), [(0.45, True), (0.55, False)])
def test_a_caller_who_goes_on_at_once_continues_the_prompt_before(pause_s: float, continues: bool) -> None:
    call = ListeningCall({"partial_prompts": True})
    call.utters("Wait a moment.")  # its words come 0.3 s after its end
    call.run(pause_s)  # the next onset is 0.1 s ago
    call.utters("I have a question.", partial="I have")
    assert continuing(call) == [("Wait a moment.", False), ("I have", continues), ("I have a question.", continues)]


def test_what_continues_a_prompt_is_known_however_late_the_words_are() -> None:
    call = ListeningCall({})
    call.utters("")  # a cough is no prompt that could go on
    for _ in range(2):
        call.starts()
        call.run(0.2)
        call.stops()
        call.run(0.6)
    call.run(2.0)
    call.listening.on_final("Wait a moment.")
    call.listening.on_final("I have a question.")
    assert continuing(call) == [("Wait a moment.", False), ("I have a question.", True)]


def test_silence_of_the_recogniser_is_no_prompt() -> None:
    call = ListeningCall({"partial_prompts": True})
    call.utters("")
    assert call.order() == []


def test_partial_prompts_come_first_and_only_where_asked_for() -> None:
    call = ListeningCall({"partial_prompts": True})
    call.utters("Where is it?", partial="Where")
    assert call.prompts == [("Where", False), ("Where is it?", True)]
    call = ListeningCall({})
    call.utters("Where is it?", partial="Where")
    assert call.prompts == [("Where is it?", True)]


def test_words_are_wanted_while_the_caller_speaks_only_until_they_have_cut() -> None:
    call = ListeningCall({})
    call.utters("Yes.", partial="Yes")
    call.run(2.0)
    call.starts()
    assert not call.words.partials_wanted  # the bot is silent, and words at the pause suffice
    call.stops()
    call.run(0.6)
    call.listening.on_final("Where is it?")
    call.speak(LONG)
    call.run(1.0)
    call.starts()
    assert call.words.partials_wanted  # they decide whether it is an interruption
    call.listening.on_partial("stop")
    assert call.order()[-1] == "Interrupt"
    assert not call.words.partials_wanted


def test_words_are_wanted_as_soon_as_the_bot_is_about_to_speak() -> None:
    call = ListeningCall({})
    call.utters("Yes.", partial="Yes")
    call.run(2.0)
    call.starts()
    call.say(Text(token=LONG, last=True))
    call.listening.refresh()  # as after each change of a turn
    assert call.words.partials_wanted


@pytest.mark.parametrize("route", [{"partial_prompts": True}, {}])
def test_words_are_wanted_for_partial_prompts_and_for_others_who_ask(route: dict[str, Any]) -> None:
    call = ListeningCall(route)
    call.listening.words_wanted = lambda: not route
    call.utters("Yes.", partial="Yes")
    call.run(2.0)
    call.starts()
    assert call.words.partials_wanted


def test_the_first_words_of_a_call_show_whether_the_recogniser_gives_them_early() -> None:
    call = ListeningCall({})
    for _ in range(2):  # it gives none
        call.starts()
        assert call.words.partials_wanted
        call.stops()
        call.run(0.6)
        call.listening.on_final("Yes.")
        call.run(2.0)


def test_no_partial_prompt_comes_when_the_utterance_is_over() -> None:
    call = ListeningCall({"partial_prompts": True, "events": ["speaker-events"]})
    call.starts()
    call.stops()
    call.run(0.4)
    call.listening.on_partial("Where")  # late
    call.listening.on_final("Where is it?")
    assert call.prompts == [("Where is it?", True)]


def test_client_speaking_goes_off_right_before_the_final_prompt() -> None:
    call = ListeningCall({"events": ["speaker-events"]})
    call.starts()
    call.run(0.3)
    call.stops()
    call.run(0.1)
    call.starts()  # only a breath
    call.run(0.3)
    call.stops()
    call.run(0.4)
    call.listening.on_final("Yes.")
    told = [(m.value if isinstance(m, Info) else m.voice_prompt) for m in call.told if isinstance(m, Info | Prompt)]
    assert told == ["on", "off", "Yes."]


def test_speech_silences_us_at_its_onset_and_its_first_word_interrupts_before_the_prompt() -> None:
    call = ListeningCall({"partial_prompts": True})
    call.speak(LONG)
    call.starts()
    sent = len(call.sent)
    call.run(0.2)
    assert call.order() == [] and len(call.sent) == sent
    call.listening.on_partial("Stop")
    assert call.order() == ["Interrupt", "Prompt"]
    call.stops()
    call.run(0.4)
    call.listening.on_final("Stop it.")
    assert call.order() == ["Interrupt", "Prompt", "Prompt"]


def test_an_answer_that_comes_before_the_caller_s_words_waits_for_them_and_stays() -> None:
    call = ListeningCall({})
    call.starts()
    call.run(0.2)
    call.stops()
    call.speak(LONG)  # the manager answers what came before
    call.run(0.2)
    assert call.order() == [] and call.events("t1") == ["accepted"]
    call.listening.on_final("Wait.")
    call.run(3.0)
    assert call.order() == ["Prompt"] and call.events("t1") == ["accepted", "started", "finished"]


def test_an_early_answer_does_not_wait_for_words_that_are_overdue() -> None:
    call = ListeningCall({})
    call.starts()
    call.run(0.2)
    call.stops()
    call.speak(LONG)
    call.run(1.9)
    assert call.events("t1") == ["accepted"]
    call.run(0.2)  # 2 s after the end of the utterance
    assert call.events("t1") == ["accepted", "started"]


def test_an_early_answer_speaks_at_once_when_there_were_no_words() -> None:
    call = ListeningCall({})
    call.utters("")
    call.starts()
    call.say(Text(token=LONG, last=True))
    call.work_all()
    call.run(0.2)
    call.stops()
    call.run(0.4)
    assert call.events("t1") == ["accepted"]
    call.listening.on_final("")
    call.run(0.1)
    assert call.events("t1") == ["accepted", "started"]


def test_a_named_turn_that_came_after_the_onset_is_not_cut_by_the_words() -> None:
    call = ListeningCall({"partial_prompts": True})
    call.starts()
    call.run(0.2)
    call.speak(LONG, turn="answer")
    call.listening.on_partial("Wait please")
    call.stops()
    call.run(0.4)
    call.listening.on_final("Wait please.")
    call.run(3.0)
    assert call.order() == ["Prompt", "Prompt"] and call.events("answer")[-1] == "finished"


@pytest.mark.parametrize("said", ["Mm-hmm.", "Yeah,", "Okay. Right.", "Uh-huh!", "I see.", "yes yes yes"])
def test_acknowledgement_neither_interrupts_nor_becomes_a_prompt(said: str) -> None:
    call = ListeningCall({"ignore_backchannel": True, "partial_prompts": True})
    call.speak(LONG)
    call.utters(said, partial=said)
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"
    assert call.gaps == [] and call.flushes == [], "our voice continued"


@pytest.mark.parametrize("said", ["No.", "Yeah but", "Okay stop.", "I see a problem."])
def test_words_beyond_an_acknowledgement_interrupt(said: str) -> None:
    call = ListeningCall({"ignore_backchannel": True})
    call.speak(LONG)
    call.utters(said)
    assert call.order() == ["Interrupt", "Prompt"]


def test_first_word_interrupts_without_waiting_for_the_end() -> None:
    call = ListeningCall({"ignore_backchannel": True})
    call.speak(LONG)
    call.starts()
    assert call.words.opened[0]["partials"]
    call.run(0.2)
    call.listening.on_partial("Yeah")
    call.listening.on_partial("Yet")  # half a word is no word yet
    assert call.order() == []
    call.listening.on_partial("Yeah but")
    assert call.order() == ["Interrupt"]


def test_one_word_interrupts_as_soon_as_it_is_over() -> None:
    call = ListeningCall({"ignore_backchannel": True})
    call.speak(LONG)
    call.starts()
    call.run(0.2)
    call.stops()
    call.listening.on_partial("Stop.")
    assert call.order() == ["Interrupt"]


def test_who_speaks_on_is_no_mere_acknowledgement_even_when_the_recogniser_is_slow() -> None:
    call = ListeningCall({"ignore_backchannel": True})
    call.speak(LONG)
    call.starts()
    call.run(0.8)
    assert call.order() == [] and not call.playout.suspended
    call.run(0.2)
    assert call.order() == [] and call.playout.suspended, "in doubt"
    call.stops()
    call.run(0.6)
    call.listening.on_final("I have a question.")
    assert call.order() == ["Interrupt", "Prompt"]


def hums(call: ListeningCall, words: str) -> None:
    """A short sound of which the VAD is not sure, and the recogniser's answers."""
    call.listening.on_short_sound(onset=call.now - 0.3, sound=[FRAME] * 15)
    assert (call.words.paused, call.words.finished, call.words.pushed) == (1, 0, 15), "asked at once"
    call.run(0.1)
    if words:
        call.listening.on_partial(words)
    call.run(0.6)
    assert call.words.finished == 1
    call.listening.on_final(words)


@pytest.mark.parametrize(
    ("language", "no"),
    [
        ("en-US", "No."), ("es-ES", "No."), ("fr-FR", "Non."), ("it-IT", "No."), ("pt-BR", "Não."), ("de-DE", "Nein."),
        ("zh-CN", "不。"), ("en-US", "Goodbye."), ("nl-NL", "Nee."),
    ],
)  # fmt: skip
def test_a_short_word_that_the_vad_took_for_a_hum_interrupts_and_is_told(language: str, no: str) -> None:
    call = ListeningCall({"language": language})
    call.speak(LONG)
    call.listening.on_short_sound(onset=call.now - 0.3, sound=[FRAME] * 15)
    call.run(0.1)
    call.listening.on_partial(no)
    assert call.order() == ["Interrupt"], "its words cut before it is known whether more follows"
    call.run(0.6)
    call.listening.on_final(no)
    assert call.order() == ["Interrupt", "Prompt"] and call.prompts == [(no, True)]
    call.run(3.0)
    assert told_names(call) == []


def test_speech_soon_after_a_short_word_is_a_part_of_its_prompt() -> None:
    call = ListeningCall({}, speaker_events=True)
    call.speak(LONG)
    call.listening.on_short_sound(onset=call.now - 0.3, sound=[FRAME] * 15)
    call.run(0.1)
    call.listening.on_partial("Please")
    call.run(0.3)
    call.starts()
    call.listening.on_speech(FRAME)
    call.run(0.5)
    call.stops()
    call.run(0.6)
    assert call.words.finished == 1
    call.listening.on_final("Please wait for me.")
    assert call.order() == ["Interrupt", "Prompt"] and call.prompts == [("Please wait for me.", True)]


@pytest.mark.parametrize(("begun", "ends"), [("All", "All right."), ("Okay, I", "Okay, I see.")])
def test_the_begin_of_an_acknowledgement_waits_for_the_rest_of_it(begun: str, ends: str) -> None:
    call = ListeningCall({})
    call.speak(LONG)
    call.listening.on_short_sound(onset=call.now - 0.3, sound=[FRAME] * 15)
    call.run(0.1)
    call.listening.on_partial(begun)
    call.listening.on_short_sound(onset=call.now - 0.1, sound=[FRAME] * 10)
    call.run(0.1)
    call.listening.on_partial(ends)
    call.run(0.6)
    assert (call.words.paused, call.words.finished) == (2, 1)
    call.listening.on_final(ends)
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"


def test_the_begin_of_an_acknowledgement_that_stays_alone_interrupts() -> None:
    call = ListeningCall({})
    call.speak(LONG)
    hums(call, "All")
    assert call.order() == ["Interrupt", "Prompt"]


@pytest.mark.parametrize("said", ["Mhm.", "Stop.", ""])
def test_a_bot_that_paused_for_a_short_sound_stays_silent_until_its_words_are_known(said: str) -> None:
    call = ListeningCall({})
    call.speak(LONG)
    call._decide(CallerEvent.SUSPECTED, call.now - 0.1)
    sent = len(call.sent)
    call.run(0.2)
    call.listening.on_short_sound(onset=call.now - 0.3, sound=[FRAME] * 15)
    call._decide(CallerEvent.DISMISSED)
    call.run(0.2)
    assert len(call.sent) == sent and call.playout.suspended
    if said:
        call.listening.on_partial(said)
    else:
        call.run(0.4)
    assert not call.playout.suspended and call.order() == (["Interrupt"] if said == "Stop." else [])


def test_a_short_sound_keeps_no_answer_to_the_speech_before_it_from_ending_the_doubt() -> None:
    call = ListeningCall({})
    call.speak(LONG)
    call.starts()
    call.run(0.3)
    call.stops()
    call.run(0.6)
    assert call.words.finished == 1 and call.playout.suspended
    call.listening.on_short_sound(onset=call.now - 0.1, sound=[FRAME] * 10)
    call.listening.on_final("")
    assert not call.playout.suspended


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en-US", "Mm-hmm."), ("en-US", "Yeah, okay."), ("es-ES", "Sí, claro."), ("fr-FR", "D'accord."),
        ("it-IT", "Va bene."), ("pt-BR", "Está bem."), ("de-DE", "Ja, genau."), ("zh-CN", "嗯，好的。"),
        ("nl-NL", "Mhm."), ("en-US", ""),
    ],
)  # fmt: skip
def test_a_short_acknowledgement_changes_nothing(language: str, said: str) -> None:
    call = ListeningCall({"language": language})
    call.speak(LONG)
    hums(call, said)
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"
    assert call.flushes == [] and told_names(call) == []


def test_a_short_sound_within_an_utterance_is_a_part_of_it() -> None:
    call = ListeningCall({})
    call.starts()
    call.stops()
    call.listening.on_short_sound(onset=call.now - 0.3, sound=[FRAME] * 15)
    assert (call.words.pushed, call.words.finished) == (15, 0)
    call.run(0.7)
    call.listening.on_final("No.")
    assert call.prompts == [("No.", True)]


def test_a_short_word_is_not_told_during_a_turn_that_speech_may_not_interrupt() -> None:
    call = ListeningCall({})
    call.speak(LONG, interruptible="none")
    hums(call, "No.")
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"


def test_yes_is_an_answer_when_we_are_silent() -> None:
    call = ListeningCall({"ignore_backchannel": True})
    call.utters("Yes.")
    assert call.prompts == [("Yes.", True)]


def test_noise_over_our_voice_pauses_it_and_no_word_lets_it_go_on() -> None:
    call = ListeningCall({}, {"false_alarm_ms": 400})
    call.speak(LONG)
    sent = len(call.sent)
    call.starts()
    call.run(0.15)
    call.stops()
    call.run(0.4)
    assert len(call.sent) == sent, "silent while in doubt"
    call.listening.on_final("")
    call.run(3.0)
    assert call.order() == [] and call.events("t1") == ["accepted", "started", "finished"]


def test_short_word_over_our_voice_interrupts_although_it_is_shorter_than_a_false_alarm() -> None:
    call = ListeningCall({}, {"false_alarm_ms": 400})
    call.speak(LONG)
    call.utters("Stop.")
    assert call.order() == ["Interrupt", "Prompt"] and call.events("t1")[-1] == "interrupted"


def test_long_speech_is_silence_for_us_and_its_first_word_interrupts() -> None:
    call = ListeningCall({}, {"false_alarm_ms": 400})
    call.speak(LONG)
    call.starts()
    call.run(0.6)
    assert call.order() == [] and call.playout.suspended
    call.listening.on_partial("I have")
    assert call.order() == ["Interrupt"]


@pytest.mark.parametrize("answers", [True, False], ids=["no words", "no answer"])
@pytest.mark.parametrize("false_alarm_ms", [0, 400])
def test_a_doubtful_cut_without_words_goes_on_from_the_last_word_and_is_not_told(
    answers: bool, false_alarm_ms: int
) -> None:
    call = ListeningCall({}, {"false_alarm_ms": false_alarm_ms}, speaker_events=True)
    call.speak(LONG)
    call.starts()  # a laugh of 0.8 s, in the second word
    sent = len(call.sent)
    call.run(0.8)
    call.stops()
    call.run(0.5)
    assert len(call.sent) == sent
    if answers:
        call.listening.on_final("")
    call.run(6.0)
    assert call.order() == [] and call.events("t1") == ["accepted", "started", "finished"]
    repeated = len(call.sent) - 100
    assert 0 < repeated <= 10, "the word under way is said again, and no more"


def test_a_cut_that_no_words_follow_is_told_when_the_sound_has_ended() -> None:
    call = ListeningCall({})
    call.speak(LONG)
    call.starts()
    call.run(2.1)
    assert call.order() == ["Interrupt"], "the words are overdue, and the caller still speaks"
    call.stops()
    call.run(0.98)
    assert "noWords" not in told_names(call)
    call.run(0.04)
    (told,) = [message for message in call.told if isinstance(message, Info) and message.name == "noWords"]
    assert told.value == "t1" and call.events("t1")[-1] == "interrupted", "nothing resumes"
    call.listening.on_final("")
    call.run(5.0)
    assert told_names(call).count("noWords") == 1


def told_names(call: ListeningCall) -> list[str]:
    return [message.name for message in call.told if isinstance(message, Info)]


def test_a_recogniser_that_finds_no_words_ends_the_wait_for_them() -> None:
    call = ListeningCall({})
    call.speak(LONG)
    call.starts()
    call.run(2.1)
    call.stops()
    call.run(0.6)
    call.listening.on_final("")
    assert call.order() == ["Interrupt"] and told_names(call) == ["noWords"]


@pytest.mark.parametrize("said", ["Stop.", "I have a question."])
def test_a_cut_that_words_follow_is_not_told_as_one_without(said: str) -> None:
    call = ListeningCall({})
    call.speak(LONG)
    call.utters(said, partial=said)
    call.run(5.0)
    assert told_names(call) == [] and call.order() == ["Interrupt", "Prompt"]


def test_silence_of_both_sides_is_told_once_and_again_after_speech() -> None:
    call = ListeningCall({}, no_input_s=5.0)
    call.turns.advance(call.now)
    call.run(4.9)
    assert silences(call) == 0
    call.run(0.2)
    assert silences(call) == 1
    call.run(20.0)
    assert silences(call) == 1
    call.speak(LONG)
    call.run(6.5)  # our voice ends after 1.7 s
    assert silences(call) == 1
    call.run(0.5)
    assert silences(call) == 2


def test_silence_is_not_told_while_the_caller_is_with_a_person_and_counts_from_then_on() -> None:
    call = ListeningCall({}, no_input_s=5.0)
    call.turns.advance(call.now)
    call.run(2.0)
    call.turns.silence.accompany(True, call.now)
    call.run(17.0)
    assert silences(call) == 0
    call.turns.silence.accompany(False, call.now)
    call.run(4.9)
    assert silences(call) == 0
    call.run(0.2)
    assert silences(call) == 1


@pytest.mark.parametrize("sign", ["key", "speech", "words"])
def test_a_sign_of_the_caller_ends_the_silence(sign: str) -> None:
    call = ListeningCall({}, no_input_s=5.0)
    call.turns.advance(call.now)
    call.run(4.0)
    if sign == "key":
        call.turns.on_digit("5", call.now)
    elif sign == "speech":
        call.starts()
        call.run(0.5)
        call.stops()
    else:
        call.listening.on_speech_started(onset=call.now)
        call.stops()
        call.run(0.4)
        call.listening.on_final("Hello.")
    call.run(4.9)
    assert silences(call) == 0
    call.run(1.0)
    assert silences(call) == 1


def silences(call: ListeningCall) -> int:
    call._decide(CallerEvent.DEADLINE)
    return len([message for message in call.told if isinstance(message, BothSilent)])


def test_acknowledgement_that_paused_us_lets_us_go_on() -> None:
    call = ListeningCall({"ignore_backchannel": True}, {"false_alarm_ms": 400})
    call.speak(LONG)
    call.utters("Okay.")
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"


@pytest.mark.parametrize(("report", "told"), [("none", []), ("dtmf", []), ("speech", ["Prompt"]), ("any", ["Prompt"])])
def test_what_may_not_interrupt_is_told_only_where_input_is_reported(report: str, told: list[str]) -> None:
    call = ListeningCall({}, report_input=report)
    call.speak(LONG, interruptible="none")
    call.utters("Hello?")
    call.run(3.0)
    assert call.order() == told and call.events("t1")[-1] == "finished"


def test_what_was_dropped_is_not_told_later() -> None:
    call = ListeningCall({})
    call.speak("one two three", interruptible="none")
    call.starts()
    call.run(0.1)
    call.stops()
    call.run(1.0)  # our voice has ended when the words come
    call.listening.on_final("Hello?")
    assert call.order() == []


async def test_our_voice_goes_on_when_a_change_of_language_swallows_the_words_that_it_waits_for() -> None:
    call = ListeningCall({}, {"false_alarm_ms": 400})
    call.speak(LONG)
    call.starts()
    call.run(0.15)
    call.stops()
    call.run(0.4)
    assert call.playout.suspended
    call.listening.use_language("en-IN")
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"


def test_our_voice_goes_on_when_the_words_that_it_waits_for_are_not_wanted() -> None:
    call = ListeningCall({}, {"false_alarm_ms": 400})
    call.say(Text(token=LONG))
    call.work_all()
    call.run(0.3)
    call.starts()
    call.say(Text(token="", last=True, interruptible="none"))  # from here on it may not be cut
    call.run(0.15)
    call.stops()
    call.run(0.4)
    call.listening.on_final("Hello?")
    call.work_all()
    call.run(3.0)
    assert call.order() == [] and call.events("t1")[-1] == "finished"


async def test_change_of_language_opens_another_stream() -> None:
    call = ListeningCall({})
    call.starts()
    call.listening.use_language("en-IN")
    assert call.words.opened[1]["language"] == "en-IN"
    await call.listening.aclose()
    assert call.words.closed == 2
    call.listening.on_final("of the old stream")
    assert call.order() == []
