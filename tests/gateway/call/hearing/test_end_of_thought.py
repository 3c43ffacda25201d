"""The silence that ends an utterance, and the call's reaction, on the virtual clock. The turn model's answers are
played here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from gateway.call.hearing.end_of_thought import LEAST_S, WORDS_S, Patience
from gateway.call.hearing.expectation import AnswerProgress
from gateway.call.settings import hearing_settings
from gateway.seams.messages import ConfigChange, ExpectedReply, Prompt
from tests.gateway.call.hearing.test_listening import FRAME, ListeningCall

PATIENCE = Patience(usual_s=0.6, finished_s=0.256, hesitating_s=1.0, finished_from=0.5, hesitating_below=0.1)


@pytest.mark.parametrize(
    ("probability", "silence_s"),
    [(None, 0.6), (0.0, 1.0), (0.09, 1.0), (0.1, 0.6), (0.49, 0.6), (0.5, 0.256), (1, 0.256)],
)
def test_the_answer_chooses_the_silence(probability: float | None, silence_s: float) -> None:
    assert PATIENCE.silence_s(probability) == silence_s


@pytest.mark.parametrize(("probability", "silence_s"), [(None, 0.6), (0.0, 1.0), (0.3, 0.6), (1, 0.6)])
def test_after_a_comma_no_melody_makes_the_silence_short(probability: float | None, silence_s: float) -> None:
    assert PATIENCE.silence_s(probability, AnswerProgress.CLAUSE) == silence_s


def test_a_usual_silence_beyond_the_others_is_kept_in_order() -> None:
    quick = Patience(usual_s=0.2, finished_s=0.256, hesitating_s=0.1, finished_from=0.5, hesitating_below=0.1)
    assert quick.silence_s(0.9) == quick.silence_s(0.0) == 0.2


class Model:
    """A turn model: remembers the questions, and answers when the test says so."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        """Frames of each look."""
        self.cancelled = 0
        self.dropped: dict[str, int] = {}
        self._tell: Callable[[float], None] | None = None

    def look(self, sound: Sequence[bytes], tell: Callable[[float], None]) -> Model:
        self.heard.append(len(sound))
        self._tell = tell
        return self

    def cancel(self) -> None:
        self.cancelled += 1
        self._tell = None

    def answer(self, probability: float) -> None:
        if self._tell is not None:
            self._tell(probability)


class ThoughtfulCall(ListeningCall):
    """A caller who is heard in frames, with a model that judges the pauses."""

    def __init__(self, **route: object) -> None:
        self.model = Model()
        super().__init__(route, turn_model=self.model)

    def speaks(self, frames: int = 20) -> None:
        for _ in range(frames):
            self.listening.on_speech(FRAME)
        self.run(frames * 0.02)

    def lull(self) -> None:
        """0.16 s of silence, as the VAD tells it."""
        since = self.now
        self.speaks(8)
        self.listening.on_lull(since=since, silence_s=0.16)


def in_a_lull() -> ThoughtfulCall:
    """A caller who has spoken and is silent for 0.16 s."""
    call = ThoughtfulCall()
    call.starts()
    call.speaks()
    call.lull()
    return call


def test_a_finished_thought_is_over_before_the_vad_says_silence() -> None:
    call = in_a_lull()
    assert (call.model.heard, call.words.paused, call.words.finished) == ([28], 1, 0)
    call.run(0.05)
    call.model.answer(0.9)
    call.run(0.05)
    assert call.words.finished == 0
    call.run(0.04)  # 288 ms
    assert (call.words.finished, call.ended_early) == (1, 1)
    assert not (call.turns.caller_speaks or call.playout.suspended), "the answer does not wait for the VAD"
    call.listening.on_speech_ended()
    call.run(2.0)
    assert call.words.finished == 1


def test_the_recogniser_gets_a_pause_only_if_speech_goes_on() -> None:
    call = ThoughtfulCall()
    call.starts()
    call.speaks(20)
    call.lull()
    call.speaks(3)
    pushed = call.words.pushed
    assert pushed == 28, "what came before the lull was told"
    call.listening.on_speech_resumed()
    assert call.words.pushed == 31
    call.speaks(4)
    assert call.words.pushed == 35


def test_an_answer_that_comes_when_the_caller_speaks_again_changes_nothing() -> None:
    call = in_a_lull()
    call.listening.on_speech_resumed()
    assert call.model.cancelled == 1
    call.model.answer(0.9)
    call.speaks()
    call.run(1.0)
    assert call.words.finished == 0


def test_a_finished_thought_that_goes_on_in_time_is_not_over() -> None:
    call = in_a_lull()
    call.model.answer(0.9)
    call.run(0.05)
    call.listening.on_speech_resumed()
    call.speaks()
    call.run(1.0)
    assert (call.words.finished, call.ended_early) == (0, 0)


def test_a_hesitation_is_waited_for_but_not_for_ever() -> None:
    call = in_a_lull()
    call.model.answer(0.02)
    call.run(0.14)
    call.stops()  # after 300 ms
    call.run(0.69)
    assert call.words.finished == 0
    call.run(0.02)
    assert call.words.finished == 1 and call.ended_early == 0


def test_a_late_answer_still_shortens_the_wait() -> None:
    call = in_a_lull()
    call.run(0.14)
    call.stops()
    call.run(0.1)
    assert call.words.finished == 0
    call.model.answer(0.7)
    call.run(0.01)
    assert call.words.finished == 1 and call.ended_early == 0, "the VAD knows already"


def test_without_an_answer_the_wait_is_the_usual_one() -> None:
    call = in_a_lull()
    call.run(0.14)
    call.stops()
    call.run(0.29)
    assert call.words.finished == 0
    call.run(0.02)
    assert call.words.finished == 1


def stalls(call: ThoughtfulCall, seconds: float) -> None:
    """The caller's audio stands still."""
    call.stalled_at = min(call.now, call.stalled_at)
    call.run(seconds)


