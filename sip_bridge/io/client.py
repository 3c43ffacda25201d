"""Sends requests that have one answer: REGISTER, OPTIONS, BYE, INFO, REFER, NOTIFY, UPDATE.

INVITE is sent elsewhere, because it has provisional answers, forks and an ACK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sip_bridge.dialog.transaction import Act, Key
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.local import HeaderItems, Peer
from sip_bridge.message.digest import ClientAuth, authorization, wants_fresh_nonce
from sip_bridge.message.sip import Request, Response, response_to


class Client:
    """Sends requests, and returns each answer to its caller. The endpoint's user passes in responses and failures."""

    _MAX_TRIES = 4
    """Most tries of one request: bare, with credentials for the target, with credentials for a proxy, and once more for
    a stale nonce."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._waiting: dict[Key, asyncio.Future[Response]] = {}
        self._requests: dict[Key, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that sends the requests."""
        return self._endpoint

    async def ask(
        self, make: Callable[[HeaderItems], Request], peer: Peer, *, auth: ClientAuth | None = None
    ) -> Response:
        """Send a request, answer challenges, and return the final response.

        No answer counts as 408 and a broken transport as 503 (RFC 3261 section 8.1.3.1). The endpoint's timers bound
        the wait.

        Args:
            make: returns the request with the given headers added. It is called again after a challenge, for a request
                with a new branch and CSeq.
        """
        credentials: dict[str, str] = {}
        for _ in range(self._MAX_TRIES):
            request = make(list(credentials.items()))
            response = await self._once(request, peer)
            answer = authorization(response, request, auth) if auth else None
            if answer is None or (answer[0] in credentials and not wants_fresh_nonce(response)):
                return response  # the credentials for this challenge were sent already, so they are wrong
            credentials[answer[0]] = answer[1]
        return response

    async def _once(self, request: Request, peer: Peer) -> Response:
        key = self._endpoint.request(request, peer)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        self._requests[key] = request
        try:
            return await future
        finally:
            del self._waiting[key], self._requests[key]

    def on_response(self, key: Key | None, response: Response) -> bool:
        """Handle a response. True: it answers a request sent here."""
        future = self._waiting.get(key) if key else None
        if future and response.status >= 200 and not future.done():
            future.set_result(response)
        return future is not None

    def on_failed(self, key: Key, reason: Act) -> bool:
        """Handle a failed request. True: it was sent here."""
        future = self._waiting.get(key)
        if future and not future.done():
            future.set_result(response_to(self._requests[key], 408 if reason is Act.TIMEOUT else 503))
        return future is not None
