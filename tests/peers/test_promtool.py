"""Prometheus' own tool reads the sample configuration as it lies in the repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of the package prometheus")
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "prometheus/alerts.yaml"),
        ("test", "rules", "prometheus/alerts_test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=ROOT / "configs", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
