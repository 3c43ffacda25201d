"""Keeps records and usage in SQLite, each exactly once over crashes. One thread writes and reads, never the event loop.

A record is written when its call or request begins, and becomes an ended one in the transaction that adds it to its
day. So it is counted once, however often it is told, and a day never holds more or less than its records. What a
process leaves open when it dies, the next one that opens the file ends as ``crashed``: it knows who is dead by a lock
that the system takes from a dead process.
"""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from gateway.config import RecordsConfig
from gateway.errors import Rejected
from gateway.metering.record import MeterRecord, UsageDay

log = logging.getLogger(__name__)

WAITING = 10_000
"""Writes that wait for the disk. When so many wait, a further one is lost and logged."""

USAGE_DAYS = 400
"""Days of usage that are kept."""

_BUSY_S = 5.0
_TIDY_S = 3_600.0

T = TypeVar("T")

metadata = MetaData()

_TEXTS = ("outcome", "reason", "route", "transport", "direction", "from_", "to")
_NUMBERS = ("characters", "turns", "cuts", "gaps", "gapMs")

records = Table(
    "records",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("tenant", String(200), nullable=False),
    Column("startedAt", Float, nullable=False),
    Column("endedAt", Float),
    *(Column(name, String(500), nullable=False) for name in _TEXTS),
    *(Column(name, Integer, nullable=False) for name in _NUMBERS),
    Column("audioSeconds", Float, nullable=False),
    Column("firstPacketMs", Float),
    Column("owner", String(32), nullable=False),  # the process that writes it; never shown
    Index("records_by_tenant", "tenant", "startedAt", "id"),
    Index("records_by_owner", "outcome", "owner"),
)

usage = Table(
    "usage",
    metadata,
    Column("tenant", String(200), primary_key=True),
    Column("day", String(10), primary_key=True),
    *(Column(name, Integer, nullable=False) for name in ("requests", "characters", "calls")),
    *(Column(name, Float, nullable=False) for name in ("audioSeconds", "callSeconds")),
)


