"""Triton's interpreter, which runs the kernels where there is no GPU, made ready once instead of at each call."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def language_patched_once() -> Iterator[None]:
    """Keep the interpreter from looking for what to replace whenever one kernel function calls another.

    It replaces the functions of ``triton.language`` by its own at every such call, by way of all their members: half
    the time of these tests. Here that happens once, for all that a kernel can see.
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
        yield
    patched.restore()
