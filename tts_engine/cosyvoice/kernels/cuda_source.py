"""Compiles the kernels in CUDA at an engine's start, by NVRTC, which comes with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_FOLDER = Path(__file__).parent

CANNOT_COMPILE = (AttributeError, ImportError, OSError, RuntimeError)
"""What ``compile_kernel`` raises where it cannot be done: this torch lacks the function, which is not public, or what
it takes; NVRTC is missing, or refuses the source."""


def compile_kernel(name: str, defined: dict[str, object], *headers: str) -> Any:
    """Return the kernel ``name`` of ``name.cu`` for the current device.

    Args:
        defined: macros that the source expects, by name. headers: which it follows, beside ``bf16``.

    Raises:
        one of ``CANNOT_COMPILE``.
    """
    from torch.utils import cpp_extension  # takes setuptools, which an engine may do without

    # torch adds the folder of the toolkit's headers, and fails where there is no toolkit, as beside a torch from pip.
    # These sources include none of them.
    cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"
    macros = "".join(f"#define {macro} {value}\n" for macro, value in defined.items())
    files = ("bf16.cuh", *(f"{header}.cuh" for header in headers), f"{name}.cu")
    sources = [(_FOLDER / file).read_text() for file in files]
    return torch.cuda._compile_kernel("".join([macros, *sources]), name)
