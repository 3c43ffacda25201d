"""Triton's interpreter, which runs the kernels where there is no GPU, made ready once instead of at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def language_patched_once() -> Iterator[None]:
    """Keep the interpreter from looking for what to replace whenever one kernel function calls another.

    It replaces the functions of ``triton.language`` by its own at every such call, by way of all their members: half
    the time of these tests. Here that happens once, for all that a kernel can see. And it checks integers for overflow,
    a fifth of the rest, but drops the verdict unless its ``debug`` is set; and makes its table of types at each use.
    """
    if torch.cuda.is_available():
        yield
        return
    import triton.language
    from triton.runtime import interpreter

    seen = {"tl": triton.language, "core": triton.language.core}
    patched = interpreter._patch_lang(SimpleNamespace(__globals__=seen))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda fn: interpreter._LangPatchScope())
        builder = interpreter.interpreter_builder
        assert not builder.options.debug
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        patch.setattr(interpreter, "_get_np_dtype", _cached_by_name(interpreter._get_np_dtype))
        yield
    patched.restore()


def _cached_by_name(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``numpy_type`` with a memory; Triton's types have names, but not all can be keys."""
    known: dict[str, Any] = {}

    def cached(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = numpy_type(kind.scalar)
        return known[name]

    return cached
