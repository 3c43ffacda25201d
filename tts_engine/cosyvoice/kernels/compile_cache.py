"""Sets the folders of compiled kernels, so that the second start of an engine does not compile again.

Triton, torch.compile and vLLM read environment variables for this on first use, so call ``keep`` before a model is
imported.
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
    """Return the folder for the setting ``engine.cache_folder``. Empty: the user's cache folder."""
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "talkspurt"


def keep(configured: str) -> bool:
    """Make this process and its children keep their compiled code under ``folder(configured)``.

    Variables that are already set are not changed. The folder is created at the first compilation.

    Returns:
        True if the folder has compiled code, so that the start will be fast.
    """
    root = folder(configured)
    for variable, name in _VARIABLES.items():
        os.environ.setdefault(variable, str(root / name))
    used = Path(os.environ["TRITON_CACHE_DIR"])
    return used.is_dir() and any(used.iterdir())
