"""The REST API of the call log: ended calls, their transcripts and their recordings."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Mapping, Sequence
from typing import TypeVar

from aiohttp import web

from gateway.call_log.log import CallLog, Query, Totals, in_parts, sorted_value
from gateway.errors import Rejected
from gateway.http.call_api.recording_files import RecordingFiles
from gateway.http.request.auth import TENANT, WHO
from gateway.http.request.csv_cells import guarded
from gateway.http.request.paging import place_text, read_limit, read_place
from gateway.http.request.routes import ApiModel
from gateway.limits.fair_turns import FairTurns
from gateway.principal import Principal
from gateway.seams.call_record import CallRecord, CallSummary

LIMIT = 1_000
"""Most calls of one answer."""


class EndedTotals(ApiModel):
    """Sums over all ended calls that match."""

    calls: int
    failed: int
    durationMs: int
    turns: int
    gaps: int


class EndedCallList(ApiModel):
    """Ended calls, newest first unless another order was asked for."""

    calls: list[CallSummary]
    totals: EndedTotals | None = None
    """None: not asked for."""
    next: str
    """Value of ``before`` for the calls after these. Empty: there are none."""


class EndedCallView(CallRecord):
    """One ended call."""

    recording: bool
    """True if ``GET /v1/calls/{id}/recording`` has its audio."""


class EndedCalls:
    """Handlers of ended calls.

    Args:
        call_log: None: ended calls are not kept.
        files: the recordings.
    """

    def __init__(self, call_log: CallLog | None, files: RecordingFiles) -> None:
        self._log = call_log
        self._files = files
        self._reading = FairTurns(1)  # as many as the log has readers

    async def list(self, request: web.Request) -> web.Response:
        """Return the matching calls that the client may see, as JSON or (``format=csv``) as CSV."""
        query = read_query(request.query, request[WHO])
        if self._log is None:
            raise Rejected("ended calls are not kept: calls.folder is not set", status=404, code="not_configured")
        async with self._reading.place((request[TENANT].name, "")):
            found = await self._log.find(query)
            if request.query.get("format") == "csv":
                text = await self._log.read(lambda: _csv(found))
                return web.Response(text=text, content_type="text/csv", charset="utf-8")
            following = ""
            if len(found) == query.limit:
                following = place_text((sorted_value(found[-1], query.sort), found[-1].callId))
            totals = await self._log.totals(query) if request.query.get("totals") == "true" else None
            text = await self._log.read(lambda: _json(found, following, totals))
        return web.Response(text=text, content_type="application/json")

    async def show(self, call_id: str, who: Principal) -> web.Response:
        """Return one ended call."""
        record = await self._get(call_id, who)
        path = await self._files.find(call_id)
        view = EndedCallView(**dict(record), recording=path is not None)
        return web.Response(text=view.model_dump_json(by_alias=True), content_type="application/json")

    async def recording(self, request: web.Request) -> web.StreamResponse:
        """Return the recording of an ended call as a WAV file, or a range of it. An encrypted one is decrypted."""
        call_id = request.match_info["id"]
        await self._get(call_id, request[WHO])
        path = await self._files.find(call_id)
        if path is None:
            raise Rejected(f"call {call_id[:40]!r} has no recording", status=404, code="no_recording", param="id")
        return await self._files.send(request, path)

    async def _get(self, call_id: str, who: Principal) -> CallRecord:
        record = None if self._log is None else await self._log.get(call_id)
        if record is None or not who.sees_call(record.route, call_id):
            raise Rejected(f"no call {call_id[:40]!r}", status=404, code="unknown_call", param="id")
        return record


def read_query(query: Mapping[str, str], who: Principal) -> Query:
    """Return the query of ``GET /v1/calls?ended=true``, limited to the calls that ``who`` may see.

    Raises:
        Rejected: 422, a value is invalid.
    """
    return Query(
        from_number=query.get("from", ""),
        to_number=query.get("to", ""),
        route=query.get("route", ""),
        routes=who.routes,
        call_id=who.call,
        number=query.get("number", ""),
        text=query.get("text", ""),
        outcome=_one_of(query, "outcome", ("", "completed", "failed", "unanswered")),
        shortest_ms=_length_ms(query, "shortest"),
        longest_ms=_length_ms(query, "longest"),
        sort=_one_of(query, "sort", ("start", "length", "turns", "wait", "gaps")),
        ascending=_one_of(query, "order", ("desc", "asc")) == "asc",
        since=_seconds(query["since"], "since") if query.get("since") else None,
        until=_seconds(query["until"], "until") if query.get("until") else None,
        before=read_place(query.get("before", ""), "before"),
        limit=read_limit(query.get("limit", ""), default=100, most=LIMIT),
    )


_Word = TypeVar("_Word", bound=str)


def _one_of(query: Mapping[str, str], name: str, known: Sequence[_Word]) -> _Word:
    """Read a parameter that is one of ``known``; the first of these if it is missing."""
    given = query.get(name, "")
    for word in known:
        if given == word:
            return word
    if not given:
        return known[0]
    raise Rejected(
        f"{name} is {given[:40]!r}, expected {', '.join(filter(None, known))}",
        status=422, code="invalid", param=name,
    )  # fmt: skip


def _length_ms(query: Mapping[str, str], name: str) -> int | None:
    """Read a length in seconds, as milliseconds. None: it is missing."""
    given = query.get(name, "")
    if not given:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise Rejected(f"{name} is {given[:40]!r}, expected seconds", status=422, code="invalid", param=name)
    return round(seconds * 1000)


def _seconds(text: str, name: str) -> float:
    """Read a time: seconds since the epoch, or ISO 8601 (UTC if it names no zone)."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Rejected(
            f"{name} is {text[:40]!r}, expected seconds since 1970 or a time such as 2026-11-22T15:00:00Z",
            status=422, code="invalid", param=name,
        ) from None  # fmt: skip
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


def _json(calls: Sequence[CallSummary], following: str, totals: Totals | None) -> str:
    """Write an ``EndedCallList``, part by part."""
    written = ",".join(call.model_dump_json(by_alias=True) for part in in_parts(calls) for call in part)
    sums = totals and EndedTotals(
        calls=totals.calls, failed=totals.failed, durationMs=totals.duration_ms, turns=totals.turns, gaps=totals.gaps
    )
    head, tail = EndedCallList(calls=[], totals=sums, next=following).model_dump_json(by_alias=True).split("[]", 1)
    return f"{head}[{written}]{tail}"


def _csv(calls: Sequence[CallSummary]) -> str:
    out = io.StringIO()
    names = [field.serialization_alias or name for name, field in CallSummary.model_fields.items()]
    writer = csv.DictWriter(out, names)
    writer.writeheader()
    for part in in_parts(calls):
        writer.writerows(guarded(call.model_dump(by_alias=True)) for call in part)
    return out.getvalue()
