"""Shows the progress of long work on standard error: a bar on a terminal, sometimes a plain line in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

PATIENCE_S = 1.0
"""Work that ends sooner shows nothing."""

_LINE_EVERY_S = 5.0

Report = Callable[[float], None]
"""A function that takes the amount done, in the unit of ``total``."""


@contextmanager
def progress(
    what: str,
    total: float,
    *,
    unit: str = "",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """Show the progress of ``what`` from 0 to ``total`` (0: the total is not known)."""
    stream = sys.stderr if stream is None else stream
    show = _bar if stream.isatty() else _lines
    with show(what, total, unit, stream, clock) as report:
        yield report


@contextmanager
def _bar(what: str, total: float, unit: str, stream: TextIO, clock: Callable[[], float]) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[shown]}"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(file=stream), transient=True)
    begun = clock()
    task = bar.add_task(what, total=total or None, shown="")

    def report(done: float) -> None:
        bar.update(task, completed=done, shown=_amount(done, total, unit))
        if not bar.live.is_started and clock() - begun >= PATIENCE_S:
            bar.start()

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def _lines(what: str, total: float, unit: str, stream: TextIO, clock: Callable[[], float]) -> Iterator[Report]:
    due = clock() + PATIENCE_S

    def report(done: float) -> None:
        nonlocal due
        if clock() >= due:
            due = clock() + _LINE_EVERY_S
            print(f"{what}: {_amount(done, total, unit)}", file=stream, flush=True)

    yield report


def _amount(done: float, total: float, unit: str) -> str:
    of = f" of {total:g}" if total else ""
    return f"{round(done, 1):g}{of}{unit and ' ' + unit}"
