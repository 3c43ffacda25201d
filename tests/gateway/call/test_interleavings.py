"""Scripted and random calls against recorded ones, so that every change of what leaves a call is noticed.

``tests/vectors/calls/README.md`` says what to do after an intended change.
"""

from __future__ import annotations

import pytest

from tests.gateway.call.interleavings import BLOCK, RANDOM, SCENES, random_digest, recorded, table


@pytest.mark.parametrize("scene", SCENES)
def test_scripted_calls_are_as_recorded(scene: str) -> None:
    assert table(scene) == recorded()[0][scene]


@pytest.mark.parametrize("block", range(0, RANDOM // BLOCK, 10))
def test_random_calls_are_as_recorded(block: int) -> None:
    """Compare every tenth block; ``check`` compares them all."""
    assert random_digest(block) == recorded()[1][block], f"calls {block * BLOCK} to {(block + 1) * BLOCK - 1}"
