"""Counts what each tenant had spoken, day by day. The counts are in memory and start again with the process."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from dataclasses import dataclass

from aiohttp import web

from gateway.http.request.auth import TENANT
from gateway.http.request.routes import ApiModel, Route

DAYS = 92
"""How many days are kept for each tenant. The oldest are dropped first."""


class UsageDay(ApiModel):
    """A tenant's use of the speech API on one day (UTC)."""

    day: str
    requests: int
    characters: int
    audioSeconds: float


class UsageView(ApiModel):
    """``GET /v1/usage``: newest day first."""

    tenant: str
    days: list[UsageDay]


@dataclass(slots=True)
class _Day:
    requests: int = 0
    characters: int = 0
    audio_s: float = 0.0


class Usage:
    """Counts, and shows a tenant its own counts."""

    def __init__(self) -> None:
        self._tenants: dict[str, OrderedDict[str, _Day]] = {}

    def count(self, tenant: str, *, characters: int, audio_s: float) -> None:
        """Count a request that was answered in full or in part."""
        days = self._tenants.setdefault(tenant, OrderedDict())
        day = days.setdefault(datetime.datetime.now(datetime.UTC).date().isoformat(), _Day())
        day.requests += 1
        day.characters += characters
        day.audio_s += audio_s
        while len(days) > DAYS:
            days.popitem(last=False)

    async def show(self, request: web.Request) -> web.Response:
        """Return the usage of the tenant that asks."""
        tenant = request[TENANT].name
        days = [
            UsageDay(day=day, requests=d.requests, characters=d.characters, audioSeconds=round(d.audio_s, 2))
            for day, d in reversed(self._tenants.get(tenant, OrderedDict()).items())
        ]
        return web.json_response(UsageView(tenant=tenant, days=days).model_dump())

    def routes(self) -> list[Route]:
        """For ``make_app``."""
        return [
            Route(
                method="GET", path="/v1/usage", handler=self.show, scope="speak",
                summary="Speech of the tenant, by day",
                answer=UsageView, tags=["speech"],
            )
        ]  # fmt: skip
