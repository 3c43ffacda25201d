"""Rate limits per source: buckets that fill at a steady rate, in a table of limited size. Pure."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses as a translator shows them to an IPv6 network (RFC 6052 section 2.1)."""


class SourceLimit:
    """A bucket for each ``source``.

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
        host = source(host)
        left = self._left(host, now)
        allowed = left >= cost
        self._buckets[host] = (left - cost if allowed else left, now)
        self._buckets.move_to_end(host)
        while len(self._buckets) > self._sources:
            self._buckets.popitem(last=False)
        return allowed

    def empty(self, host: str, *, now: float) -> bool:
        """Return True if less than one unit is left. Takes nothing."""
        return self._left(source(host), now) < 1

    def wait_s(self, host: str, *, now: float) -> float:
        """Return the seconds until one unit is available."""
        return max(0.0, (1 - self._left(source(host), now)) / self._per_s)

    def _left(self, host: str, now: float) -> float:
        left, at = self._buckets.get(host, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_s)


@lru_cache(4096)
def source(address: str) -> str:
    """Return the unit that is rate-limited: an IPv4 address, also one inside an IPv6 address, or the /64 network of an
    IPv6 address. Other text stays as it is."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        inside = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo and parsed.teredo[1])
        if inside is None and parsed in _NAT64:
            inside = ipaddress.IPv4Address(parsed.packed[-4:])
        return str(inside or ipaddress.ip_network((parsed, 64), strict=False))
    return address
