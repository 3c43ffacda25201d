"""Measures of garbage collection: how many objects it looks at, and which objects only it frees."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np


async def most_looked_at() -> int:
    """Make 100,000 objects that stay, and return the most objects that one collection looked at meanwhile."""
    looked_at = [0]

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    kept: list[list[None]] = []
    gc.callbacks.append(note)
    for _ in range(100):
        kept.extend([] for _ in range(1000))
        await asyncio.sleep(0)
    gc.callbacks.remove(note)
    return max(looked_at)


def _name_if_ours(one: object) -> str:
    """Return a name of an instance, a function or a frame of ``tts_engine``, or of sound. Empty for all others."""
    if isinstance(one, FunctionType | MethodType):
        return one.__qualname__ if (one.__module__ or "").startswith("tts_engine.") else ""
    for attribute in ("f_code", "cr_code", "ag_code", "gi_code"):
        if isinstance(code := getattr(one, attribute, None), CodeType):
            return code.co_qualname if "/tts_engine/" in code.co_filename.replace("/tests/", "") else ""
    kind = type(one)
    return kind.__qualname__ if kind.__module__.startswith("tts_engine.") or kind is np.ndarray else ""


@asynccontextmanager
async def leaving_no_circles() -> AsyncIterator[None]:
    """Fail if only a collection frees one of our objects that is made in the block. Objects that are frozen alive, as
    during calls, would stay for good."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = sorted({name for one in gc.garbage if (name := _name_if_ours(one))})
        assert not ours, ours
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
