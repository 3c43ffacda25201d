"""Metrics of what is kept after a call or request: call log, records and their webhook, shared database, recordings."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.postgres import DatabaseState


class StoreMetrics:
    """Metrics of the stores, in the gateway's registry. Implements ``RecordsMeter``, ``DeliveryMeter`` and
    ``DatabaseMeter``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._call_log_lost = Counter(
            "talkspurt_call_log_lost",
            "Ended calls that the call log does not have: queue_full, not_written, given_up.",
            ["reason"],
            registry=registry,
        )
        self._records_lost = Counter(
            "talkspurt_records_lost",
            "Beginnings and ends of calls and requests that could not be written: queue_full, not_written, "
            "closed, given_up.",
            ["reason"],
            registry=registry,
        )
        self._records_late = Counter(
            "talkspurt_records_late",
            "Calls and requests that proceeded before the disk had the beginnings of their records.",
            registry=registry,
        )
        self._record_deliveries = Counter(
            "talkspurt_record_deliveries",
            "Attempts to send a record to the webhook: delivered, failed; and records given_up as too old or too many.",
            ["outcome"],
            registry=registry,
        )
        self._records_pending = Gauge(
            "talkspurt_records_pending", "Records that wait for the webhook.", registry=registry
        )
        self._database_answers = Gauge(
            "talkspurt_database_answers", "1: PostgreSQL answers; 0: it does not. By its data: calls, records.", ["of"],
            registry=registry,
        )  # fmt: skip
        self._database_waiting = Gauge(
            "talkspurt_database_waiting", "Ended calls, and records, on the local disk that PostgreSQL lacks.", ["of"],
            registry=registry,
        )  # fmt: skip
        self._recordings_lost = Counter(
            "talkspurt_recordings_lost", "Recordings lost with their file or SIPREC server, by reason.", ["reason"],
            registry=registry,
        )  # fmt: skip

    def call_log_lost(self, reason: str) -> None:
        """Count an ended call whose record was lost."""
        self._call_log_lost.labels(reason).inc()

    def record_lost(self, reason: str) -> None:
        """Count a beginning or an end of a record that the database does not have."""
        self._records_lost.labels(reason).inc()

    def record_late(self) -> None:
        """Count a call or request that stopped waiting for the beginning of its record."""
        self._records_late.inc()

    def record_deliveries(self, outcome: str, count: int = 1) -> None:
        """Count attempts to send a record (``delivered`` or ``failed``), or records that were ``given_up``."""
        self._record_deliveries.labels(outcome).inc(count)

    def records_pending(self, count: int) -> None:
        """Set the number of records that wait for the webhook."""
        self._records_pending.set(count)

    def shared_database(self, state: DatabaseState) -> None:
        """Set the state of a shared database."""
        self._database_answers.labels(state.of).set(state.answers)
        self._database_waiting.labels(state.of).set(state.waiting)

    def recording_lost(self, reason: str) -> None:
        """Count a call whose recording was stopped. ``reason``: ``disk_full``, ``unwritable``, ``hung``,
        ``overloaded``, or ``recorder`` for one at a session recording server."""
        self._recordings_lost.labels(reason).inc()
