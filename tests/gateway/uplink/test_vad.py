"""The VAD's decisions, window by window; ``test_barge_in.py`` has the real network in front of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.uplink.vad import SENSITIVITIES, WINDOW_S, Evidence, SpeechDetector, Window

KINDS = {  # probability, level, share above 400 Hz, share above 1600 Hz; dB
    "word": (0.9, -20.0, -3.0, -10.0),
    "vowel": (0.9, -20.0, -12.0, -15.0),
    "hum": (0.8, -22.0, -16.0, -30.0),
    "weak": (0.3, -24.0, -5.0, -12.0),
    "shout": (0.9, -5.0, -3.0, -10.0),
    "another": (0.9, -36.0, -3.0, -10.0),
    "near": (0.9, -28.0, -12.0, -15.0),
    "below": (0.9, -31.5, -12.0, -15.0),
    "distant": (0.9, -36.0, -12.0, -15.0),
    "faint": (0.9, -50.0, -3.0, -10.0),
    "far": (0.9, -58.0, -3.0, -10.0),
    "silence": (0.02, -65.0, -10.0, -20.0),
}


class Ear:
    """A detector that has heard two seconds of a quiet room, and its windows."""

    def __init__(self, *, over_us: bool = True, **settings: Any) -> None:
        self.detector = SpeechDetector(**settings)
        self.over_us = over_us
        self.echo = False
        self.asked = 0
        self._end = 0.0
        assert self.hear("silence", 70) == []

    def _is_echo(self) -> bool:
        self.asked += 1
        return self.echo

    def _windows(self, kind: str, count: int) -> Iterator[Window]:
        probability, level, bright, front = KINDS[kind]
        for _ in range(count):
            self._end += WINDOW_S
            yield Window(
                end=self._end, probability=probability, level_db=level, bright_db=bright, front_db=front,
                talking_over=self.over_us,
            )  # fmt: skip

    def hear(self, kind: str, count: int) -> list[str]:
        """Return the detector's events for ``count`` windows, each with its window."""
        said = []
        for index, window in enumerate(self._windows(kind, count), 1):
            heard = self.detector.feed(window, is_echo=self._is_echo)
            if heard is not None:
                said.append(f"{heard[0]} {index}")
        return said


def test_in_silence_three_windows_of_speech_are_speech_and_0_3_s_without_end_it() -> None:
    ear = Ear(over_us=False)
    assert ear.hear("word", 20) == ["started 3"]
    assert ear.detector.speaking and ear.asked == 0, "silence is not checked for echo"
    assert ear.hear("silence", 12) == ["ended 10"]
    assert ear.detector.idle


def test_over_our_voice_two_windows_are_worth_a_pause_and_three_open_ones_are_speech() -> None:
    assert Ear().hear("word", 10) == ["suspected 2", "started 3"]


def test_the_onset_is_the_begin_of_the_first_window() -> None:
    ear = Ear()
    begin = ear._end
    onsets = [heard for window in ear._windows("word", 3) if (heard := ear.detector.feed(window)) is not None]
    assert [onset for _, onset in onsets] == pytest.approx([begin, begin])


def test_without_a_pause_only_speech_is_told() -> None:
    assert Ear(pause_s=0.0).hear("word", 10) == ["started 3"]


def test_a_hum_is_nothing_until_it_lasts_too_long() -> None:
    assert Ear().hear("hum", 25) == []
    assert Ear(max_hum_s=0.3).hear("hum", 25) == ["started 10"]


def test_a_close_vowel_is_suspected_and_dismissed_when_it_ends_as_one() -> None:
    ear = Ear()
    assert ear.hear("vowel", 4) == ["suspected 2"]
    assert ear.detector.evidence is Evidence.SUSPICION
    assert ear.hear("silence", 3) == ["dismissed 2"]
    assert ear.detector.idle


@pytest.mark.parametrize(("kind", "told"), [("hum", ["hummed 2"]), ("vowel", ["dismissed 2"])])
def test_a_short_sound_over_our_voice_may_be_a_word(kind: str, told: list[str]) -> None:
    ear = Ear()
    begin = ear._end
    ear.hear(kind, 5)
    assert ear.hear("silence", 2) == told
    assert ear.detector.short_sound_from == pytest.approx(begin)
    assert ear.hear("silence", 1) == [] and ear.detector.short_sound_from is None


@pytest.mark.parametrize(
    ("kind", "windows", "echo", "over_us"),
    [("hum", 5, True, True), ("hum", 2, False, True), ("faint", 5, False, True), ("hum", 2, False, False)],
    ids=["echo", "too short", "too faint", "not over our voice"],
)
def test_other_sounds_are_no_short_words(kind: str, windows: int, echo: bool, over_us: bool) -> None:
    ear = Ear(over_us=over_us)
    ear.echo = echo
    ear.hear(kind, windows)
    assert ear.hear("silence", 3) == [] and ear.detector.short_sound_from is None


def test_a_short_sound_far_below_the_caller_s_answers_is_no_word_of_theirs() -> None:
    ear = Ear()
    assert ear.hear("distant", 4) + ear.hear("silence", 3) == ["suspected 2", "dismissed 2"]
    assert ear.detector.short_sound_from is None, "before an answer, only a loud sound is put to the recogniser"
    ear.over_us = False
    ear.hear("word", 20)
    ear.hear("silence", 70)
    ear.over_us = True
    ear.hear("silence", 70)
    ear.hear("near", 4)
    assert ear.hear("silence", 2)[-1:] == ["dismissed 2"] and ear.detector.short_sound_from is not None
    ear.hear("silence", 70)
    ear.hear("below", 4)
    assert ear.hear("silence", 2) == ["dismissed 2"] and ear.detector.short_sound_from is None


