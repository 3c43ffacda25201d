"""The benchmark over all dialects: its arithmetic, and a short run of the real thing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.peers.live_server import child_environment

SCRIPT = Path(__file__).parents[3] / "benchmarks/dialects.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dialects_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_length_of_the_sound_tells_the_word(bench: Any) -> None:
    assert bench.SENTENCE.startswith("the train to ")
    assert [bench.words_after(s) for s in (0.0, 0.01, 0.15, 0.16, 0.40, 0.41, 99.0)] == [0, 1, 1, 2, 2, 3, 20]


def test_a_row_without_figures_is_still_a_row(bench: Any) -> None:
    row = bench.Figures("twilio", cut_ms=[1.0, 3.0], marks=2, marks_right=1, word_errors=[0, -2]).row()
    assert (row["words_off"], row["within_one_word"]) == (2, 1)
    assert bench.table([row]).splitlines()[-1] == "| twilio | 2 / 3 | - | 1 of 2 | - | 1 of 2 | - |"


def test_every_kind_of_dialect_runs_through(tmp_path: Path) -> None:
    kinds = ["genesys", "sip"]  # large messages over a WebSocket, and no WebSocket at all
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--turns", "2", "--json", str(tmp_path / "out.json"), "--dialects", *kinds],
        capture_output=True, text=True, env=child_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["steps"]
    assert [row["dialect"] for row in rows] == kinds
    for row in rows:
        assert (row["turns_cut"], row["marks"], row["failures"]) == (1, 2, [])
        assert row["words_off"] is not None and len(row["cut_ms"]) > 2
    assert [line.split()[1] for line in done.stdout.splitlines()[-len(kinds) :]] == kinds
