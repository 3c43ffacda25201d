"""Checks by OPTIONS whether the trunks' proxies are alive (RFC 3261 section 11)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

from gateway.seams.supervision import SUPERVISOR, SupervisedTask
from sip_bridge.errors import Unreachable
from sip_bridge.io.client import Client
from sip_bridge.io.locate import locate_all
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, LocalAddress, Peer
from sip_bridge.message.sip import Address, Headers, Request, Uri

log = logging.getLogger(__name__)

PING_S = 30.0
"""Pause between two requests to each of several proxies, seconds."""

_ANSWER_S = 5.0
"""Longest wait for an answer. By then a lost request has been repeated three times."""


class TrunkPings:
    """Checks the proxies of one trunk.

    Args:
        every_s: seconds from an answer to the next request.
    """

    def __init__(
        self, trunk: str, proxies: Sequence[str], client: Client, local: LocalAddress, *, every_s: float
    ) -> None:
        self.proxies = {proxy: Pings(trunk, proxy, client, local, every_s=every_s) for proxy in proxies}
        """The checks by proxy."""

    @property
    def answers(self) -> bool:
        """True if a proxy answers, or none was asked yet."""
        return any(each.alive for each in self.proxies.values())

    def alive(self, proxy: str) -> bool:
        """Return True if this proxy answers, or was not asked yet."""
        return self.proxies[proxy].alive

    def start(self) -> None:
        """Check now, and repeat until ``close``."""
        for each in self.proxies.values():
            each.start()

    async def close(self) -> None:
        """Stop checking."""
        await asyncio.gather(*(each.close() for each in self.proxies.values()))


class Pings:
    """Checks one proxy repeatedly, from ``start`` to ``close``.

    Any answer but 408 and 503 counts as alive, since a proxy need not support OPTIONS.

    Args:
        every_s: seconds from an answer to the next request.
    """

    def __init__(self, trunk: str, proxy: str, client: Client, local: LocalAddress, *, every_s: float) -> None:
        self.alive = True
        """True if the proxy answered the last request, or none was sent yet."""
        self._trunk = trunk
        self._name = proxy
        self._proxy = Uri.parse(proxy)
        self._client = client
        self._local = local
        self._every_s = every_s
        self._call_id = secrets.token_hex(16)
        self._cseq = 0
        self._task: SupervisedTask | None = None

    def start(self) -> None:
        """Check now, and repeat until ``close``."""
        self._task = SUPERVISOR.task(f"pings {self._trunk} {self._name}", self._run)

    async def close(self) -> None:
        """Stop checking."""
        if self._task:
            await self._task.aclose()

    async def _run(self) -> None:
        while True:
            status = await self._ask()
            alive = status not in (408, 503)
            if alive != self.alive:
                self.alive = alive
                log.info(
                    "trunk answers" if alive else "trunk does not answer",
                    extra={"trunk": self._trunk, "proxy": self._name},
                )
            await asyncio.sleep(self._every_s)

    async def _ask(self) -> int:
        """Return the status of the first address that answers, else of the last one."""
        try:
            found = await locate_all(self._proxy, ours=self._local.host)
        except Unreachable as error:
            return error.status
        for peer in found:
            status = await self._ask_at(peer)
            if status not in (408, 503):
                break
        return status

    async def _ask_at(self, peer: Peer) -> int:
        us = self._local.contact(peer.transport)

        def make(headers: HeaderItems) -> Request:
            self._cseq += 1
            items = [
                ("Via", str(self._local.via(peer.transport))),
                ("Max-Forwards", "70"),
                ("From", str(Address(us).with_tag(secrets.token_hex(4)))),
                ("To", f"<{self._proxy}>"),
                ("Call-ID", self._call_id),
                ("CSeq", f"{self._cseq} OPTIONS"),
                ("Contact", f"<{us}>"),
                ALLOW,
                SUPPORTED,
                *headers,
            ]
            return Request("OPTIONS", str(self._proxy), Headers(items))

        try:
            async with asyncio.timeout(_ANSWER_S):
                return (await self._client.ask(make, peer)).status
        except TimeoutError:
            return 408
