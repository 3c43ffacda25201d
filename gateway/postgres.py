"""A PostgreSQL that several gateways share, and the move of ended rows to it from the local disk.

Ended rows are first written to SQLite on the local disk. A separate thread moves them, a few at a time: it inserts the
absent ones, commits, and only then deletes them locally. If the process dies in between, they are moved again and found
there, so each is moved exactly once. Work that a new row requires is in the same transaction. A database that is gone,
slow or hung costs only that thread time, within ``postgres.timeout_s``, and never a call. Reads fail immediately while
it does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Table,
    create_engine,
    delete,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from gateway.config import PostgresConfig
from gateway.process_lock import lock
from tts_engine.supervision import SteadyThreads

log = logging.getLogger(__name__)
# It would log four tracebacks for each broken connection.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)

MOVE_EVERY_S = 1.0
"""Interval at which ended calls and records are moved to PostgreSQL, seconds."""

MAX_WAITING = 100_000
"""Most ended calls, and most records, that wait on the local disk. Above this, the oldest are given up and counted. A
record takes 300 bytes, a call with text 6 kB."""

INSERT: Mapping[str, Callable[[Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
"""``insert`` by dialect; both can skip existing rows."""

TIDIED_AT_ONCE = 2_000
"""Most old rows that one transaction deletes."""

_ROWS_AT_A_TIME = 20
_REST_S = 0.05
"""Pause after this many rows, so that a long backlog does not compete with the loop that paces calls."""

_TIDY_S = 3_600.0
_LOCK_SPACE = 0x74616C6B  # this program's advisory locks; others may share the database
_MAKES_TABLES, _TIDIES = 1, 2

What = Literal["calls", "records"]
T = TypeVar("T")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The rows to be moved. Functions with a connection are called in a transaction of that database."""

    what: What
    local: Callable[[], Engine]
    """The local database."""
    lock_path: Path
    """Lock of the processes that share the local database; one of them moves."""
    table: Table
    """The same on both sides, with a primary key of one column."""
    began_at: Column[Any]
    """Column by which the oldest rows are moved, and given up, first."""
    is_over: ColumnElement[bool]
    make_tables: Callable[[Connection], None]
    """Makes the shared tables, or migrates them. Raises OSError: they are of a later version."""
    moved: Callable[[Connection, Sequence[Row]], None]
    """Processes the rows that were new in the shared database."""
    delete_old: Callable[[Connection], int]
    """Deletes at most ``TIDIED_AT_ONCE`` shared rows that are too old or too many. Returns their number."""
    given_up: Callable[[], None]
    """Called for each row that is deleted without being moved."""

    @property
    def key(self) -> Column[Any]:
        """The primary key."""
        (key,) = self.table.primary_key
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """State of a database."""

    of: What | Literal["callsFile", "recordsFile", "limits", "directory"]
    """``calls`` (the log of ended calls) and ``records`` (what is billed): PostgreSQL. ``limits`` and ``directory``:
    Redis. ``callsFile`` and ``recordsFile``: a file of this machine, listed while it cannot be written."""
    answers: bool
    waiting: int = 0
    """Ended calls or records on this machine's disk that PostgreSQL lacks."""
    why: str = ""
    """The fault of a database that does not answer."""


class DatabaseMeter(Protocol):
    """Shows the state of shared databases."""

    def shared_database(self, state: DatabaseState) -> None: ...


