"""The tables of the call log, for any database that SQLAlchemy supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    select,
    update,
)

STEPS: Mapping[int, Sequence[str]] = {
    2: tuple(
        f"ALTER TABLE calls ADD COLUMN {name} {kind}"
        for name, kind in (
            ("ended_by", "VARCHAR"),
            ("sip_status", "INTEGER"),
            ("q850", "INTEGER"),
            ("end_text", "VARCHAR"),
        )
    ),
}
"""Migration to each version from the one before, in SQL."""

VERSION = max(STEPS)
"""Version of this schema. A database of a later version is not written to."""

metadata = MetaData()

Id = String().with_variant(String(collation="C"), "postgresql")
"""An identifier, sorted by its bytes in every database, so that pages of two databases can be merged."""

schema = Table("call_log_schema", metadata, Column("version", Integer, primary_key=True))

calls = Table(
    "calls",
    metadata,
    Column("call_id", Id, primary_key=True),
    Column("call_sid", String, nullable=False),
    Column("route", String, nullable=False),
    Column("transport", String, nullable=False),
    Column("direction", String, nullable=False),
    Column("from_number", String, nullable=False),
    Column("to_number", String, nullable=False),
    Column("started_at", Float, nullable=False),  # seconds since the epoch
    Column("duration_ms", Integer, nullable=False),
    Column("reason", String, nullable=False),
    Column("ended_by", String),
    Column("sip_status", Integer),
    Column("q850", Integer),
    Column("end_text", String),
    Column("outcome", String, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("gaps", Integer, nullable=False),
    Column("gap_ms", Integer, nullable=False),
    Column("first_packet_ms", Float),
    Column("words", Text, nullable=False),  # what both sides said, for searches; empty if text is not kept
    Column("entries", Text, nullable=False),  # JSON
    Column("entries_lost", Integer, nullable=False),
    Index("calls_by_start", "started_at", "call_id"),
    Index("calls_by_route", "route", "started_at"),
)


def make_tables(connection: Connection) -> None:
    """Create missing tables, or migrate existing ones to this version.

    Raises:
        OSError: the existing tables have a later version.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # another process may be creating them now
    metadata.create_all(connection)
    version = connection.execute(select(func.max(schema.c.version))).scalar()
    if version is None:
        connection.execute(insert(schema).values(version=VERSION))
        return
    if version > VERSION:
        raise OSError(f"the call log has schema {version}, expected {VERSION} at most")
    for step in range(version + 1, VERSION + 1):
        for statement in STEPS[step]:
            connection.exec_driver_sql(statement)
        connection.execute(update(schema).values(version=step))
