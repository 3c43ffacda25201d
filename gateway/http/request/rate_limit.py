"""The headers that tell a client its remaining quota: ``RateLimit`` and ``RateLimit-Policy``
(draft-ietf-httpapi-ratelimit-headers-10).

``"requests";q=600;w=60`` is a policy: 600 within any 60 seconds. ``"requests";r=12;t=34``: 12 are left, and one more is
available after 34 seconds, because the windows slide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aiohttp import web

from gateway.limits.quota import WINDOW_S, QuotaStanding

STANDINGS: web.RequestKey[tuple[QuotaStanding, ...]] = web.RequestKey("standings", tuple)


def headers(standings: Sequence[QuotaStanding]) -> dict[str, str]:
    """Return the headers for these windows; none without windows."""
    if not standings:
        return {}
    return {
        "RateLimit-Policy": ", ".join(f'"{each.what}";q={each.limit};w={WINDOW_S:.0f}' for each in standings),
        "RateLimit": ", ".join(f'"{each.what}";r={each.left};t={math.ceil(each.reset_s)}' for each in standings),
    }


async def add(request: web.Request, response: web.StreamResponse) -> None:
    """Add the state of the request's windows to a response, unless a refusal has set it. For
    ``on_response_prepare``."""
    for name, value in headers(request.get(STANDINGS, ())).items():
        response.headers.setdefault(name, value)