class SharedDatabase:
    """The connection to the database, one for each process and kind of row. Use it on the event loop."""

    def __init__(self, config: PostgresConfig, handover: Handover, meter: DatabaseMeter) -> None:
        self._config = config
        self._handover = handover
        self._meter = meter
        self._thread = SteadyThreads(1, f"postgres {handover.what}")
        self._database: Engine | None = None
        self._lock: int | None = None
        self._has_tables = False
        self._fault: str | None = "not asked yet"
        self._local_fault: str | None = None
        self._waiting = 0
        self._tidied_at = float("-inf")
        table, key = handover.table, handover.key
        self._add = {
            name: insert(table).on_conflict_do_nothing(index_elements=[key.name]).returning(key)
            for name, insert in INSERT.items()
        }

    @property
    def state(self) -> DatabaseState:
        """The state when the database was last asked."""
        fault = self._fault
        return DatabaseState(of=self._handover.what, answers=fault is None, waiting=self._waiting, why=fault or "")

    async def watch(self) -> None:
        """Move ended rows every ``MOVE_EVERY_S``, until cancelled."""
        while True:
            moved = await self._in_thread(self.move)
            await asyncio.sleep(_REST_S if moved == _ROWS_AT_A_TIME else MOVE_EVERY_S)

    async def ask(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction.

        Raises:
            OSError: the database does not answer, or did not a moment ago.
        """
        self._check()
        return await self._in_thread(lambda: self._asked(work))

    async def aclose(self) -> None:
        """Move the last rows within ``postgres.timeout_s``, and close the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeout_s):
                while self._fault is None and await self._in_thread(self.move) == _ROWS_AT_A_TIME:
                    pass
        closed = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)
        await asyncio.wait([closed], timeout=self._config.timeout_s)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # --- the thread ------------------------------------------------------------------------------------------------

    def move(self) -> int:
        """Move some rows, or check that the database answers. Return the number of moved rows. Never raises."""
        moved, rows = 0, list[Row]()
        local_fault = self._locally(lambda: rows.extend(self._take()))
        try:
            with self._transaction() as connection:
                if rows:
                    self._put(connection, rows)
                else:
                    connection.execute(select(1))
            local_fault = self._locally(lambda: self._forget(rows)) or local_fault
            moved = 0 if local_fault else len(rows)
            self._tidy()
            self._note(None)
        except Exception as exc:  # for any fault of the driver: the next round may succeed
            self._note(why(exc))
        if local_fault and local_fault != self._local_fault:
            extra = {"of": self._handover.what, "why": local_fault}
            log.error("the local database cannot be used, so rows wait for PostgreSQL", extra=extra)
        self._local_fault = local_fault
        self._meter.shared_database(self.state)
        return moved

    def _locally(self, work: Callable[[], None]) -> str | None:
        """Do a step in the local database. Return its fault, which says nothing about PostgreSQL. The writer of the
        file sets a damaged one aside."""
        try:
            work()
        except Exception as exc:
            return why(exc)
        return None

    def _take(self) -> Sequence[Row]:
        """Return the oldest ended rows. Empty: there are none, or another process moves them."""
        handover = self._handover
        waiting = select(func.count()).select_from(handover.table).where(handover.is_over)
        oldest = select(handover.table).where(handover.is_over).order_by(handover.began_at)
        with handover.local().connect() as connection:
            self._waiting = connection.execute(waiting).scalar_one()
            if not self._is_mover():
                return ()
            rows = connection.execute(oldest.limit(_ROWS_AT_A_TIME)).mappings().all()
        if (too_many := self._waiting - MAX_WAITING) > 0:
            self._give_up(too_many)
        return [{name: _storable(value) for name, value in row.items()} for row in rows]

    def _is_mover(self) -> bool:
        if self._lock is None:
            self._lock = lock(self._handover.lock_path)
        return self._lock is not None

    def _give_up(self, count: int) -> None:
        handover = self._handover
        oldest = select(handover.key).where(handover.is_over).order_by(handover.began_at).limit(count)
        with handover.local().begin() as connection:
            given_up = connection.execute(delete(handover.table).where(handover.key.in_(oldest))).rowcount
        log.error(
            "too many rows wait for PostgreSQL: the oldest are lost", extra={"of": handover.what, "count": given_up}
        )
        for _ in range(given_up):
            handover.given_up()

    def _put(self, connection: Connection, rows: Sequence[Row]) -> None:
        # One by one: building a statement for all of them takes so long that the loop that paces calls is delayed.
        add = self._add[connection.dialect.name]
        self._handover.moved(connection, [row for row in rows if connection.execute(add, row).scalar() is not None])

    def _forget(self, rows: Sequence[Row]) -> None:
        """Delete the moved rows locally. If this fails, they are moved again, which changes nothing."""
        if not rows:
            return
        handover = self._handover
        moved = handover.key.in_([row[handover.key.name] for row in rows])
        with handover.local().begin() as connection:
            connection.execute(delete(handover.table).where(moved, handover.is_over))
        self._waiting = max(0, self._waiting - len(rows))

    def _tidy(self) -> None:
        now = time.monotonic()
        if now - self._tidied_at < _TIDY_S or self._lock is None:
            return
        with self._transaction() as connection:
            if not self._locked(connection, "pg_try_advisory_xact_lock", _TIDIES):
                deleted = 0  # another gateway does this
            else:
                deleted = self._handover.delete_old(connection)
        if deleted < TIDIED_AT_ONCE:
            self._tidied_at = now

    def _check(self) -> None:
        if self._fault is not None:
            raise OSError(f"PostgreSQL: {self._fault}")

    def _asked(self, work: Callable[[Connection], T]) -> T:
        self._check()  # an earlier request may have found a fault; later ones need not wait for it
        try:
            with self._transaction() as connection:
                return work(connection)
        except (SQLAlchemyError, OSError) as exc:
            self._note(why(exc))
            raise OSError(f"PostgreSQL: {why(exc)}") from None

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if self._database is None:
            self._database = opened(self._config)
        connection = self._database.connect()
        try:
            if not self._has_tables:
                self._make_tables(connection)
            self._begin(connection)
            yield connection
            connection.commit()
        except BaseException:
            # A rollback would need the database, which may not answer; closing the connection rolls back as well.
            connection.invalidate()
            raise
        finally:
            connection.close()

    def _begin(self, connection: Connection) -> None:
        # The server gives up at the same time. A gateway that stops halfway does not hold locks for long.
        wait_ms = round(self._config.timeout_s * 1000)
        connection.exec_driver_sql(
            f"SET LOCAL statement_timeout = {wait_ms}; SET LOCAL idle_in_transaction_session_timeout = {2 * wait_ms}"
        )

    def _make_tables(self, connection: Connection) -> None:
        self._begin(connection)
        self._locked(
            connection, "pg_advisory_xact_lock", _MAKES_TABLES
        )  # of gateways that start together, one makes the tables
        self._handover.make_tables(connection)
        connection.commit()
        self._has_tables = True

    def _locked(self, connection: Connection, function: str, number: int) -> bool:
        statement = text(f"SELECT {function}(:program, :number)")
        return connection.execute(statement, {"program": _LOCK_SPACE, "number": number}).scalar() is not False

    def _note(self, fault: str | None) -> None:
        if fault is not None and self._fault != fault:
            log.error("PostgreSQL does not answer", extra={"of": self._handover.what, "why": fault})
        elif fault is None and self._fault is not None:
            log.info("PostgreSQL answers", extra={"of": self._handover.what})
        self._fault = fault
        if fault is not None:
            self._has_tables = False  # another database may answer next: a new one, or a copy

    def _close(self) -> None:
        if self._database is not None:
            self._database.dispose()
        if self._lock is not None:
            os.close(self._lock)