def test_a_network_that_stands_still_in_a_pause_ends_no_thought() -> None:
    call = in_a_lull()
    call.model.answer(0.9)
    stalls(call, 0.5)
    assert call.words.finished == 0, "it is unknown whether the caller is silent"
    call.stalled_at = math.inf  # it comes at once: the caller had continued
    call.listening.on_speech_resumed()
    call.speaks()
    assert (call.words.finished, call.ended_early) == (0, 0)


def test_a_silence_that_comes_late_is_one() -> None:
    call = in_a_lull()
    call.model.answer(0.9)
    stalls(call, 0.5)
    call.stalled_at = math.inf
    call.run(0.021)
    assert call.words.finished == 1


def test_the_usual_silence_counts_in_the_caller_s_audio_too() -> None:
    call = in_a_lull()
    call.run(0.14)
    call.stops()
    stalls(call, 0.4)
    assert call.words.finished == 0
    call.starts()
    call.stalled_at = math.inf
    call.speaks()
    call.run(1.0)
    assert call.words.finished == 0


def test_audio_that_stops_altogether_in_a_pause_counts_as_silence() -> None:
    call = in_a_lull()
    call.model.answer(0.9)
    stalls(call, 0.1 + 0.55)
    assert call.words.finished == 0
    stalls(call, 0.1)
    assert (call.words.finished, call.ended_early) == (1, 1)


def test_audio_that_stops_in_mid_speech_ends_the_utterance() -> None:
    """The VAD hears nothing then, not even silence, and so the caller counted as speaking for good."""
    call = ThoughtfulCall()
    call.starts()
    call.speaks(300)
    stalls(call, 0.5)
    assert call.words.finished == 0
    stalls(call, 2.0)
    assert (call.words.finished, call.ended_early) == (1, 1)
    assert not (call.turns.caller_speaks or call.playout.suspended)
    call.stalled_at = math.inf
    call.listening.on_speech_ended()
    call.starts()
    call.speaks(20)
    call.stops()
    call.run(0.31)
    assert call.words.finished == 2


def test_words_after_an_early_end_are_a_new_utterance() -> None:
    call = in_a_lull()
    call.model.answer(0.9)
    call.run(0.2)
    pushed = call.words.pushed
    call.speaks(2)  # sound on its way, before the VAD has taken note
    assert call.words.pushed == pushed
    call.listening.on_speech_ended()
    call.starts()
    call.speaks(5)
    assert call.words.pushed == pushed + 5
    call.stops()
    call.run(0.31)
    assert call.words.finished == 2


def test_a_route_may_do_without() -> None:
    call = ThoughtfulCall(end_of_thought=False)
    assert not call.listening.has_turn_model
    call.starts()
    call.lull()
    assert call.model.heard == []


