"""Two trees in turn: which rows are taken and in which order, what the table says, and whose code a tree runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("old_new_benchmark", ROOT / "benchmarks/old_new.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_neither_tree_is_always_the_first(bench: Any) -> None:
    old, new = bench.Tree("old", ROOT, "a"), bench.Tree("new", ROOT, "b")
    rows = list(bench.plan(["call:1", "interrupt"], 2, old, new))
    assert [row["tree"] for row in rows] == ["old", "new", "new", "old"] * 2
    assert [row["row"] for row in rows] == ["call:1", "call:1", "interrupt", "interrupt"] * 2
    assert len({bench.key(row) for row in rows}) == 8


def scene(hours: float, said: int, cuts: int) -> dict[str, Any]:
    """As many sentences cut as there are; one of them has cut a second turn."""
    onset = {"p50": 90.0, "p95": 130.5, "n": said}
    return {"spoken_hours": hours, "utterances": said, "cuts": cuts, "onset_to_clear_ms": onset if said else None}


def test_the_table_has_every_round_and_adds_up_false_cuts(bench: Any) -> None:
    quiet = dict.fromkeys(("white", "pink", "babble", "mhm"), scene(0.1, 0, 0))
    rows = [
        {
            "row": name,
            "round": number,
            "tree": tree,
            "commit": tree * 2,
            "errors_by_kind": {"late": int(name == "interrupt")},
            **figures,
        }
        for number in (1, 2)
        for tree, echoes in (("old", 0), ("new", 2))
        for name, figures in (
            ("call:50", {"first_packet_ms": {"p50": 30.0, "p95": 50.0 + number}, "gaps": 0}),
            ("gateway:200", {"pacing_error_ms": None, "gaps": number}),
            ("interrupt", {"scenes": {"speech": scene(0.1, 9, 10), **quiet, "echo": scene(0.1, 0, echoes)}}),
        )
    ]
    told = bench.table(rows)
    assert "| call:50 | first packet p95, ms | 51, 52 | 51, 52 |" in told
    assert "| gateway:200 | pacing error p99, ms | -, - | -, - |" in told
    assert "90, 90 / 130.5, 130.5; 18 of 18" in told and "people" not in told
    assert "| interrupt | noise: false cuts an hour | 0 in 0.600 h: below 5 |" in told
    assert "| interrupt | echo: false cuts an hour | 0 in 0.200 h: below 15 | 4 in 0.200 h: 20.0 |" in told
    assert "| interrupt | errors | 1, 1 | 1, 1 |" in told and "| call:50 | errors" not in told
    assert "old is oldold; new is newnew; 4 errors in 12 rows." in told


def test_a_tree_that_would_run_anothers_code_is_refused(bench: Any, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    given = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty", "-m", "empty"]
    subprocess.run(["git", "-C", tmp_path, *given], check=True)
    with pytest.raises(SystemExit, match="does not run here|would load"):
        bench.tree("old", tmp_path)
