"""Refuses requests beyond the rate of their client's address, before anything else reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.http.request.errors import failure
from gateway.http.request.routes import Handler
from gateway.listener.passed_on import PassedOn
from gateway.listener.request_rate import RequestRate


def within(rate: RequestRate, *, now: Callable[[], float], on_rejected: Callable[[str], None]) -> Any:
    """Make a middleware that answers 429 to what exceeds the rate and closes the connection, so that the pipelined
    requests on it are not read."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.transport, PassedOn):  # the worker that accepted the connection has counted it
            return await handler(request)
        wait_s = rate.wait_s(request.remote or "", request.headers, request.path, now=now())
        if not wait_s:
            return await handler(request)
        on_rejected("too_many_requests")
        refusal = failure(429, "too_many_requests", "too many requests came from this address", retry_after_s=wait_s)
        refusal.force_close()
        return refusal

    return check