class Records:
    """The store. Use ``begin`` and ``end`` on the event loop.

    Args:
        config: without a ``database_url`` usage is in memory, and no single record is kept.
        clock: seconds since the epoch.
    """

    def __init__(self, config: RecordsConfig, *, clock: Callable[[], float] = time.time) -> None:
        self.keeps_numbers = config.numbers
        self.keeps_records = bool(config.database_url)
        self._config = config
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._waiting = 0
        self._database: Engine | None = None
        self._lock_file: int | None = None
        self._tidied_at = 0.0

    async def start(self) -> None:
        """Open the database, and end what dead processes left open.

        Raises:
            OSError: the file cannot be opened or is no database of records.
        """
        try:
            await self._run(self._open)
        except SQLAlchemyError as exc:
            raise OSError(f"records.database_url cannot be used: {type(exc).__name__}") from None

    async def aclose(self) -> None:
        """Write what waits, and close the database."""
        await self._run(self._close)
        self._thread.shutdown()

    def begin(self, record: MeterRecord) -> None:
        """Write that a call or request goes on. Never blocks, never raises."""
        if self.keeps_records:
            self._write(lambda connection: connection.execute(_new(record, self._owner)))

    def end(self, record: MeterRecord) -> None:
        """Write how it ended, and count it. Never blocks, never raises."""
        if self.keeps_records:
            self._write(lambda connection: _ended(connection, record, self._owner))
        else:
            self._write(lambda connection: _count(connection, record))

    async def usage(self, tenant: str) -> list[UsageDay]:
        """Return a tenant's days, newest first.

        Raises:
            Rejected: 503, the database cannot be read.
        """
        wanted = select(usage).where(usage.c.tenant == tenant).order_by(usage.c.day.desc())
        return [
            UsageDay(**{name: value for name, value in row.items() if name != "tenant"})
            for row in await self._read(lambda connection: connection.execute(wanted).mappings().all())
        ]

    async def find(
        self, tenant: str, *, since: float, until: float, limit: int, after: tuple[float, str] | None = None
    ) -> Sequence[MeterRecord]:
        """Return a tenant's records that began in a time, oldest first.

        Args:
            after: start and id of a record: only those behind it in this order.

        Raises:
            Rejected: 503, the database cannot be read.
        """
        wanted = select(*(column for column in records.c if column.name != "owner")).where(
            records.c.tenant == tenant, records.c.startedAt >= since, records.c.startedAt < until
        )
        if after is not None:
            wanted = wanted.where(tuple_(records.c.startedAt, records.c.id) > after)
        wanted = wanted.order_by(records.c.startedAt, records.c.id).limit(limit)
        rows = await self._read(lambda connection: connection.execute(wanted).mappings().all())
        return [MeterRecord(**row) for row in rows]

    # --- the thread ------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        def reading() -> T:
            assert self._database is not None
            with self._database.connect() as connection:
                return work(connection)

        try:
            return await self._run(reading)
        except (SQLAlchemyError, OSError) as exc:
            log.error("records cannot be read", extra={"why": type(exc).__name__})
            raise Rejected("records cannot be read now", status=503, code="records_unavailable") from None

    def _write(self, work: Callable[[Connection], object]) -> None:
        if self._waiting >= WAITING:
            log.error("record is lost", extra={"why": "queue_full"})
            return
        self._waiting += 1

        def writing() -> None:
            try:
                assert self._database is not None
                with self._database.begin() as connection:
                    work(connection)
                    self._tidy(connection)
            except (SQLAlchemyError, OSError) as exc:
                log.error("record is lost", extra={"why": type(exc).__name__})
            finally:
                self._waiting -= 1

        try:
            self._thread.submit(writing)
        except RuntimeError:
            self._waiting -= 1
            log.error("record is lost", extra={"why": "closed"})

    def _open(self) -> None:
        url = self._config.database_url
        if not url:
            self._database = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
            metadata.create_all(self._database)
            return
        path = Path(self._config.path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._database = create_engine(f"sqlite:///{path}", connect_args={"timeout": _BUSY_S})

        @event.listens_for(self._database, "connect")
        def _settings(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # on the disk before the next one: bills are made of this

        metadata.create_all(self._database)
        self._lock_file = _locked(_lock_path(path, self._owner))
        self._end_of_the_dead(path)

    def _end_of_the_dead(self, path: Path) -> None:
        assert self._database is not None
        is_open = records.c.outcome == "open"
        with self._database.begin() as connection:
            for (owner,) in connection.execute(select(records.c.owner).where(is_open).distinct()).all():
                lock = _lock_path(path, owner)
                held = None if owner == self._owner else _locked(lock)
                if held is None:
                    continue  # it lives
                left = records.update().where(is_open, records.c.owner == owner).values(outcome="crashed")
                count = connection.execute(left).rowcount
                log.warning("records of a process that died are ended", extra={"count": count})
                lock.unlink(missing_ok=True)
                os.close(held)

    def _close(self) -> None:
        if self._database is not None:
            self._database.dispose()
        if self._lock_file is not None:
            _lock_path(Path(self._config.path), self._owner).unlink(missing_ok=True)
            os.close(self._lock_file)

    def _tidy(self, connection: Connection) -> None:
        now = self._clock()
        if now - self._tidied_at < _TIDY_S:
            return
        self._tidied_at = now
        if self.keeps_records:
            old = now - self._config.keep_days * 86_400
            connection.execute(delete(records).where(records.c.startedAt < old, records.c.outcome != "open"))
        connection.execute(delete(usage).where(usage.c.day < _day(now - USAGE_DAYS * 86_400)))


def _values(record: MeterRecord, owner: str) -> dict[str, object]:
    return record.model_dump() | {"owner": owner}


def _new(record: MeterRecord, owner: str) -> Any:
    return insert(records).values(**_values(record, owner)).on_conflict_do_nothing(index_elements=["id"])


def _ended(connection: Connection, record: MeterRecord, owner: str) -> None:
    """Write the end of a record and count it, unless that was done."""
    connection.execute(_new(record.model_copy(update={"outcome": "open"}), owner))  # its beginning may have been lost
    was_open = update(records).where(records.c.id == record.id, records.c.outcome == "open")
    if connection.execute(was_open.values(**_values(record, owner))).rowcount:
        _count(connection, record)


def _count(connection: Connection, record: MeterRecord) -> None:
    ended_at = record.startedAt if record.endedAt is None else record.endedAt
    is_call = record.kind == "call"
    more = {
        "requests": 0 if is_call else 1,
        "characters": record.characters,
        "calls": 1 if is_call else 0,
        "audioSeconds": record.audioSeconds,
        "callSeconds": ended_at - record.startedAt if is_call else 0.0,
    }
    added = insert(usage).values(tenant=record.tenant, day=_day(ended_at), **more)
    sums = {name: usage.c[name] + added.excluded[name] for name in more}
    connection.execute(added.on_conflict_do_update(index_elements=["tenant", "day"], set_=sums))


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()


def _lock_path(path: Path, owner: str) -> Path:
    return path.with_name(f".{path.name}.{owner}.lock")


def _locked(path: Path) -> int | None:
    """Return the descriptor of a lock that is ours now. None: a living process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
