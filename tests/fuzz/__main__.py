"""The campaign: each target in a process of its own under atheris, one after another.

Each finding is printed in a line; its case and its traceback stay in ``build/fuzz/TARGET/``. With ``--keep``
cases that reached something new are written to ``tests/fuzz/corpora/``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import keep, kept
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

_MEMORY_MB = 2048
_CASE_S = 10
"""Longest that one case may take."""

_KEPT_BYTES = 5_000
"""Most bytes of a target's kept corpus."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run of a target."""

    cases: int
    edges: int
    seconds: float
    findings: list[str]
    """The last line of each finding's traceback."""


def _options(target: Target, work: Path) -> list[str]:
    words = work / "words.dict"
    escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in target.words if len(word) < 64]
    words.write_text("".join(f'"{word}"\n' for word in escaped))
    return [
        *([f"-dict={words}"] if escaped else []), f"-max_len={target.max_bytes}", f"-rss_limit_mb={_MEMORY_MB}",
        f"-timeout={_CASE_S}",
        f"-artifact_prefix={work}/", "-print_final_stats=1", "-verbosity=1",
    ]  # fmt: skip


def _command(target: Target, work: Path) -> list[str]:
    return [sys.executable, "-m", "tests.fuzz.under_atheris", target.name, ",".join(target.covers), str(work)]


def run(target: Target, folder: Path, *, seconds: int, runs: int) -> Result:
    """Fuzz one target for a time, or for a number of cases if ``runs`` is not 0."""
    work = folder / target.name
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for old in work.glob("finding *"):
        old.unlink()
    for number, case in enumerate(kept(target)):
        (corpus / f"kept-{number}").write_bytes(case)
    limits = [f"-max_total_time={seconds}"] + ([f"-runs={runs}"] if runs else [])
    began = time.monotonic()
    done = subprocess.run(
        [*_command(target, work), *limits, *_options(target, work), str(corpus)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    (work / "log.txt").write_text(done.stdout)
    cases = [int(found) for found in re.findall(r"^#(\d+)", done.stdout, re.M)]
    cases += [int(found) for found in re.findall(r"number_of_executed_units: (\d+)", done.stdout)]
    edges = [int(found) for found in re.findall(r"cov: (\d+)", done.stdout)]
    findings = [path.read_text().strip().splitlines()[-1][:160] for path in sorted(work.glob("finding *.txt"))]
    findings += [f"ended with {done.returncode}, see log.txt"] if done.returncode else []
    return Result(max(cases, default=0), max(edges, default=0), time.monotonic() - began, findings)


def cut_down(target: Target, folder: Path) -> None:
    """Keep cases of all sizes out of those that reached something new, as many as fit."""
    found = sorted((path.read_bytes() for path in (folder / target.name / "corpus").iterdir()), key=len)
    every = max(1, -(-sum(map(len, found)) // _KEPT_BYTES))
    keep(target, [case for case in found[:: 2 * every] if len(case) <= _KEPT_BYTES // 4])


def main() -> int:
    """Run the campaign. The status is the number of targets that found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--targets", default="", help="names, separated by commas; default: all")
    parser.add_argument("--seconds", type=int, default=600, help="longest time for each target")
    parser.add_argument("--cases", type=int, default=0, help="cases of each target at most; 0: as many as fit")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="corpora, findings and logs")
    parser.add_argument("--keep", action="store_true", help="write a part of the corpora into the tree")
    given = parser.parse_args()
    names = [name for name in re.split("[, ]+", given.targets) if name] or list(TARGETS)
    found = 0
    print(f"{'target':20} {'cases':>10} {'edges':>6} {'s':>6}  findings", flush=True)
    for name in names:
        result = run(TARGETS[name], given.folder, seconds=given.seconds, runs=given.cases)
        print(f"{name:20} {result.cases:10} {result.edges:6} {result.seconds:6.0f}  {len(result.findings)}", flush=True)
        for line in result.findings:
            print(f"    {line}", flush=True)
        found += bool(result.findings)
        if given.keep and not result.findings:
            cut_down(TARGETS[name], given.folder)
    return found


if __name__ == "__main__":
    sys.exit(main())
