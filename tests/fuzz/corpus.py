"""The kept corpus of each target: one text file, a case a line in base64, so that a change shows in a diff."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.target import Target

FOLDER = Path(__file__).parent / "corpora"


def kept(target: Target) -> list[bytes]:
    """Return the seeds of a target and the cases that earlier campaigns kept."""
    path = FOLDER / f"{target.name}.txt"
    lines = path.read_text().split() if path.exists() else []
    return [*target.seeds, *map(base64.b64decode, lines)]


def keep(target: Target, cases: Iterable[bytes]) -> None:
    """Write the kept corpus, without the seeds."""
    known = set(target.seeds)
    lines = sorted(
        {base64.b64encode(case).decode() for case in cases if case and case not in known}, key=lambda c: (len(c), c)
    )
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target.name}.txt").write_text("".join(f"{line}\n" for line in lines))
