"""The log of ended calls. One thread writes it, another reads it; the event loop waits for neither.

The database is SQLite in its own folder. With PostgreSQL, calls are moved there (``gateway/postgres.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    case,
    delete,
    event,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from gateway.call_log.schema import SCHEMA, calls
from gateway.config import CallsConfig, PostgresConfig
from gateway.errors import Rejected
from gateway.postgres import TIDIED_AT_ONCE, DatabaseMeter, Handover, SharedDatabase
from gateway.seams.call_record import CallRecord, CallSummary, Entry, HeardWords, Said
from gateway.sqlite import FileFault, identity, is_damaged, may_pass, open_sqlite, set_aside
from tts_engine.supervision import SUPERVISOR, SteadyThreads, SupervisedThread

log = logging.getLogger(__name__)

QUEUED = 1_000
"""Most records that wait for the disk. One more is lost and counted."""

_TIDY_EVERY = 100  # records; deleting old calls with each record would cost more than writing one
_BUSY_S = 5.0  # longest wait for another process's writer
_AGAIN_S = 5.0  # pause before a locked file or a full disk is tried again
_CLOSE_S = 5.0
_FILE = "calls.sqlite3"

_PART = 20
"""Rows that a thread handles before it yields: 0.2 ms."""

T = TypeVar("T")


class _Replace(Enum):
    """Work of the writer that is no record."""

    DAMAGED = auto()
    """Replace a file in which a reader found damage."""


_ENTRIES: TypeAdapter[list[Entry]] = TypeAdapter(list[Entry])


Sort = Literal["start", "length", "turns", "wait", "gaps"]
_SORTED: Mapping[Sort, tuple[ColumnElement[Any], str]] = {
    "start": (calls.c.started_at, "startedAt"),
    "length": (calls.c.duration_ms, "durationMs"),
    "turns": (calls.c.turns, "turns"),
    "wait": (func.coalesce(calls.c.first_packet_ms, -1.0), "firstPacketMs"),
    "gaps": (calls.c.gap_ms, "gapMs"),
}
"""Order -> what is sorted, and the field of a summary that has it. A call without a wait counts as the shortest."""


def sorted_value(call: CallSummary, sort: Sort) -> float:
    """Return the value by which a call is sorted."""
    value = getattr(call, _SORTED[sort][1])
    return -1.0 if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Search for ended calls; an empty field or None matches every call."""

    from_number: str = ""
    """Part of the caller's number; ``to_number``: of the called number."""
    to_number: str = ""
    route: str = ""
    routes: frozenset[str] | None = None
    """Routes visible to the client. None: all."""
    call_id: str = ""
    number: str = ""
    """Part of either number."""
    text: str = ""
    """Part of the spoken words, in any case."""
    outcome: str = ""
    shortest_ms: int | None = None
    """Least length of a call; ``longest_ms``: the greatest."""
    longest_ms: int | None = None
    since: float | None = None
    """Earliest start of a call, seconds since the epoch; ``until``: the latest."""
    until: float | None = None
    sort: Sort = "start"
    ascending: bool = False
    before: tuple[float, str] | None = None
    """Sorted value (``sorted_value``) and id of a call: only calls after it in the list."""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all calls of a query."""

    calls: int = 0
    failed: int = 0
    """Calls with the outcome ``failed``."""
    duration_ms: int = 0
    turns: int = 0
    gaps: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class CallLog:
    """The log of ended calls. Use ``add`` on any thread, the rest on the event loop.

    Args:
        on_lost: receives the reason when a record is lost: ``queue_full``, ``not_written`` or ``given_up``. Called on
            any thread.
        postgres: with a ``url``, calls are moved there and read from there.
        meter: metrics for ``postgres``.
    """

    def __init__(
        self,
        config: CallsConfig,
        *,
        on_lost: Callable[[str], None],
        postgres: PostgresConfig | None = None,
        meter: DatabaseMeter | None = None,
    ) -> None:
        self.keeps_text = config.keep_text
        self._config = config
        self._on_lost = on_lost
        self._waiting: queue.Queue[CallRecord | _Replace | None] = queue.Queue(QUEUED)
        self._writer: SupervisedThread | None = None
        self._reader = SteadyThreads(1, "call log reader")
        self._unwritten: deque[CallRecord] = deque()
        """Records that the writer has taken, at most ``QUEUED`` of them while the disk refuses them."""
        self._written = 0
        self.fault = FileFault("call log cannot be written")
        self._lock = threading.Lock()
        self._database: Engine | None = None
        self._file: tuple[int, int] | None = None
        """The ``identity`` of the open file."""
        self.shared: SharedDatabase | None = None
        if postgres is not None and postgres.url is not None and meter is not None:
            self.shared = SharedDatabase(postgres, self._handover(), meter)

    def start(self) -> None:
        """Start the writer."""
        self._writer = SUPERVISOR.thread("call log", self._write_all)

    async def aclose(self) -> None:
        """Write the waiting records, for some seconds at most, and close the database."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.join, _CLOSE_S)
        if self.shared is not None:
            await self.shared.aclose()
        self._reader.shutdown(cancel_futures=True)
        if self._database is not None:
            self._database.dispose()

    def add(self, record: CallRecord) -> None:
        """Queue a record. Never blocks and never raises: a full queue or disk loses the record, nothing else."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._on_lost("queue_full")

    async def find(self, query: Query) -> Sequence[CallSummary]:
        """Return calls, newest first.

        Raises:
            Rejected: 503 if the database cannot be read.
        """
        here = await self.read(lambda: self._rows(_select(query), _summary))
        if self.shared is None:
            return here
        # Read second, so no call that moves meanwhile is missed.
        there = await self._asked(lambda connection: _found(connection, query))
        both = {call.callId: call for call in (*here, *there)}
        in_order = sorted(
            both.values(), key=lambda call: (sorted_value(call, query.sort), call.callId), reverse=not query.ascending
        )
        return in_order[: query.limit]

    async def totals(self, query: Query) -> Totals:
        """Return the sums over all calls of a query, whatever its ``before`` and ``limit``. A call that moves to the
        shared database meanwhile may count twice.

        Raises:
            Rejected: 503 if the database cannot be read.
        """
        wanted = _summed(query)
        (here,) = await self.read(lambda: self._rows(wanted, _totals))
        if self.shared is None:
            return here
        return here + await self._asked(lambda connection: _totals(connection.execute(wanted).one()))

    async def get(self, call_id: str) -> CallRecord | None:
        """Return the full record of a call. None: the log has no such call.

        Raises:
            Rejected: 503 if the database cannot be read.
        """
        wanted = select(calls).where(calls.c.call_id == call_id)
        found = await self.read(lambda: self._rows(wanted, _record))
        if not found and self.shared is not None:
            found = await self._asked(lambda connection: [_record(row) for row in connection.execute(wanted)])
        return found[0] if found else None

    async def read(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the reading thread, for example to serialise what was found.

        Raises:
            Rejected: 503 if the database cannot be read.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except (SQLAlchemyError, OSError) as exc:
            if is_damaged(exc):
                with contextlib.suppress(queue.Full):
                    self._waiting.put_nowait(_Replace.DAMAGED)
            raise _unreadable(type(exc).__name__) from None

    async def _asked(self, work: Callable[[Connection], T]) -> T:
        assert self.shared is not None
        try:
            return await self.shared.ask(work)
        except OSError as exc:
            raise _unreadable(str(exc)) from None

    def _rows(self, statement: Select[Any], make: Callable[[Row[Any]], T]) -> Sequence[T]:
        with self._opened().connect() as connection:
            return [made for part in in_parts(connection.execute(statement)) for made in map(make, part)]

    # --- the writer's thread ---------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            self._opened()
        except (SQLAlchemyError, OSError) as exc:
            if not is_damaged(exc):  # a damaged file is replaced with the first record
                self.fault.note(exc)
        ends = False
        while not ends:
            try:
                record = self._waiting.get(timeout=_AGAIN_S if self._unwritten else None)
                ends = record is None
            except queue.Empty:
                record = None
            if record is _Replace.DAMAGED:
                try:
                    self._replace_damaged()
                except OSError as exc:
                    log.error("damaged database cannot be set aside", extra={"why": exc.strerror})
            elif record is not None:
                self._unwritten.append(record)
            self._write_what_waits(last=ends)

    def _write_what_waits(self, *, last: bool) -> None:
        """Write the records in order. If the file is locked or the disk full, keep them unless it is the ``last``
        try."""
        while self._unwritten:
            record = self._unwritten[0]
            try:
                self._write(record)
                self.fault.note(None)
            except Exception as exc:  # one record, or the disk, which may have recovered by the next one
                if not self.fault.note(exc):
                    extra = {"call": record.callId, "route": record.route, "why": type(exc).__name__}
                    log.error("a call cannot be written to the call log", extra=extra)
                elif not may_pass(exc):
                    with self._lock:
                        self._forget()  # its tables may be mended by the next record
                if may_pass(exc) and not last:
                    while len(self._unwritten) > QUEUED:
                        self._unwritten.pop()
                        self._on_lost("not_written")
                    return
                self._on_lost("not_written")
            self._unwritten.popleft()

    def _write(self, record: CallRecord) -> None:
        try:
            with self._opened().begin() as connection:
                if self._written % _TIDY_EVERY == 0:
                    self._tidy(connection)
                # The record may exist already, if it was written and then queued again.
                there = select(calls.c.call_id).where(calls.c.call_id == record.callId)
                if connection.execute(there).first() is None:
                    connection.execute(insert(calls).values(**_columns(record)))
        except DatabaseError as exc:
            if not is_damaged(exc):
                raise
            self._replace_damaged()
            with self._opened().begin() as connection:
                connection.execute(insert(calls).values(**_columns(record)))
        self._written += 1

    def _forget(self) -> None:
        """Let the next use open the file again. Call it with the lock."""
        if self._database is not None:
            self._database.dispose()
        self._database = None

    def _replace_damaged(self) -> None:
        with self._lock:
            self._forget()
            set_aside(Path(self._config.folder, _FILE))

    def _tidy(self, connection: Connection) -> int:
        """Delete expired calls and the oldest beyond ``max_calls``. Return their number."""
        old = select(calls.c.call_id).where(calls.c.started_at < time.time() - self._config.keep_days * 86_400)
        newest = select(calls.c.started_at).order_by(calls.c.started_at.desc()).offset(self._config.max_calls).limit(1)
        too_many = select(calls.c.call_id).where(calls.c.started_at <= newest.scalar_subquery())
        return sum(
            connection.execute(delete(calls).where(calls.c.call_id.in_(which.limit(TIDIED_AT_ONCE)))).rowcount
            for which in (old, too_many)
        )

    def _handover(self) -> Handover:
        return Handover(
            what="calls",
            local=self._opened,
            lock_path=Path(self._config.folder, "calls.sqlite3.postgres.lock"),
            table=calls,
            began_at=calls.c.started_at,
            is_over=true(),
            make_tables=SCHEMA.bring_up_to_date,
            moved=lambda connection, rows: None,
            delete_old=self._tidy,
            given_up=lambda: self._on_lost("given_up"),
        )

    def _opened(self) -> Engine:
        """Return the database, created at first use, and again if its file was removed. Both threads call this."""
        path = Path(self._config.folder, _FILE)
        with self._lock:
            if self._database is not None and identity(path) != self._file:
                log.error("database file was removed, a new one begins", extra={"file": _FILE})
                self._database.dispose()
                self._database = None
            if self._database is None:
                self._database = _open(Path(self._config.folder))
                self._file = identity(path)
            return self._database


def in_parts(rows: Iterable[T]) -> Iterator[Sequence[T]]:
    """Cut rows into short parts and yield the interpreter after each, for the loop that paces calls. Without this, a
    computing thread would keep the interpreter for 5 ms."""
    left = iter(rows)
    while part := tuple(itertools.islice(left, _PART)):
        yield part
        time.sleep(0)


def _unreadable(why: str) -> Rejected:
    log.error("call log cannot be read", extra={"why": why})
    return Rejected("the call log cannot be read now", status=503, code="call_log_unavailable")


def _open(folder: Path) -> Engine:
    database = open_sqlite(folder / _FILE, busy_s=_BUSY_S)

    @event.listens_for(database, "connect")
    def _settings(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    with database.begin() as connection:
        SCHEMA.bring_up_to_date(connection)
    return database


_COLUMNS = {
    "callId": "call_id",
    "callSid": "call_sid",
    "route": "route",
    "transport": "transport",
    "direction": "direction",
    "from_": "from_number",
    "to": "to_number",
    "startedAt": "started_at",
    "durationMs": "duration_ms",
    "reason": "reason",
    "endedBy": "ended_by",
    "sipStatus": "sip_status",
    "q850": "q850",
    "endText": "end_text",
    "correlationId": "correlation_id",
    "answeredBy": "answered_by",
    "outcome": "outcome",
    "turns": "turns",
    "gaps": "gaps",
    "gapMs": "gap_ms",
    "firstPacketMs": "first_packet_ms",
}
"""The database column of each field of a summary."""


def _columns(record: CallRecord) -> dict[str, object]:
    said = [entry.text for entry in record.entries if isinstance(entry, (Said, HeardWords)) and entry.text]
    return {column: getattr(record, field) for field, column in _COLUMNS.items()} | {
        "words": "\n".join(said),
        "entries": orjson.dumps([entry.model_dump() for entry in record.entries]).decode(),
        "entries_lost": record.entriesLost,
    }


def _fields(row: Row[Any]) -> dict[str, Any]:
    return {field: getattr(row, column) for field, column in _COLUMNS.items()}


def _summary(row: Row[Any]) -> CallSummary:
    return CallSummary(**_fields(row))


def _record(row: Row[Any]) -> CallRecord:
    return CallRecord(**_fields(row), entries=_ENTRIES.validate_json(row.entries), entriesLost=row.entries_lost)


def _select(query: Query) -> Select[Any]:
    """Return the SQL statement of a query."""
    columns = (column for column in calls.c if column.name not in ("words", "entries", "entries_lost"))
    statement = _narrowed(select(*columns), query)
    value, _ = _SORTED[query.sort]
    place = tuple_(value, calls.c.call_id)
    if query.before is not None:
        statement = statement.where(place > query.before if query.ascending else place < query.before)
    order = (value.asc(), calls.c.call_id.asc()) if query.ascending else (value.desc(), calls.c.call_id.desc())
    return statement.order_by(*order).limit(query.limit)


def _summed(query: Query) -> Select[Any]:
    """Return the SQL statement of the totals of a query."""
    failed = func.sum(case((calls.c.outcome == "failed", 1), else_=0))
    sums = (func.sum(column) for column in (calls.c.duration_ms, calls.c.turns, calls.c.gaps))
    columns: list[ColumnElement[Any]] = [func.count(), failed, *sums]
    return _narrowed(select(*columns).select_from(calls), query)


def _totals(row: Row[Any]) -> Totals:
    return Totals(*(int(value or 0) for value in row))


def _narrowed(statement: Select[Any], query: Query) -> Select[Any]:
    """Return the statement for the calls of a query alone."""
    if query.from_number:
        statement = statement.where(calls.c.from_number.contains(query.from_number, autoescape=True))
    if query.to_number:
        statement = statement.where(calls.c.to_number.contains(query.to_number, autoescape=True))
    if query.route:
        statement = statement.where(calls.c.route == query.route)
    if query.routes is not None:
        statement = statement.where(calls.c.route.in_(query.routes))
    if query.call_id:
        statement = statement.where(calls.c.call_id == query.call_id)
    if query.text:
        statement = statement.where(calls.c.words.icontains(query.text, autoescape=True))
    if query.since is not None:
        statement = statement.where(calls.c.started_at >= query.since)
    if query.until is not None:
        statement = statement.where(calls.c.started_at <= query.until)
    if query.number:
        numbers = (calls.c.from_number, calls.c.to_number)
        statement = statement.where(or_(*(each.contains(query.number, autoescape=True) for each in numbers)))
    if query.outcome:
        statement = statement.where(calls.c.outcome == query.outcome)
    if query.shortest_ms is not None:
        statement = statement.where(calls.c.duration_ms >= query.shortest_ms)
    if query.longest_ms is not None:
        statement = statement.where(calls.c.duration_ms <= query.longest_ms)
    return statement


def _found(connection: Connection, query: Query) -> Sequence[CallSummary]:
    """Return the calls of a query. They are read in parts, and the interpreter is yielded between them."""
    found: list[CallSummary] = []
    before = query.before
    while len(found) < query.limit:
        limit = min(_PART, query.limit - len(found))
        rows = connection.execute(_select(replace(query, before=before, limit=limit))).all()
        found += map(_summary, rows)
        if len(rows) < limit:
            break
        before = (sorted_value(found[-1], query.sort), found[-1].callId)
        time.sleep(0)
    return found
