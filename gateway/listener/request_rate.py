"""Limits the HTTP requests of each client's address. Pure.

A client can send hundreds of requests in one packet, and each costs the loop that also paces calls. Liveness and
readiness have a bucket of their own, so that other requests of a prober's address cannot make them fail.
"""

from __future__ import annotations

from gateway.listener.forwarded import Headers, Proxies
from gateway.listener.source_limit import SourceLimit, source

BURST_S = 5
"""Seconds of requests that a client may send at once. A page that opens sends some tens."""
_PROBES = ("/healthz", "/readyz")
_PROBES_PER_S = 20
_SOURCES = 10_000


class RequestRate:
    """The requests of all clients. Times are seconds on any monotonic clock.

    Args:
        per_s: requests that one address (an IPv6 /64) may send per second on average.
        proxies: peers whose ``X-Forwarded-For`` is believed.
    """

    def __init__(self, per_s: float, proxies: Proxies) -> None:
        self._proxies = proxies
        self._all = SourceLimit(per_s=per_s, burst=max(1, round(per_s * BURST_S)), sources=_SOURCES)
        self._probes = SourceLimit(per_s=_PROBES_PER_S, burst=_PROBES_PER_S * BURST_S, sources=_SOURCES)

    def wait_s(self, peer: str, headers: Headers, path: str, *, now: float) -> float:
        """Count a request.

        Returns:
            0: the request is within the limit. Else the seconds until the next one is.
        """
        client, limit = source(self._proxies.client(peer, headers)), self._limit(path)
        return 0.0 if limit.take(client, now=now) else limit.wait_s(client, now=now)

    def is_spent(self, peer: str, path: str, *, now: float) -> bool:
        """Return True if this peer's requests are over the limit, so that a new connection is of no use. A trusted
        proxy's is always of use, because it brings requests of others. Counts nothing."""
        return self._limit(path).empty(source(peer), now=now) and not self._proxies.trusts(peer)

    def _limit(self, path: str) -> SourceLimit:
        return self._probes if path in _PROBES else self._all
