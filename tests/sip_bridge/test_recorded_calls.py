"""Calls by SIP, by script, against what was recorded: no message and no effect changes unnoticed.

Where a change is meant, look at the difference first (``recorded_calls.py`` says how), then record anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sip_bridge.recorded_calls import BLOCK, RANDOM, SCRIPTS, digest, recorded, run_all

GROUPS = sorted({name.partition(":")[0].partition(",")[0] for name in SCRIPTS})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("group", GROUPS)
def test_calls_are_what_they_were(group: str) -> None:
    before, _ = recorded()
    names = [name for name in SCRIPTS if name.partition(":")[0].partition(",")[0] == group]
    for name, lines in zip(names, run_all(names), strict=True):
        assert lines == before[name], name


@pytest.mark.parametrize("block", range(0, RANDOM // BLOCK, 5))
def test_random_calls_are_what_they_were(block: int) -> None:
    """Every fifth block; ``check`` compares them all."""
    assert digest(block) == recorded()[1][block], f"calls {block * BLOCK} to {(block + 1) * BLOCK - 1}"


def test_every_recorded_call_is_run_and_leaves_nothing() -> None:
    before, _ = recorded()
    assert before.keys() == SCRIPTS.keys()
    left = [name for name, lines in before.items() if not any(line.endswith("kept {}") for line in lines)]
    assert all("closes" in name for name in left), left
