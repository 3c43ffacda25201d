"""``/v1/recordings``: the recordings of named rooms that have closed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aiohttp import web

from gateway.call.joined.conferences import Conferences
from gateway.config import RouteConfig
from gateway.errors import Rejected
from gateway.http.call_api.recording_files import RecordingFiles
from gateway.http.call_api.rooms import sees_tenant
from gateway.http.request.auth import WHO
from gateway.http.request.routes import ApiModel, Route

_ID = re.compile(r"RM[0-9a-f]{32}")


class RecordedLeg(ApiModel):
    """A leg of a recorded room."""

    leg: str
    """Session id of the leg."""
    channel: int
    """Channel of the leg, 2 to 8. The bots are in channel 1."""
    fromS: float
    """Time at which it was heard first, seconds of the recording."""
    toS: float
    """Time at which it left."""


class RoomRecordingView(ApiModel):
    """The recording of a room."""

    room: str
    tenant: str
    legs: list[RecordedLeg]


class RoomRecordings:
    """The handlers."""

    def __init__(self, files: RecordingFiles, conferences: Conferences, routes: Mapping[str, RouteConfig]) -> None:
        self._files = files
        self._conferences = conferences
        self._routes = routes

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        path, tags = "/v1/recordings/{id}", ["rooms"]
        return [
            Route(
                method="GET", path=path, handler=self.show, answer=RoomRecordingView, tags=tags,
                summary="The recording of a room that has closed: its legs and their channels",
            ),
            Route(
                method="GET", path=f"{path}/audio", handler=self.audio, content_type="audio/wav", tags=tags,
                summary="The sound of that recording, one channel a leg",
            ),
        ]  # fmt: skip

    async def show(self, request: web.Request) -> web.Response:
        """Return the legs of a recording."""
        return web.json_response((await self._get(request)).model_dump())

    async def audio(self, request: web.Request) -> web.StreamResponse:
        """Return the sound of a recording, or a range of it."""
        await self._get(request)
        path = await self._files.find(request.match_info["id"])
        if path is None:
            raise _unknown(request)
        return await self._files.send(request, path)

    async def _get(self, request: web.Request) -> RoomRecordingView:
        name = request.match_info["id"]
        view = None
        if _ID.fullmatch(name):
            view = await self._files.read(name, ".json", RoomRecordingView.model_validate_json)
        if view is None or not sees_tenant(request[WHO], view.tenant, self._conferences, self._routes):
            raise _unknown(request)
        return view


def _unknown(request: web.Request) -> Rejected:
    message = f"no recording {request.match_info['id'][:40]!r}: it is there once its room has closed"
    return Rejected(message, status=404, code="unknown_recording", param="id")
