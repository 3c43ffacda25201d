"""Connects to the Redis that several gateways share, and knows whether it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.postgres import DatabaseState

FAULTS = (RedisError, OSError, TimeoutError)
"""Exceptions for a Redis that is gone, slow, or no Redis."""

PAUSE_S = 1.0
"""Time for which a Redis that did not answer in time is not asked, and interval of ``SharedRedis.watch``, seconds."""

T = TypeVar("T")


def connect(url: str, *, timeout_s: float) -> Redis:
    """Return a client, which connects at its first use.

    A Redis that becomes a replica keeps its connections and refuses all writes. Such a connection is left, and the
    request is sent once more on a new one, because the address may lead to the new master by then.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
        timeout_s: longest wait for a connection, and for an answer.
    """
    retry = Retry(NoBackoff(), 1, supported_errors=(ReadOnlyError,))
    return Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)


class SharedRedis:
    """A Redis that takes connections and does not answer costs one wait, not one for each call: it is then left alone
    for ``PAUSE_S``, and after that one request at a time finds out whether it answers.

    Args:
        of: what it keeps.
        url: see ``connect``.
        timeout_s: longest wait for a connection, and again for an answer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        of: Literal["limits", "directory"],
        url: str,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.redis = connect(url, timeout_s=timeout_s)
        self._of = of
        self._longest_s = 2 * timeout_s
        self._clock = clock
        self._why = "not asked yet"
        self._silent_until: float | None = None
        """Time of the next request. None: the last one was answered, or refused at once."""
        self._is_trying = False

    @property
    def state(self) -> DatabaseState:
        """The state when it was last asked."""
        return DatabaseState(of=self._of, answers=not self._why, why=self._why)

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a question. Raises one of ``FAULTS`` if there is none."""
        tries = self._silent_until is not None
        if self._silent_until is not None and (self._is_trying or self._clock() < self._silent_until):
            raise RedisTimeoutError("it did not answer a moment ago")
        self._is_trying = tries
        try:
            # The client has a limit for each step of a connection, and none for all of them.
            async with asyncio.timeout(self._longest_s):
                answer = await question()
        except FAULTS as exc:
            is_silent = isinstance(exc, (TimeoutError, RedisTimeoutError))
            self._silent_until = self._clock() + PAUSE_S if is_silent else None
            self._why = type(exc).__name__
            raise
        finally:
            if tries:
                self._is_trying = False
        self._silent_until, self._why = None, ""
        return answer

    async def watch(self) -> None:
        """Ask every ``PAUSE_S`` whether it answers, until cancelled."""
        while True:
            try:
                await self.ask(lambda: cast("Awaitable[Any]", self.redis.ping()))
            except FAULTS:
                pass  # ``state`` tells
            await asyncio.sleep(PAUSE_S)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.redis.aclose()
