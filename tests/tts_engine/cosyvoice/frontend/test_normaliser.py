"""Clauses are normalised once, in other processes, and in this one while those are away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.waiting import until
from tts_engine.cosyvoice.frontend import normaliser as remembering
from tts_engine.cosyvoice.frontend.normalise import Normalised, WetextVerbaliser, normalise
from tts_engine.cosyvoice.frontend.normaliser import Normaliser
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


class Here:
    """What this process normalises itself, in a way that shows."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, language: str) -> Normalised:
        self.texts.append(text)
        return normalise(text.upper(), language)


class Counted:
    def __init__(self) -> None:
        self.hits: list[bool] = []

    def normalised(self, *, hit: bool) -> None:
        self.hits.append(hit)


@asynccontextmanager
async def started(here: Here, processes: int, observer: Counted | None = None) -> AsyncIterator[Normaliser]:
    normaliser = Normaliser(here, processes=processes, observer=observer)
    await normaliser.start()
    try:
        yield normaliser
    finally:
        await normaliser.aclose()


async def test_a_process_gives_what_this_one_would_and_a_dead_one_is_replaced() -> None:
    here, verbalise = Here(), WetextVerbaliser()
    async with started(here, 1) as normaliser:
        made = await asyncio.gather(*(normaliser.wording(text, "") for text in TEXTS))
        assert made == [Wording.of(normalise(text, verbalise=verbalise)) for text in TEXTS]
        assert not here.texts

        (child,) = normaliser._processes
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        first, second = (asyncio.ensure_future(normaliser.wording("asked twice", "")) for _ in range(2))
        await until(lambda: child.waiting == 1)
        first.cancel()
        os.kill(child.pid, signal.SIGCONT)
        assert (await second).normalised.text == "asked twice", (
            "the clause that was cancelled leaves its wording to the other"
        )
        assert first.cancelled()

        os.kill(child.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(normaliser.wording("asked before its end", ""))
        await until(lambda: child.waiting == 1)
        os.kill(child.pid, signal.SIGKILL)
        assert (await asked).normalised.text == "ASKED BEFORE ITS END"
        await until(lambda: child.restarts == 1 and child.ready)
        assert (await normaliser.wording("again", "")).normalised.text == "again"
        assert here.texts == ["asked before its end"]


async def test_a_clause_that_many_ask_for_is_made_once() -> None:
    here, counted = Here(), Counted()
    async with started(here, 0, counted) as normaliser:
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
    async with started(here, 0) as normaliser:
        for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
            await normaliser.wording(text, "en")
    assert here.texts == ["aaaa", "bbbb", "cccc", "bbbb"]


async def test_an_error_is_not_remembered() -> None:
    here = Here()

    def fails_once(text: str, language: str) -> Normalised:
        if not here.texts:
            here.texts.append(text)
            raise RuntimeError("a fault of ours")
        return here(text, language)

    normaliser = Normaliser(fails_once, processes=0)
    with pytest.raises(RuntimeError):
        await normaliser.wording("welcome", "en")
    assert (await normaliser.wording("welcome", "en")).normalised.text == "WELCOME"
