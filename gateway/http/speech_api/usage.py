"""Counts requests of the speech API, and shows usage by day and records: a tenant its own, an operator those of all."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiohttp import web
from pydantic import BaseModel

from gateway.errors import Rejected
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.csv_cells import guarded
from gateway.http.request.paging import place_text, read_limit, read_place
from gateway.http.request.routes import ApiModel, Route
from gateway.limits.fair_turns import FairTurns
from gateway.metering.ledger import RecordScope
from gateway.metering.record import MeterRecord, UsageDay
from gateway.metering.store import Records

LIMIT = 10_000
"""Most records of one answer."""


class UsageView(ApiModel):
    """``GET /v1/usage``: newest day first."""

    tenant: str | None
    """The tenant of all days. Null: the days of each tenant, for a key with the scope `admin`."""
    days: list[UsageDay]


class RecordsView(ApiModel):
    """``GET /v1/records``: oldest first."""

    records: list[MeterRecord]
    next: str
    """Value of ``after`` for the records after these. Empty: there are none."""


class Tally:
    """The counters of a request in progress."""

    def __init__(self) -> None:
        self.metered: asyncio.Future[None]
        """Done when the beginning of the request's record is stored; the answer waits for it."""
        self.characters = 0
        self.audio_s = 0.0
        self.first_packet_ms: float | None = None
        self._begun = time.monotonic()

    def heard(self, audio_s: float) -> None:
        """Set the seconds of audio made so far."""
        if self.first_packet_ms is None:
            self.first_packet_ms = round((time.monotonic() - self._begun) * 1000, 1)
        self.audio_s = audio_s


class Usage:
    """Counts requests, and shows a tenant its own counts."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._reading = FairTurns(1)  # as many as the records have readers

    @contextmanager
    def request(self, tenant: str, request_id: str) -> Iterator[Tally]:
        """Count a request, even if it was answered only in part. An error marks it as failed."""
        record = MeterRecord(id=request_id, kind="request", tenant=tenant, startedAt=time.time(), transport="http")
        tally, failed, begun = Tally(), False, time.monotonic()

        def so_far() -> MeterRecord:
            counted = {
                "endedAt": record.startedAt + time.monotonic() - begun,
                "characters": tally.characters if tally.audio_s or not failed else 0,
                "audioSeconds": tally.audio_s,
                "firstPacketMs": tally.first_packet_ms,
            }
            return record.model_copy(update=counted)

        tally.metered = self._records.begin(record, so_far)
        try:
            yield tally
        except Exception:
            failed = True
            raise
        finally:
            self._records.end(so_far().model_copy(update={"outcome": "failed" if failed else "completed"}))

    async def show(self, request: web.Request) -> web.Response:
        """Return the days of the tenants that the client may see (``tenant``: of one), as JSON or CSV (``format``)."""
        tenant = request[WHO].billed_tenant(request.query.get("tenant"))
        async with self._reading.place((request[TENANT].name, "")):
            found = await self._records.usage(tenant)
        days = [
            day.model_copy(
                update={"audioSeconds": round(day.audioSeconds, 2), "callSeconds": round(day.callSeconds, 2)}
            )
            for day in found
        ]
        if request.query.get("format") == "csv":
            return _csv(UsageDay, days)
        return web.json_response(UsageView(tenant=tenant, days=days).model_dump())

    async def records(self, request: web.Request) -> web.Response:
        """Return the records of the tenants that the client may see (``tenant``: one), as JSON or CSV (``format``)."""
        if not self._records.keeps_records:
            raise Rejected("records are not kept: records.database_url is not set", status=404, code="not_configured")
        since, until = (_seconds(request, name, default) for name, default in (("since", 0.0), ("until", 1e12)))
        after = read_place(request.query.get("after", ""), "after")
        limit = read_limit(request.query.get("limit", ""), default=LIMIT, most=LIMIT)
        who = request[WHO]
        tenant = who.billed_tenant(request.query.get("tenant"))
        # A browser's token sees what it was made for, a key all of its tenant.
        of = RecordScope(routes=who.routes, call=who.call) if who.token else RecordScope()
        async with self._reading.place((request[TENANT].name, "")):
            found = await self._records.find(tenant, since=since, until=until, after=after, limit=limit, of=of)
        if request.query.get("format") == "csv":
            return _csv(MeterRecord, found)
        following = place_text((found[-1].startedAt, found[-1].id)) if len(found) == limit else ""
        view = RecordsView(records=list(found), next=following)
        return web.Response(text=view.model_dump_json(by_alias=True), content_type="application/json")

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        return [
            Route(
                method="GET", path="/v1/usage", handler=self.show,
                summary="The tenant's usage, by day", content_type=("application/json", "text/csv"),
                answer=UsageView, tags=["speech"],
            ),
            Route(
                method="GET", path="/v1/records", handler=self.records,
                summary="The tenant's records of calls and requests (since until after limit format)",
                content_type=("application/json", "text/csv"), answer=RecordsView, tags=["calls"],
            ),
        ]  # fmt: skip


def _seconds(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e12:
        raise Rejected(f"{name} is {text[:40]!r}, expected seconds since 1970", status=422, code="invalid", param=name)
    return seconds


def _csv(model: type[BaseModel], rows: Sequence[BaseModel]) -> web.Response:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([field.alias or name for name, field in model.model_fields.items()])
    writer.writerows(guarded(row.model_dump()).values() for row in rows)
    return web.Response(text=out.getvalue(), content_type="text/csv", charset="utf-8")
