"""Limits the messages of each source; more are dropped unread. Pure."""

from __future__ import annotations

from gateway.listener.source_limit import SourceLimit

_PER_REQUEST = 4
"""Messages of any kind that a source may send for each allowed request: it also answers, acknowledges and
retransmits."""

_BYTES = 4096
"""Each 4096 bytes of a message cost one more unit, since the time to read a message grows with its length."""


class MessageLimit:
    """The limits of all sources.

    Args:
        requests_per_s, burst: requests that one source may send per second on average, and at once.
        sources: number of sources that are remembered.
    """

    def __init__(self, *, requests_per_s: float, burst: int, sources: int) -> None:
        self._limit = SourceLimit(per_s=requests_per_s * _PER_REQUEST, burst=burst * _PER_REQUEST, sources=sources)

    def take(self, host: str, data: bytes, *, now: float) -> bool:
        """Count a message. False: its source is over the limit; drop the message unread."""
        return self._limit.take(host, now=now, cost=1 + len(data) // _BYTES)
