"""The record of one call or one request of the speech API, by which a tenant is billed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.seams.end_cause import EndedBy

Outcome = Literal["open", "completed", "failed", "crashed"]


class MeterRecord(BaseModel):
    """One call or request. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    id: str
    """The id of the call or request. A record of the same id is written once."""
    kind: Literal["call", "request"]
    tenant: str
    startedAt: float
    endedAt: float | None = None
    """None: still open. After a crash: the last time at which it was known to be open."""
    outcome: Outcome = "open"
    """``failed``: an internal error ended it, or no dialogue manager was available (reason ``dialogue_failed``).
    ``crashed``: the process died before its end; the counts are the last ones written."""
    reason: str = ""
    """The reason of a call's end."""
    endedBy: EndedBy | None = None
    """The party that ended the call, as ``by`` in ``ended``. None, here and below: unknown."""
    sipStatus: int | None = None
    q850: int | None = None
    endText: str | None = None
    """The network's text, as ``text`` in ``ended``."""
    correlationId: str | None = None
    """The id that the legs of a joined call share: that of the first leg's call. None: a request, or an old record."""
    route: str = ""
    transport: str = ""
    direction: str = ""
    from_: str = Field("", alias="from")
    """Empty unless ``records.numbers`` is on; so is ``to``."""
    to: str = ""
    characters: int = 0
    """Characters of text that were spoken."""
    audioSeconds: float = 0.0
    """Audio that was made for the caller or the client."""
    turns: int = 0
    cuts: int = 0
    gaps: int = 0
    gapMs: int = 0
    firstPacketMs: float | None = None
    """The longest wait for a first packet. None: there was none."""
    packetsReceived: int | None = None
    """Audio packets from the caller; over a WebSocket, messages while there was a listener. None, here and below: the
    leg did not report, or nothing came."""
    packetsLost: int | None = None
    """Lost packets of the caller, by their RTP sequence numbers. None: a WebSocket, which loses none."""
    lossFraction: float | None = None
    """Their share of all packets sent, 0 to 1 (RFC 3550, over the whole call)."""
    jitterMs: float | None = None
    """Mean difference of transit time between packets, which RFC 3550 section 6.4.1 smooths. A WebSocket message is due
    when the one before it was played."""
    maxJitterMs: float | None = None
    """The highest interarrival jitter of RFC 3550."""
    remotePacketsLost: int | None = None
    """Our packets that the peer lost, by its last RTCP report."""
    remoteJitterMs: float | None = None
    """Interarrival jitter of our packets, by the peer's last RTCP report."""


class UsageDay(BaseModel):
    """A tenant's usage on one day (UTC), by the calls and requests that ended on it."""

    day: str
    requests: int
    characters: int
    audioSeconds: float
    calls: int
    callSeconds: float
    tenant: str
    """Empty: calls on routes without a tenant."""
