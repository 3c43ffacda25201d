"""The contract of a media-WebSocket dialect, which turns bytes into messages and back. Each vendor has its own. No I/O.

A dialect object belongs to one stream. It remembers the stream's id, its sequence numbers and what the peer negotiated.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from gateway.seams.media_messages import Message


class Dialect(Protocol):
    """One stream's serializer."""

    name: ClassVar[str]
    subprotocols: ClassVar[tuple[str, ...]]
    """Values of ``Sec-WebSocket-Protocol``. The first one that the peer offers is selected; if it offers none, none
    is."""
    call_outlives_stream: ClassVar[bool]
    """Does the call go on after its stream? The carrier then asks our ``…/after`` webhook, or the switch
    ``/v1/handoffs``."""

    @property
    def max_lead_ms(self) -> int:
        """How far ahead of real time does the peer let us send? 0: never ahead."""
        ...

    @property
    def has_marks(self) -> bool:
        """Does the peer report when what was sent has been played?"""
        ...

    @property
    def has_clear(self) -> bool:
        """Does the peer have a buffer that it empties on demand?"""
        ...

    @property
    def media_is_text(self) -> bool:
        """Is ``media`` a WebSocket text message and not a binary one? Control messages are always text."""
        ...

    def decode(self, data: str | bytes) -> list[Message]:
        """Turn one WebSocket message (str: text, bytes: binary) into zero or more messages.

        Raises:
            ProtocolError: the message is not readable. The stream goes on.
        """
        ...

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Is this raw message certainly caller audio that may be dropped? It takes only a cheap look at its head.

        Calls to which nobody listens drop such messages without parsing them.
        """
        ...

    def media(self, payload: bytes) -> bytes:
        """Return the message that carries one frame."""
        ...

    def mark(self, name: str) -> bytes | None:
        """Return the message that asks for a report when everything before it was played. None: there is no such
        one."""
        ...

    def clear(self) -> bytes | None:
        """Return the message that empties the peer's buffer. None: the dialect has none."""
        ...

    def dtmf(self, digits: str) -> bytes | None:
        """Return the message that makes the peer send touch tones. None: tones are sent in the audio."""
        ...

    def hangup(self, handoff_data: str | None = None) -> bytes | None:
        """Return the message that ends the call; the peer then closes the socket. None: closing the socket ends it."""
        ...
