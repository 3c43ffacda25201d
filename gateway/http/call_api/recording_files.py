"""The files of recordings, as REST gives them: found by their names, sent whole or in ranges, decrypted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from gateway.config import RecordingConfig
from gateway.errors import RecordingError, Rejected
from gateway.http.call_api.recordings_disk import HANG_S, RecordingsDisk
from gateway.uplink.recorded import Recorded

log = logging.getLogger(__name__)

_WHOLE = slice(None, None, 1)

T = TypeVar("T")


class RecordingFiles:
    """The folder of recordings.

    Args:
        recording: the configuration of recordings.
    """

    def __init__(self, recording: RecordingConfig) -> None:
        self._recording = recording
        self._disk = RecordingsDisk(hang_s=HANG_S)

    async def find(self, name: str) -> Path | None:
        """Return a recording by its name, which must be that of no other file. None: there is none.

        Raises:
            Rejected: 503, the disk does not answer.
        """
        return await self._disk.read(lambda: self._found(name, ".wav", ".wav.enc"))

    async def read(self, name: str, suffix: str, parse: Callable[[bytes], T]) -> T | None:
        """Read a small file beside a recording. None: there is none.

        Raises:
            Rejected: 503, the disk does not answer.
        """

        def work() -> T | None:
            path = self._found(name, suffix)
            return None if path is None else parse(path.read_bytes())

        return await self._disk.read(work)

    def _found(self, name: str, *suffixes: str) -> Path | None:
        if not self._recording.folder:
            return None
        paths = (Path(self._recording.folder) / f"{name}{suffix}" for suffix in suffixes)
        return next((path for path in paths if path.exists()), None)

    async def send(self, request: web.Request, path: Path) -> web.StreamResponse:
        """Send a recording as a WAV file, or the range of it that is asked for. An encrypted one is decrypted."""
        headers = {"Content-Type": "audio/wav", "Cache-Control": "private, no-store", "Accept-Ranges": "bytes"}
        response = web.StreamResponse(headers=headers)
        try:
            with contextlib.closing(await self._disk.read(lambda: Recorded(path, self._recording.key))) as recorded:
                size, wanted = recorded.size, _range(request)
                begin, end, _ = wanted.indices(size)
                if begin >= end:
                    return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
                if wanted != _WHOLE:
                    response.set_status(206)
                    response.headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
                response.content_length = end - begin
                parts = recorded.parts(begin, end)
                while (part := await self._disk.read(lambda: next(parts, b""))) != b"":
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(part)
        except (RecordingError, Rejected) as exc:
            log.warning("recording cannot be read", extra={"recording": path.name, "why": str(exc)})
            if not response.prepared:
                raise
            if request.transport is not None:  # an error answer would now count as audio
                request.transport.abort()
        return response


def _range(request: web.Request) -> slice:
    """Return the requested range of bytes. Several ranges, and ``If-Range``, which needs a validator that we do not
    give, return everything (RFC 9110 sections 13.1.5 and 14.2)."""
    if "If-Range" in request.headers:
        return _WHOLE
    try:
        return request.http_range
    except ValueError:
        return _WHOLE
