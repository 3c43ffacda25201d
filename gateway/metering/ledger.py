"""Writes records into a database and adds them to their days, each exactly once. Every function is one step of a
transaction that its caller opens."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Table,
    bindparam,
    delete,
    select,
    true,
    tuple_,
    update,
)

from gateway.metering.record import MeterRecord, UsageDay
from gateway.metering.schema import records, usage
from gateway.postgres import INSERT

USAGE_DAYS = 400
"""Days for which usage is kept."""

IS_OVER = records.c.outcome != "open"
"""Condition for records that have ended."""

_DAY_S = 86_400
_ROWS_AT_A_TIME = 25  # rows that are read at a time
_NO_LIMIT = 10**9

# Statements for every call are built once: SQLAlchemy takes longer to build one than SQLite to run it.
_BEGIN = {name: insert(records).on_conflict_do_nothing(index_elements=["id"]) for name, insert in INSERT.items()}
_END = (
    update(records)
    .where(records.c.id == bindparam("of_id"), records.c.outcome == "open")
    .values({column.name: bindparam(column.name) for column in records.c})
)
_ADDED = {name: insert(usage) for name, insert in INSERT.items()}
_SUMS = tuple(column.name for column in usage.c if not column.primary_key)
_COUNT = {
    name: added.on_conflict_do_update(
        index_elements=["tenant", "day"], set_={sum_: usage.c[sum_] + added.excluded[sum_] for sum_ in _SUMS}
    )
    for name, added in _ADDED.items()
}


def begin(connection: Connection, begun: Iterable[MeterRecord], owner: str) -> None:
    """Write open records, unless records of their ids exist."""
    connection.execute(_BEGIN[connection.dialect.name], [record.model_dump() | {"owner": owner} for record in begun])


def write_ahead(connection: Connection, so_far: Iterable[MeterRecord]) -> None:
    """Update the counts of records that are still open."""
    is_open = update(records).where(records.c.id == bindparam("of_id"), records.c.outcome == "open")
    values = [{"of_id": record.id} | {name: getattr(record, name) for name in _CHANGING_FIELDS} for record in so_far]
    if values:
        connection.execute(is_open.values({name: bindparam(name) for name in _CHANGING_FIELDS}), values)


_CHANGING_FIELDS = (
    *("endedAt", "characters", "audioSeconds", "turns", "cuts", "gaps", "gapMs", "firstPacketMs"),
    *("packetsReceived", "packetsLost", "lossFraction", "jitterMs", "maxJitterMs"),
    *("remotePacketsLost", "remoteJitterMs"),
)
"""Fields of a record that change while it is open."""


def end(connection: Connection, record: MeterRecord, owner: str) -> bool:
    """Write the end of a record and count it. Return False if that was done before."""
    begin(connection, [record.model_copy(update={"outcome": "open"})], owner)  # its beginning may have been lost
    if not connection.execute(_END, record.model_dump() | {"owner": owner, "of_id": record.id}).rowcount:
        return False
    count(connection, [record])
    return True


def count(connection: Connection, ended: Iterable[MeterRecord]) -> None:
    """Add records to their days."""
    sums = _by_day(ended)
    values = [dict(zip(("tenant", "day"), key, strict=True)) | sums[key] for key in sorted(sums)]
    for value in values:  # always in the same order, so that two gateways do not deadlock
        connection.execute(_COUNT[connection.dialect.name], value)


def count_rows(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows of the table of records to their days."""
    count(connection, [MeterRecord(**{name: value for name, value in row.items() if name != "owner"}) for row in rows])


def _by_day(ended: Iterable[MeterRecord]) -> Mapping[tuple[str, str], dict[str, float]]:
    """Return the sums of records by tenant and day."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for record in ended:
        ended_at = record.startedAt if record.endedAt is None else record.endedAt
        is_call = record.kind == "call"
        more = {
            "requests": 0 if is_call else 1,
            "characters": record.characters,
            "calls": 1 if is_call else 0,
            "audioSeconds": record.audioSeconds,
            "callSeconds": ended_at - record.startedAt if is_call else 0.0,
        }
        day = sums.setdefault((record.tenant, _day(ended_at)), dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            day[name] += more[name]
    return sums


def open_owners(connection: Connection) -> Sequence[str]:
    """Return the processes that have open records."""
    return connection.execute(select(records.c.owner).where(records.c.outcome == "open").distinct()).scalars().all()


def left_open(connection: Connection, owner: str) -> Sequence[MeterRecord]:
    """Return the open records of a dead process, ended at the last time that they were known to be open."""
    wanted = _shown().where(records.c.outcome == "open", records.c.owner == owner)
    return [
        MeterRecord(**{**row, "endedAt": row["startedAt"] if row["endedAt"] is None else row["endedAt"]}).model_copy(
            update={"outcome": "crashed"}
        )
        for row in connection.execute(wanted).mappings()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordScope:
    """The part of a tenant's records that a client sees."""

    routes: frozenset[str] | None = None
    """Only calls on these routes. None: all records."""
    call: str = ""
    """Only this call. Empty: all."""


