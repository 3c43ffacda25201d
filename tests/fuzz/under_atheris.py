"""Runs one target under atheris: ``python -m tests.fuzz.under_atheris TARGET FILES FOLDER [libFuzzer's options]``.

Only the parser's own modules (FILES, globs) are instrumented: what runs around them would cost time and steer towards
nothing. A run does not end at its first finding: each place that raises is written to FOLDER once.
"""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]


def modules(globs: list[str]) -> list[str]:
    """Return the modules' names of files, given as globs from the root of the repository."""
    paths = sorted({path.relative_to(ROOT) for glob in globs for path in ROOT.glob(glob)})
    return [
        ".".join(path.with_suffix("").parts).removeprefix("codecs.") for path in paths if path.name != "__init__.py"
    ]


def _noting(run: Callable[[bytes], None], folder: Path) -> Callable[[bytes], None]:
    """Return a target that writes what it finds to ``folder`` and continues."""
    seen: set[str] = set()

    def noting(data: bytes) -> None:
        try:
            run(data)
        except BaseException as exc:
            frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if str(ROOT) in frame.filename]
            place = (
                f"{type(exc).__name__} {Path(frames[-1].filename).stem}-{frames[-1].lineno}"
                if frames
                else repr(type(exc))
            )
            if place not in seen:
                seen.add(place)
                (folder / f"finding {place}").write_bytes(data)
                (folder / f"finding {place}.txt").write_text("".join(traceback.format_exception(exc)))

    return noting


def main() -> None:
    """Fuzz until libFuzzer's options, a crash or a hang ends the run."""
    name, covers, folder, *options = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"aiohttp\.multipart")  # as the server does; they would fill the memory
    with atheris.instrument_imports(include=modules(covers.split(","))):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *options], _noting(TARGETS[name].run, Path(folder)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
