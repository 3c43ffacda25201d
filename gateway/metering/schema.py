"""The tables of records and usage, for any database of SQLAlchemy, and their migrations.

Texts have no length: SQLite would not enforce it, and PostgreSQL would refuse what SQLite has taken.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

from gateway.versioned_schema import ID, VersionedSchema, add_columns

metadata = MetaData()

_TEXTS = ("outcome", "reason", "route", "transport", "direction", "from_", "to")
_NUMBERS = ("characters", "turns", "cuts", "gaps", "gapMs")

records = Table(
    "records",
    metadata,
    Column("id", ID, primary_key=True),
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
    Column("correlationId", String),
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
    Column("id", ID, primary_key=True),  # of the record
    Column("body", Text, nullable=False),  # JSON, as it is sent
    Column("madeAt", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("dueAt", Float, nullable=False),
    Index("records_outbox_by_time", "dueAt"),
)

versions = Table("records_schema", metadata, Column("version", Integer, primary_key=True))

SCHEMA = VersionedSchema(
    what="records",
    shared=(records, usage, versions),
    local=(outbox,),  # it stays with the process that delivers
    versions=versions,
    steps={
        # Crashed records had no end and were in no day; their counts are not known any more.
        2: ("""UPDATE records SET "endedAt" = "startedAt" WHERE outcome = 'crashed' AND "endedAt" IS NULL""",),
        3: add_columns(
            "records",
            packetsReceived="INTEGER",
            packetsLost="INTEGER",
            lossFraction="FLOAT",
            jitterMs="FLOAT",
            maxJitterMs="FLOAT",
            remotePacketsLost="INTEGER",
            remoteJitterMs="FLOAT",
        ),
        4: ('CREATE INDEX IF NOT EXISTS records_by_start ON records ("startedAt")',),
        5: add_columns("records", endedBy="VARCHAR", sipStatus="INTEGER", q850="INTEGER", endText="VARCHAR"),
        6: add_columns("records", correlationId="VARCHAR"),
    },
)
