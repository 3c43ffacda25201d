"""Enforces tenants' limits, alone or together with other gateways.

While Redis does not answer, this process decides by its own counts (``limits.redis_outage: local``), or refuses
everything that is limited (``refuse``). It always counts its own use, so one gateway alone never exceeds a limit;
several gateways may then exceed it by as many times. After an error, Redis is not asked for ``PAUSE_S``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal

from gateway.config import LimitsConfig, TenantLimits
from gateway.errors import Rejected
from gateway.limits.quota import LocalQuotas, QuotaRequest, QuotaStanding, QuotaVerdict, What
from gateway.postgres import DatabaseState

if TYPE_CHECKING:
    from gateway.limits.shared import SharedQuotas

log = logging.getLogger(__name__)

PAUSE_S = 1.0
RENEW_S = 1.0
"""A quarter of a lease."""


class LimitReached(Rejected):
    """A limit is reached (429). ``standings`` is the state of the windows that were asked."""

    def __init__(
        self, message: str, *, code: str = "rate_limited", wait_s: float, standings: tuple[QuotaStanding, ...]
    ) -> None:
        super().__init__(message, status=429, code=code, retry_after_s=wait_s)
        self.standings = standings


AtOnce = Literal["calls", "streams"]

_MESSAGES = {
    "requests": "{limit} requests a minute are allowed to this tenant",
    "characters": "{limit} characters a minute are allowed to this tenant",
    "calls": "{limit} calls at a time are allowed to this tenant",
    "streams": "{limit} streams of speech at a time are allowed to this tenant",
}
_CODES = {"requests": "rate_limited", "characters": "rate_limited", "calls": "too_many_calls",
          "streams": "too_many_streams"}  # fmt: skip


class Limiter:
    """Knows each tenant's limits and counts.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, config: LimitsConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._local = LocalQuotas()
        self._held: set[QuotaRequest] = set()
        self._shared: SharedQuotas | None = None
        if config.redis_url is not None:
            from gateway.limits.shared import SharedQuotas  # redis-py, from the extra [redis]

            self._shared = SharedQuotas(config.redis_url.get_secret_value(), timeout_s=config.redis_timeout_s)
        self._down_until = 0.0
        self._is_down = False

    async def take(self, tenant: str, *, requests: int = 0, characters: int = 0) -> tuple[QuotaStanding, ...]:
        """Take from a tenant's windows, from all or none. Return the state of the limited ones.

        Raises:
            Rejected: 429, not enough is left; 413, it exceeds a minute's limit; 503, Redis does not answer.
        """
        limits = self._limits(tenant)
        wanted: list[tuple[What, int, int | None]] = [
            ("requests", requests, limits.requests_per_minute),
            ("characters", characters, limits.characters_per_minute),
        ]
        asks = [
            QuotaRequest(tenant=tenant, what=what, limit=limit, amount=amount)
            for what, amount, limit in wanted
            if amount and limit is not None
        ]
        for ask in asks:
            if ask.amount > ask.limit:
                raise Rejected(
                    f"{ask.amount} {ask.what}, expected at most {ask.limit} a minute for this tenant",
                    status=413, code="text_too_long", param="text",
                )  # fmt: skip
        return (await self._decided(asks)).standings if asks else ()

    @asynccontextmanager
    async def held(self, tenant: str, what: AtOnce, holder: str = "") -> AsyncIterator[None]:
        """Hold one of a tenant's calls or streams.

        Raises:
            Rejected: 429, all are held; 503, Redis does not answer.
        """
        ask = self._at_once(tenant, what, holder or secrets.token_hex(8))
        if ask is None:
            yield
            return
        await self._decided([ask])
        self._held.add(ask)
        try:
            yield
        finally:
            self._held.discard(ask)
            self._local.release(ask)
            if self._shared is not None and not self._pausing():
                with suppress(*self._faults()):  # a remaining entry expires with its lease
                    await self._shared.release(ask)

    def is_limited(self, tenant: str, what: AtOnce) -> bool:
        """Return True if the tenant's concurrent calls or streams are limited and must be counted."""
        return self._at_once(tenant, what, "") is not None

    def check_room(self, tenant: str, what: AtOnce) -> None:
        """Check that this process may hold one more, by its own counts.

        Raises:
            Rejected: 429.
        """
        ask = self._at_once(tenant, what, "")
        if ask is not None and not self._local.has_room(ask):
            raise _refusal(ask, 1.0)

    @property
    def databases(self) -> Sequence[DatabaseState]:
        """The state of Redis, if there is one."""
        return (self._shared.link.state,) if self._shared is not None else ()

    async def watch(self) -> None:
        """Renew the held entries in Redis until cancelled."""
        while self._shared is not None:
            await asyncio.sleep(RENEW_S)
            if not self._pausing():
                try:
                    await self._shared.renew(list(self._held))
                except self._faults() as exc:
                    self._lost(exc)

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        if self._shared is not None:
            with suppress(*self._faults()):
                await self._shared.aclose()

    # --- deciding --------------------------------------------------------------------------------------------------

    async def _decided(self, asks: Sequence[QuotaRequest]) -> QuotaVerdict:
        verdict = await self._by_redis(asks) if self._shared is not None and not self._pausing() else None
        if verdict is None:
            if self._shared is not None and self._config.redis_outage == "refuse":
                raise Rejected(
                    "limits cannot be checked now", status=503, code="limits_unavailable", retry_after_s=PAUSE_S
                )
            verdict = self._local.decide(asks, self._clock())
        elif verdict.refused is None:
            self._local.count(asks, self._clock())
        if verdict.refused is not None:
            raise _refusal(verdict.refused, verdict.wait_s, verdict.standings)
        return verdict

    async def _by_redis(self, asks: Sequence[QuotaRequest]) -> QuotaVerdict | None:
        assert self._shared is not None
        try:
            verdict = await self._shared.decide(asks)
        except self._faults() as exc:
            self._lost(exc)
            return None
        if self._is_down:
            self._is_down = False
            log.warning("Redis answers again, limits are shared")
            with suppress(*self._faults()):
                await self._shared.renew(list(self._held))
        return verdict

    def _pausing(self) -> bool:
        return self._is_down and self._clock() < self._down_until

    def _lost(self, exc: BaseException) -> None:
        if not self._is_down:
            log.error("Redis does not answer", extra={"why": type(exc).__name__, "then": self._config.redis_outage})
        self._is_down = True
        self._down_until = self._clock() + PAUSE_S

    def _faults(self) -> tuple[type[BaseException], ...]:
        from gateway.redis_connection import FAULTS

        return FAULTS

    def _limits(self, tenant: str) -> TenantLimits:
        return self._config.tenants.get(tenant, self._config.tenant)

    def _at_once(self, tenant: str, what: AtOnce, holder: str) -> QuotaRequest | None:
        limits = self._limits(tenant)
        limit = limits.calls_at_once if what == "calls" else limits.streams_at_once
        return (
            None if limit is None or not tenant else QuotaRequest(tenant=tenant, what=what, limit=limit, holder=holder)
        )


def _refusal(ask: QuotaRequest, wait_s: float, standings: tuple[QuotaStanding, ...] = ()) -> LimitReached:
    message, code = _MESSAGES[ask.what].format(limit=ask.limit), _CODES[ask.what]
    return LimitReached(message, code=code, wait_s=wait_s, standings=standings)
