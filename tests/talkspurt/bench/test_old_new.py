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


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", ROOT / f"benchmarks/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return loaded("old_new")


def test_neither_tree_is_always_the_first(bench: Any) -> None:
    old, new = bench.Tree("old", ROOT, "a"), bench.Tree("new", ROOT, "b")
    rows = list(bench.plan(["call:1", "interrupt:6"], 2, old, new))
    assert [row["tree"] for row in rows] == ["old", "new", "new", "old"] * 2
    assert [row["row"] for row in rows] == ["call:1", "call:1", "interrupt:6", "interrupt:6"] * 2
    assert len({bench.key(row) for row in rows}) == 8


def scene(hours: float, said: int, cuts: int) -> dict[str, Any]:
    """Return the row of a scene in which every sentence cuts; one of them has cut a second turn."""
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
            "errors_by_kind": {"late": int(name == "interrupt:6")},
            **figures,
        }
        for number in (1, 2)
        for tree, echoes in (("old", 0), ("new", 2))
        for name, figures in (
            ("call:50", {"first_packet_ms": {"p50": 30.0, "p95": 50.0 + number}, "gaps": 0}),
            ("gateway:200", {"pacing_error_ms": None, "gaps": number}),
            ("interrupt:6", {"scenes": {"speech": scene(0.1, 9, 10), **quiet, "echo": scene(0.1, 0, echoes)}}),
        )
    ]
    told = bench.table(rows)
    assert "| call:50 | first packet p95, ms | 51, 52 | 51, 52 |" in told
    assert "| gateway:200 | pacing error p99, ms | -, - | -, - |" in told
    assert "90, 90 / 130.5, 130.5; 18 of 18" in told and "people" not in told
    assert "| interrupt:6 | noise: false cuts an hour | 0 in 0.40 h: 0.0 (0.0-9.2) |" in told
    echo = "0 in 0.20 h: 0.0 (0.0-18.4) | 4 in 0.20 h: 20.0 (5.4-51.2); as many or more by chance: 6 % |"
    assert f"| interrupt:6 | echo: false cuts an hour | {echo}" in told
    assert "| interrupt:6 | errors | 1, 1 | 1, 1 |" in told and "| call:50 | errors" not in told
    assert "old is oldold; new is newnew; 4 errors in 12 rows." in told


def test_a_tree_that_would_run_anothers_code_is_refused(bench: Any, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    given = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty", "-m", "empty"]
    subprocess.run(["git", "-C", tmp_path, *given], check=True)
    with pytest.raises(SystemExit, match="does not run here|would load"):
        bench.tree("old", tmp_path)


def test_a_replayed_call_falls_silent_for_a_suspicion_and_loses_its_turn_to_speech() -> None:
    turn = [b"our"] * 400
    call = loaded("replay_cuts").Call(0, "white", {"turns": [turn], "turns' echoes": [turn], "white": [[b"hiss"]]})

    def heard(steps: int) -> int:
        """In how many of the next frames are we heard?"""
        frames = 0
        for _ in range(steps):
            call.now += 0.02
            frames += call.ours() is not None
            assert call.callers() == b"hiss"
        return frames

    heard(100)  # it begins within two seconds
    assert heard(10) == 10
    call.on_speech_suspected(onset=call.now)
    assert heard(10) == 0
    call.on_speech_dismissed()
    assert heard(10) == 10 and call.hesitations == 1
    call.on_speech_suspected(onset=call.now)
    assert 30 <= heard(100) <= 31, "a suspicion that nothing follows"
    call.on_speech_started(onset=call.now)
    assert len(call.cuts) == 1 and heard(20) == 0 and heard(10) == 10
