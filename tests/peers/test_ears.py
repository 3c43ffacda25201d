"""The rule by which a phrase counts as understood."""

import pytest

from tests.peers.ears import times_understood, understood, words_until_end

SENTENCE = "Your parcel was shipped on Friday and will arrive by Monday morning at the latest."


@pytest.mark.parametrize(
    ("phrase", "heard"),
    [
        ("talkspurt", "This is Talk Spurt, speaking."),
        ("you typed three seven nine", "You type 3, 7, 9."),
        ("opening", "what are your opening ours"),
        (SENTENCE, "Your parcel was shipped on friday, and will arrive by Monday morning."),
    ],
)
def test_letters_may_be_wrong(phrase: str, heard: str) -> None:
    assert understood(phrase, heard)


@pytest.mark.parametrize(
    ("phrase", "heard"),
    [
        ("opening", ""),
        ("banana", "I would like to speak to a person."),
        (SENTENCE, "The quick brown fox jumps over the lazy dog, and then it sleeps under a tree until the morning."),
        (SENTENCE, "Your parcel was shipped on Friday"),
    ],
)
def test_another_phrase_and_half_of_one_are_not_it(phrase: str, heard: str) -> None:
    assert not understood(phrase, heard)


def test_a_phrase_is_counted_as_often_as_it_is_said() -> None:
    assert times_understood("we are open", "We are open from nine. Where open, from nine? We are closed.") == 2


@pytest.mark.parametrize(("heard", "words"), [("", 0), ("Your partial was", 3), ("your parcel was shipped on frid", 6)])
def test_a_cut_sentence_goes_up_to_a_word(heard: str, words: int) -> None:
    assert words_until_end(SENTENCE, heard) == words
