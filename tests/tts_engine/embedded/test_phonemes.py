"""Phonemes that a text gives, in the English reader and as Kokoro's symbols."""

import pytest

from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.phonemes import symbols
from tts_engine.speech_marks import begin_mark, ipa_marks

READER = PhonemeReader()
NAMES = {number: symbol for symbol, number in READER.ids.items()}


def phonemes(text: str) -> str:
    return "".join(NAMES[number] for piece in READER.read(text) for number in piece.ids[1:-1]).strip()


def said(words: str, ipa: str) -> str:
    return f"{begin_mark()}{words}{ipa_marks(ipa)}"


@pytest.mark.parametrize(
    ("ipa", "found"),
    [
        ("təˈmeɪtoʊ", "təmˈAtO"),
        ("təˈmɑːtəʊ", "təmˈɑtO"),
        ("ˌpɹoʊ.nʌnsiˈeɪʃən", "pɹˌOnʌnsiˈAʃən"),
        ("t͡ʃeə̯ɹ", "ʧeəɹ"),
        ("ˈɡɜːrl", "ɡˈɜɹl"),
        ("nuː jɔːk", "nu jɔk"),
        ("§!.,", ""),
    ],
)
def test_ipa_of_dictionaries_becomes_the_symbols_of_the_voice(ipa: str, found: str) -> None:
    assert symbols(ipa, READER.ids, english=True) == found


def test_the_symbols_are_those_of_the_reader_itself() -> None:
    """The same words by the reader's own dictionary, and by their IPA."""
    for word, ipa in (("cheese", "tʃiːz"), ("window", "ˈwɪndoʊ"), ("point", "pɔɪnt"), ("about", "əˈbaʊt")):
        assert symbols(ipa, READER.ids, english=True).replace("ˈ", "") == phonemes(word).replace("ˈ", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Say {said('pecan', 'pɪˈkɑːn')}.", "sˈA pɪkˈɑn."),
        (f"Say {said('pecan', 'pɪˈkɑːn')}, now.", "sˈA pɪkˈɑn, nˈW."),
        (f"In {said('New York', 'nuː jɔːk')} now.", "ɪn nu jɔk nˈW."),
        (f"{said('2', 'tuː')} of {said('B', 'beɪ')}", "tu ʌv bA"),
        (f"Say {said('pecan', '!!')}.", phonemes("Say pecan.")),
    ],
)
def test_given_phonemes_replace_those_of_their_words(text: str, found: str) -> None:
    assert phonemes(text) == found


def test_the_words_keep_their_places() -> None:
    text = f"In {said('New York', 'nuː jɔːk')} 25 times"
    (piece,) = READER.read(text)
    places = [text[word.start_char : word.end_char] for word in piece.words]
    assert places[0] == "In" and places[-2:] == ["25", "times"] and "New" in places[1]
    assert all(a.end_id <= b.first_id for a, b in zip(piece.words, piece.words[1:], strict=False))
