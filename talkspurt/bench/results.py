"""Writes the result of a benchmark, with its machine and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(figures: Mapping[str, Any], json_path: str | None, table: str) -> None:
    """Print the table, and write commit, machine and figures as one JSON object.

    Args:
        json_path: the file of the object. ``-``: print the object instead of the table. None: write no object.
    """
    text = json.dumps({"commit": commit(), "machine": machine(), **figures})
    if json_path == "-":
        print(text)
        return
    if json_path is not None:
        Path(json_path).write_text(text + "\n")
    print(table)


def commit() -> str:
    """Return the measured commit, with ``+`` if the tree differs from it. Empty: this is no checkout."""
    root = Path(__file__).parents[2]
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True)
        # Without its locks, git writes nothing into the repository.
        status = ["git", "--no-optional-locks", "status", "--porcelain", "-uno"]
        changed = subprocess.run(status, cwd=root, capture_output=True, text=True)
    except OSError:
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "") if head.returncode == 0 else ""


def machine() -> dict[str, Any]:
    """Return what is known about this machine."""
    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        # Others may use the machine; this figure shows it.
        "load_average_before": round(os.getloadavg()[0], 2),
    }
