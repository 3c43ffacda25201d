"""A gRPC Speak call that sends its first message together with the request.

``grpc.aio`` sends the metadata of a request, waits until they have left, and then sends the first message. So in a
burst the engine received the requests of all turns before the text of the first one. gRPC's core can send metadata and
message in one batch, and the answer's metadata with its first message. This call makes the core do so. It is the only
module that uses private parts of ``grpc.aio`` (docs/decisions/grpc-internals.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio._call import StreamStreamCall

from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb


class SpeakCall(StreamStreamCall):  # type: ignore[misc]  # untyped
    """The call ``speak(metadata=metadata)``, for the method ``speak`` of a stub. Use ``gather``, ``receive``,
    ``half_close`` and ``cancel`` only. Data gathers in one message until the message before has been sent."""

    def __init__(self, speak: Any, metadata: tuple[tuple[str, str], ...], start: pb.SpeakStart) -> None:
        """``start`` is part of the first message, which is sent in the next turn of the loop."""
        self._pending: pb.SpeakRequest | None = pb.SpeakRequest(start=start)
        self._sends = True
        """False: data that gathers from now on is not sent."""
        self._answered = False
        self._reading: asyncio.Task[Any] | None = None
        super().__init__(
            None, None, metadata, None, None, speak._channel, speak._method, None, None, speak._loop,
            speak._registered_call_handle,
        )  # fmt: skip
        speak._python_channel._register_call(self)  # this ends the call when the channel is closed
        self._sender: asyncio.Task[None] | None = self._initializer

    async def _prepare_rpc(self) -> None:
        """Begin the call. ``grpc.aio`` makes this its task ``_initializer``, and cancels it with the call."""
        self._watcher = self._loop.create_task(self._cython_call._handle_status_once_received())
        with contextlib.suppress(asyncio.CancelledError):
            await self._send(cygrpc.SendInitialMetadataOperation(self._metadata, 0))

    def gather(self) -> pb.SpeakRequest:
        """Return the next message to be sent, so that the caller can fill it."""
        if self._pending is None:
            self._pending = pb.SpeakRequest()
        if self._sender is None and self._sends:
            self._sender = self._loop.create_task(self._send())
        return self._pending

    async def _send(self, *before: Any) -> None:
        """Send the gathered message. ``before``: operations for the core in the same batch as the first message.

        If the server's status meets ``grpc.aio``'s own ``write``, it is replaced by INTERNAL, and messages that have
        arrived can no longer be read. Here a failed write changes nothing, and ``receive`` says why.
        """
        with contextlib.suppress(grpc.aio.BaseError):
            while (message := self._pending) is not None and not self.done():
                self._pending = None
                sending = cygrpc.SendMessageOperation(message.SerializeToString(), 0)
                await cygrpc.execute_batch(self._cython_call, (*before, sending), self._loop)
                before = ()
        self._sender = None

    async def receive(self) -> Any:
        """Receive a message. What ends the call is returned, not raised: ``grpc.aio.EOF`` or an exception.

        A task receives, and stays if the caller is cancelled: gRPC (1.85) never frees a message that arrives for a
        cancelled receiver (https://github.com/grpc/grpc/issues/43360). The task ends with the call.
        """
        if self._reading is None:
            self._reading = self._loop.create_task(self._receive())
        message = await asyncio.shield(self._reading)
        self._reading = None
        return message

    async def _receive(self) -> Any:
        before = () if self._answered else (cygrpc.ReceiveInitialMetadataOperation(0),)
        self._answered = True
        try:
            if not self.done():
                receiving = cygrpc.ReceiveMessageOperation(0)
                with contextlib.suppress(grpc.aio.BaseError):  # the status says why
                    await cygrpc.execute_batch(self._cython_call, (*before, receiving), self._loop)
                if (message := receiving.message()) is not None:
                    return pb.SpeakResponse.FromString(message)
            await self._raise_for_status()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as exc:
            return exc
        return grpc.aio.EOF

    async def half_close(self) -> None:
        """Tell the engine that nothing more will be sent. A write in progress must end first, or it would end the
        call."""
        self._sends = False
        if self._sender is not None:
            await asyncio.wait((self._sender,))
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the call is over already
            await self.done_writing()
