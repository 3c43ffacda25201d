"""Clauses are normalised once, in other processes, and in this one while those are away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import stand_still, until
from tts_engine.cosyvoice.frontend import normaliser as remembering
from tts_engine.cosyvoice.frontend.normalise import TextVerbaliser, normalise
from tts_engine.cosyvoice.frontend.normaliser import Normaliser
from tts_engine.cosyvoice.frontend.normaliser_process import NormaliserProcess
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, make_tiny_tokenizer
from tts_engine.cosyvoice.frontend.words import Wording

TEXTS = [
    "Your order 4711 comes on 3 May.",
    'He said "10:30".',
    "多少钱？20元。",
    "ok [laughter] <strong>12</strong>",
    "two\nlines, \t12 tabs",
    "",
    "👍 ½",
    "\ud83d alone",
]


def encode_length(text: str) -> list[int]:
    return [len(text)]


class Here:
    """A normaliser in this process, whose work can be seen in the text."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, language: str) -> Wording:
        self.texts.append(text)
        return Wording.of(normalise(text.upper(), language), encode_length)


class Counted:
    def __init__(self) -> None:
        self.hits: list[bool] = []

    def normalised(self, *, hit: bool) -> None:
        self.hits.append(hit)


@asynccontextmanager
async def started(
    here: Here, processes: Sequence[NormaliserProcess] = (), observer: Counted | None = None
) -> AsyncIterator[Normaliser]:
    normaliser = Normaliser(here, processes=processes, observer=observer)
    await normaliser.start()
    try:
        yield normaliser
    finally:
        await normaliser.aclose()


async def test_a_process_gives_what_this_one_would_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    here, verbalise = Here(), TextVerbaliser()
    make_tiny_tokenizer(tmp_path)
    child, encode = NormaliserProcess(tmp_path, 3), CosyTokenizer.load(tmp_path, version=3).encode
    async with started(here, [child]) as normaliser:
        made = await asyncio.gather(*(normaliser.wording(text, "") for text in TEXTS))
        assert made == [Wording.of(normalise(text, verbalise=verbalise), encode) for text in TEXTS]
        assert not here.texts

        assert child.pid is not None
        await stand_still(child.pid)
        first, second = (asyncio.ensure_future(normaliser.wording("asked twice", "")) for _ in range(2))
        await until(lambda: child.waiting == 1)
        first.cancel()
        os.kill(child.pid, signal.SIGCONT)
        assert (await second).normalised.text == "asked twice", (
            "the clause that was cancelled leaves its wording to the other"
        )
        assert first.cancelled()

        await stand_still(child.pid)
        asked = asyncio.ensure_future(normaliser.wording("asked before its end", ""))
        await until(lambda: child.waiting == 1)
        os.kill(child.pid, signal.SIGKILL)
        assert (await asked).normalised.text == "ASKED BEFORE ITS END"
        await until(lambda: child.restarts == 1 and child.ready)
        assert (await normaliser.wording("again", "")).normalised.text == "again"
        assert here.texts == ["asked before its end"]


async def test_a_clause_that_many_ask_for_is_made_once() -> None:
    here, counted = Here(), Counted()
    async with started(here, observer=counted) as normaliser:
        texts = ["welcome"] * 3 + ["other"]
        made = await asyncio.gather(*(normaliser.wording(text, "en") for text in texts))
        assert [one.normalised.text for one in made] == ["WELCOME"] * 3 + ["OTHER"]
        assert here.texts == ["welcome", "other"]
        assert counted.hits == [False, True, True, False]
        await normaliser.wording("welcome", "de")
        assert here.texts == ["welcome", "other", "welcome"]


async def test_the_least_recently_asked_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "_REMEMBERED_CHARS", 8)
    here = Here()
    async with started(here) as normaliser:
        for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
            await normaliser.wording(text, "en")
    assert here.texts == ["aaaa", "bbbb", "cccc", "bbbb"]


async def test_an_error_is_not_remembered() -> None:
    here = Here()

    def fails_once(text: str, language: str) -> Wording:
        if not here.texts:
            here.texts.append(text)
            raise RuntimeError("our fault")
        return here(text, language)

    normaliser = Normaliser(fails_once)
    with pytest.raises(RuntimeError):
        await normaliser.wording("welcome", "en")
    assert (await normaliser.wording("welcome", "en")).normalised.text == "WELCOME"
