"""The tables of the call log, for any database that SQLAlchemy supports."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text

from gateway.versioned_schema import ID, VersionedSchema, add_columns

metadata = MetaData()

calls = Table(
    "calls",
    metadata,
    Column("call_id", ID, primary_key=True),
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
    Column("correlation_id", String),
    Column("answered_by", String),
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

versions = Table("call_log_schema", metadata, Column("version", Integer, primary_key=True))

SCHEMA = VersionedSchema(
    what="calls",
    shared=(calls, versions),
    versions=versions,
    steps={
        2: add_columns("calls", ended_by="VARCHAR", sip_status="INTEGER", q850="INTEGER", end_text="VARCHAR"),
        3: add_columns("calls", correlation_id="VARCHAR"),
        4: add_columns("calls", answered_by="VARCHAR"),
    },
)
