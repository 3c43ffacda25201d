"""The interface of a media-WebSocket dialect, which converts between bytes and messages. Each vendor has its own. No
I/O.

A dialect object belongs to one stream. It holds the stream's id, sequence numbers and negotiated formats.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from gateway.carriers.oddities import Oddities
from gateway.seams.media_messages import Message


class Dialect(Protocol):
    """One stream's serializer."""

    name: ClassVar[str]
    subprotocols: ClassVar[tuple[str, ...]]
    """Values of ``Sec-WebSocket-Protocol``. The first one that the peer offers is selected; if it offers none, none
    is."""
    call_outlives_stream: ClassVar[bool]
    """True if the call continues after its stream. The carrier then calls our ``…/after`` webhook, or the switch
    ``/v1/handoffs``."""

    @property
    def max_lead_ms(self) -> int:
        """Longest lead over real time that the peer accepts, ms. 0: none."""
        ...

    @property
    def has_marks(self) -> bool:
        """True if the peer reports that sent audio was played."""
        ...

    @property
    def has_clear(self) -> bool:
        """True if the peer has a buffer that it empties on demand."""
        ...

    @property
    def media_is_text(self) -> bool:
        """True if ``media`` is a WebSocket text message, False if it is binary. Control messages are always text."""
        ...

    @property
    def oddities(self) -> Oddities:
        """Oddities of this stream that were tolerated."""
        ...

    def without_metadata(self) -> list[Message]:
        """Start a stream whose peer announces nothing; called a moment after the first audio. Empty: this dialect waits
        for its start."""
        ...

    def decode(self, data: str | bytes) -> list[Message]:
        """Convert one WebSocket message (str: text, bytes: binary) to zero or more messages.

        Raises:
            ProtocolError: the message is unreadable. The stream continues, unless its start names an encoding that is
                not supported (code ``unsupported_encoding``).
        """
        ...

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True if this raw message is certainly caller audio. Only its first bytes are examined.

        Calls without a listener drop such messages without parsing them.
        """
        ...

    def media(self, payload: bytes) -> bytes:
        """Return the message that carries one frame."""
        ...

    def mark(self, name: str) -> bytes | None:
        """Return the message that requests a report when everything before it was played. None: the dialect has
        none."""
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
