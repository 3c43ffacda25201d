"""Syncs the file of records to the disk, in its own thread.

A transaction that syncs holds SQLite's write lock meanwhile, and a busy disk is slow. So transactions do not sync:
their data is in the kernel, where it survives a killed process. To survive a loss of power, the sync follows here, one
for all earlier transactions. So does the move of the write-ahead log (``-wal``) into the database, for which SQLite
syncs twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tts_engine.supervision import SteadyThreads

log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 200
"""Transactions after which the log is emptied. A transaction adds about 30 kB to it."""

_MOST_PAGES = 16_384
"""Pages of the log (64 MiB) above which writers wait until it is empty. Below, it is emptied beside them, which
succeeds when nothing is written for two syncs."""


class DiskSync:
    """The syncs of one SQLite file whose transactions do not sync (``open_sqlite``).

    Args:
        path: the database's file.
        database: its connections.
    """

    def __init__(self, path: Path, database: Callable[[], Engine]) -> None:
        self._log_path = path.with_name(f"{path.name}-wal")
        self._database = database
        self._thread = SteadyThreads(1, "records, sync")
        self._is_asked = False
        self._unemptied = 0
        """Transactions since the log was empty."""

    def ask(self) -> None:
        """Request a sync soon. Any thread may call this until ``close``."""
        self._unemptied += 1
        if not self._is_asked:
            self._is_asked = True
            self._thread.submit(self._sync)

    async def done(self) -> None:
        """Wait until everything written before is on the disk."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sync)

    def close(self) -> None:
        """End the thread, when no more syncs are requested."""
        self._thread.shutdown()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        self._is_asked = False
        try:
            descriptor = os.open(self._log_path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)  # SQLite locks nothing in this file, so closing the descriptor drops no lock
            if self._unemptied >= CHECKPOINT_EVERY:
                self._empty()
        except FileNotFoundError:
            pass  # everything is in the database
        except (OSError, SQLAlchemyError) as exc:
            log.error("records cannot be synced", extra={"why": type(exc).__name__})

    def _empty(self) -> None:
        """Move the log into the database. Data written meanwhile stays in the log."""
        before = self._unemptied
        with self._database().connect() as connection:
            _, pages, moved = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
            if pages > _MOST_PAGES:
                _, pages, moved = connection.exec_driver_sql("PRAGMA wal_checkpoint(RESTART)").one()
        if pages == moved:
            self._unemptied -= before
