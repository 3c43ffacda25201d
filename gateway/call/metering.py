"""The billing record of one call: at its start, while it lasts and at its end."""

from __future__ import annotations

from collections.abc import Callable

from gateway.call.stats import CallStats
from gateway.metering.record import MeterRecord
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import CallInfo, MediaLeg, Reception

_NUMBER_CHARS = 500
"""Most characters of a number or a reason in a record."""


class Metering:
    """Builder of one call's records."""

    def __init__(self, call: CallInfo, leg: MediaLeg, stats: CallStats, clock: Callable[[], float]) -> None:
        self._call = call
        self.leg = leg
        self._stats = stats
        self._now = clock
        self._begun = clock()

    def begun(self, tenant: str, *, numbers: bool) -> MeterRecord:
        """Return the record at the start of the call. ``numbers``: keep the caller's and the called number."""
        call = self._call
        return MeterRecord(
            id=call.call_id,
            kind="call",
            tenant=tenant,
            startedAt=self._stats.started_at,
            route=call.route,
            transport=call.transport,
            direction=call.direction,
            correlationId=call.correlation_id,
            from_=call.from_[:_NUMBER_CHARS] if numbers else "",
            to=call.to[:_NUMBER_CHARS] if numbers else "",
        )

    def so_far(self, record: MeterRecord) -> MeterRecord:
        """Return the record with the current values; turns that have not ended are not included."""
        return record.model_copy(update=self._known(record))

    def ended(self, record: MeterRecord, reason: str, cause: EndCause, *, failed: bool) -> MeterRecord:
        """Return the record of the ended call."""
        ended = {
            "outcome": "failed" if failed else "completed",
            "reason": reason[:_NUMBER_CHARS],
            "endedBy": cause.by,
            "sipStatus": cause.sip_status,
            "q850": cause.q850,
            "endText": cause.text or None,
        }
        return record.model_copy(update=self._known(record) | ended)

    def _known(self, record: MeterRecord) -> dict[str, object]:
        stats = self._stats
        return {
            "endedAt": record.startedAt + self._now() - self._begun,
            "characters": stats.characters,
            "audioSeconds": stats.frames * self.leg.outbound.ptime_ms / 1000,
            "turns": stats.turns,
            "cuts": stats.cuts,
            "gaps": stats.gaps,
            "gapMs": round(stats.gap_s * 1000),
            "firstPacketMs": stats.longest_first_packet_ms,
            **_received(self.leg.reception()),
        }


def _received(reception: Reception | None) -> dict[str, float | None]:
    """Return the fields that describe the reception of the caller's audio."""
    if reception is None:
        return {}
    lost, remote_jitter_s = reception.lost, reception.remote_jitter_s
    return {
        "packetsReceived": reception.received,
        "packetsLost": lost,
        "lossFraction": None if lost is None else round(lost / (reception.received + lost), 5),
        "jitterMs": round(reception.jitter_s * 1000, 2),
        "maxJitterMs": round(reception.max_jitter_s * 1000, 2),
        "remotePacketsLost": reception.remote_lost,
        "remoteJitterMs": None if remote_jitter_s is None else round(remote_jitter_s * 1000, 2),
    }
