"""Texts that bots say, and their right wording, by language. tests/vectors/texts/README.md tells their sources."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tts_engine.cosyvoice.frontend.normalise import TextVerbaliser, normalise
from tts_engine.embedded.hibari_text import _reading
from tts_engine.text.normalise import clean
from tts_engine.text.verbalise.languages import verbalise

FOLDER = Path(__file__).parents[3] / "vectors" / "texts"


def cases() -> Iterator[object]:
    for path in sorted(FOLDER.glob("*.txt")):
        language = path.name.partition(".")[0]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line and not line.startswith("# "):
                written, spoken = case(line)
                yield pytest.param(language, written, spoken, id=f"{path.stem}:{number}")


def case(line: str) -> tuple[str, str]:
    """Return a text and its wording. ``\\n`` in a text is a line break."""
    written, _, spoken = line.rpartition("~")  # "~5 min" has one, too
    return written.replace("\\n", "\n"), spoken


def key(text: str, language: str) -> list[str] | str:
    """Return what is heard of a wording: without case, punctuation, hyphens and English's optional "and"."""
    text = re.sub(r"\b([ap])\.m\b\.?", r"\1m", text.lower())
    if language == "zh":
        return re.sub(r"\W", "", text)
    words = re.sub(r"[^\w\s]", " ", text).split()
    if language in ("de", "it"):
        return "".join(words)  # whether a number is one word or several is not heard
    return [word for word in words if language != "en" or word != "and"]


@pytest.fixture(scope="module")
def verbaliser() -> TextVerbaliser:
    return TextVerbaliser()


@pytest.mark.parametrize(("language", "written", "spoken"), list(cases()))
def test_a_text_is_read_as_written(language: str, written: str, spoken: str, verbaliser: TextVerbaliser) -> None:
    if language != "zh":
        assert key(verbalise(clean(written), language), language) == key(spoken, language)
    assert key(normalise(written, language, verbalise=verbaliser).text, language) == key(spoken, language)
    if language == "en":
        assert key(_reading(clean(written)), language) == key(spoken, language)
