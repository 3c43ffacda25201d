"""Carries messages between two of our processes over a unix socket in a private folder. A frame is a pickled message;
see ``framed.py``.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any

from tts_engine.service.framing.framed import FramedSocket

_HEADER = struct.Struct("<I")
_TURN_BYTES = 64 * 1024
"""Bytes that are processed in one turn of the loop: three first chunks, one or two of 25 tokens, or any number of
messages without sound."""


class MessageConnection(FramedSocket):
    """One end of the connection. Both ends must be of the same release and must trust each other.

    The protocol of the messages bounds the unread data.
    """

    def __init__(self, take: Callable[[Any], None], on_closed: Callable[[], None] = lambda: None) -> None:
        """``take`` is called with each message, in order, on the event loop; ``on_closed`` when nothing more comes."""
        super().__init__(_HEADER, most_bytes=2**32 - 1, turn_bytes=_TURN_BYTES)
        self.closed = asyncio.Event()
        """Set when nothing more comes."""
        self._take_message, self._on_closed = take, on_closed

    def send(self, message: object, *, at_once: bool = True) -> None:
        """Send a message. After the end it is dropped. ``at_once``: see ``FramedSocket.say``."""
        self.say(pickle.dumps(message, 5), at_once=at_once)

    def took_frame(self, fields: tuple[Any, ...], payload: bytes) -> None:
        self._take_message(pickle.loads(payload))

    def lost(self) -> None:
        self.closed.set()
        self._on_closed()
