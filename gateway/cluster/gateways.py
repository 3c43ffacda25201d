"""Finds the gateway that has a call, among several gateways with one public address.

Four digits of a call's id are derived from its gateway's address. Each gateway repeatedly stores its address in Redis,
which forgets it ``LEASE_S`` after the last time. So a gateway that gets a request for another one's call either finds
that gateway, or knows that it and its calls are gone.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from yarl import URL

from gateway.call.directory import number_of
from gateway.cluster import passing
from gateway.cluster.redis_state import asked
from gateway.errors import Rejected
from gateway.listener.forwarded import forwarded_for
from gateway.listener.passed_on import PassedOn
from gateway.redis_connection import FAULTS, SharedRedis

log = logging.getLogger(__name__)

LEASE_S = 4.0
RENEW_S = 1.0

_CALL_ID = re.compile(r"VX[0-9a-f]{2}([0-9a-f]{4})[0-9a-f]{26}")
_ONCE_HEADER = "X-Talkspurt-Gateway"
"""Header of a request that another gateway has passed on, so that it is passed on only once."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateways:
    """The gateways of one Redis, as seen from one of them.

    Args:
        address: the address of this gateway for the others, ``http(s)://host:port``.
        message_bytes: longest WebSocket message.
    """

    def __init__(self, url: str, address: str, *, timeout_s: float, message_bytes: int) -> None:
        self.number = number_of(address)
        self._address = address.rstrip("/")
        self._message_bytes = message_bytes
        self._link = SharedRedis("directory", url, timeout_s=timeout_s)
        self._redis = self._link.redis

    async def watch(self) -> None:
        """Renew this gateway's lease until cancelled."""
        said = True
        while True:
            try:
                before = await self._link.ask(self._renewed)
                if before is not None and before.decode() != self._address:
                    log.error("two gateways have the same number: change directory.address of one",
                              extra={"other": before.decode()})  # fmt: skip
                said = True
            except FAULTS as exc:
                if said:
                    log.error("Redis (directory.redis_url) does not answer", extra={"why": type(exc).__name__})
                said = False
            await asyncio.sleep(RENEW_S)

    async def _renewed(self) -> bytes | None:
        """Renew the lease, and return the address that it had."""
        lease = self._redis.set(_lease(self.number), self._address, px=round(LEASE_S * 1000), get=True)
        return cast("bytes | None", await lease)

    async def aclose(self) -> None:
        """Close the connections. The lease expires by itself, since another process of this gateway may still need
        it."""
        await self._link.aclose()

    def middleware(self) -> Any:
        """Return the middleware that passes requests for other gateways' calls on."""

        @web.middleware
        async def pass_on(request: web.Request, handler: Handler) -> web.StreamResponse:
            found = _CALL_ID.fullmatch(await passing.named_call(request))
            if found is None or found[1] == self.number or _ONCE_HEADER in request.headers:
                return await handler(request)
            if isinstance(request.transport, PassedOn):
                return await handler(request)
            kept = await asked(self._link, lambda: self._redis.get(_lease(found[1])))
            if kept is None:  # that gateway is gone; its call may be in a shared log
                return await handler(request)
            return await self._pass_on(request, kept.decode())

        return pass_on

    async def _pass_on(self, request: web.Request, address: str) -> web.StreamResponse:
        kept = passing.headers(request.headers)
        kept[_ONCE_HEADER] = "1"
        seen = forwarded_for(request.headers)
        kept["X-Forwarded-For"] = ", ".join(part for part in (seen, request.remote or "") if part)
        gone = Rejected(
            "the gateway that has the call does not answer", status=503, code="gateway_gone", retry_after_s=LEASE_S
        )
        async with passing.session() as http:
            url = URL(f"{address}{request.raw_path}", encoded=True)
            return await passing.answered_by(http, request, url, kept, message_bytes=self._message_bytes, gone=gone)


def _lease(number: str) -> str:
    return f"talkspurt:gateway:{number}"
