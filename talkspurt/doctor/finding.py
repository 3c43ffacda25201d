"""One line of the report of ``talkspurt doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: Literal["ok", "warn", "fail", "none"]
    """``fail``: `serve`, or the model, will not work. ``warn``: it will work, but not well. ``none``: an option is not
    installed, or the check does not apply."""
    detail: str
