"""Scripted and random calls by SIP against recorded ones, so that every change of a message or an effect is noticed.

``tests/vectors/sip/README.md`` says what to do after an intended change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sip_bridge.call_table import table
from tests.sip_bridge.recorded_calls import BLOCK, RANDOM, SCENES, calls, random_digest, recorded


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("scene", SCENES)
def test_calls_are_as_recorded(scene: str) -> None:
    assert table(scene, calls(scene)) == recorded()[0][scene]


@pytest.mark.parametrize("block", range(0, RANDOM // BLOCK, 5))
def test_random_calls_are_as_recorded(block: int) -> None:
    """Compare every fifth block; ``check`` compares them all."""
    assert random_digest(block) == recorded()[1][block], f"calls {block * BLOCK} to {(block + 1) * BLOCK - 1}"


def test_every_recorded_call_is_run_and_leaves_nothing() -> None:
    before, _ = recorded()
    assert before.keys() == SCENES.keys()
    assert [scene for scene, text in before.items() if " kept {" in text and "closes" not in scene] == []
