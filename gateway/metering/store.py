"""Keeps records and usage in SQLite, each exactly once over crashes. One thread reads and writes, never the event loop.
With PostgreSQL, records are written to SQLite first, and moved from there after their end (``gateway/postgres.py``).

A record is written before its call or request says anything, updated while it is open, and ended in the transaction
that adds it to its day. So it is counted once, however often its end is reported, and a day always matches its records.
The records that a dead process leaves open are ended as ``crashed`` by another process that has the file open. A lock
that the system releases when a process dies shows which process is dead.

Calls wait only for the beginnings of their records, so these go before all other work of the thread. Slow work has its
own threads: reading, and syncing the disk (``disk_sync.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from gateway.config import PostgresConfig, RecordsConfig
from gateway.errors import Rejected
from gateway.metering import ledger, outbox
from gateway.metering.beginnings import Beginnings
from gateway.metering.disk_sync import DiskSync
from gateway.metering.ledger import RecordScope
from gateway.metering.record import MeterRecord, UsageDay
from gateway.metering.schema import SCHEMA, records
from gateway.postgres import TIDIED_AT_ONCE, DatabaseState, Handover, SharedDatabase
from gateway.process_lock import lock
from gateway.sqlite import FileFault, identity, is_damaged, may_pass, open_sqlite, set_aside
from tts_engine.supervision import SteadyThreads

log = logging.getLogger(__name__)

WRITE_AHEAD_S = 5.0
"""Interval at which live calls and requests are written, seconds. After a crash a call's record is short by this at
most. Less would cost more syncs of the disk."""

BEGIN_WAIT_S = 0.2
"""Longest wait of a call for the beginning of its record to be in the file, seconds, so that a crash leaves no call
without a record. It takes a millisecond. If the disk hangs, only the first calls wait."""

WAITING = 10_000
"""Most writes that wait for the disk. At the limit, a further one is lost, counted and logged."""

COUNTED_TOGETHER = 500
"""Most ended calls and requests that wait to be counted if no records are kept, so that not each one costs a
transaction. A query of the usage includes them."""

_BUSY_S = 5.0
_READ_WAITS_S = 5.0  # a read's wait for the writes before it; if the file is locked, they may take minutes
_TIDY_S = 3_600.0
_TIDIED_AT_ONCE = 200  # old records that one write also deletes: a beginning may wait for it

T = TypeVar("T")


class RecordsMeter(Protocol):
    """Counts lost and late records."""

    def record_lost(self, reason: str) -> None: ...

    def record_late(self) -> None: ...

    def shared_database(self, state: DatabaseState) -> None: ...


class Records:
    """The store. Use ``begin`` and ``end`` on the event loop.

    Args:
        config: without a ``database_url``, usage is in memory and no single record is kept.
        postgres: with a ``url``, ended records are moved there and read from there.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        config: RecordsConfig,
        meter: RecordsMeter,
        *,
        postgres: PostgresConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.keeps_numbers = config.numbers
        self.keeps_records = bool(config.database_url)
        self._config = config
        self._meter = meter
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self._thread = SteadyThreads(1, "records")
        self._reader = SteadyThreads(1, "records, read")
        self._beginnings = Beginnings(wait_s=BEGIN_WAIT_S, on_late=self._late)
        self._begin_requested = False
        """True if the thread will take the waiting ``_beginnings``."""
        self._waiting = 0
        self._uncounted: list[MeterRecord] = []
        self._unwritten: list[MeterRecord] = []
        """Ends that the disk refused, at most ``WAITING``. Only the thread uses them."""
        self._open_records: dict[str, Callable[[], MeterRecord]] = {}
        self._database: Engine | None = None
        self._file: tuple[int, int] | None = None
        """The ``identity`` of the open file."""
        self.fault = FileFault("records cannot be written")
        self._sync = DiskSync(Path(config.path), self._opened) if config.database_url else None
        self._lock_file: int | None = None
        self._tidied_at = 0.0
        self.shared: SharedDatabase | None = None
        if postgres is not None and postgres.url is not None and config.database_url:
            self.shared = SharedDatabase(postgres, self._handover(), meter)

    async def start(self) -> None:
        """Open the database, and end the open records of dead processes.

        Raises:
            OSError: the file cannot be opened or is no database of records.
        """
        try:
            await self.in_thread(self._open)
        except SQLAlchemyError as exc:
            raise OSError(f"records.database_url cannot be used: {type(exc).__name__}") from None

    async def watch(self) -> None:
        """Every ``WRITE_AHEAD_S``, update the open records, and end those of dead processes. Never returns."""
        while self.keeps_records:
            await asyncio.sleep(WRITE_AHEAD_S)
            self.write_ahead()

    async def aclose(self) -> None:
        """Write what waits, and close the database."""
        if self.shared is not None:
            await self.in_thread(lambda: None)
            await self.shared.aclose()
        await asyncio.get_running_loop().run_in_executor(self._reader, lambda: None)
        self._reader.shutdown()
        await self.in_thread(self._write_the_rest)
        await self.synced()
        await self.in_thread(self._close)
        self._thread.shutdown()
        if self._sync is not None:
            self._sync.close()

    async def synced(self) -> None:
        """Wait until the present content of the file would survive a loss of power."""
        if self._sync is not None:
            await self._sync.done()

    def begin(self, record: MeterRecord, so_far: Callable[[], MeterRecord]) -> asyncio.Future[None]:
        """Write the beginning of a call or request. Never blocks, never raises.

        Args:
            so_far: returns the record with its present counts, and the present time as ``endedAt``. It is called until
                the record is ended.

        Returns:
            A future for which the call or request waits before it says anything. It is done when the record is in the
            file and survives the death of this process, when the record is lost, or after ``BEGIN_WAIT_S``.
        """
        if not self.keeps_records:
            return _done()
        self._open_records[record.id] = so_far
        if self._waiting >= WAITING:
            self._lost("queue_full", True)
            return _done()
        self._waiting += 1
        written = self._beginnings.add(record)
        if not self._begin_requested:
            self._begin_requested = True
            try:
                self._submit(lambda: None)
            except RuntimeError:
                self._begin_requested = False
                refused = self._beginnings.take()
                self._waiting -= len(refused)
                self._beginnings.tell_written(refused)
                self._lost("closed", True)
        return written

    def end(self, record: MeterRecord) -> None:
        """Write the end of a call or request, and count it. Never blocks, never raises."""
        self._open_records.pop(record.id, None)
        if self.keeps_records:
            self._write(lambda connection: self._end(connection, record, self._owner), ended=record)
        else:
            self._uncounted.append(record)
            if len(self._uncounted) >= COUNTED_TOGETHER:
                self._count()

    def _count(self) -> None:
        """Count the ended calls and requests without records."""
        ended, self._uncounted = self._uncounted, []
        if ended:
            self._write(lambda connection: ledger.count(connection, ended))

    def write_ahead(self) -> None:
        """Update the open records, and end those of dead processes. Never blocks, never raises."""
        so_far = [told() for told in self._open_records.values()]

        def writing(connection: Connection) -> None:
            ledger.write_ahead(connection, so_far)
            self._end_dead_records(connection)

        self._write(writing, of_records=False)

    async def usage(self, tenant: str | None) -> Sequence[UsageDay]:
        """Return a tenant's days, newest first. None: the days of each tenant.

        Raises:
            Rejected: 503, the database cannot be read.
        """
        self._count()
        if self.shared is None:
            return await self._read(lambda connection: ledger.days(connection, tenant))
        here = await self._read(lambda connection: ledger.ended(connection, tenant))
        return await self._asked(self.shared.ask(lambda connection: ledger.days(connection, tenant, here)))

    async def find(
        self,
        tenant: str | None,
        *,
        since: float,
        until: float,
        limit: int,
        after: tuple[float, str] | None = None,
        of: RecordScope = RecordScope(),  # noqa: B008 - frozen
    ) -> Sequence[MeterRecord]:
        """Return a tenant's records that began in a time range, oldest first.

        Args:
            tenant: None: all tenants.
            after: start and id of a record: return only later ones in this order.

        Raises:
            Rejected: 503, the database cannot be read.
        """

        def find(connection: Connection) -> Sequence[MeterRecord]:
            return ledger.find(connection, tenant, since=since, until=until, limit=limit, after=after, of=of)

        here = await self._read(find)
        if self.shared is None:
            return here
        there = await self._asked(
            self.shared.ask(find)
        )  # after the read of the file, so that a moved record is not missed
        both = {record.id: record for record in (*here, *there)}
        return sorted(both.values(), key=lambda record: (record.startedAt, record.id))[:limit]

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the thread of the records, after everything begun and ended before."""
        return await asyncio.wrap_future(self._submit(work))

    async def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction of its own.

        Raises:
            OSError: the database cannot be read or written.
        """

        def working() -> T:
            done = self._transact(work)
            self._ask_for_sync()
            return done

        try:
            return await self.in_thread(working)
        except SQLAlchemyError as exc:
            raise OSError(f"the database of records: {type(exc).__name__}") from None

    # --- the thread ------------------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` in the thread, after everything begun and ended before."""

        def working() -> T:
            self._write_beginnings()
            return work()

        return self._thread.submit(working)

    def _write_beginnings(self) -> None:
        """Write all waiting beginnings together."""
        self._begin_requested = False
        beginnings = self._beginnings.take()
        if not beginnings:
            return
        try:
            self._begin([beginning.record for beginning in beginnings])
        finally:
            self._waiting -= len(beginnings)
            self._beginnings.tell_written(beginnings)

    def _begin(self, begun: Sequence[MeterRecord]) -> None:
        try:
            self._transact(lambda connection: ledger.begin(connection, begun, self._owner))
            # The next write asks for a sync.
        except Exception as exc:  # a record that SQLite refuses, or the disk: the thread writes for all calls
            if len(begun) > 1 and not may_pass(exc):  # one of them is at fault, not the disk
                for record in begun:
                    self._begin([record])
                return
            self._note(exc)
            for _ in begun:
                self._lost("not_written", True)

    def _late(self) -> None:
        log.error("a call or request continues before its record is written")
        self._meter.record_late()

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._asked(self._in_reader(work))

    async def _in_reader(self, work: Callable[[Connection], T]) -> T:
        if not self.keeps_records:  # the database in memory has one connection
            return await self.in_transaction(work)

        def reading() -> T:
            with self._opened().connect() as connection:
                return work(connection)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_WAITS_S):
                await self.in_thread(lambda: None)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, reading)
        except SQLAlchemyError as exc:
            if is_damaged(exc):
                with contextlib.suppress(RuntimeError):  # it is closed
                    self._thread.submit(self._set_aside)  # before beginnings, which would go into the damaged file
            raise OSError(f"the database of records: {type(exc).__name__}") from None

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except OSError as exc:
            log.error("records cannot be read", extra={"why": str(exc)})
            raise Rejected("records cannot be read now", status=503, code="records_unavailable") from None

    def _write(
        self, work: Callable[[Connection], object], *, of_records: bool = True, ended: MeterRecord | None = None
    ) -> None:
        """Let the thread write. A failed write of records is lost; any other is done the next time.

        Args:
            ended: the record that ``work`` ends. If the disk is full or the file locked, it is written with a later
                write.
        """
        if self._waiting >= WAITING:
            self._lost("queue_full", of_records)
            return
        self._waiting += 1

        def write(connection: Connection) -> None:
            work(connection)
            for record in self._unwritten:
                self._end(connection, record, self._owner)
            self._tidy(connection)

        def writing() -> None:
            try:
                self._transact(write)
                self._unwritten.clear()
                self._ask_for_sync()
                self.fault.note(None)
            except Exception as exc:  # one record, or the disk: the next work may succeed
                self._note(exc)
                if ended is not None and may_pass(exc) and len(self._unwritten) < WAITING:
                    self._unwritten.append(ended)
                else:
                    self._lost("not_written", of_records)
            finally:
                self._waiting -= 1

        try:
            self._submit(writing)
        except RuntimeError:
            self._waiting -= 1
            self._lost("closed", of_records)

    def _note(self, fault: Exception) -> None:
        if not self.fault.note(fault):
            log.error("a record cannot be written", extra={"why": type(fault).__name__})

    def _write_the_rest(self) -> None:
        """Write the ends that the disk refused, for the last time."""
        for record in self._unwritten:
            try:
                with self._opened().begin() as connection:
                    self._end(connection, record, self._owner)
            except SQLAlchemyError:
                self._lost("not_written", True)
        self._unwritten.clear()

    def _lost(self, reason: str, of_records: bool) -> None:
        if of_records:
            log.error("record lost", extra={"why": reason})
            self._meter.record_lost(reason)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction. If the file was removed, make a new one. If it is damaged, set it aside, and
        run it in a new one."""
        path = Path(self._config.path)
        if self.keeps_records and identity(path) != self._file:
            log.error("database file was removed, a new one begins", extra={"file": path.name})
            self._opened().dispose()
            self._open_file()
            self._hold_lock()
        try:
            with self._opened().begin() as connection:
                return work(connection)
        except DatabaseError as exc:
            if not is_damaged(exc) or not self.keeps_records:
                raise
        self._set_aside()
        with self._opened().begin() as connection:
            return work(connection)

    def _set_aside(self) -> None:
        """Begin a new file if the present one is damaged."""
        self._opened().dispose()
        set_aside(Path(self._config.path))
        self._open_file()

    def _ask_for_sync(self) -> None:
        if self._sync is not None:
            self._sync.ask()

    def _open(self) -> None:
        url = self._config.database_url
        if not url:
            self._database = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
            with self._database.begin() as connection:
                SCHEMA.bring_up_to_date(connection)
            return
        path = Path(self._config.path)
        try:
            self._open_file()
        except DatabaseError as exc:
            if not is_damaged(exc):
                raise
            set_aside(path)
            self._open_file()
        self._hold_lock()
        self._transact(self._end_dead_records)

    def _hold_lock(self) -> None:
        """Show other processes that this one lives. Its lock may have been removed with the file of records."""
        if self._lock_file is not None:
            os.close(self._lock_file)
        self._lock_file = lock(_lock_path(Path(self._config.path), self._owner))

    def _open_file(self) -> None:
        path = Path(self._config.path)
        self._database = open_sqlite(path, busy_s=_BUSY_S, syncs=False)
        with self._database.begin() as connection:
            SCHEMA.bring_up_to_date(connection)
        self._file = identity(path)

    def _handover(self) -> Handover:
        def delete_old(connection: Connection) -> int:
            keep_days, now = self._config.keep_days, self._clock()
            return ledger.delete_old(connection, keep_days=keep_days, now=now, most=TIDIED_AT_ONCE)

        return Handover(
            what="records",
            local=self._opened,
            lock_path=Path(f"{self._config.path}.postgres.lock"),
            table=records,
            began_at=records.c.startedAt,
            is_over=ledger.IS_OVER,
            make_tables=SCHEMA.bring_up_to_date,
            moved=ledger.count_rows,
            delete_old=delete_old,
            given_up=lambda: self._meter.record_lost("given_up"),
        )

    def _opened(self) -> Engine:
        assert self._database is not None
        return self._database

    def _end(self, connection: Connection, record: MeterRecord, owner: str) -> None:
        if ledger.end(connection, record, owner) and self._config.webhook_url:
            outbox.put(connection, record, self._clock())

    def _end_dead_records(self, connection: Connection) -> None:
        for owner in ledger.open_owners(connection):
            path = _lock_path(Path(self._config.path), owner)
            held = None if owner == self._owner else lock(path)
            if held is None:
                continue  # that process lives
            try:
                left = ledger.left_open(connection, owner)
                for record in left:
                    self._end(connection, record, owner)
                log.warning("records of a dead process ended", extra={"count": len(left)})
                path.unlink(missing_ok=True)
            finally:
                os.close(held)

    def _close(self) -> None:
        if self._database is not None:
            self._database.dispose()
        if self._lock_file is not None:
            _lock_path(Path(self._config.path), self._owner).unlink(missing_ok=True)
            os.close(self._lock_file)

    def _tidy(self, connection: Connection) -> None:
        now = self._clock()
        if 0 <= now - self._tidied_at < _TIDY_S:  # below 0, the clock was set back
            return
        if ledger.delete_old(connection, keep_days=self._config.keep_days, now=now, most=_TIDIED_AT_ONCE) == 0:
            self._tidied_at = now


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _lock_path(path: Path, owner: str) -> Path:
    return path.with_name(f".{path.name}.{owner}.lock")
