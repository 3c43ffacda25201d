import json
import subprocess
import sys
from pathlib import Path

import pytest

from talkspurt.bench.command import Settings, settings_of, table
from talkspurt.cli import UsageError, parser


def options(*words: str) -> tuple[Settings, list[int]]:
    settings, calls, _ = settings_of(parser().parse_args(["bench", *words]))
    return settings, calls


def test_each_part_has_its_own_standard_run() -> None:
    settings, calls = options("call")
    assert (settings.load, settings.uplink, settings.pinned, calls) == ("standard", True, False, [1, 10, 50])
    settings, calls = options("gateway")
    assert (settings.uplink, settings.seconds, calls) == (False, 20.0, [300])
    assert options("gateway", "--idle", "--uplink")[0].uplink
    assert options("call", "--burst")[0].tokens_per_s == 0  # a burst is of whole turns
    assert options("engine", "--calls", "1,32", "--rate", "5")[1] == [1, 32]


@pytest.mark.parametrize(
    "words",
    [
        ("call", "--calls", "0"),
        ("call", "--calls", "1,x"),
        ("call", "--idle"),
        ("gateway", "--burst"),
        ("gateway", "--rate", "5"),
        ("engine", "--rate", "-1"),
        ("call", "--load", "nowhere.jsonl"),
    ],
)
def test_options_that_make_no_run_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        options(*words)


def test_the_table_leaves_out_what_nothing_fills() -> None:
    step = {"calls": 3, "first_packet_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}, "gaps": 0, "errors": 0}
    header, row = table([step]).splitlines()
    assert header.split() == ["calls", "first", "p50", "p95", "p99", "ms", "gaps", "errors"]
    assert row.split() == ["3", "1.0", "2.0", "3.0", "0", "0"]


@pytest.mark.slow
def test_a_run_writes_one_object_with_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    words = ("bench", "call", "--calls", "2", "--seconds", "6", "--cancel-share", "0.5", "--json", str(out))
    done = subprocess.run([sys.executable, "-m", "talkspurt", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert set(result) == {"commit", "machine", "settings", "steps"}
    (step,) = result["steps"]
    named = {"calls", "first_packet_ms", "pacing_error_ms", "gaps", "gap_free_share", "cut_ms", "rss_mb", "errors"}
    assert named | {"cpu_seconds_per_call_second"} <= set(step)
    assert step["calls"] == 2 and step["errors"] == 0
    assert set(step["first_packet_ms"]) == {"p50", "p95", "p99", "max", "n"}
    assert step["cpu_seconds_per_call_second"] > 0
    assert done.stdout.splitlines()[0].split()[0] == "calls"
