"""How many messages of any kind one source may send before they are dropped unread. Pure."""

from __future__ import annotations

from gateway.listener.source_limit import SourceLimit

_PER_REQUEST = 4
"""How many messages of any kind a source may send for each request that it may send, since it also answers,
acknowledges and repeats."""

_BYTES = 4096
"""A message counts as one more for each so many bytes, since the time to read a message grows with its length."""


class MessageLimit:
    """The limit of all sources.

    Args:
        requests_per_s, burst: how many requests one source may send a second on average, and at once.
        sources: how many sources are remembered.
    """

    def __init__(self, *, requests_per_s: float, burst: int, sources: int) -> None:
        self._limit = SourceLimit(per_s=requests_per_s * _PER_REQUEST, burst=burst * _PER_REQUEST, sources=sources)

    def take(self, host: str, data: bytes, *, now: float) -> bool:
        """Count a message. False: its source has sent too many, and this one is not to be read."""
        return self._limit.take(host, now=now, cost=1 + len(data) // _BYTES)
