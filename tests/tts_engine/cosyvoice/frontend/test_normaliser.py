"""Clauses are normalised once, in other processes, and in this one while those are away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import stand_still, until
from tts_engine.cosyvoice.frontend import normaliser as remembering
from tts_engine.cosyvoice.frontend.normalise import TextVerbaliser, normalise
from tts_engine.cosyvoice.frontend.normaliser import Normaliser
from tts_engine.cosyvoice.frontend.normaliser_process import Asked, NormaliserProcess
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
    """What this process normalises itself, in a way that shows."""

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


async def wording(normaliser: Normaliser, text: str, language: str) -> Wording:
    """What comes last."""
    async with aclosing(normaliser.wordings(text, language)) as wordings:
        return [made async for made in wordings][-1]


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
        made = await asyncio.gather(*(wording(normaliser, text, "") for text in TEXTS))
        assert made == [Wording.of(normalise(text, verbalise=verbalise), encode) for text in TEXTS]
        assert not here.texts

        assert child.pid is not None
        await stand_still(child.pid)
        first, second = (asyncio.ensure_future(wording(normaliser, "asked twice", "")) for _ in range(2))
        await until(lambda: child.waiting == 1)
        first.cancel()
        os.kill(child.pid, signal.SIGCONT)
        assert (await second).normalised.text == "asked twice", (
            "the clause that was cancelled leaves its wording to the other"
        )
        assert first.cancelled()

        await stand_still(child.pid)
        asked = asyncio.ensure_future(wording(normaliser, "asked before its end", ""))
        await until(lambda: child.waiting == 1)
        os.kill(child.pid, signal.SIGKILL)
        assert (await asked).normalised.text == "ASKED BEFORE ITS END"
        await until(lambda: child.restarts == 1 and child.ready)
        assert (await wording(normaliser, "again", "")).normalised.text == "again"
        assert here.texts == ["asked before its end"]


async def test_a_clause_that_many_ask_for_is_made_once() -> None:
    here, counted = Here(), Counted()
    async with started(here, observer=counted) as normaliser:
        texts = ["welcome"] * 3 + ["other"]
        made = await asyncio.gather(*(wording(normaliser, text, "en") for text in texts))
        assert [one.normalised.text for one in made] == ["WELCOME"] * 3 + ["OTHER"]
        assert here.texts == ["welcome", "other"]
        assert counted.hits == [False, True, True, False]
        await wording(normaliser, "welcome", "de")
        assert here.texts == ["welcome", "other", "welcome"]


async def test_the_least_recently_asked_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "_REMEMBERED_CHARS", 8)
    here = Here()
    async with started(here) as normaliser:
        for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
            await wording(normaliser, text, "en")
    assert here.texts == ["aaaa", "bbbb", "cccc", "bbbb"]


async def test_an_error_is_not_remembered() -> None:
    here = Here()

    def fails_once(text: str, language: str) -> Wording:
        if not here.texts:
            here.texts.append(text)
            raise RuntimeError("a fault of ours")
        return here(text, language)

    normaliser = Normaliser(fails_once)
    with pytest.raises(RuntimeError):
        await wording(normaliser, "welcome", "en")
    assert (await wording(normaliser, "welcome", "en")).normalised.text == "WELCOME"


async def test_a_process_tells_what_is_likely_before_it_words_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_tokenizer(tmp_path)
    child, encode = NormaliserProcess(tmp_path, 3), CosyTokenizer.load(tmp_path, version=3).encode
    texts = ["您好。", "李先生3点到。", "再见……", "我们 已经 把 您的 台灯 送到 3 楼 了 谢谢 您", "3点半"]
    texts.append("十点半。")
    told: list[tuple[int, bool]] = []
    answers: dict[str, list[Wording]] = {text: [] for text in texts}
    answer, ask_child = Asked.answer, child.ask
    text_of: dict[Asked, str] = {}

    def ask_and_note(text: str, language: str) -> Asked:
        asked = ask_child(text, language)
        text_of[asked] = text
        return asked

    def write_down(asked: Asked, wording: Wording | None, *, is_final: bool) -> None:
        if text_of[asked] in texts:  # the others check that the process is alive
            told.append((texts.index(text_of[asked]), is_final))
        answer(asked, wording, is_final=is_final)

    # Who asked may wake later than several answers have come, and then takes both of his at once.
    monkeypatch.setattr(Asked, "answer", write_down)
    monkeypatch.setattr(child, "ask", ask_and_note)
    async with started(Here(), [child]) as normaliser:

        async def ask(text: str) -> None:
            async with aclosing(normaliser.wordings(text, "zh")) as wordings:
                async for made in wordings:
                    answers[text].append(made)

        assert child.pid is not None
        await stand_still(child.pid)
        asked = [asyncio.create_task(ask(text)) for text in texts]
        await until(lambda: child.waiting >= len(texts))
        os.kill(child.pid, signal.SIGCONT)
        await asyncio.gather(*asked)

        # First those with neither digits nor what may be an abbreviation, then all others in turn.
        likely = [(0, False), (2, False), (5, False), (1, True), (3, False), (4, True)]
        assert told == [*likely, (0, True), (2, True), (5, True), (3, True)]
        verbalise = TextVerbaliser()
        for text, made in answers.items():
            assert len(made) == 1 + ((texts.index(text), False) in told)
            assert made[0] is made[-1] == Wording.of(normalise(text, "zh", verbalise=verbalise), encode)

        await ask(texts[0])
        assert len(answers[texts[0]]) == 3, "it is remembered"


async def test_a_likely_wording_that_was_wrong_is_told_anew(tmp_path: Path) -> None:
    make_tiny_tokenizer(tmp_path)
    child = NormaliserProcess(tmp_path, 3)
    async with started(Here(), [child]) as normaliser:
        async with aclosing(normaliser.wordings("请按*键", "zh")) as wordings:
            told = [made.normalised.text async for made in wordings]
        assert told == ["请按*键", "请按星号键"]
        assert (await wording(normaliser, "请按*键", "zh")).normalised.text == told[1]
