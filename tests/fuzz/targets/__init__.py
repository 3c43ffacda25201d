"""All targets, found in the modules of this folder: each declares ``TARGETS``."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from tests.fuzz.target import Target


def _declared() -> dict[str, Target]:
    found: dict[str, Target] = {}
    for entry in pkgutil.iter_modules(__path__):
        for target in import_module(f"{__name__}.{entry.name}").TARGETS:
            assert target.name not in found, f"two targets are named {target.name}"
            found[target.name] = target
    return found


TARGETS: Mapping[str, Target] = _declared()
"""The targets by name."""