def opened(config: PostgresConfig) -> Engine:
    """Return the database of ``postgres.url``. It connects at the first use."""
    assert config.url is not None
    url = make_url(config.url.get_secret_value()).set(drivername="postgresql+pg8000")
    arguments: dict[str, Any] = {"timeout": config.timeout_s, "ssl_context": _tls(str(url.query.get("sslmode", "")))}
    if folder := url.query.get("host"):
        arguments["unix_sock"] = f"{folder}/.s.PGSQL.{url.port or 5432}"
    # Only this thread uses it, so one connection is enough.
    return create_engine(url.set(query={}), connect_args=arguments, pool_size=1, max_overflow=0, hide_parameters=True)


def _tls(mode: str) -> ssl.SSLContext | bool | None:
    """Return pg8000's value for ``sslmode``: None: TLS if the server offers it; False: no TLS."""
    if mode == "verify-full":
        return ssl.create_default_context()
    return {"disable": False, "require": True}.get(mode)


def _storable(value: object) -> object:
    """Return a value that PostgreSQL accepts: text without U+0000."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def why(exc: Exception) -> str:
    """Return the reason without the written data: a statement's message may contain a caller's number."""
    if isinstance(exc, OSError) and exc.errno is None:
        return str(exc)
    cause = getattr(exc, "orig", None) or exc
    told = cause.args[0] if cause.args else None
    if isinstance(told, dict) and "C" in told:
        return f"{type(cause).__name__} {told['C']}"
    return type(
        cause.__cause__ or cause
    ).__name__  # the driver raises InterfaceError, its cause is e.g. ConnectionRefusedError
