"""The data channel ``talkspurt`` of one connection: text messages of limited size, over aiortc's SCTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiortc import RTCDataChannel, RTCDtlsTransport, RTCSctpTransport
from aiortc.rtcsctptransport import SCTP_RTO_INITIAL

from gateway.dialogue.wire import encode
from gateway.seams.messages import Error

log = logging.getLogger(__name__)

LABEL = "talkspurt"

_SEND_BUFFER_BYTES = 256_000
"""Most bytes that wait for a slow peer. More closes the channel."""

_CHANNELS = 16
"""Most data channels that a peer may open; one of them is used. More closes SCTP."""

_DRAIN_S = 0.5


class Channel:
    """One open data channel.

    Args:
        max_message_bytes: a larger message gets one ``error``, then the channel is closed.
    """

    def __init__(self, channel: RTCDataChannel, *, max_message_bytes: int) -> None:
        self._channel = channel
        self._max_message_bytes = max_message_bytes
        self._take: Callable[[str | bytes], None] = lambda data: None
        channel.on("message", self._received)

    def read(self, take: Callable[[str | bytes], None]) -> None:
        """Pass every further message to ``take``: text, or the bytes of a binary message."""
        self._take = take

    @property
    def open(self) -> bool:
        """True if messages can be sent."""
        return self._channel.readyState == "open"

    def send(self, text: str) -> None:
        """Queue a message. If the peer does not read, the channel is closed."""
        if not self.open:
            return
        if self._channel.bufferedAmount > _SEND_BUFFER_BYTES:
            log.warning("data channel peer too slow", extra={"queued": self._channel.bufferedAmount})
            self._channel.close()
            return
        self._channel.send(text)

    def close(self) -> None:
        """Close the channel. The call continues."""
        self._take = lambda data: None
        if self.open:
            self._channel.close()

    def refuse(self, size: str) -> None:
        """Report that a message is too large, and close the channel."""
        error = Error(
            description=f"message is {size}, expected at most {self._max_message_bytes} bytes", code="message_too_big"
        )
        text = encode(error, extensions=True)
        assert text is not None  # errors are no extension
        self.send(text)
        self.close()

    def _received(self, data: str | bytes) -> None:
        size = len(data) if isinstance(data, bytes) else len(data.encode())
        if size > self._max_message_bytes:
            self.refuse(f"{size} bytes")
        else:
            self._take(data)


class ChannelTransport(RTCSctpTransport):
    """SCTP of one connection. aiortc keeps any number of fragments of an endless message; here their size is limited.

    Args:
        on_channel: called once with the first channel that has our label. Other channels are closed.
    """

    def __init__(
        self, dtls: RTCDtlsTransport, *, max_message_bytes: int, on_channel: Callable[[Channel], None]
    ) -> None:
        super().__init__(dtls)
        self._max_message_bytes = max_message_bytes
        self._on_channel = on_channel
        self._ours: Channel | None = None
        self._channel_count = 0
        self._initial_window = self._advertised_rwnd
        self.on("datachannel", self._on_datachannel)

    def _on_datachannel(self, channel: RTCDataChannel) -> None:
        self._channel_count += 1
        if channel.label == LABEL and self._ours is None:
            self._ours = Channel(channel, max_message_bytes=self._max_message_bytes)
            self._on_channel(self._ours)
        else:
            channel.close()

    async def _receive_data_chunk(self, chunk: Any) -> None:
        await super()._receive_data_chunk(chunk)
        held = self._initial_window - self._advertised_rwnd
        if held > 4 * self._max_message_bytes and self._ours is not None:
            self._ours.refuse(f"over {held} bytes, in fragments of one message")
        if held > 4 * self._max_message_bytes or self._channel_count > _CHANNELS:
            log.warning("data channels closed", extra={"held_bytes": held, "opened": self._channel_count})
            self._inbound_streams.clear()
            await self._data_channel_flush()
            await self.stop()

    def resume(self) -> None:
        """Repeat what was not acknowledged, because a new path was found. The timer may have grown to a minute."""
        if self._t3_handle is not None:
            self._rto = min(self._rto, SCTP_RTO_INITIAL)
            self._t3_cancel()
            self._t3_expired()

    async def drain(self) -> None:
        """Wait briefly until queued messages are acknowledged."""
        deadline = asyncio.get_running_loop().time() + _DRAIN_S
        while self._data_channel_queue or self._outbound_queue or self._sent_queue:
            if self.state != "connected" or asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.01)
