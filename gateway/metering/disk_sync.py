"""Brings what is in the file of records onto the disk itself, in a thread of its own.

A transaction that syncs keeps SQLite's lock for writing meanwhile, and a busy disk takes long. So none does: what it
has written is with the kernel, which a killed process cannot take along. The sync that a loss of power asks for follows
here, one for all transactions before it. So does the move of the log of changes (``-wal``) into the database, for which
SQLite syncs twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 200
"""Transactions after which the log is emptied. A transaction adds some 30 kB to it."""

_MOST_PAGES = 16_384
"""Pages of the log, 64 MiB, beyond which writers wait until it is empty. Up to there it is emptied beside them, which
succeeds when nobody writes for two syncs."""


class DiskSync:
    """The syncs of one SQLite file whose transactions make none (``open_sqlite``).

    Args:
        path: the database's file.
        database: its connections.
    """

    def __init__(self, path: Path, database: Callable[[], Engine]) -> None:
        self._log_path = path.with_name(f"{path.name}-wal")
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records, sync")
        self._is_asked = False
        self._unemptied = 0
        """Transactions since the log was empty."""

    def ask(self) -> None:
        """Let what has been written be synced soon. Any thread may ask, until ``close``."""
        self._unemptied += 1
        if not self._is_asked:
            self._is_asked = True
            self._thread.submit(self._sync)

    async def done(self) -> None:
        """Wait until everything that was written before is on the disk itself."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sync)

    def close(self) -> None:
        """End the thread, when nobody asks any more."""
        self._thread.shutdown()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        self._is_asked = False
        try:
            descriptor = os.open(self._log_path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)  # SQLite locks nothing in this file, so no lock goes with the descriptor
            if self._unemptied >= CHECKPOINT_EVERY:
                self._empty()
        except FileNotFoundError:
            pass  # everything is in the database
        except (OSError, SQLAlchemyError) as exc:
            log.error("records cannot be synced", extra={"why": type(exc).__name__})

    def _empty(self) -> None:
        """Move the log into the database. What is written meanwhile stays, and the log goes on with it."""
        before = self._unemptied
        with self._database().connect() as connection:
            _, pages, moved = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
            if pages > _MOST_PAGES:
                _, pages, moved = connection.exec_driver_sql("PRAGMA wal_checkpoint(RESTART)").one()
        if pages == moved:
            self._unemptied -= before
