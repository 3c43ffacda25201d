"""Compiles CUDA sources to machine code where there is no GPU and no CUDA toolkit."""

from __future__ import annotations

import ctypes
from importlib.metadata import files
from types import SimpleNamespace

import pytest
import torch


def compile_without_toolkit(monkeypatch: pytest.MonkeyPatch, architecture: str) -> list[tuple[bytes, str]]:
    """Let ``torch.cuda._compile_kernel`` only compile, for this architecture, ``90`` for sm_90. Return the list that
    gets code and name of each kernel."""
    from torch.cuda import _utils
    from torch.utils import cpp_extension

    libraries = {file.name: file.locate() for file in files("nvidia-cuda-nvrtc") or ()}
    for name in sorted(name for name in libraries if name.startswith("libnvrtc") and ".alt." not in name):
        ctypes.CDLL(str(libraries[name]), mode=ctypes.RTLD_GLOBAL)  # as torch for CUDA does when it is imported
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    made: list[tuple[bytes, str]] = []

    def compile_only(source: str, name: str) -> object:
        made.append(_utils._nvrtc_compile(source, name, architecture))
        return SimpleNamespace(set_shared_memory_config=lambda size: None)

    monkeypatch.setattr(torch.cuda, "_compile_kernel", compile_only)
    return made
