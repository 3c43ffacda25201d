"""The contract of a media-WebSocket dialect: bytes in, messages out, and back. One file per vendor, no I/O.

A dialect object belongs to one stream: it remembers the stream's id, its sequence numbers and what its peer negotiated.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from gateway.seams.media_messages import Message


class Dialect(Protocol):
    """One stream's serializer."""

    name: ClassVar[str]
    subprotocols: ClassVar[tuple[str, ...]]
    """``Sec-WebSocket-Protocol`` values of which the first one offered has to be selected; else none is."""
    max_lead_ms: ClassVar[int]
    """How far ahead of real time the peer lets us send; 0: never ahead."""
    goes_on_after: ClassVar[bool]
    """The carrier asks our ``…/after`` webhook, or the switch ``/v1/handoffs``, when the stream has ended."""

    @property
    def has_marks(self) -> bool:
        """The peer reports when what was sent has been played."""
        ...

    @property
    def has_clear(self) -> bool:
        """The peer holds a buffer that it empties on demand."""
        ...

    @property
    def media_is_text(self) -> bool:
        """``media`` goes out as a WebSocket text message, else as a binary one. Control messages are always text."""
        ...

    def decode(self, data: str | bytes) -> list[Message]:
        """One WebSocket message (str: text, bytes: binary) to zero or more messages.

        Raises:
            ProtocolError: not readable; the stream goes on.
        """
        ...

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """True if this raw text or binary message surely is caller audio that may be dropped; a cheap look at its head.

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

    def hangup(self, handoff_data: str | None = None) -> bytes | None:
        """The message that ends the call, whereupon the peer closes the socket; None: our closing it does."""
        ...
