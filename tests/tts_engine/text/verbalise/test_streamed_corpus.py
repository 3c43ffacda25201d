"""Texts of the corpus that come in small pieces: the clauses are read as the whole text is read."""

import random
from collections.abc import Iterable

import pytest

from tests.tts_engine.text.verbalise.test_corpus import FOLDER, case, key
from tts_engine.text.clauses import ClauseSplitter
from tts_engine.text.normalise import clean
from tts_engine.text.verbalise.languages import verbalise

LANGUAGES = ("de", "en", "es", "fr", "it", "pt")


def texts(language: str) -> list[str]:
    lines = (FOLDER / f"{language}.txt").read_text("utf-8").splitlines()
    return [case(line)[0] for line in lines if line and not line.startswith("# ")]


def clauses(pieces: Iterable[str]) -> list[str]:
    splitter = ClauseSplitter()
    found = [clause for piece in pieces for clause in splitter.feed(piece)]
    return [clause.text for clause in found + splitter.flush()]


def pieces(text: str, chance: random.Random) -> list[str]:
    """Cut a text into pieces of one to four characters."""
    parts, at = [], 0
    while at < len(text):
        size = chance.randint(1, 4)
        parts.append(text[at : at + size])
        at += size
    return parts


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_clauses_of_a_stream_are_read_as_the_whole_text(language: str) -> None:
    chance = random.Random(7)
    different = []
    for text in texts(language):
        streamed = clauses(pieces(text, chance))
        assert streamed == clauses([text]), text
        heard = key(" ".join(verbalise(clean(clause), language) for clause in streamed), language)
        if heard != key(verbalise(clean(text), language), language):
            different.append(streamed)
    assert different == []
