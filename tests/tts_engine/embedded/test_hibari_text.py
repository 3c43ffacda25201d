"""English text to phonemes: what a text holds is read, whatever characters say it."""

import pytest

from tts_engine.embedded.hibari_text import PhonemeReader


@pytest.fixture(scope="module")
def reader() -> PhonemeReader:
    return PhonemeReader()


def phonemes(reader: PhonemeReader, text: str) -> list[int]:
    return [index for piece in reader.read(text) for index in piece.ids]


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("¹Terms apply.", "1 Terms apply."),
        ("Footnote¹²", "Footnote 12"),
        ("H₂O is water", "H 2 O is water"),
        ("①first", "1 first"),
        ("⅓cup of milk", "one third cup of milk"),
        ("1½ cups", "1 and one half cups"),
        ("¼-inch", "one quarter inch"),
        ("50 m² of it", "fifty square meters of it"),
        ("Henry Ⅷ", "Henry VIII"),
    ],
)
def test_numbers_of_one_character_are_read(reader: PhonemeReader, text: str, read_as: str) -> None:
    assert phonemes(reader, text) == phonemes(reader, read_as) != []


def test_each_word_stands_for_the_callers_own_characters(reader: PhonemeReader) -> None:
    (piece,) = reader.read("¹Terms apply.")
    assert [(word.start_char, word.end_char) for word in piece.words] == [(0, 6), (7, 13)]


def test_a_letter_alone_is_read_as_a_letter(reader: PhonemeReader) -> None:
    assert phonemes(reader, "A") == phonemes(reader, "A.") != phonemes(reader, "uh")
