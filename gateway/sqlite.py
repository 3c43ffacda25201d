"""Opens the SQLite files that several processes of a server write."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event


def open_sqlite(path: Path, *, busy_s: float, syncs: bool = True) -> Engine:
    """Open a file, creating it if needed. Only its owner can read it, and readers do not wait for the writer.

    Args:
        busy_s: longest wait of a statement for another process.
        syncs: True: a transaction ends when its data is on the disk. False: the data survives the death of this
            process, and the caller must sync the file and empty its log.

    Raises:
        OSError: the file cannot be created.
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
            except sqlite3.OperationalError:  # only for this, SQLite does not wait while another process writes
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if not syncs:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint=0")  # for this SQLite syncs twice

    return database
