"""Text into the language model while it draws: upstream's ids for upstream's draws, beside other clauses, cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tts_engine.cosyvoice.lm.drawn import ids_of
from tests.tts_engine.cosyvoice.models.goldens import VERSIONS, tensors
from tests.tts_engine.cosyvoice.models.test_llm import ids, model
from tests.waiting import PATIENCE_S, until
from tts_engine.cosyvoice.lm.api import INTERLEAVED
from tts_engine.cosyvoice.lm.eager_steps import Drawn, EagerLm
from tts_engine.cosyvoice.lm.torch_lm import TorchLm
from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.sampling import ras, stop_mask
from tts_engine.errors import InvalidRequest, SynthesisFailed

GOLDEN_CUT = 120
"""Ids at which the golden runs were cut."""


@pytest.fixture(params=VERSIONS, ids=["v2", "v3"])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


class GoldenLm(EagerLm):
    """Draws with the golden list of uniforms and masks what upstream masks."""

    def __init__(self, version: int, uniforms: Tensor) -> None:
        super().__init__(model(version), slots=2, max_length=320)
        self._uniforms, self._used = torch.cat([uniforms, torch.zeros(400).double()]), 0
        self._upstreams = stop_mask(self.config, upstream=True)

    def _masked(self, rows: Tensor) -> Tensor:
        return (self._least[rows][:, None] == INTERLEAVED) & self._upstreams

    def _pick(self, logits: Tensor, rows: Tensor) -> Tensor:
        draws = self._uniforms[None, self._used : self._used + 2]
        token, used = ras(logits, self._history[rows], draws, SamplingConfig())
        self._used += int(used)
        return token


@asynccontextmanager
async def running(steps: EagerLm) -> AsyncIterator[TorchLm]:
    lm = TorchLm(steps)
    await lm.start()
    try:
        yield lm
    finally:
        await lm.aclose()


async def groups(text: Sequence[int], size: int) -> AsyncIterator[Sequence[int]]:
    for first in range(0, len(text), size):
        await asyncio.sleep(0)
        yield text[first : first + size]


def golden(version: int, case: str) -> dict[str, list[int]]:
    return {name: ids(version, f"{case}.{name}") for name in ("prompt_text", "prompt_speech_token", "text", "tokens")}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 7, 100])
async def test_upstreams_ids_for_upstreams_draws(version: int, number: int, size: int) -> None:
    case = f"bistream{number}"
    want = golden(version, case)
    async with running(GoldenLm(version, tensors(version, "io_llm")[f"{case}.uniforms"])) as lm:
        stream = lm.generate_streamed(
            groups(want["text"], size),
            prompt_text=want["prompt_text"],
            prompt_speech=want["prompt_speech_token"],
            seed=0,
        )
        got: list[int] = []
        async with aclosing(stream) as drawn:
            async for ids in drawn:
                got += ids
                if len(got) >= GOLDEN_CUT:
                    break
        assert got[:GOLDEN_CUT] == want["tokens"]
        await until(lambda: lm.free_slots == 2)


async def test_speech_comes_before_the_text_has_ended(version: int) -> None:
    want = golden(version, "bistream0")
    heard = asyncio.Event()

    async def text() -> AsyncIterator[Sequence[int]]:
        for first in range(0, len(want["text"]), 2):
            yield want["text"][first : first + 2]
            if first >= 14:
                await heard.wait()

    async with running(EagerLm(model(version), slots=2, max_length=320)) as lm:
        stream = lm.generate_streamed(
            text(), prompt_text=want["prompt_text"], prompt_speech=want["prompt_speech_token"], seed=3
        )
        count = 0
        async with aclosing(stream) as groups, asyncio.timeout(PATIENCE_S):
            async for ids in groups:
                assert max(ids) < lm.table.speech_tokens
                heard.set()
                count += len(ids)
        assert 4 <= count <= 20 * len(want["text"])


async def test_streamed_and_other_clauses_share_the_steps(version: int) -> None:
    """Each draws what it draws alone: seeds and steps decide, not company."""
    want = golden(version, "bistream1")
    prompt_text = want["prompt_text"]

    async def streamed(lm: TorchLm) -> list[int]:
        stream = lm.generate_streamed(groups(want["text"], 1), prompt_text=prompt_text, prompt_speech=[], seed=5)
        return await ids_of(stream)

    async def plain(lm: TorchLm) -> list[int]:
        arrays = (np.array(part, np.int32) for part in (prompt_text, want["text"], []))
        stream = lm.generate(lm.table.prompt(*arrays), min_tokens=30, max_tokens=60, seed=6)
        return await ids_of(stream)

    async with running(EagerLm(model(version), slots=2, max_length=320)) as lm:
        alone = [await streamed(lm), await plain(lm)]
        assert list(await asyncio.gather(streamed(lm), plain(lm))) == alone
        await until(lambda: lm.free_slots == 2)


async def test_a_clause_is_left_while_it_waits_for_text(version: int) -> None:
    want = golden(version, "bistream0")

    async def few(count: int) -> AsyncIterator[Sequence[int]]:
        yield want["text"][:count]
        await asyncio.Event().wait()

    async with running(EagerLm(model(version), slots=2, max_length=320)) as lm:
        tasks = len(asyncio.all_tasks())
        for count in (0, 2, 12):

            async def listen(count: int = count) -> None:
                prompts: dict[str, Any] = {
                    "prompt_text": want["prompt_text"],
                    "prompt_speech": want["prompt_speech_token"],
                }
                async with aclosing(lm.generate_streamed(few(count), **prompts, seed=1)) as tokens:
                    async for _ in tokens:
                        pass

            task = asyncio.ensure_future(listen())
            await until(lambda: lm._listening or lm.live)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: lm.free_slots == 2 and lm.live == 0 and not lm._listening)
        assert len(asyncio.all_tasks()) == tasks


class Broken(EagerLm):
    def decode(self, *arguments: object, alone: bool = False) -> Drawn:
        drawn = super().decode(*arguments)  # type: ignore[arg-type]
        return Drawn([-1] * len(drawn.ids()))


async def test_faults_reach_the_reader() -> None:
    async def text() -> AsyncIterator[Sequence[int]]:
        yield want["text"][:2]
        raise ValueError("the caller's text broke")

    want = golden(3, "bistream0")
    prompts = {"prompt_text": want["prompt_text"], "prompt_speech": want["prompt_speech_token"], "seed": 1}
    async with running(Broken(model(3), slots=2, max_length=320)) as lm:
        with pytest.raises(SynthesisFailed, match="NaN"):
            await ids_of(lm.generate_streamed(groups(want["text"], 5), **prompts))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="caller"):
            await ids_of(lm.generate_streamed(text(), **prompts))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="endofprompt"):
            await ids_of(lm.generate_streamed(text(), prompt_text=[], prompt_speech=[], seed=1))
        await until(lambda: lm.free_slots == 2)


class LockAfterTheThread:
    """The lock of a language model, which its thread has held right before the event loop gets it."""

    def __init__(self, lm: TorchLm) -> None:
        self._lm, self._lock = lm, lm._changed

    def __enter__(self) -> None:
        self._lock.__enter__()
        if threading.current_thread() is threading.main_thread():
            self._lm._admit()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


async def test_a_clause_that_comes_while_the_thread_looks_at_the_others_is_not_lost(version: int) -> None:
    want = golden(version, "bistream0")
    async with running(EagerLm(model(version), slots=2, max_length=320)) as lm:
        lm._changed = LockAfterTheThread(lm)  # type: ignore[assignment]
        lm._free = []  # no place, so that _admit, which the event loop calls here, begins none
        stream = lm.generate_streamed(
            groups(want["text"], 5), prompt_text=want["prompt_text"], prompt_speech=[], seed=1
        )
        reading = asyncio.create_task(ids_of(stream))
        await until(lambda: lm._listening or lm._waiting, "the clause among those that wait")
        reading.cancel()
        await asyncio.wait({reading})


async def test_a_prompt_that_is_too_long_for_a_slot_is_said(version: int) -> None:
    want = golden(version, "bistream0")
    async with running(EagerLm(model(version), slots=2, max_length=20)) as lm:
        stream = lm.generate_streamed(
            groups(want["text"], 5), prompt_text=want["prompt_text"], prompt_speech=[0] * 20, seed=1
        )
        with pytest.raises(SynthesisFailed, match="fewer than 20"):
            async with asyncio.timeout(PATIENCE_S):
                await ids_of(stream)
        await until(lambda: not (lm._listening or lm._waiting) and lm.free_slots == 2)
