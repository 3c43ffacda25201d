"""Kamailio, the SIP server: a process of its own for a test."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.waiting import PATIENCE_S


def words(config: Path, folder: Path, **defines: str) -> list[str]:
    """The command that runs it; see ``kamailio``."""
    return [
        "kamailio", "-DD", "-E", "-f", str(config), "-Y", str(folder), "-P", str(folder / "pid"),
        *("-m", "32", "-M", "4"), *(word for name, value in defines.items() for word in ("-A", f"{name}={value}")),
    ]  # fmt: skip


@asynccontextmanager
async def kamailio(config: Path, folder: Path, **defines: str) -> AsyncIterator[Path]:
    """Run it until the block is left; the file with its log.

    Args:
        folder: where it writes.
        defines: values of the configuration's preprocessor.
    """
    log = folder / "kamailio.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *words(config, folder, **defines), stdout=errors, stderr=errors, start_new_session=True
        )
    try:
        yield log
    finally:
        # It does not end in order if asked to while it starts, which a busy machine may make long: a process that has
        # not run yet since it was forked takes SIGTERM for its parent's, lives on, and is waited for by the parent.
        os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
