"""Opens the SQLite files that several processes of a server write."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event


def open_sqlite(path: Path, *, busy_s: float, syncs: bool = True) -> Engine:
    """Open a file, which is made if there is none: what it says is nobody else's on this machine, and its readers do
    not wait for its writer.

    Args:
        busy_s: how long a statement waits for another process.
        syncs: whether what a transaction wrote is on the disk itself when the transaction ends. If not, it is safe from
            the death of this process all the same, and who opens the file syncs it, and empties its log.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = create_engine(f"sqlite:///{path}", connect_args={"timeout": busy_s})

    @event.listens_for(database, "connect")
    def _write_ahead(connection: Any, _: object) -> None:
        until = time.monotonic() + busy_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError:  # for this alone SQLite does not wait while another process writes
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if not syncs:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint=0")  # for this SQLite syncs twice

    return database
