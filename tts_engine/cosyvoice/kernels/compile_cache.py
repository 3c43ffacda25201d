"""Decides where compiled kernels and graphs are kept, so that the second start of an engine does not compile again.

Triton, torch.compile and vLLM read environment variables for this when they are first used. So call ``keep`` before a
model is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
}


def folder(configured: str) -> Path:
    """Return the folder that ``engine.cache_folder`` means. Empty: the user's cache folder."""
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "talkspurt"


def keep(configured: str) -> bool:
    """Let this process and its children keep everything that they compile under ``folder(configured)``.

    A variable that the environment has set stays. This creates nothing; the first one that compiles creates the folder.

    Returns:
        True if something was compiled there before, so that the start will be a warm one.
    """
    root = folder(configured)
    for variable, name in _VARIABLES.items():
        os.environ.setdefault(variable, str(root / name))
    used = Path(os.environ["TRITON_CACHE_DIR"])
    return used.is_dir() and any(used.iterdir())
