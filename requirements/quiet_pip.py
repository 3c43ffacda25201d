"""Run pip and print one line for each package that it loads. pip alone is silent for a minute, or tells pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator

_LOADED = re.compile(r"\s*(?:Downloading|Using cached) (?:\S*/)?([A-Za-z0-9_.]+)-([^-\s]+)-\S+(?: \((.+?)\))?\s*$")
_INSTALLS = re.compile(r"Installing collected packages: (.+)")
_KEPT_LINES = 20


def told(lines: Iterable[str]) -> Iterator[str]:
    """Yield what is worth telling of pip's own lines."""
    for line in lines:
        if (loaded := _LOADED.match(line)) is not None and ".metadata" not in line:
            name, version, size = loaded.groups()
            yield f"  {name} {version}" + (f" ({size})" if size else "")
        elif (installs := _INSTALLS.match(line)) is not None:
            yield f"installing {installs[1].count(',') + 1} packages"


def main(arguments: list[str]) -> int:
    """Run ``pip ARGUMENTS`` and return its exit code. If it fails, its last lines are printed."""
    environment = os.environ | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_PROGRESS_BAR": "off",
        "PYTHONUNBUFFERED": "1",
    }
    pip = [sys.executable, "-m", "pip", *arguments]
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None

        def heard() -> Iterator[str]:
            for line in process.stdout or ():
                last.append(line)
                yield line

        for line in told(heard()):
            print(line, flush=True)
    if process.returncode:
        sys.stderr.writelines(last)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
