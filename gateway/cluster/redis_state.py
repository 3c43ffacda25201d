"""The shared state in Redis, for gateways on several machines.

The first value of a key is set only if the key is absent. The hand-offs of calls with one id are a hash by dialect,
which Redis forgets after ``KEEP_S``. The clock of Redis orders the hand-offs of several dialects, so the gateways'
clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast
from urllib.parse import quote

import orjson
from redis.exceptions import RedisError

from gateway.errors import Rejected
from gateway.redis_connection import connect
from gateway.seams.shared_state import Handoff

KEEP_S = 3600
"""Time for which a hand-off is kept."""

FAULTS = (RedisError, OSError, TimeoutError)

T = TypeVar("T")


class RedisState:
    """A ``SharedState``.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._redis = connect(url, timeout_s=timeout_s)

    async def first(self, key: str, value: bytes, *, keep_s: float) -> bytes | None:
        is_first = await asked(self._redis.set(_PREFIX + key, value, nx=True, px=_milliseconds(keep_s)))
        return None if is_first else await self.find(key)

    async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
        await asked(self._redis.set(_PREFIX + key, value, px=_milliseconds(keep_s)))

    async def find(self, key: str) -> bytes | None:
        return cast("bytes | None", await asked(self._redis.get(_PREFIX + key)))

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        # The time is read first, since a transaction has no results inside.
        seconds, micros = await asked(cast("Awaitable[tuple[int, int]]", self._redis.time()))
        kept = orjson.dumps({"at": seconds + micros / 1e6, "handoff": asdict(handoff)})
        pipeline.hset(_calls(call_sid), dialect, kept)  # type: ignore[arg-type]  # bytes are a value too
        pipeline.expire(_calls(call_sid), KEEP_S)
        await asked(pipeline.execute())

    async def left(self, call_sid: str) -> Sequence[tuple[str, Handoff]]:
        kept = await asked(cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(_calls(call_sid))))
        read = [(dialect.decode(), orjson.loads(value)) for dialect, value in kept.items()]
        read.sort(key=lambda entry: -entry[1]["at"])
        return [(dialect, Handoff(**value["handoff"])) for dialect, value in read]

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hget(_calls(call_sid), dialect)
        pipeline.hdel(_calls(call_sid), dialect)
        value, _ = await asked(cast("Awaitable[list[Any]]", pipeline.execute()))
        return None if value is None else Handoff(**orjson.loads(value)["handoff"])

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


_PREFIX = "talkspurt:"


def _milliseconds(keep_s: float) -> int:
    return max(1, round(keep_s * 1000))


def _calls(call_sid: str) -> str:
    return f"talkspurt:left:{quote(call_sid, safe='')}"


async def asked(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except FAULTS as exc:
        raise Rejected(
            f"Redis (directory.redis_url) does not answer: {type(exc).__name__}",
            status=503, code="directory_unavailable", retry_after_s=1.0,
        ) from None  # fmt: skip
