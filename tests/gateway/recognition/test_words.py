"""The words of a growing utterance."""

import pytest

from gateway.recognition.words import agreed, repetition


@pytest.mark.parametrize(
    ("before", "now", "sure"),
    [
        ("", "I would", ""),
        ("I would", "I would like to can", "I"),
        ("I would like to can", "I would like to cancel my order", "I would like to"),
        ("I wood like", "I would like", "I"),
        ("Yes.", "Yes.", ""),
    ],
)
def test_words_are_sure_once_two_results_agree_on_them_and_more_follow(before: str, now: str, sure: str) -> None:
    assert agreed(before, now) == sure


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("No thank you, that is all. No thank you, that is", "No thank you, that is all. "),
        ("When does it leave? when does it leave", "When does it leave? "),
        ("no no no", ""),
        ("I would like to say that I would be late", ""),
        ("", ""),
    ],
)
def test_a_text_that_begins_again_is_a_repetition(text: str, kept: str) -> None:
    assert text[: repetition(text)] == kept
