"""The counts of several gateways, in Redis. One Lua script decides on all asks of a request together, so that no two
gateways take the same remainder. It uses the clock of Redis, so the gateways' clocks need not agree.

A window is a sorted set by time. Each member begins with the running sum, so the window's amount is the difference
between its ends. A concurrent count is a sorted set of names by expiry time, which the gateway renews (``LEASE_S``): so
a dead gateway does not hold entries for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

from gateway.limits.quota import WINDOW_S, QuotaRequest, QuotaStanding, QuotaVerdict
from gateway.redis_connection import SharedRedis

LEASE_S = 4.0
"""Lifetime of an entry that is not renewed, the same as of a gateway's calls."""

_DECIDE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer, refused, wait = {}, 0, 0
local tops = {}
for i = 1, #KEYS do
  local key, limit, amount, span, holder =
    KEYS[i], tonumber(ARGV[i * 4 - 3]), tonumber(ARGV[i * 4 - 2]), tonumber(ARGV[i * 4 - 1]), ARGV[i * 4]
  if holder ~= '' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    if refused == 0 and not redis.call('ZSCORE', key, holder) and redis.call('ZCARD', key) >= limit then
      refused, wait = i, 1000
    end
    answer[i] = {0, 0}
  else
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now - span)
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    local before, top, oldest, newest = 0, 0, now, now
    if first[1] then
      local sum, own = string.match(first[1], '^(%d+):(%d+)')
      before, oldest = sum - own, tonumber(first[2])
      top, newest = tonumber(string.match(last[1], '^(%d+)')), math.max(now, tonumber(last[2]))
    end
    local used = top - before
    if refused == 0 and used + amount > limit then
      refused, wait = i, span
      local wanted, from = before + used + amount - limit, 0
      while wait == span do
        local some = redis.call('ZRANGE', key, from, from + 63, 'WITHSCORES')
        if #some == 0 then break end
        for j = 1, #some, 2 do
          if tonumber(string.match(some[j], '^(%d+)')) >= wanted then
            wait = math.max(1, tonumber(some[j + 1]) + span - now)
            break
          end
        end
        from = from + 64
      end
    end
    tops[i] = {top, newest}
    answer[i] = {used, oldest + span - now}
  end
end
if refused == 0 then
  for i = 1, #KEYS do
    local key, amount, span, holder =
      KEYS[i], tonumber(ARGV[i * 4 - 2]), tonumber(ARGV[i * 4 - 1]), ARGV[i * 4]
    if holder ~= '' then
      redis.call('ZADD', key, now + span, holder)
    else
      local sum = tops[i][1] + amount
      redis.call('ZADD', key, tops[i][2], string.format('%016d:%d', sum, amount))
      answer[i][1] = answer[i][1] + amount
    end
    redis.call('PEXPIRE', key, span * 2)
  end
end
return {refused, wait, answer}
"""


class SharedQuotas:
    """The counts that several gateways share.

    Args:
        url: ``redis://`` or ``rediss://`` (TLS), with the number of our database.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.link = SharedRedis("limits", url, timeout_s=timeout_s)
        self._redis = self.link.redis
        self._script = self._redis.register_script(_DECIDE)

    async def decide(self, asks: Sequence[QuotaRequest]) -> QuotaVerdict:
        """Count all asks, or none. Raises one of ``FAULTS`` if Redis does not answer."""
        arguments: list[Any] = []
        for ask in asks:
            span_ms = round((LEASE_S if ask.holder else WINDOW_S) * 1000)
            arguments += [ask.limit, ask.amount, span_ms, ask.holder]
        refused, wait_ms, counts = cast(
            "tuple[int, int, list[list[int]]]",
            await self.link.ask(lambda: self._script([_key(ask) for ask in asks], arguments)),
        )
        standings = tuple(
            QuotaStanding(what=ask.what, limit=ask.limit, left=max(0, ask.limit - used), reset_s=reset_ms / 1000)
            for ask, (used, reset_ms) in zip(asks, counts, strict=True)
            if not ask.holder
        )
        return QuotaVerdict(standings=standings, refused=asks[refused - 1] if refused else None, wait_s=wait_ms / 1000)

    async def renew(self, asks: Sequence[QuotaRequest]) -> None:
        """Extend the held entries by ``LEASE_S``, including those that Redis has forgotten."""
        await self.link.ask(lambda: self._renew(asks))

    async def _renew(self, asks: Sequence[QuotaRequest]) -> None:
        seconds, microseconds = await cast("Any", self._redis.time())
        until_ms = seconds * 1000 + microseconds // 1000 + round(LEASE_S * 1000)
        held: dict[str, dict[str, int]] = {}
        for ask in asks:
            held.setdefault(_key(ask), {})[ask.holder] = until_ms
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key, holders in held.items():
                pipeline.zadd(key, holders)
                pipeline.pexpire(key, round(LEASE_S * 2000))
            await pipeline.execute()

    async def release(self, ask: QuotaRequest) -> None:
        """Remove one held entry."""
        await self.link.ask(lambda: self._redis.zrem(_key(ask), ask.holder))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.link.aclose()


def _key(ask: QuotaRequest) -> str:
    # The text in braces selects the node of a cluster: all keys of a tenant are on one node, so one script reaches
    # them.
    return f"talkspurt:limits:{{{quote(ask.tenant, safe='')}}}:{ask.what}"