@pytest.mark.parametrize("probability", [None, 0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("least_s", [0.6, 2.0, 5.0])
def test_no_answer_shortens_the_silence_that_the_manager_asked_for(probability: float | None, least_s: float) -> None:
    assert PATIENCE.at_least(least_s).silence_s(probability) >= least_s


def set_up(call: ThoughtfulCall, config: ConfigChange) -> None:
    call.listening.configure(hearing_settings(config, call.listening._hearing), {})


def pauses(call: ThoughtfulCall, seconds: float, probability: float) -> None:
    """The caller pauses. The VAD tells a lull after 0.16 s and silence after 0.3 s."""
    call.lull()
    call.model.answer(probability)
    call.run(0.14)
    call.stops()
    call.run(seconds - 0.3)


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.95], ids=["hesitating", "between", "finished"])
@pytest.mark.parametrize("timeout_ms", [800, 2000, 5000])
async def test_a_phone_number_in_groups_is_one_prompt_with_a_longer_speech_timeout(
    timeout_ms: int, probability: float
) -> None:
    call = ThoughtfulCall()
    set_up(call, ConfigChange(speech_timeout_ms=timeout_ms))
    for _ in range(4):
        call.starts()
        call.speaks(40)
        pauses(call, 0.7, probability)
        assert call.words.finished == 0
    call.run(timeout_ms / 1000 - 0.7 - 0.02)
    assert call.words.finished == 0
    call.run(0.5)
    assert call.words.finished == 1


async def test_a_pause_as_long_as_the_speech_timeout_ends_the_prompt_of_a_finished_thought() -> None:
    call = ThoughtfulCall()
    set_up(call, ConfigChange(speech_timeout_ms=600))
    call.starts()
    call.speaks(40)
    pauses(call, 0.7, 0.95)
    assert call.words.finished == 1


async def test_a_speech_timeout_that_comes_during_a_pause_counts_for_it() -> None:
    call = in_a_lull()
    call.model.answer(0.95)
    set_up(call, ConfigChange(speech_timeout_ms=2000))
    call.run(0.14)
    call.stops()
    call.run(1.68)
    assert call.words.finished == 0
    call.run(0.04)
    assert call.words.finished == 1


async def test_without_turn_detection_only_silence_ends_a_prompt() -> None:
    call = ThoughtfulCall()
    set_up(call, ConfigChange(turn_detection=False))
    call.starts()
    call.speaks()
    pauses(call, 0.59, 0.95)
    assert (call.model.heard, call.words.finished) == ([], 0)
    call.run(0.02)
    assert call.words.finished == 1


async def test_turn_detection_asks_the_model_again() -> None:
    call = ThoughtfulCall()
    set_up(call, ConfigChange(turn_detection=False))
    set_up(call, ConfigChange(turn_detection=True))
    call.starts()
    call.speaks()
    pauses(call, 0.35, 0.95)
    assert (len(call.model.heard), call.words.finished) == (1, 1)


@pytest.mark.parametrize("probability", [None, 0.0, 0.95])
async def test_turn_detection_that_is_turned_off_in_a_pause_forgets_the_model_s_answer(
    probability: float | None,
) -> None:
    call = in_a_lull()
    if probability is not None:
        call.model.answer(probability)
    pushed = call.words.pushed
    call.speaks(2)
    set_up(call, ConfigChange(turn_detection=False))
    assert call.words.pushed == pushed + 2, "the recogniser gets the sound of the lull"
    call.model.answer(0.95)
    call.run(0.1)
    call.stops()
    call.run(0.29)
    assert call.words.finished == 0
    call.run(0.02)
    assert call.words.finished == 1


@pytest.mark.parametrize(
    ("progress", "probability", "silence_s"),
    [
        (AnswerProgress.COMPLETE, None, 0.256),
        (AnswerProgress.COMPLETE, 0.0, 0.256),
        (AnswerProgress.UNKNOWN, 0.9, 0.256),
        *(
            (progress, probability, at_least)
            for progress, at_least in LEAST_S.items()
            for probability in (None, 0.0, 0.9)
        ),
    ],
)
def test_the_words_choose_the_silence_whatever_the_model_says(
    progress: AnswerProgress, probability: float | None, silence_s: float
) -> None:
    assert PATIENCE.silence_s(probability, progress) == silence_s
    assert PATIENCE.at_least(3.0).silence_s(probability, progress) == 3.0


