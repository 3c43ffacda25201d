"""Hundreds of clauses cancelled at every stage leave nothing behind: caches, tasks, threads, tensors."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.waiting import until
from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.cosyvoice.loading import load_synthesizer
from tts_engine.cosyvoice.models.config import Version
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer
from tts_engine.synthesizer import ClauseRequest, Playhead

AT_ONCE = 16
TEXT = "It will arrive on Friday."


STAGES = ("unbegun",) * 7 + ("drawn",) * 7 + ("rendered", "heard")
"""The stages of sixteen cancelled clauses: the late stages take longest to reach."""


async def cancelled_at(engine: CosyVoiceSynthesizer, stage: str) -> None:
    """Begin a clause and cancel it at this stage."""
    request = ClauseRequest(text=TEXT, voice="", language="en-US", speed=1.0, instruct="", first=True)
    playhead, heard, worker = Playhead(), asyncio.Event(), engine._worker

    async def listen() -> None:
        async with aclosing(engine.synthesize(request, playhead)) as chunks:
            async for _ in chunks:
                heard.set()
                await asyncio.Event().wait()  # a clause never ends before it is cancelled

    task = asyncio.ensure_future(listen())
    if stage == "drawn":
        await until(lambda: any(r.playhead is playhead for r in list(worker.scheduler.renderings)) or heard.is_set())
    elif stage == "rendered":
        await until(
            lambda: any(j.rendering.playhead is playhead for j in list(worker.scheduler.jobs)) or heard.is_set()
        )
    elif stage == "heard":
        await heard.wait()
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def tensors() -> tuple[int, int]:
    """Return the number of tensors, and their bytes."""
    gc.collect()
    sizes = [t.untyped_storage().nbytes() for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    return len(sizes), sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "cancels"), [(2, 240), (3, 320)])
async def test_cancelled_clauses_leave_nothing_behind(version: Version, cancels: int, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    make(folder, version)
    torch.set_num_threads(1)
    settings = CosyVoiceConfig(
        max_clauses=2 * AT_ONCE,
        max_positions=256,
        euler_steps=2,
        first_chunk_s=1e6,
    )
    engine = load_synthesizer(folder, settings, device="cpu")
    worker, lm = engine._worker, engine._lm
    await engine.start()

    async def cancel(count: int) -> None:
        for _ in range(0, count, AT_ONCE):
            await asyncio.gather(*(cancelled_at(engine, STAGES[n % len(STAGES)]) for n in range(AT_ONCE)))

    def state() -> dict[str, Any]:
        return {
            "blocks": worker.blocks.free_blocks,
            "worker's slots": worker.blocks.free_slots,
            "open": worker.scheduler.open_clauses,
            "silent": worker.scheduler.silent,
            "jobs": len(worker.scheduler.jobs),
            "lm's slots": lm.free_slots,  # type: ignore[attr-defined]
            "live": lm.live,  # type: ignore[attr-defined]
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
        }

    async def settled() -> None:
        try:
            await until(lambda: state() == before)
        except AssertionError:
            assert state() == before  # shows what is left
            raise

    before = state()
    try:
        await cancel(6 * AT_ONCE)  # what is made once is made: batches of each size, threads, caches of the front end
        await settled()
        count, size = tensors()
        await cancel(cancels - 6 * AT_ONCE)
        await settled()
        after, bytes_after = tensors()
        assert after <= count + 5
        assert bytes_after <= size * 1.001
    finally:
        await engine.aclose()