def test_one_weak_window_inside_a_word_is_no_end_of_it() -> None:
    ear = Ear()
    assert ear.hear("vowel", 2) == ["suspected 2"]
    assert ear.hear("silence", 1) == []
    assert ear.hear("word", 3) == ["started 3"]


def test_speech_goes_on_at_a_lower_probability_than_it_begins() -> None:
    ear = Ear(over_us=False)
    assert ear.hear("weak", 10) == []
    ear.hear("word", 3)
    assert ear.hear("weak", 30) == []
    assert ear.detector.speaking


def test_our_echo_is_neither_suspected_nor_speech() -> None:
    ear = Ear()
    ear.echo = True
    assert ear.hear("word", 10) == []
    assert ear.asked


@pytest.mark.parametrize("kind", ["faint", "far"])
def test_what_is_too_faint_over_our_voice_is_nobody(kind: str) -> None:
    assert Ear().hear(kind, 20) == []


def test_who_is_no_louder_than_the_room_is_in_the_room() -> None:
    ear = Ear(over_us=False)
    ear.hear("word", 3)
    ear.hear("silence", 10)
    for _ in range(20):  # a radio: words and short pauses, for seconds
        ear.detector.forget()
        ear.over_us = True
        loud = ear.hear("word", 2)
    assert loud == [], "its own loudness has become the background"


@pytest.mark.parametrize(
    ("windows", "ended"),
    [(1, None), (2, ("dismissed", 7.0)), (5, ("ended", 7.0))],
    ids=["sound", "suspicion", "speech"],
)
def test_audio_that_stops_ends_what_was_told(windows: int, ended: tuple[str, float] | None) -> None:
    ear = Ear()
    ear.hear("word", windows)
    assert ear.detector.end(7.0) == ended
    assert ear.detector.idle and ear.detector.end(8.0) is None


def test_a_forgotten_caller_has_to_be_found_again() -> None:
    ear = Ear()
    ear.hear("word", 5)
    ear.detector.forget()
    assert ear.detector.idle
    assert ear.hear("word", 5) == ["suspected 2", "started 3"]


def test_a_lull_is_told_before_the_end_and_what_follows_it() -> None:
    ear = Ear(over_us=False, lull_s=0.16, min_silence_s=0.5)
    assert ear.hear("word", 20) == ["started 3"]
    assert ear.hear("silence", 4) == [] == ear.hear("word", 4), "a stop consonant"
    assert ear.hear("silence", 6) == ["lulled 5"]
    assert ear.hear("word", 3) == ["resumed 1"]
    assert ear.hear("silence", 18) == ["lulled 5", "ended 16"]


def test_a_lull_is_found_by_the_level_while_the_network_still_says_speech() -> None:
    ear = Ear(over_us=False, lull_s=0.16)
    ear.hear("word", 20)
    assert ear.hear("faint", 5) == ["lulled 5"]
    assert ear.hear("weak", 1) == ["resumed 1"], "not as loud as before, but speech"


def test_lulls_begin_when_the_sound_ended() -> None:
    ear = Ear(over_us=False, lull_s=0.16)
    ear.hear("word", 20)
    begun = ear._end
    told = [heard for window in ear._windows("silence", 5) if (heard := ear.detector.feed(window)) is not None]
    assert told == [("lulled", pytest.approx(begun))]


def answered(ear: Ear, kind: str) -> None:
    """The caller says something while the bot is silent, and the bot answers."""
    ear.over_us = False
    ear.hear(kind, 10)
    ear.hear("silence", 40)
    ear.over_us = True
    ear.hear("silence", 70)


def test_a_voice_far_fainter_than_the_callers_answers_is_another_one() -> None:
    ear = Ear()
    assert ear.hear("another", 10) == ["suspected 2", "started 3"], "so far it may be the caller"
    ear.hear("silence", 20)
    answered(ear, "word")
    assert ear.hear("another", 10) == []
    assert ear.hear("silence", 20) == []
    assert ear.hear("word", 3) == ["suspected 2", "started 3"]


def test_a_caller_who_speaks_more_softly_is_heard_after_some_answers() -> None:
    ear = Ear()
    answered(ear, "word")
    for _ in range(4):
        answered(ear, "another")
    assert ear.hear("another", 10) == ["suspected 2", "started 3"]


def test_one_shout_does_not_make_the_caller_inaudible() -> None:
    ear = Ear()
    answered(ear, "shout")
    assert ear.hear("word", 3) == ["suspected 2", "started 3"]


@pytest.mark.parametrize(("name", "said"), [("high", "started 3"), ("medium", "started 6"), ("low", "started 12")])
def test_a_less_sensitive_route_needs_longer_speech_over_the_bots(name: str, said: str) -> None:
    ear = Ear()
    ear.detector.sensitivity = SENSITIVITIES[name]
    assert ear.hear("word", 20) == ["suspected 2", said]
    ear.over_us = False
    assert ear.hear("silence", 20) == ["ended 10"]
    assert ear.hear("word", 20) == ["started 3"], "while the bot is silent, all are alike"
