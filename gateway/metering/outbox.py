"""Records that the webhook has not accepted yet. A record enters in the transaction that ends it, and leaves when the
receiver has confirmed it. Every function is one step of a transaction that its caller opens."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, delete, func, or_, select, update
from sqlalchemy.dialects.sqlite import insert

from gateway.metering.record import MeterRecord
from gateway.metering.schema import outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A record to be delivered."""

    record_id: str
    body: bytes
    """JSON, the same in every attempt."""
    attempts: int
    """Number of failed attempts."""


def put(connection: Connection, record: MeterRecord, now: float) -> None:
    """Queue an ended record for delivery."""
    ended_at = datetime.datetime.fromtimestamp(record.endedAt or record.startedAt, datetime.UTC)
    body = {
        "type": f"{record.kind}.ended",
        "timestamp": ended_at.isoformat(timespec="milliseconds"),
        "data": record.model_dump(by_alias=True),
    }
    values = {"id": record.id, "body": orjson.dumps(body).decode(), "madeAt": now, "attempts": 0, "dueAt": now}
    # A record that was moved to PostgreSQL and is reported again may still wait here.
    connection.execute(insert(outbox).on_conflict_do_nothing(index_elements=["id"]).values(values))


def due(connection: Connection, now: float, *, limit: int, longest_wait_s: float) -> Sequence[Delivery]:
    """Return the records to be sent now, the longest waiting first. One that would wait for longer than
    ``longest_wait_s`` was postponed by a clock that was set back since, and is due."""
    is_due = or_(outbox.c.dueAt <= now, outbox.c.dueAt > now + longest_wait_s)
    wanted = select(outbox).where(is_due).order_by(outbox.c.dueAt, outbox.c.id).limit(limit)
    return [
        Delivery(record_id=row.id, body=row.body.encode(), attempts=row.attempts)
        for row in connection.execute(wanted).all()
    ]


def delivered(connection: Connection, record_ids: Collection[str]) -> None:
    """Delete records that the receiver has."""
    connection.execute(delete(outbox).where(outbox.c.id.in_(record_ids)))


def postpone(connection: Connection, delivery: Delivery, *, due_at: float) -> None:
    """Record a failed attempt, and set the time of the next one."""
    later = update(outbox).where(outbox.c.id == delivery.record_id)
    connection.execute(later.values(attempts=delivery.attempts + 1, dueAt=due_at))


def give_up(connection: Connection, *, made_before: float, most: int) -> int:
    """Delete records that are too old, and the oldest above ``most``. Return their number."""
    given_up = connection.execute(delete(outbox).where(outbox.c.madeAt < made_before)).rowcount
    too_many = pending(connection) - most
    if too_many > 0:
        oldest = select(outbox.c.id).order_by(outbox.c.madeAt, outbox.c.id).limit(too_many)
        given_up += connection.execute(delete(outbox).where(outbox.c.id.in_(oldest))).rowcount
    return given_up


def pending(connection: Connection) -> int:
    """Return the number of waiting records."""
    return connection.execute(select(func.count()).select_from(outbox)).scalar_one()