def find(
    connection: Connection,
    tenant: str | None,
    *,
    since: float,
    until: float,
    limit: int,
    after: tuple[float, str] | None = None,
    of: RecordScope = RecordScope(),  # noqa: B008 - frozen
) -> Sequence[MeterRecord]:
    """Return records that began in a time range, oldest first; ``tenant`` and ``after`` as in ``Records.find``."""
    found: list[MeterRecord] = []
    while len(found) < limit:  # in parts, between which the loop that paces calls runs
        most = min(_ROWS_AT_A_TIME, limit - len(found))
        part = _part(connection, tenant, since=since, until=until, limit=most, after=after, of=of)
        found += part
        if len(part) < _ROWS_AT_A_TIME:
            break
        after = (part[-1].startedAt, part[-1].id)
        time.sleep(0)
    return found


def _part(
    connection: Connection,
    tenant: str | None,
    *,
    since: float,
    until: float,
    limit: int,
    after: tuple[float, str] | None,
    of: RecordScope,
) -> Sequence[MeterRecord]:
    at = records.c.startedAt
    wanted = _shown().where(_of(records, tenant), at >= since, at < until)
    if of.routes is not None:
        wanted = wanted.where(records.c.route.in_(of.routes))
    if of.call:
        wanted = wanted.where(records.c.id == of.call)
    if after is not None:
        wanted = wanted.where(tuple_(at, records.c.id) > after)
    rows = connection.execute(wanted.order_by(at, records.c.id).limit(limit)).mappings()
    return [MeterRecord(**_without_end_of_open(row)) for row in rows]


def _of(table: Table, tenant: str | None) -> ColumnElement[bool]:
    """Return the condition for the rows of a tenant. None: all tenants."""
    return true() if tenant is None else table.c.tenant == tenant


def ended(connection: Connection, tenant: str | None) -> Sequence[MeterRecord]:
    """Return a tenant's records that have ended. None: those of all tenants."""
    rows = connection.execute(_shown().where(_of(records, tenant), IS_OVER)).mappings()
    return [MeterRecord(**row) for row in rows]


def days(connection: Connection, tenant: str | None, others: Sequence[MeterRecord] = ()) -> Sequence[UsageDay]:
    """Return a tenant's days, newest first. None: the days of each tenant.

    Args:
        others: further ended records to count, unless the database has them.
    """
    if connection.dialect.name == "postgresql":  # so that rows that another process moves meanwhile are seen once
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    there: set[str] = set()
    for start in range(0, len(others), _ROWS_AT_A_TIME):
        ids = [record.id for record in others[start : start + _ROWS_AT_A_TIME]]
        there.update(connection.execute(select(records.c.id).where(records.c.id.in_(ids))).scalars())
    wanted = select(usage).where(_of(usage, tenant))
    sums = {(row["tenant"], row["day"]): dict(row) for row in connection.execute(wanted).mappings()}
    for key, more in _by_day(record for record in others if record.id not in there).items():
        known = sums.setdefault(key, {"tenant": key[0], "day": key[1], **dict.fromkeys(_SUMS, 0)})
        sums[key] = known | {name: known[name] + more[name] for name in _SUMS}
    by_tenant = sorted(sums.values(), key=lambda day: str(day["tenant"]))
    return [UsageDay(**day) for day in sorted(by_tenant, key=lambda day: str(day["day"]), reverse=True)]


def delete_old(connection: Connection, *, keep_days: int, now: float, most: int = _NO_LIMIT) -> int:
    """Delete up to ``most`` ended records older than ``keep_days``, and usage older than ``USAGE_DAYS``. Return the
    number of records."""
    old = select(records.c.id).where(records.c.startedAt < now - keep_days * _DAY_S, IS_OVER).limit(most)
    connection.execute(delete(usage).where(usage.c.day < _day(now - USAGE_DAYS * _DAY_S)))
    return connection.execute(delete(records).where(records.c.id.in_(old))).rowcount


def _shown() -> Any:
    return select(*(column for column in records.c if column.name != "owner"))


def _without_end_of_open(row: RowMapping) -> Mapping[str, Any]:
    return {**row, "endedAt": None if row["outcome"] == "open" else row["endedAt"]}


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()
