"""Writes records into a database and counts them in their days, each exactly once. Every function is one step of a
transaction that its caller opens."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, delete, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert

from gateway.metering.record import MeterRecord, UsageDay
from gateway.metering.schema import records, usage

USAGE_DAYS = 400
"""Days of usage that are kept."""

_DAY_S = 86_400

# Statements of every call are built once: SQLAlchemy takes longer to build one than SQLite to carry it out.
_BEGIN = insert(records).on_conflict_do_nothing(index_elements=["id"])
_END = (
    update(records)
    .where(records.c.id == bindparam("of_id"), records.c.outcome == "open")
    .values({column.name: bindparam(column.name) for column in records.c})
)
_ADDED = insert(usage)
_COUNT = _ADDED.on_conflict_do_update(
    index_elements=["tenant", "day"],
    set_={column.name: column + _ADDED.excluded[column.name] for column in usage.c if not column.primary_key},
)


def begin(connection: Connection, record: MeterRecord, owner: str) -> None:
    """Write a record that goes on, unless there is one of its id."""
    connection.execute(_BEGIN, record.model_dump() | {"owner": owner})


def write_ahead(connection: Connection, so_far: Iterable[MeterRecord]) -> None:
    """Write how far records have come that are still open."""
    is_open = update(records).where(records.c.id == bindparam("of_id"), records.c.outcome == "open")
    values = [{"of_id": record.id} | {name: getattr(record, name) for name in _MOVES} for record in so_far]
    if values:
        connection.execute(is_open.values({name: bindparam(name) for name in _MOVES}), values)


_MOVES = (
    *("endedAt", "characters", "audioSeconds", "turns", "cuts", "gaps", "gapMs", "firstPacketMs"),
    *("packetsReceived", "packetsLost", "lossFraction", "jitterMs", "maxJitterMs"),
    *("remotePacketsLost", "remoteJitterMs"),
)
"""Fields of a record that change while it is open."""


def end(connection: Connection, record: MeterRecord, owner: str) -> bool:
    """Write the end of a record and count it. Return False if that was done before."""
    begin(connection, record.model_copy(update={"outcome": "open"}), owner)  # its beginning may have been lost
    if not connection.execute(_END, record.model_dump() | {"owner": owner, "of_id": record.id}).rowcount:
        return False
    count(connection, record)
    return True


def count(connection: Connection, record: MeterRecord) -> None:
    """Add a record to its day."""
    ended_at = record.startedAt if record.endedAt is None else record.endedAt
    is_call = record.kind == "call"
    more = {
        "requests": 0 if is_call else 1,
        "characters": record.characters,
        "calls": 1 if is_call else 0,
        "audioSeconds": record.audioSeconds,
        "callSeconds": ended_at - record.startedAt if is_call else 0.0,
    }
    connection.execute(_COUNT, more | {"tenant": record.tenant, "day": _day(ended_at)})


def open_owners(connection: Connection) -> Sequence[str]:
    """Return the processes that have open records."""
    return connection.execute(select(records.c.owner).where(records.c.outcome == "open").distinct()).scalars().all()


def left_open(connection: Connection, owner: str) -> Sequence[MeterRecord]:
    """Return what a process that died left open, as it ended: when it was last known to go on."""
    wanted = _shown().where(records.c.outcome == "open", records.c.owner == owner)
    return [
        MeterRecord(**{**row, "endedAt": row["startedAt"] if row["endedAt"] is None else row["endedAt"]}).model_copy(
            update={"outcome": "crashed"}
        )
        for row in connection.execute(wanted).mappings()
    ]


def find(
    connection: Connection,
    tenant: str,
    *,
    since: float,
    until: float,
    limit: int,
    after: tuple[float, str] | None = None,
) -> Sequence[MeterRecord]:
    """Return a tenant's records that began in a time, oldest first; ``after`` as in ``Records.find``."""
    at = records.c.startedAt
    wanted = _shown().where(records.c.tenant == tenant, at >= since, at < until)
    if after is not None:
        wanted = wanted.where(tuple_(at, records.c.id) > after)
    rows = connection.execute(wanted.order_by(at, records.c.id).limit(limit)).mappings()
    return [MeterRecord(**_without_end_of_open(row)) for row in rows]


def days(connection: Connection, tenant: str) -> Sequence[UsageDay]:
    """Return a tenant's days, newest first."""
    wanted = select(*(column for column in usage.c if column.name != "tenant")).where(usage.c.tenant == tenant)
    return [UsageDay(**row) for row in connection.execute(wanted.order_by(usage.c.day.desc())).mappings()]


def delete_old(connection: Connection, *, keep_days: int, now: float) -> None:
    """Delete ended records of more than ``keep_days`` days, and usage of more than ``USAGE_DAYS``."""
    old = records.c.startedAt < now - keep_days * _DAY_S
    connection.execute(delete(records).where(old, records.c.outcome != "open"))
    connection.execute(delete(usage).where(usage.c.day < _day(now - USAGE_DAYS * _DAY_S)))


def _shown() -> Any:
    return select(*(column for column in records.c if column.name != "owner"))


def _without_end_of_open(row: RowMapping) -> Mapping[str, Any]:
    return {**row, "endedAt": None if row["outcome"] == "open" else row["endedAt"]}


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()
