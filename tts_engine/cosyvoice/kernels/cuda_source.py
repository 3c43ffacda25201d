"""Compiles the CUDA kernels at an engine's start with NVRTC, which comes with torch."""

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
"""Errors of ``compile_kernel``: torch's function, which is not public, is missing or has changed; or NVRTC is missing
or rejects the source."""


def compile_kernel(name: str, defined: dict[str, object], *headers: str) -> Any:
    """Return the kernel ``name`` of ``name.cu`` for the current device.

    Args:
        defined: macros of the source, by name. headers: headers of the source besides ``bf16``.

    Raises:
        _CANNOT_COMPILE: one of these.
    """
    from torch.utils import cpp_extension  # imports setuptools, which may not be installed

    # torch adds the include folder of the CUDA toolkit and fails without one. These sources do not need it.
    cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"
    macros = "".join(f"#define {macro} {value}\n" for macro, value in defined.items())
    files = ("bf16.cuh", *(f"{header}.cuh" for header in headers), f"{name}.cu")
    sources = [(_FOLDER / file).read_text() for file in files]
    return torch.cuda._compile_kernel("".join([macros, *sources]), name)


def if_compiled(make: Callable[[], T], otherwise: str) -> T | None:
    """Return ``make()``, which compiles a kernel. If it cannot be compiled, log ``otherwise`` and return None."""
    try:
        return make()
    except _CANNOT_COMPILE:
        log.warning(otherwise, exc_info=True)
        return None