def test_a_finished_thought_waits_a_little_for_its_last_words() -> None:
    assert PATIENCE.silence_s(0.9, words_follow=True) == WORDS_S
    assert PATIENCE.silence_s(0.9, AnswerProgress.COMPLETE, words_follow=True) == 0.256


def asked(question: str, expect: ExpectedReply | None = None, **route: object) -> ThoughtfulCall:
    """A caller who was asked a question."""
    call = ThoughtfulCall(**route)
    call.speak(question, expect=expect)
    call.run(3.0)
    return call


def group(call: ThoughtfulCall, words: str, pause_s: float) -> None:
    """The caller says words and pauses. The words so far are known 0.12 s after the lull is; the model takes each for
    the end."""
    call.starts()
    call.speaks(40)
    call.lull()
    call.model.answer(0.95)
    call.run(0.12)
    call.listening.on_partial(words)
    call.run(0.02)
    call.stops()
    call.run(pause_s - 0.3)


NUMBER = ["five five five", "five five five oh one two", "five five five oh one two three four five six"]


@pytest.mark.parametrize("pause_s", [0.3, 0.5, 0.7, 0.9, 1.5])
@pytest.mark.parametrize(
    ("question", "expect"),
    [("And now, please?", ExpectedReply(kind="digits", digits=10)), ("What is your phone number?", None)],
)
def test_an_expected_number_is_one_prompt_and_its_end_is_answered_soon(
    question: str, expect: ExpectedReply | None, pause_s: float
) -> None:
    call = asked(question, expect)
    for words in NUMBER[:2]:
        group(call, words, pause_s)
        assert call.words.finished == 0
    group(call, NUMBER[2], 0.31)
    assert call.words.finished == 1, "its last digit was said 0.31 s ago"


@pytest.mark.parametrize("pause_s", [0.5, 0.7, 0.9])
def test_a_number_without_a_question_waits_too(pause_s: float) -> None:
    call = asked("How can I help?")
    for words in NUMBER:
        group(call, words, pause_s)
        assert call.words.finished == (words == NUMBER[2])


def test_a_part_of_an_answer_is_not_waited_for_without_end() -> None:
    call = asked("What is your phone number?")
    group(call, NUMBER[0], 1.9)
    assert call.words.finished == 0
    call.run(0.15)
    assert call.words.finished == 1


def test_a_sentence_that_ends_with_a_conjunction_waits() -> None:
    call = asked("How can I help?")
    group(call, "I need a table for two and", 1.4)
    assert call.words.finished == 0
    group(call, "I need a table for two and a taxi", 0.41)
    assert call.words.finished == 1


def test_words_of_before_the_pause_delay_a_finished_thought_only_until_the_last_ones_are_there() -> None:
    call = ThoughtfulCall()
    call.starts()
    call.speaks(30)
    call.listening.on_partial("Where is my")
    call.speaks(10)
    call.lull()
    call.model.answer(0.95)
    call.run(0.14)
    call.stops()
    assert call.words.finished == 0, "its words end in the middle"
    call.listening.on_partial("Where is my order?")
    call.run(0.01)
    assert call.words.finished == 1


async def test_without_turn_detection_the_words_decide_nothing() -> None:
    call = asked("What is your phone number?")
    call.listening.configure(hearing_settings(ConfigChange(turn_detection=False), call.listening._hearing), {})
    group(call, NUMBER[0], 0.61)
    assert call.words.finished == 1


def test_a_partial_prompt_says_that_the_thought_may_be_over() -> None:
    call = asked("What is your phone number?", partial_prompts=True)
    for words in NUMBER:
        group(call, words, 0.29)
    told = [message for message in call.told if isinstance(message, Prompt)]
    assert [(message.voice_prompt, message.likely_last) for message in told] == [
        (NUMBER[0], False), (NUMBER[1], False), (NUMBER[2], True),
    ]  # fmt: skip


def test_a_partial_prompt_is_sent_again_when_the_model_takes_the_thought_for_finished() -> None:
    call = ThoughtfulCall(partial_prompts=True)
    call.starts()
    call.speaks()
    call.listening.on_partial("Where is it?")
    call.lull()
    call.listening.on_partial("Where is it now?")
    call.model.answer(0.9)
    told = [(message.voice_prompt, message.likely_last) for message in call.told if isinstance(message, Prompt)]
    assert told == [("Where is it?", False), ("Where is it now?", False), ("Where is it now?", True)]
