"""The request to the application's ``after_url`` when a stream has ended, and the answers that repeated webhooks get
again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass

import aiohttp

from gateway.carriers.call_control import Answer
from gateway.carriers.signatures import twilio_signature

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Longest wait for the application's answer, seconds; carriers wait 15."""
KEEP_S = 60.0
"""Time in which a repeated webhook gets the same answer, seconds."""
_MAX_BODY_BYTES = 64 * 1024
_MAX_ANSWERS = 10_000


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


@dataclass(slots=True)
class _Given:
    task: asyncio.Task[Answer]
    until: float
    """Time at which the answer is forgotten, seconds on the store's clock."""


class GivenAnswers:
    """Answers by call, each kept for ``KEEP_S``. Requests for one call are answered one after the other, so an early
    repetition waits for the first answer. Beyond ``limit`` the oldest is forgotten."""

    def __init__(self, *, limit: int = _MAX_ANSWERS, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._given: OrderedDict[Hashable, _Given] = OrderedDict()

    async def answer(self, call: Hashable, make: Callable[[Answer | None], Awaitable[Answer]]) -> Answer:
        """Return the answer that ``make`` gives. Its argument is the answer to the previous request for this call, or
        None; ``make`` returns that answer for a repetition. The work continues if the request is cancelled."""
        now = self._clock()
        while self._given:
            oldest = next(iter(self._given.values()))
            if oldest.until > now and len(self._given) < self._limit:
                break
            self._given.popitem(last=False)
        earlier = self._given.pop(call, None)
        task = asyncio.create_task(self._made(earlier, make), name="answer after a stream")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the request gets it, if it waits
        self._given[call] = _Given(task, now + KEEP_S)
        return await asyncio.shield(task)

    def forget(self, call: Hashable) -> None:
        """Forget the answer for a call that begins again."""
        self._given.pop(call, None)

    async def _made(self, earlier: _Given | None, make: Callable[[Answer | None], Awaitable[Answer]]) -> Answer:
        previous = None
        if earlier is not None:
            await asyncio.wait([earlier.task])
            if not earlier.task.cancelled() and earlier.task.exception() is None:
                previous = earlier.task.result()
        return await make(previous)

    async def aclose(self) -> None:
        """Cancel the work for requests that still wait."""
        tasks = [given.task for given in self._given.values() if not given.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
