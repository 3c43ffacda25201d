"""The request to the application's ``after_url`` when a stream has ended, and the answers that repeated webhooks get
again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from gateway.carriers.call_control import Answer
from gateway.carriers.signatures import twilio_signature
from gateway.seams.shared_state import Values

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Longest wait for the application's answer, seconds; carriers wait 15."""
KEEP_S = 60.0
"""Time in which a repeated webhook gets the same answer, seconds."""
_MAX_BODY_BYTES = 64 * 1024
_MAX_ANSWERS = 10_000

Call = tuple[str, str, str]
"""Dialect, route and the carrier's call id."""


class AfterUrl:
    """The client of the application's ``after_url``. Call ``aclose`` at the end."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http: aiohttp.ClientSession | None = None

    async def ask(self, url: str, form: Mapping[str, str], secret: str) -> Answer | None:
        """Post a form to the application, as Twilio posts to the ``action`` of ``<Connect>``. None: it gave no answer.

        Args:
            secret: signs the form in ``X-Twilio-Signature``. Empty: the request is not signed.
        """
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=self._timeout)
        fields = {name: [value] for name, value in form.items()}
        headers = {"X-Twilio-Signature": twilio_signature(secret, url, fields)} if secret else {}
        try:
            async with self._http.post(url, data=dict(form), headers=headers, allow_redirects=False) as answer:
                body = b""
                while len(body) <= _MAX_BODY_BYTES and (piece := await answer.content.read(_MAX_BODY_BYTES)):
                    body += piece
                if answer.status == 200 and 0 < len(body) <= _MAX_BODY_BYTES:
                    return Answer(answer.headers.get("Content-Type", "text/xml"), body)
                why = f"HTTP {answer.status} with {len(body)} bytes"
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            why = type(exc).__name__
        log.warning("after_url gave no answer", extra={"why": why})
        return None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()


_WORKING, _NONE = b"\0", b""
"""Stored while a process works on an answer; and after the call has begun again."""
_LOOK_AGAIN_S = 0.2


class GivenAnswers:
    """Answers by call, each kept for ``KEEP_S``. Requests for one call are answered one after the other, so an early
    repetition waits for the first answer, also at another process. Beyond ``limit`` the oldest request is not waited
    for.

    Args:
        values: the answers, known to all processes that serve the same callers.
    """

    def __init__(self, values: Values, *, limit: int = _MAX_ANSWERS) -> None:
        self._values = values
        self._limit = limit
        self._working: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        """The last request of each call that has no answer yet."""

    async def answer(self, call: Call, make: Callable[[Answer | None], Awaitable[Answer]]) -> Answer:
        """Return the answer that ``make`` gives. Its argument is the answer to the previous request for this call, or
        None; ``make`` returns that answer for a repetition. The work continues if the request is cancelled."""
        key = _key(call)
        while len(self._working) >= self._limit:
            self._working.popitem(last=False)
        earlier = self._working.pop(key, None)
        task = asyncio.create_task(self._made(key, earlier, make), name="answer after a stream")
        self._working[key] = task

        def done(task: asyncio.Task[Answer]) -> None:
            if self._working.get(key) is task:
                del self._working[key]
            if not task.cancelled():
                task.exception()  # the request gets it, if it waits

        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def forget(self, call: Call) -> None:
        """Forget the answer for a call that begins again."""
        self._working.pop(_key(call), None)
        await self._values.put(_key(call), _NONE, keep_s=KEEP_S)

    async def _made(
        self, key: str, earlier: asyncio.Task[Answer] | None, make: Callable[[Answer | None], Awaitable[Answer]]
    ) -> Answer:
        if earlier is not None:
            await asyncio.wait([earlier])
        known = await self._values.first(key, _WORKING, keep_s=KEEP_S)
        if known == _WORKING:
            known = await self._waited(key)
        if known is not None:
            await self._values.put(key, _WORKING, keep_s=KEEP_S)
        answer = None
        try:
            answer = await make(Answer.from_bytes(known) if known else None)
        finally:
            await self._values.put(key, answer.to_bytes() if answer is not None else known or _NONE, keep_s=KEEP_S)
        return answer

    async def _waited(self, key: str) -> bytes:
        """Wait for the answer that another process makes. Return ``_NONE`` if it does not come."""
        waited_s = 0.0
        while (known := await self._values.find(key)) == _WORKING and waited_s < TIMEOUT_S:
            await asyncio.sleep(_LOOK_AGAIN_S)
            waited_s += _LOOK_AGAIN_S
        return _NONE if known in (None, _WORKING) else known

    async def aclose(self) -> None:
        """Cancel the work for requests that still wait."""
        tasks = [task for task in self._working.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(call: Call) -> str:
    # A digest, since the call id may be a telephone number.
    return "after:" + hashlib.sha256("\0".join(call).encode(errors="replace")).hexdigest()
