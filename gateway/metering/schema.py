"""The tables of records and usage, for any database of SQLAlchemy, and their migrations.

``records_schema`` has a database's version. An older one is migrated step by step in one transaction. A newer one is
refused, since an older process would count wrongly in it. Texts have no length: SQLite would not enforce it, and
PostgreSQL would refuse what SQLite has taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    BigInteger,
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
    inspect,
    select,
    update,
)

metadata = MetaData()

Id = String().with_variant(String(collation="C"), "postgresql")
"""An identifier, sorted by its bytes everywhere, so that pages of two databases can be merged."""

_TEXTS = ("outcome", "reason", "route", "transport", "direction", "from_", "to")
_NUMBERS = ("characters", "turns", "cuts", "gaps", "gapMs")

records = Table(
    "records",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("startedAt", Float, nullable=False),
    Column("endedAt", Float),  # of an open record: the last time at which it was known to be open
    *(Column(name, String, nullable=False) for name in _TEXTS),
    *(Column(name, Integer, nullable=False) for name in _NUMBERS),
    Column("audioSeconds", Float, nullable=False),
    Column("firstPacketMs", Float),
    Column("packetsReceived", Integer),
    Column("packetsLost", Integer),
    Column("lossFraction", Float),
    Column("jitterMs", Float),
    Column("maxJitterMs", Float),
    Column("remotePacketsLost", Integer),
    Column("remoteJitterMs", Float),
    Column("endedBy", String),
    Column("sipStatus", Integer),
    Column("q850", Integer),
    Column("endText", String),
    Column("owner", String, nullable=False),  # the process that writes it; never shown
    Index("records_by_tenant", "tenant", "startedAt", "id"),
    Index("records_by_owner", "outcome", "owner"),
    Index("records_by_start", "startedAt"),
)

usage = Table(
    "usage",
    metadata,
    Column("tenant", String, primary_key=True),
    Column("day", String, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in ("requests", "characters", "calls")),
    *(Column(name, Float, nullable=False) for name in ("audioSeconds", "callSeconds")),
)

outbox = Table(
    "records_outbox",
    metadata,
    Column("id", Id, primary_key=True),  # of the record
    Column("body", Text, nullable=False),  # JSON, as it is sent
    Column("madeAt", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("dueAt", Float, nullable=False),
    Index("records_outbox_by_time", "dueAt"),
)

schema = Table("records_schema", metadata, Column("version", Integer, primary_key=True))

STEPS: Mapping[int, Sequence[str]] = {
    # Crashed records had no end and were in no day; their counts are not known any more.
    2: ("""UPDATE records SET "endedAt" = "startedAt" WHERE outcome = 'crashed' AND "endedAt" IS NULL""",),
    3: tuple(
        f'ALTER TABLE records ADD COLUMN "{name}" {kind}'
        for name, kind in (
            ("packetsReceived", "INTEGER"),
            ("packetsLost", "INTEGER"),
            ("lossFraction", "FLOAT"),
            ("jitterMs", "FLOAT"),
            ("maxJitterMs", "FLOAT"),
            ("remotePacketsLost", "INTEGER"),
            ("remoteJitterMs", "FLOAT"),
        )
    ),
    4: ('CREATE INDEX IF NOT EXISTS records_by_start ON records ("startedAt")',),
    5: tuple(
        f'ALTER TABLE records ADD COLUMN "{name}" {kind}'
        for name, kind in (
            ("endedBy", "VARCHAR"),
            ("sipStatus", "INTEGER"),
            ("q850", "INTEGER"),
            ("endText", "VARCHAR"),
        )
    ),
}
"""Migration to each version from the one before, in SQL. New tables are made anyway. Version 1 did not store its
version."""

VERSION = max(STEPS)


def bring_up_to_date(connection: Connection) -> None:
    """Make the tables, or migrate existing ones to this version.

    Raises:
        OSError: the database is of a later version.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # or each statement would be a transaction of its own
    is_new = not inspect(connection).has_table(records.name)
    # The outbox stays in the local database, with the process that delivers.
    metadata.create_all(connection, tables=None if connection.dialect.name == "sqlite" else [records, usage, schema])
    version = connection.execute(select(func.max(schema.c.version))).scalar()
    if version is None:
        version = VERSION if is_new else 1
        connection.execute(insert(schema).values(version=version))
    if version > VERSION:
        raise OSError(f"the database of records has schema {version}, expected {VERSION} at most")
    for step in range(version + 1, VERSION + 1):
        for statement in STEPS[step]:
            connection.exec_driver_sql(statement)
        connection.execute(update(schema).values(version=step))
