"""The shared state in Redis, for gateways on several machines.

The first value of a key is set only if the key is absent. The hand-offs of calls with one id are a hash by dialect,
which Redis forgets after ``KEEP_S``. The clock of Redis orders the hand-offs of several dialects, so the gateways'
clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast
from urllib.parse import quote

import orjson
from redis.asyncio import Redis

from gateway.errors import Rejected
from gateway.redis_connection import FAULTS, SharedRedis
from gateway.seams.shared_state import Handoff

KEEP_S = 3600
"""Time for which a hand-off is kept."""

T = TypeVar("T")


class RedisState:
    """A ``SharedState``.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.link = SharedRedis("directory", url, timeout_s=timeout_s)
        self._redis = self.link.redis

    async def first(self, key: str, value: bytes, *, keep_s: float) -> bytes | None:
        keep_ms = _milliseconds(keep_s)
        is_first = await self._asked(lambda redis: redis.set(_PREFIX + key, value, nx=True, px=keep_ms))
        return None if is_first else await self.find(key)

    async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
        await self._asked(lambda redis: redis.set(_PREFIX + key, value, px=_milliseconds(keep_s)))

    async def find(self, key: str) -> bytes | None:
        return cast("bytes | None", await self._asked(lambda redis: redis.get(_PREFIX + key)))

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        # The time is read first, since a transaction has no results inside.
        seconds, micros = await self._asked(lambda redis: redis.time())
        kept = orjson.dumps({"at": seconds + micros / 1e6, "handoff": asdict(handoff)})
        pipeline.hset(_calls(call_sid), dialect, kept)  # type: ignore[arg-type]  # bytes are a value too
        pipeline.expire(_calls(call_sid), KEEP_S)
        await self._asked(lambda redis: pipeline.execute())

    async def left(self, call_sid: str) -> Sequence[tuple[str, Handoff]]:
        kept = await self._asked(lambda redis: redis.hgetall(_calls(call_sid)))
        read = [(dialect.decode(), orjson.loads(value)) for dialect, value in kept.items()]
        read.sort(key=lambda entry: -entry[1]["at"])
        return [(dialect, Handoff(**value["handoff"])) for dialect, value in read]

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hget(_calls(call_sid), dialect)
        pipeline.hdel(_calls(call_sid), dialect)
        value, _ = await self._asked(lambda redis: pipeline.execute())
        return None if value is None else Handoff(**orjson.loads(value)["handoff"])

    async def _asked(self, question: Callable[[Redis], Any]) -> Any:
        return await asked(self.link, lambda: question(self._redis))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.link.aclose()


_PREFIX = "talkspurt:"


def _milliseconds(keep_s: float) -> int:
    return max(1, round(keep_s * 1000))


def _calls(call_sid: str) -> str:
    return f"talkspurt:left:{quote(call_sid, safe='')}"


async def asked(link: SharedRedis, question: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of Redis.

    Raises:
        Rejected: 503, there is none.
    """
    try:
        return await link.ask(question)
    except FAULTS as exc:
        raise Rejected(
            f"Redis (directory.redis_url) does not answer: {type(exc).__name__}",
            status=503, code="directory_unavailable", retry_after_s=1.0,
        ) from None  # fmt: skip
