"""The tables of the call log, for any database that SQLAlchemy speaks to."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text

VERSION = 1
"""Number of this schema. A database of another version is not written to."""

metadata = MetaData()

schema = Table("call_log_schema", metadata, Column("version", Integer, primary_key=True))

calls = Table(
    "calls",
    metadata,
    Column("call_id", String(34), primary_key=True),
    Column("call_sid", String(128), nullable=False),
    Column("route", String(128), nullable=False),
    Column("transport", String(32), nullable=False),
    Column("direction", String(32), nullable=False),
    Column("from_number", String(500), nullable=False),
    Column("to_number", String(500), nullable=False),
    Column("started_at", Float, nullable=False),  # seconds since the epoch
    Column("duration_ms", Integer, nullable=False),
    Column("reason", String(128), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("turns", Integer, nullable=False),
    Column("gaps", Integer, nullable=False),
    Column("gap_ms", Integer, nullable=False),
    Column("first_packet_ms", Float),
    Column("words", Text, nullable=False),  # what both sides said, to be searched; empty where text is not kept
    Column("entries", Text, nullable=False),  # JSON
    Column("entries_lost", Integer, nullable=False),
    Index("calls_by_start", "started_at", "call_id"),
    Index("calls_by_route", "route", "started_at"),
)
