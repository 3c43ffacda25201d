"""Opens the SQLite files that several processes of a server write, and sets damaged ones aside."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

from gateway.process_lock import wait_for_lock

log = logging.getLogger(__name__)

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Errors of a system that lacks room, descriptors or memory for now, or whose disk fails."""


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


def may_pass(fault: BaseException) -> bool:
    """Return True for a fault of the disk or the system, after which the same write may succeed: a locked file, a full
    disk, no free descriptor. False: the row is at fault, the tables are others, or the file is not ours to write."""
    if isinstance(fault, OperationalError):
        return _code(fault) != sqlite3.SQLITE_ERROR
    return isinstance(fault, OSError) and fault.errno in _PASSING


class FileFault:
    """The reason why a file cannot be written now. It is logged when it begins and when it ends, not with each row.

    Args:
        message: what the log says.
    """

    def __init__(self, message: str) -> None:
        self._message = message
        self.why = ""
        """Empty: the last row was written."""

    def note(self, fault: BaseException | None) -> bool:
        """Note how a write ended. Return False for a fault of the row, which says nothing about the file."""
        if isinstance(fault, OperationalError):
            why = str(fault.orig)  # SQLite names tables and columns here, no values
        elif isinstance(fault, OSError):
            why = fault.strerror or str(fault)
        elif fault is None:
            why = ""
        else:
            return False
        if why and why != self.why:
            log.error(self._message, extra={"why": why})
        elif self.why and not why:
            log.info("the file can be written again", extra={"after": self.why})
        self.why = why
        return True


def identity(path: Path) -> tuple[int, int] | None:
    """Return a value that differs if a file was removed or replaced while it is open. None: it is gone. SQLite itself
    does not notice, and writes into a file that no one finds any more."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_damaged(fault: BaseException) -> bool:
    """Return True if SQLite found that its file is damaged or no database."""
    return _code(fault) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(fault: BaseException) -> int:
    """Return SQLite's code of a fault. 0: it has none."""
    cause = fault.orig if isinstance(fault, DBAPIError) else fault
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF  # the rest is the extended part


def set_aside(path: Path) -> None:
    """Rename a damaged file and its log, so that a new one can be begun. Leave a sound one, with which another process
    has replaced it. Close your own connections first.

    Raises:
        OSError: the file cannot be renamed.
    """
    held = wait_for_lock(path.with_name(f".{path.name}.damaged.lock"))
    try:
        if not _is_sound(path):
            aside = f"{path.name}.damaged-{time.time_ns() // 1_000_000_000}"
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).rename(path.with_name(aside + suffix))
            log.error("damaged database set aside, a new one begins", extra={"file": aside})
    finally:
        os.close(held)


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=1.0)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as fault:
        return not is_damaged(fault)
