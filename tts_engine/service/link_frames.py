"""Frames of a link: many Speak calls between two processes of one machine, on one unix socket.

A frame is a header and a payload. The header is the payload's length (32 bits, little-endian), the call's number (32
bits, the client counts them) and the kind (8 bits); see ``service/framing/framed.py``.

======== ============== ======================================================================
Client   ``BEGIN``      a call, with its metadata as JSON, an object of strings
both     ``MESSAGE``    a ``SpeakRequest`` or a ``SpeakResponse``
client   ``HALF_CLOSE`` no more messages come
client   ``CANCEL``     the call is given up; nothing more is said of it
client   ``TAKEN``      so many bytes of messages were taken (32 bits): the server may send more
server   ``END``        the last of a call: nothing, or a ``Failure``
both     ``PING``       of no call; the server answers with the same
======== ============== ======================================================================
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from enum import IntEnum

from tts_engine.service.framing.framed import FramedSocket

_HEADER = struct.Struct("<IIB")
COUNT = struct.Struct("<I")
"""The payload of ``TAKEN``."""

SUFFIX = ".speak"
"""Suffix that makes the path of the link's socket from the engine's path."""


class FrameKind(IntEnum):
    """The kinds of the table above."""

    BEGIN = 0
    MESSAGE = 1
    HALF_CLOSE = 2
    CANCEL = 3
    TAKEN = 4
    END = 5
    PING = 6


class LinkEnd(FramedSocket):
    """One end of a link."""

    def __init__(self, *, most_bytes: int, turn_bytes: int) -> None:
        """``most_bytes``, ``turn_bytes``: see ``FramedSocket``. An unknown kind also ends the link."""
        super().__init__(_HEADER, most_bytes=most_bytes, turn_bytes=turn_bytes)

    @abstractmethod
    def took(self, call: int, kind: FrameKind, payload: bytes) -> None:
        """Take a frame. Raises ValueError or DecodeError if this end may not get such a frame; that ends the link."""

    def took_frame(self, fields: tuple[int, ...], payload: bytes) -> None:
        call, kind = fields
        self.took(call, FrameKind(kind), payload)

    def send(self, call: int, kind: FrameKind, payload: bytes = b"") -> None:
        """Send a frame. After the end it is dropped."""
        self.say(payload, call, kind, at_once=kind not in (FrameKind.BEGIN, FrameKind.TAKEN))
