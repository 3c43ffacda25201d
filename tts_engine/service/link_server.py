"""The engine's end of links: it serves their Speak calls like those that come over gRPC."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc

from tts_engine.errors import Exhausted
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import wire
from tts_engine.service.link_frames import COUNT, SUFFIX, FrameKind, LinkEnd
from tts_engine.service.socket_file import SocketFile

log = logging.getLogger(__name__)

_AHEAD_BYTES = 64 * 1024
"""Bytes of a call that may be sent and not taken; then the next message waits. 8 s of PCMU, as much as HTTP/2's window
holds."""
_TURN_BYTES = 2048
"""Bytes that are processed in one turn of the loop: the begin of eight turns, or sixty positions."""
_MESSAGE_BYTES = 64
"""Bytes that each unread message counts in addition to its payload."""

Speaker = Callable[[Any, Any], Awaitable[None]]


class LinkServer:
    """Accepts links at the engine's unix socket with another name (``link_frames.SUFFIX``)."""

    def __init__(self, speak: Speaker, *, most_calls: int, most_bytes: int, retry_after_s: float) -> None:
        """
        Args:
            speak: serves a call, as the method ``Speak`` of the generated servicer does.
            most_calls: most calls on one link. Further ones are refused, to be tried again after ``retry_after_s``.
            most_bytes: longest message.
        """
        self._speak, self._most_calls, self._most_bytes = speak, most_calls, most_bytes
        self._retry_after_s = retry_after_s
        self._server: asyncio.Server | None = None
        self._file: SocketFile | None = None
        self._ends: set[_ServerEnd] = set()

    async def start(self, target: str) -> None:
        """Listen. ``target``: the engine's address, ``unix:/path``. Raises OSError."""
        # The socket of a process that we replace is replaced as well.
        path = target.removeprefix("unix:") + SUFFIX
        self._server = await asyncio.get_running_loop().create_unix_server(self._connected, path)
        self._file = SocketFile(path)

    def _connected(self) -> _ServerEnd:
        full = Exhausted(f"{self._most_calls} calls are on the link", retry_after_s=self._retry_after_s)
        end = _ServerEnd(self._ends, self._speak, full, most_calls=self._most_calls, most_bytes=self._most_bytes)
        self._ends.add(end)
        return end

    async def aclose(self, grace_s: float) -> None:
        """Stop listening, and cancel the calls that have not ended in ``grace_s``."""
        if self._server is None:
            return
        if self._file is not None:
            self._file.remove()
        self._server.close()
        tasks = [task for end in self._ends for task in end.tasks]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=grace_s)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for end in list(self._ends):
            end.close()


class _ServerEnd(LinkEnd):
    """One connection."""

    def __init__(
        self, ends: set[_ServerEnd], speak: Speaker, full: Exhausted, *, most_calls: int, most_bytes: int
    ) -> None:
        """``full``: the error for a call beyond ``most_calls``."""
        super().__init__(most_bytes=most_bytes, turn_bytes=_TURN_BYTES)
        self._ends, self._speak, self._full, self._most_calls = ends, speak, full, most_calls
        self._calls: dict[int, LinkContext] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def took(self, call: int, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.BEGIN:
            self._begin(call, payload)
        elif kind is FrameKind.PING:
            self.send(call, FrameKind.PING)
        elif (own := self._calls.get(call)) is not None:  # else the call has ended, and the client will know soon
            if kind is FrameKind.CANCEL:
                del self._calls[call]
                own.cancel()
            else:
                own.took(kind, payload)

    def lost(self) -> None:
        self._ends.discard(self)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel()

    def _begin(self, number: int, payload: bytes) -> None:
        if number in self._calls:
            raise ValueError(f"call {number} begins twice")
        metadata = json.loads(payload)
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("a call's metadata is no object of strings")
        if len(self._calls) >= self._most_calls:
            self.send(number, FrameKind.END, wire.encode_failure(self._full).SerializeToString())
            return
        context = self._calls[number] = LinkContext(self, number, metadata)
        task = context.task = asyncio.create_task(self._serve(context), name="Speak")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, context: LinkContext) -> None:
        try:
            await self._speak(None, context)
        except asyncio.CancelledError:  # by the client, or at the server's end
            context.end(pb.Failure(code="CANCELLED", details="the engine gave the call up"))
        except grpc.aio.AbortError:
            pass  # the end has been sent
        except Exception as exc:
            log.error("a call on a link failed", extra={"error": type(exc).__name__})  # its text may be the caller's
            context.end(pb.Failure(code="INTERNAL", details=f"engine raised {type(exc).__name__}"))
        else:
            context.end(None)

    def over(self, number: int) -> None:
        """Forget a call that has ended."""
        self._calls.pop(number, None)


class LinkContext:
    """The part of ``grpc.aio.ServicerContext`` that ``Speak`` uses."""

    def __init__(self, end: _ServerEnd, number: int, metadata: Mapping[str, str]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._end, self._number, self._metadata = end, number, metadata
        self._messages: deque[tuple[pb.SpeakRequest, int]] = deque()
        """Unread messages, each with the bytes that it counts."""
        self._unread_bytes = 0
        self._half_closed = self._over = False
        self._untaken_bytes = 0
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._metadata.items())

    async def read(self) -> Any:
        """Return the client's next message, or ``grpc.aio.EOF``."""
        while not self._messages:
            if self._half_closed:
                return grpc.aio.EOF
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading
        message, count = self._messages.popleft()
        self._unread_bytes -= count
        return message

    async def write(self, message: pb.SpeakResponse) -> None:
        """Send a message, after the client has taken enough of the earlier ones."""
        while self._untaken_bytes >= _AHEAD_BYTES:
            self._writing = asyncio.get_running_loop().create_future()
            await self._writing
        payload = message.SerializeToString()
        self._untaken_bytes += len(payload)
        self._end.send(self._number, FrameKind.MESSAGE, payload)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any = ()) -> NoReturn:
        """End the call with an error."""
        self.end(pb.Failure(code=code.name, details=details, metadata=dict(trailing_metadata)))
        raise grpc.aio.AbortError(details)

    def end(self, failure: pb.Failure | None) -> None:
        """Tell the client how the call has ended, once."""
        if not self._over:
            self._over = True
            self._end.over(self._number)
            self._end.send(self._number, FrameKind.END, b"" if failure is None else failure.SerializeToString())

    def took(self, kind: FrameKind, payload: bytes) -> None:
        """Take a frame from the client. Raises ValueError or DecodeError."""
        if kind is FrameKind.MESSAGE:
            # The bound counts bytes, because an engine that was busy for a moment finds hundreds of tokens in one read.
            count = len(payload) + _MESSAGE_BYTES
            if self._half_closed or (self._messages and self._unread_bytes + count > self._end.most_bytes):
                raise ValueError("a message after the half-close, or too many that are not read")
            self._messages.append((pb.SpeakRequest.FromString(payload), count))
            self._unread_bytes += count
            _wake(self._reading)
        elif kind is FrameKind.HALF_CLOSE:
            self._half_closed = True
            _wake(self._reading)
        elif kind is FrameKind.TAKEN and len(payload) == COUNT.size:
            self._untaken_bytes -= COUNT.unpack(payload)[0]
            _wake(self._writing)
        else:
            raise ValueError(f"{kind.name} of {len(payload)} bytes from a client")

    def cancel(self) -> None:
        """End the call, because its client is gone or has cancelled it."""
        self._over = True
        assert self.task is not None
        self.task.cancel()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
