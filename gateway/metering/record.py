"""The record of one call or one request of the speech API: what a tenant is billed by."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Outcome = Literal["open", "completed", "failed", "crashed"]


class MeterRecord(BaseModel):
    """One call or request. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    id: str
    """The call's id, or the request's. A record of the same id is written once."""
    kind: Literal["call", "request"]
    tenant: str
    startedAt: float
    endedAt: float | None = None
    """None: it goes on. Where the process died, when the call or request was last known to go on."""
    outcome: Outcome = "open"
    """``failed``: a fault of ours ended it, or no dialogue manager could be had (reason ``dialogue_failed``).
    ``crashed``: the process died before its end, so the counts are those of the last time that they were written ahead.
    """
    reason: str = ""
    """How a call ended."""
    route: str = ""
    transport: str = ""
    direction: str = ""
    from_: str = Field("", alias="from")
    """Empty unless ``records.numbers`` is on; so is ``to``."""
    to: str = ""
    characters: int = 0
    """Characters of text that had a sound."""
    audioSeconds: float = 0.0
    """Sound that was made for the caller, or for the client."""
    turns: int = 0
    cuts: int = 0
    gaps: int = 0
    gapMs: int = 0
    firstPacketMs: float | None = None
    """The longest wait for a first packet. None: nobody waited."""
    packetsReceived: int | None = None
    """Packets of sound from the caller; over a WebSocket messages, while anybody listened to the caller. None, here and
    below: the leg did not say, or nothing came."""
    packetsLost: int | None = None
    """Packets of the caller that never came, by their numbers in RTP. None: a WebSocket, where none is lost."""
    lossFraction: float | None = None
    """Their share of all that were sent, 0 to 1 (RFC 3550, over the whole call)."""
    jitterMs: float | None = None
    """Mean difference of transit time between packets, which RFC 3550 section 6.4.1 smooths. A message of a WebSocket
    is due when the one before it has been played."""
    maxJitterMs: float | None = None
    """The highest that the interarrival jitter of RFC 3550 has been."""
    remotePacketsLost: int | None = None
    """Our packets that the peer did not get, by its last RTCP report."""
    remoteJitterMs: float | None = None
    """Interarrival jitter of our packets, by the peer's last RTCP report."""


class UsageDay(BaseModel):
    """A tenant's use on one day (UTC), by what ended on that day."""

    day: str
    requests: int
    characters: int
    audioSeconds: float
    calls: int
    callSeconds: float
