"""Rate limits per source: buckets that fill at a steady rate, in a table of limited size. Pure."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict


class SourceLimit:
    """A bucket for each source address.

    Args:
        per_s: units that a source may take per second on average.
        burst: units that it may take at once.
        sources: most sources that are remembered. The one silent for longest is forgotten first.
    """

    def __init__(self, *, per_s: float, burst: int, sources: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._sources = sources
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, host: str, *, now: float, cost: int = 1) -> bool:
        """Take ``cost`` units. Return False, and take nothing, if fewer are left."""
        left = self._left(host, now)
        allowed = left >= cost
        self._buckets[host] = (left - cost if allowed else left, now)
        self._buckets.move_to_end(host)
        while len(self._buckets) > self._sources:
            self._buckets.popitem(last=False)
        return allowed

    def empty(self, host: str, *, now: float) -> bool:
        """Return True if less than one unit is left. Takes nothing."""
        return self._left(host, now) < 1

    def wait_s(self, host: str, *, now: float) -> float:
        """Return the seconds until one unit is available."""
        return max(0.0, (1 - self._left(host, now)) / self._per_s)

    def _left(self, host: str, now: float) -> float:
        left, at = self._buckets.get(host, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_s)


def source(address: str) -> str:
    """Return the unit that is rate-limited: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return address
