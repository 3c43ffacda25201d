"""Compiles the kernels in CUDA at an engine's start, by NVRTC, which comes with torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

log = logging.getLogger(__name__)

T = TypeVar("T")

_FOLDER = Path(__file__).parent
_CANNOT_COMPILE = (AttributeError, ImportError, OSError, RuntimeError)
"""What ``compile_kernel`` raises where it cannot be done: this torch lacks the function, which is not public, or what
it takes; NVRTC is missing, or refuses the source."""


def compile_kernel(name: str, defined: dict[str, object], *headers: str) -> Any:
    """Return the kernel ``name`` of ``name.cu`` for the current device.

    Args:
        defined: macros that the source expects, by name. headers: which it follows, beside ``bf16``.

    Raises:
        one of ``_CANNOT_COMPILE``.
    """
    from torch.utils import cpp_extension  # takes setuptools, which an engine may do without

    # torch adds the folder of the toolkit's headers, and fails where there is no toolkit, as beside a torch from pip.
    # These sources include none of them.
    cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"
    macros = "".join(f"#define {macro} {value}\n" for macro, value in defined.items())
    files = ("bf16.cuh", *(f"{header}.cuh" for header in headers), f"{name}.cu")
    sources = [(_FOLDER / file).read_text() for file in files]
    return torch.cuda._compile_kernel("".join([macros, *sources]), name)


def if_compiled(make: Callable[[], T], otherwise: str) -> T | None:
    """Return what ``make`` makes with a compiled kernel. If it cannot be compiled, log what then is so, and return
    None: the engine starts without it."""
    try:
        return make()
    except _CANNOT_COMPILE:
        log.warning(otherwise, exc_info=True)
        return None
