"""The HTTP client of the carriers' REST interfaces."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from gateway.carriers.placing import ApiRequest, read_answer

TIMEOUT_S = 15.0
"""Longest wait for an answer, seconds."""

_ANSWER_BYTES = 64 * 1024
_TRIES = 3
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The answer of a REST interface."""

    status: int
    """HTTP status. 0: there was no answer."""
    body: Any
    """The JSON value. None: the body is not JSON."""
    why: str = ""
    """Cause of a missing answer."""

    @property
    def good(self) -> bool:
        """True if the request was carried out."""
        return 200 <= self.status < 300


class ApiClient:
    """Sends requests. Call ``aclose`` at the end."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def send(self, request: ApiRequest, *, idempotent: bool) -> ApiAnswer:
        """Send a request, and repeat it only where that is safe.

        A request that had no connection and one that was refused for its rate (429) were not carried out, so they are
        repeated. After a lost connection, a timeout or a 5xx, the request may have been carried out: only an
        ``idempotent`` one is repeated, because a second order would be a second call.
        """
        answer = ApiAnswer(0, None, "not sent")
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S * attempt)
            answer, safe = await self._once(request)
            if not (safe or (idempotent and (answer.status == 0 or answer.status >= 500))):
                break
        return answer

    async def _once(self, request: ApiRequest) -> tuple[ApiAnswer, bool]:
        """Send a request once. Return the answer, and True if it certainly had no effect and may succeed later."""
        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = {"Authorization": request.authorization, "Accept": "application/json"}
        if request.content_type:
            headers["Content-Type"] = request.content_type
        try:
            async with self._http.request(
                request.method, URL(request.url, encoded=True), data=request.body or None, headers=headers,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                return ApiAnswer(answer.status, await _json(answer)), answer.status == 429
        except aiohttp.ClientConnectorError as exc:
            return ApiAnswer(0, None, type(exc).__name__), True
        except (aiohttp.ClientError, TimeoutError) as exc:
            return ApiAnswer(0, None, type(exc).__name__), False

    async def aclose(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()


async def _json(answer: aiohttp.ClientResponse) -> Any:
    data = b""
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > _ANSWER_BYTES:
            return None
    return read_answer(data)
