"""One server of several workers, any of which may get a request. A request for a call is passed on to the worker that
has it, whose number is in the call's id. Lists and streams over all calls are combined from all workers.

Workers answer each other on Unix sockets in a folder that only this server can read. The worker that passes a request
on checks only its site; the other worker checks the key as for its own requests.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import ClientWebSocketResponse, web
from multidict import CIMultiDict
from yarl import URL

from gateway.cluster import passing
from gateway.cluster.room_link import room_socket_of
from gateway.errors import Rejected
from gateway.listener.passed_on import PART_HEADER, PEER_HEADER, PassedOn

FIRST = 0
"""The worker with everything that exists once: announced calls of AudioSocket, registrations and pings of SIP, the
model on trial."""

_PART_S = 5.0
"""Longest wait for one worker's part of a list."""

_ROUTES_OF_FIRST = {
    *((method, "/v1/calls/expected/{uuid}") for method in ("PUT", "POST", "DELETE")),
    *((method, "/v1/trial") for method in ("GET", "PUT", "DELETE")),
    ("DELETE", "/v1/models/{model_id}"),  # a model on trial is not unloaded
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def socket_of(folder: Path, worker: int) -> Path:
    """Return the socket at which a worker answers the others."""
    return folder / f"worker-{worker}.sock"


def own_socket_of(folder: Path, worker: int) -> Path:
    """Return the socket at which a worker reports to the server's other processes."""
    return folder / f"own-{worker}.sock"


class Siblings:
    """The workers of one server, as seen from one of them.

    Args:
        folder: the folder of the workers' sockets.
        index: the number of this worker.
        count: the number of workers.
        message_bytes: longest WebSocket message.
        next: returns the worker for the next placed call.
        background: returns the state of the supervisor's own tasks, as in ``/v1/health``.
    """

    def __init__(
        self,
        folder: Path,
        index: int,
        count: int,
        *,
        message_bytes: int,
        next: Callable[[], Awaitable[int]],
        background: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
    ) -> None:
        self.index = index
        self.next = next
        self._background = background
        self.all = range(count)
        self._folder = folder
        self.message_bytes = message_bytes
        self.relay: Handler | None = None
        """Handles a dialogue manager that dials in, for the calls of all workers."""

    def middleware(self, owner: Callable[[str], int]) -> Any:
        """Return the middleware that passes requests on. It comes after all others.

        Args:
            owner: returns the worker of a call id; raises ``ValueError`` for an invalid id.
        """
        together: dict[tuple[str, str], Handler] = {
            ("GET", "/v1/calls"): self._calls,
            ("GET", "/v1/events"): self._events,
            ("GET", "/v1/rooms"): self._rooms,
            ("GET", "/v1/health"): self._health,
            ("GET", "/v1/usage"): self._usage,
        }

        @web.middleware
        async def pass_on(request: web.Request, handler: Handler) -> web.StreamResponse:
            if isinstance(request.transport, PassedOn):
                return await handler(request)
            resource = request.match_info.route.resource
            wanted = (request.method, resource.canonical if resource is not None else "")
            if wanted in together and request.query.get("ended") != "true":
                return await together[wanted](request)
            if wanted == ("GET", "/v1/dialogue") and self.relay is not None:
                return await self.relay(request)
            if wanted in _ROUTES_OF_FIRST:
                worker = FIRST
            elif wanted == ("POST", "/v1/calls"):
                worker = await self.next()
            else:
                worker = await self._worker_of(request, owner)
            return await handler(request) if worker == self.index else await self.pass_on(request, worker)

        return pass_on

    def home_of_room(self, name: str) -> int:
        """Return the worker that has the rooms of this name. All workers know it without asking."""
        return zlib.crc32(name.encode()) % len(self.all)

    def room_socket(self, worker: int) -> Path:
        """Return the socket at which a worker lets calls into its rooms."""
        return room_socket_of(self._folder, worker)

    async def _worker_of(self, request: web.Request, owner: Callable[[str], int]) -> int:
        """Return the worker of the call or room that a request names; this worker, if it names none. A call that joins
        is asked for at its own worker."""
        call, resource = await passing.named_call(request), request.match_info.route.resource
        of_room = resource is not None and resource.canonical.startswith("/v1/rooms/")
        if of_room and not (call and request.method == "POST"):
            return self.home_of_room(request.match_info["name"])
        try:
            worker = owner(call)
        except ValueError:
            return self.index
        return worker if worker in self.all else self.index

    # --- one worker ------------------------------------------------------------------------------------------------

    def session(self, worker: int) -> aiohttp.ClientSession:
        """Return a client of one worker."""
        return passing.session(socket_of(self._folder, worker))

    def socket_of_call(self, call_id: str, owner: Callable[[str], int]) -> Path | None:
        """Return the socket of another worker that has a call. None: this one has it, or the id is invalid."""
        try:
            worker = owner(call_id)
        except ValueError:
            return None
        return socket_of(self._folder, worker) if worker != self.index and worker in self.all else None

    @staticmethod
    def address(request: web.Request) -> URL:
        """Return a request's address at another worker."""
        return URL(f"http://worker{request.raw_path}", encoded=True)

    @staticmethod
    def headers(request: web.Request, *, part: bool = False) -> CIMultiDict[str]:
        """Return a request's headers for another worker."""
        kept = passing.headers(request.headers)
        kept[PEER_HEADER] = request.remote or ""
        if part:
            kept[PART_HEADER] = "1"
        return kept

    async def pass_on(self, request: web.Request, worker: int) -> web.StreamResponse:
        """Let another worker answer.

        Raises:
            Rejected: 503, that worker is gone, and so are its calls.
        """
        async with self.session(worker) as http:
            return await passing.answered_by(
                http, request, self.address(request), self.headers(request),
                message_bytes=self.message_bytes, gone=_gone(worker),
            )  # fmt: skip

    async def dial(self, http: aiohttp.ClientSession, request: web.Request, worker: int) -> ClientWebSocketResponse:
        """Open a request's WebSocket at another worker.

        Raises:
            Rejected: that worker refuses, or is gone (503).
        """
        return await passing.dial(
            http, self.address(request), self.headers(request), message_bytes=self.message_bytes, gone=_gone(worker)
        )

    async def refusal(self, request: web.Request) -> web.StreamResponse:
        """Return this worker's answer to a WebSocket request that it refuses, by repeating the request without the
        upgrade."""
        headers = self.headers(request, part=True)
        headers.popall("Sec-WebSocket-Accept", None)
        async with self.session(self.index) as http, http.get(self.address(request), headers=headers) as answer:
            return web.Response(status=answer.status, headers=passing.headers_of(answer), body=await answer.read())

    async def routes_of(self, call_sid: str) -> list[str]:
        """Return the routes of the other workers' calls with a carrier's call id. A worker that is gone has none."""

        others = [worker for worker in self.all if worker != self.index]
        asked = await asyncio.gather(*(self.ask(worker, "/routes", call=call_sid) for worker in others))
        return [route for routes in asked for route in routes or ()]

    async def ask(self, worker: int, path: str, **query: str) -> Any:
        """Ask a worker on its internal socket (``own_socket_of``). None: it is gone."""
        try:
            async with (
                asyncio.timeout(_PART_S),
                passing.session(own_socket_of(self._folder, worker)) as http,
                http.get(URL(f"http://worker{path}") % query) as answer,
            ):
                return orjson.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):  # ValueError: the answer is not JSON
            return None

    # --- all workers -----------------------------------------------------------------------------------------------

    async def _parts(self, request: web.Request) -> tuple[list[Any], web.Response | None]:
        """Ask every worker. Return the JSON of those that answer, this worker's first; or this worker's refusal to pass
        on."""
        own, *others = await asyncio.gather(
            self._part(request, self.index, part=False),
            *(self._part(request, worker, part=True) for worker in self.all if worker != self.index),
        )
        if own is None:
            raise _gone(self.index)
        status, headers, body = own
        if status not in (200, 503):
            return [], web.Response(status=status, headers=headers, body=body)
        answers = [body, *(each[2] for each in others if each is not None and each[0] in (200, 503))]
        return [orjson.loads(answer) for answer in answers], None

    async def _part(
        self, request: web.Request, worker: int, *, part: bool
    ) -> tuple[int, CIMultiDict[str], bytes] | None:
        """Ask one worker. None: it is gone, and so are its calls."""
        try:
            async with (
                asyncio.timeout(_PART_S),
                self.session(worker) as http,
                http.get(self.address(request), headers=self.headers(request, part=part)) as answer,
            ):
                return answer.status, passing.headers_of(answer), await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    async def _calls(self, request: web.Request) -> web.StreamResponse:
        parts, refused = await self._parts(request)
        if refused is not None:
            return refused
        if any("calls" not in part for part in parts):
            return await self.pass_on(request, self.index)
        return _json({key: [one for part in parts for one in part[key]] for key in ("calls", "placed")})

    async def _rooms(self, request: web.Request) -> web.StreamResponse:
        parts, refused = await self._parts(request)
        if refused is not None:
            return refused
        return _json({"rooms": [one for part in parts for one in part["rooms"]]})

    async def _usage(self, request: web.Request) -> web.StreamResponse:
        """Combine the usage of all workers. With records in a database, every worker sees all; else each has its own
        counts."""
        parts, refused = await self._parts(request)
        if refused is not None:
            return refused
        whole: dict[str, Any] = parts[0]
        days: dict[str, dict[str, Any]] = {}
        for day in (day for part in parts for day in part["days"]):
            sums = days.setdefault(day["day"], {"day": day["day"]})
            for name, value in day.items():
                if name != "day":
                    sums[name] = sums.get(name, 0) + value
        return _json({**whole, "days": [days[day] for day in sorted(days, reverse=True)]})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        parts, refused = await self._parts(request)
        if refused is not None:
            return refused
        if any("calls" not in part for part in parts):
            return await self.pass_on(request, self.index)
        whole = next((part for part in parts if part["status"] == "ok"), parts[0])
        for name in ("calls", "callsLimit"):
            whole[name] = sum(part[name] for part in parts)
        for name in ("registrations", "trunks"):
            whole[name] = [one for part in parts for one in part[name]]
        tasks = [*await self._background(), *(task for part in parts for task in part["background"])]
        whole["background"] = _of_all_processes(tasks)
        databases: dict[str, Any] = {}
        for state in (state for part in parts for state in part["databases"]):
            if state["of"] not in databases or not state["answers"]:
                databases[state["of"]] = state
        whole["databases"] = list(databases.values())
        return _json(whole, status=200 if whole["status"] == "ok" else 503)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the server-sent events of all workers, each event whole. A restarted worker joins again."""
        async with self.session(self.index) as http:
            try:
                answer = await http.get(self.address(request), headers=self.headers(request))
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                raise _gone(self.index) from exc
            async with answer:
                if answer.status != 200:
                    return web.Response(
                        status=answer.status, headers=passing.headers_of(answer), body=await answer.read()
                    )
                response = web.StreamResponse(headers=passing.headers_of(answer))
                await response.prepare(request)
                others = [
                    asyncio.create_task(self._events_of(request, worker, response), name=f"events of worker {worker}")
                    for worker in self.all
                    if worker != self.index
                ]
                try:
                    await _copy_events(answer, response)
                finally:
                    for task in others:
                        task.cancel()
                    await asyncio.gather(*others, return_exceptions=True)
                return response

    async def _events_of(self, request: web.Request, worker: int, response: web.StreamResponse) -> None:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    self.session(worker) as http,
                    http.get(self.address(request), headers=self.headers(request, part=True)) as answer,
                ):
                    if answer.status == HTTPStatus.UNAUTHORIZED:
                        return  # the key was revoked
                    if answer.status == 200:
                        await _copy_events(answer, response)
            await asyncio.sleep(AGAIN_S)


def _of_all_processes(tasks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one state for each name of a background task, the worst of all processes, with the sum of restarts."""
    merged: dict[str, dict[str, Any]] = {}
    for task in tasks:
        known = merged.setdefault(task["name"], {**task, "restarts": 0})
        known["running"] = known["running"] and task["running"]
        known["failing"] = known["failing"] or task["failing"]
        known["restarts"] += task["restarts"]
        known["failures_in_a_row"] = max(known["failures_in_a_row"], task["failures_in_a_row"])
    return [merged[name] for name in sorted(merged)]


AGAIN_S = 0.25
"""Pause before a worker that was gone is asked again."""


async def _copy_events(answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    event = b""
    with suppress(aiohttp.ClientError):
        async for line in answer.content:
            event += line
            if line == b"\n":
                await response.write(event)
                event = b""


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status)


def _gone(worker: int) -> Rejected:
    return Rejected(
        f"worker {worker} of this server is restarting; its calls have ended",
        status=503, code="worker_gone", retry_after_s=1.0,
    )  # fmt: skip
