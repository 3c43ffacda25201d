"""Whole calls by script and at random, against what was recorded: nothing that leaves a call changes unnoticed.

Where a change is meant, look at the difference first (``interleavings.py`` says how), then record anew.
"""

from __future__ import annotations

import pytest

from tests.gateway.call.interleavings import BLOCK, POLICIES, RANDOM, SCRIPTED, digest, recorded, run_all, scripted


@pytest.mark.parametrize("policy", POLICIES)
def test_scripted_calls_are_what_they_were(policy: str) -> None:
    before, _ = recorded()
    names = [name for name in SCRIPTED if name.startswith(f"{policy}: ")]
    for name, lines in zip(names, run_all(scripted, names), strict=True):
        assert lines == before[name], name


@pytest.mark.parametrize("block", range(0, RANDOM // BLOCK, 10))
def test_random_calls_are_what_they_were(block: int) -> None:
    """Every tenth block; ``check`` compares them all."""
    assert digest(block) == recorded()[1][block], f"calls {block * BLOCK} to {(block + 1) * BLOCK - 1}"
