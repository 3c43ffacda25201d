"""Where compiled kernels and graphs are kept, so that the second start of an engine does not compile again.

Triton, torch.compile and vLLM read these variables when they are first used: call ``keep`` before a model is imported.
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
    """The folder that ``engine.cache_folder`` means: the user's own where it is empty."""
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "talkspurt"


def keep(configured: str) -> bool:
    """Have everything compiled from now on kept under ``folder(configured)``, for this process and its children.

    A variable that the environment has set stays. Nothing is created: whoever compiles first does.

    Returns:
        whether something was compiled here before: the start will be a warm one.
    """
    root = folder(configured)
    for variable, name in _VARIABLES.items():
        os.environ.setdefault(variable, str(root / name))
    used = Path(os.environ["TRITON_CACHE_DIR"])
    return used.is_dir() and any(used.iterdir())
