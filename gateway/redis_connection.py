"""Connects to the Redis that several gateways share."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError


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
