"""The gateway's end of a link: Speak calls to an engine on this machine, without gRPC's overhead.

A call over gRPC takes about 200 us of both event loops, and 128 turns that begin at once wait for each other. A link
only adds to gRPC: while it is not connected, calls go over gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import Any

import grpc

from tts_engine.errors import EngineError, Unavailable
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import wire
from tts_engine.service.link_frames import COUNT, SUFFIX, FrameKind, LinkEnd
from tts_engine.supervision import SUPERVISOR

_AGAIN_S = 0.2
"""Time between two attempts to connect, seconds. Meanwhile calls go over gRPC."""
_TURN_BYTES = 16 * 1024
"""Bytes that are processed in one turn of the loop: eight first chunks of PCMU."""
_TELL_BYTES = 16 * 1024
"""Bytes after which the server is told how much was taken: a quarter of what it sends ahead."""


class SpeakLink:
    """The link to the engine at a unix socket. It connects by itself, and again after each loss. Call ``aclose`` at the
    end."""

    def __init__(self, target: str, *, most_bytes: int, keepalive_s: float) -> None:
        """
        Args:
            target: the engine's address, ``unix:/path``. most_bytes: longest message. keepalive_s: seconds after which
            an engine that does not answer a ping is given up.
        """
        self._path, self._most_bytes = target.removeprefix("unix:") + SUFFIX, most_bytes
        self._keepalive_s = keepalive_s
        self._end: _ClientEnd | None = None
        self._connecting = SUPERVISOR.task("speak link", self._connect)

    @property
    def stands(self) -> bool:
        """True if a call can be made."""
        return self._end is not None and self._end.open

    def call(self, metadata: tuple[tuple[str, str], ...], start: pb.SpeakStart) -> LinkCall:
        """Begin a call. The link has to be connected. ``start`` is part of the first message, which is sent at the end
        of this turn of the loop."""
        assert self._end is not None
        return LinkCall(self._end, metadata, start)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                _, self._end = await loop.create_unix_connection(lambda: _ClientEnd(self._most_bytes), self._path)
                await self._until_ended(self._end)
            await asyncio.sleep(_AGAIN_S)

    async def _until_ended(self, end: _ClientEnd) -> None:
        while end.open:
            reads = end.reads
            end.send(0, FrameKind.PING)
            try:
                async with asyncio.timeout(self._keepalive_s):
                    await end.ended.wait()
            except TimeoutError:
                if end.reads == reads:
                    end.abort()

    async def aclose(self) -> None:
        """End the link, with the calls on it."""
        await self._connecting.aclose()
        if self._end is not None:
            self._end.close()
            await self._end.ended.wait()


class _ClientEnd(LinkEnd):
    """One connection."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes=most_bytes, turn_bytes=_TURN_BYTES)
        self.open = True
        self.ended = asyncio.Event()
        self.calls: dict[int, LinkCall] = {}
        self._talking: list[LinkCall] = []
        """Calls that have a message to send."""
        self._numbers = 0

    def number(self, call: LinkCall) -> int:
        """Register a new call and return its number."""
        self._numbers = (self._numbers + 1) % 2**32
        self.calls[self._numbers] = call
        return self._numbers

    def talk_soon(self, call: LinkCall) -> None:
        """Send the call's next message after the callbacks that are ready now."""
        if not self._talking:
            asyncio.get_running_loop().call_soon(self._talk)
        self._talking.append(call)

    def _talk(self) -> None:
        talking, self._talking = self._talking, []
        for call in talking:
            call.say()

    def close(self) -> None:
        self._talk()
        super().close()

    def took(self, call: int, kind: FrameKind, payload: bytes) -> None:
        if kind not in (FrameKind.MESSAGE, FrameKind.END, FrameKind.PING):
            raise ValueError(f"{kind.name} from the engine")
        if (own := self.calls.get(call)) is not None:  # else it was cancelled
            own.took(kind, payload)

    def lost(self) -> None:
        self.open = False
        for call in list(self.calls.values()):
            call.end(Unavailable("the engine has closed the connection"))
        self.ended.set()


class LinkCall:
    """A Speak call over a link, with the methods of ``speak_call.SpeakCall``."""

    def __init__(self, end: _ClientEnd, metadata: tuple[tuple[str, str], ...], start: pb.SpeakStart) -> None:
        self._end = end
        self._pending: pb.SpeakRequest | None = None
        self._got: deque[tuple[pb.SpeakResponse, int]] = deque()
        """Messages with their sizes in bytes. Bounded by what the server sends ahead."""
        self._ended: Any = None
        """The value that ``receive`` returns after the last message."""
        self._arrived: asyncio.Future[None] | None = None
        self._untold_bytes = 0
        self._number = end.number(self)
        self._metadata: bytes | None = json.dumps(dict(metadata)).encode()
        """The payload that begins the call. None: the call has begun."""
        self.gather().start.CopyFrom(start)

    def gather(self) -> pb.SpeakRequest:
        """Return the next message to be sent, so that the caller can fill it."""
        if self._pending is None:
            self._pending = pb.SpeakRequest()
            if self._ended is None:
                self._end.talk_soon(self)
        return self._pending

    def say(self) -> None:
        """Send the gathered message. Called by the link."""
        pending, self._pending = self._pending, None
        if pending is not None and self._ended is None:
            if self._metadata is not None:
                self._end.send(self._number, FrameKind.BEGIN, self._metadata)
                self._metadata = None
            self._end.send(self._number, FrameKind.MESSAGE, pending.SerializeToString())

    async def receive(self) -> Any:
        """Receive a message. What ends the call is returned, not raised: ``grpc.aio.EOF`` or an exception."""
        while not self._got:
            if self._ended is not None:
                ended, self._ended = self._ended, grpc.aio.EOF  # its traceback would be a reference cycle
                return ended
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        message, count = self._got.popleft()
        self._untold_bytes += count
        if self._untold_bytes >= _TELL_BYTES and self._ended is None:
            self._end.send(self._number, FrameKind.TAKEN, COUNT.pack(self._untold_bytes))
            self._untold_bytes = 0
        return message

    async def half_close(self) -> None:
        """Tell the engine that nothing more will be sent."""
        if self._ended is None:
            self.say()
            self._end.send(self._number, FrameKind.HALF_CLOSE)
            self.end(grpc.aio.EOF)

    def cancel(self) -> None:
        """Cancel the call."""
        if self._ended is None:
            self._end.send(self._number, FrameKind.CANCEL)
            self._got.clear()
            self.end(asyncio.CancelledError())

    def took(self, kind: FrameKind, payload: bytes) -> None:
        """Take a frame from the server. Called by the link."""
        if kind is FrameKind.MESSAGE:
            self._got.append((pb.SpeakResponse.FromString(payload), len(payload)))
            self._wake()
        elif payload:
            failure = pb.Failure.FromString(payload)
            self.end(wire.decode_error(failure.code, failure.details, failure.metadata))
        else:
            self.end(grpc.aio.EOF)

    def end(self, ended: EngineError | asyncio.CancelledError | object) -> None:
        """Note what ended the call, and send nothing more for it."""
        self._ended, self._pending = ended, None
        self._end.calls.pop(self._number, None)
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
