"""The headers by which a client learns how much it may still ask: ``RateLimit`` and ``RateLimit-Policy``
(draft-ietf-httpapi-ratelimit-headers-10).

``"requests";q=600;w=60`` is a policy: 600 within any 60 seconds. ``"requests";r=12;t=34``: 12 are left, and 34 seconds
on there is one more, because the windows slide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aiohttp import web

from gateway.limits.quota import WINDOW_S, Standing

STANDINGS: web.RequestKey[tuple[Standing, ...]] = web.RequestKey("standings", tuple)


def headers(standings: Sequence[Standing]) -> dict[str, str]:
    """Return the headers of windows; none of none."""
    if not standings:
        return {}
    return {
        "RateLimit-Policy": ", ".join(f'"{each.what}";q={each.limit};w={WINDOW_S:.0f}' for each in standings),
        "RateLimit": ", ".join(f'"{each.what}";r={each.left};t={math.ceil(each.reset_s)}' for each in standings),
    }


async def add(request: web.Request, response: web.StreamResponse) -> None:
    """Tell how the windows of the request stand; a refusal has told of its own ones. For ``on_response_prepare``."""
    for name, value in headers(request.get(STANDINGS, ())).items():
        response.headers.setdefault(name, value)
