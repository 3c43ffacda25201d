"""The contract of a media-WebSocket dialect: bytes in, messages out, and back. One file per vendor, no I/O.

A dialect object belongs to one stream: it remembers the stream's id and its sequence numbers, nothing else.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from gateway.wire.messages import Message


class Dialect(Protocol):
    """One stream's serializer."""

    name: ClassVar[str]
    max_lead_ms: ClassVar[int]
    """How far ahead of real time the peer lets us send; 0: never ahead."""
    has_marks: ClassVar[bool]
    """The peer reports when what was sent has been played."""
    has_clear: ClassVar[bool]
    """The peer holds a buffer that it empties on demand."""

    def decode(self, data: str | bytes) -> list[Message]:
        """One WebSocket message (str: text, bytes: binary) to zero or more messages.

        Raises:
            ProtocolError: not readable; the stream goes on.
        """
        ...

    def is_media(self, data: bytes | memoryview) -> bool:
        """True if this raw text or binary message surely is caller audio; a cheap look at its head.

        Calls that nobody listens to drop such messages unparsed.
        """
        ...

    def media(self, payload: bytes) -> bytes:
        """The message that carries one frame."""
        ...

    def mark(self, name: str) -> bytes | None:
        """The message that asks to be told when all before it was played; None: the dialect has none."""
        ...

    def clear(self) -> bytes | None:
        """The message that empties the peer's buffer; None: the dialect has none."""
        ...

    def dtmf(self, digits: str) -> bytes | None:
        """The message that makes the peer send tones; None: tones go in the audio."""
        ...

    def hangup(self) -> bytes | None:
        """The message that ends the call; None: closing the socket does."""
        ...

    goes_on_after: ClassVar[bool]
    """The carrier asks our ``…/after`` webhook when the stream has ended."""
    media_is_text: ClassVar[bool]
    """True: ``media`` goes out as a WebSocket text message; False: binary. Control messages are always text."""
