"""Deletion of recordings that are older than ``recording.keep_days``; no other file is touched."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_RECORDING_NAME = re.compile(r"(VX|RM)[0-9a-f]{32}\.(wav|wav\.enc|part|json)")
"""The file names of ``Recorder`` and ``RoomRecorder``. ``.part`` files are left over from a crash."""

_DAY_S = 86_400.0


async def delete_old(folder: Path, *, keep_days: int, clock: Callable[[], float] = time.time) -> None:
    """Delete recordings last written ``keep_days`` ago, now and once a day. Runs until cancelled.

    Args:
        clock: seconds since 1970, like the files' times.
    """
    while True:
        deleted = await asyncio.to_thread(_delete, folder, clock() - keep_days * _DAY_S)
        log.info("old recordings deleted", extra={"files": deleted, "keep_days": keep_days})
        await asyncio.sleep(_DAY_S)


def _delete(folder: Path, before: float) -> int:
    deleted = 0
    try:
        for name in filter(_RECORDING_NAME.fullmatch, os.listdir(folder)):
            path = folder / name
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_mtime < before:
                path.unlink()
                deleted += 1
    except OSError as exc:  # the remaining files are tried again tomorrow
        log.error("old recordings cannot be deleted", extra={"why": str(exc)})
    return deleted
