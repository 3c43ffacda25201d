"""The GPU benchmarks, run small on the CPU: every kind of row works, and an interrupted run continues."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
SCRIPT = FOLDER / "h200_cosyvoice.py"
HOP = " hop auto"
"""The rows' name for the default of ``--first-hop``. Rows without it are of 22 tokens, the default before."""


def run(out: Path, version: int, rows: str, *more: str) -> list[dict[str, Any]]:
    arguments = [*more, "--version", str(version), "--rows", rows, "--device", "cpu", "--tiny", "--blocks", "300"]
    subprocess.run([sys.executable, str(SCRIPT), str(out), *arguments, "--seconds", "1"], check=True)
    return [json.loads(line) for line in out.read_text().splitlines()]


def spoken(rows: list[dict[str, Any]], version: int, how: str) -> dict[str, dict[str, Any]]:
    """The rows of a run in which two turns begin at once, by name."""
    named = {row["row"].removesuffix(how): row for row in rows}
    assert all(row["weights"] == "random weights" and row["model"] == f"CosyVoice{version}" for row in rows)
    burst = named["burst:2"]
    assert burst["turns"] == 2
    assert burst["broken"] == burst["refused"] == 0
    assert burst["audio_s"] > 2 * 30 / 25
    return named


@pytest.mark.slow
def test_rows_of_version_2_another_first_chunk_and_a_text_front_end_say_so(tmp_path: Path) -> None:
    rows = run(tmp_path / "rows.jsonl", 2, "burst:2", "--first-hop", "22", "--text-processes", "0")
    assert list(spoken(rows, 2, " v2 text 0")) == ["start", "burst:2"]
    assert rows[0]["version"] == 2


@pytest.mark.slow
def test_rows_are_written_and_not_taken_twice(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    assert spoken(run(out, 3, "burst:2,cancel:5"), 3, HOP)["start"]["version"] == 3
    names = [row["row"] for row in run(out, 3, "burst:2,flow,lm")]
    assert names == [f"{name}{HOP}" for name in ("start", "burst:2", "cancel:5", "start", "flow", "lm")]


@pytest.mark.slow
def test_clauses_through_grpc_say_so(tmp_path: Path) -> None:
    rows = run(tmp_path / "rows.jsonl", 3, "burst:2", "--text-processes", "1", "--grpc")
    burst = spoken(rows, 3, f"{HOP} text 1 grpc")["burst:2"]
    assert burst["first_ms"]["p50"] > burst["of_it_token_to_wave_ms_p50"] > 0


def test_what_the_rows_for_a_gpu_read_of_the_language_model_is_there() -> None:
    """No CPU runs these lines, and a name that had gone failed there only."""
    # Not imported: without a GPU, kernels run by an interpreter that has to be asked for before they are defined.
    steps = (FOLDER.parent / "tts_engine/cosyvoice/lm/cuda_steps.py").read_text()
    script = SCRIPT.read_text()
    read = set(re.findall(r"\b(?:steps|lm)\.(_\w+)", script))
    assert {"_decode", "_prefill"} <= read
    assert read <= set(re.findall(r"self\.(_\w+)", steps))


def product(out: Path, rows: str, *more: str) -> dict[str, dict[str, Any]]:
    # The figures mean nothing: for a slow CPU nothing must be refused, nor be given up.
    slow = ("first_chunk_s=1000",)
    arguments = ["--model", str(out.with_name("model")), "--size", "tiny", "--device", "cpu", "--rows", rows, *more]
    arguments += ["--answer-s", "500"]
    for setting in slow:
        arguments += ["--set", f"engine__cosyvoice__{setting}"]
    script = str(FOLDER / "h200_product.py")
    subprocess.run([sys.executable, script, str(out), *arguments, "--seconds", "2"], check=True)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({row["row"] for row in written}) == len(written)
    return {row["row"].split(" ")[0]: row for row in written}


@pytest.mark.slow
def test_callers_and_an_http_client_hear_the_whole_product(tmp_path: Path) -> None:
    rows = product(tmp_path / "rows.jsonl", "call:1,burst:2,http:2,sentence:2")
    assert list(rows) == ["call:1", "burst:2", "http:2", "sentence:2"]
    for row in rows["call:1"], rows["burst:2"]:
        assert (row["model"], row["weights"]) == ("CosyVoice3", "random weights")
        assert row["first_packet_ms"]["n"] == row["turns"] > 0
        assert row["errors"] == 0
    for http in rows["http:2"], rows["sentence:2"]:
        assert http["first_sound_ms"]["n"] == http["sound_s"]["n"] == http["requests"] > 0
        assert (http["refused"], http["failed"], http["silent"]) == (0, {}, 0)
        assert 0 <= http["gap_free_share"] <= 1


@pytest.mark.slow
def test_bursts_a_load_beyond_the_capacity_and_an_engine_killed_beside_calls(tmp_path: Path) -> None:
    # The tone engine: a model would be short of these two cores, and refuse turns for that.
    out = tmp_path / "rows.jsonl"
    several = ("--devices", "cpu,cpu", "--set", "engine__kind=tone")
    rows = product(out, "bursts:3,capacity:2:8,beyond:0.1:8:4,full:2,kill:8:8", *several)
    assert {row["device"] for row in rows.values()} == {"cpu,cpu"}

    bursts = rows["bursts:3"]
    assert bursts["bursts"] == len(bursts["first_packet_ms_of_bursts"]) >= 1
    assert bursts["first_packet_ms"]["n"] >= 3 * bursts["bursts"]
    p50, p95 = bursts["median_p50_p95_ms"]
    assert 0 < p50 <= p95
    assert bursts["errors"] == 0

    capacity, beyond = rows["capacity:2:8"], rows["beyond:0.1:8:4"]
    assert capacity["capacity_s_per_s"] > 0 and capacity["mean_sound_s"] > 0
    expected = 4 * 0.1 * capacity["capacity_s_per_s"] / capacity["mean_sound_s"]
    assert beyond["requests"] == pytest.approx(expected, abs=3 * expected**0.5 + 2)
    share = beyond["sound_made_s_per_s"] / capacity["capacity_s_per_s"]
    assert beyond["share_of_capacity"] == pytest.approx(share, abs=1e-3)
    assert beyond["with_a_gap"] == 0 and beyond["no_place"] == {}

    full, killed = rows["full:2"], rows["kill:8:8"]
    assert full["audio_seconds_per_second"] > 0 and full["refused"] == 0
    assert killed["turns"] == killed["turns_sent"] > killed["new_turns"] > 0
    assert (killed["turns_lost"], killed["new_turns_failed"], killed["errors"]) == (0, 0, 0)

    assert product(out, "bursts:3,kill:8:8", *several) == rows, "what is written is not measured again"
