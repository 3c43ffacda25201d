"""A first clause that is spoken while its text comes: what is given out is always its beginning, and all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import until
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.cosyvoice.loading import load_synthesizer
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.growing import GrowingText
from tts_engine.text.clauses import Clause, ClauseConfig, ClauseSplitter

WORDS = "Your order left, Dr. the 5 p.m. 10:30 at home. Well? e.g. — U.S. no…".split()


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60), st.lists(st.integers(1, 9), min_size=1))
def test_what_is_given_out_is_the_beginning_of_the_clause_that_is_cut(words: list[str], steps: list[int]) -> None:
    text, splitter = " ".join(words), ClauseSplitter(ClauseConfig())
    growing = GrowingText(0)
    begin, step, cut = 0, 0, list[Clause]()
    while begin < len(text) and not cut:
        cut = splitter.feed(text[begin : begin + steps[step % len(steps)]])
        begin, step = begin + steps[step % len(steps)], step + 1
        if not cut:
            assert splitter.pending == text[splitter.pending_start : begin]
            growing.grow(splitter.pending)
    cut = cut or splitter.flush()
    assert cut[0].text.startswith(growing.text)
    growing.end(cut[0].text)
    assert growing.text == cut[0].text


async def test_pieces_are_whole_words_and_together_the_clause() -> None:
    growing, text = GrowingText(0), "Your order left the warehouse this morning."

    async def collect() -> list[str]:
        return [piece async for piece in growing.pieces()]

    collecting = asyncio.ensure_future(collect())
    for end in range(len(text)):
        growing.grow(text[:end])
        await asyncio.sleep(0)
    growing.end(text)
    growing.grow(text + " And more of it.")
    pieces = await collecting
    assert len(pieces) > 3
    assert "".join(pieces) == text
    assert all(piece.startswith(" ") for piece in pieces[1:])


TEXT = "Your order left the warehouse this morning and it will arrive on Friday, I hope that this helps you."
WHOLE = TEXT.split()


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / f"tiny{request.param}"
    make(path, request.param)
    return path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    model = load_synthesizer(
        folder,
        CosyVoiceConfig(max_clauses=3, euler_steps=2, text_streaming=True, first_chunk_s=1e6),
        device="cpu",
    )
    engine = Engine(model)
    await engine.start()
    yield engine
    await engine.aclose()


async def test_sound_comes_before_the_clause_is_whole_and_every_word_with_it(engine: Engine) -> None:
    chunks: list[AudioChunk] = []
    async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
        for word in WHOLE[:12]:
            utterance.feed(word + " ")  # no punctuation yet
        chunks.append(await anext(aiter(utterance)))
        for word in WHOLE[12:]:
            utterance.feed(word + " ")
        utterance.end_text()
        chunks += [chunk async for chunk in utterance]
    spans = [span for chunk in chunks for span in chunk.spans]
    assert [TEXT[s.start_char : s.end_char] for s in spans] == WHOLE
    assert all(a.first_sample + a.samples == b.first_sample for a, b in zip(chunks, chunks[1:], strict=False))


async def test_a_turn_is_left_while_its_text_grows(engine: Engine) -> None:
    async def active() -> bool:
        return (await engine.status()).active == 1

    async def idle() -> bool:
        return not (await engine.status()).active

    async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed("Your order left the warehouse this morning and")
        await until(active)
    await until(idle)
