"""The toy's messages: mu-law in base64."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from gateway.carriers.reading import Body, JsonEvents, digit, payload, text
from gateway.seams.media_messages import MediaReceived, Message, StreamStarted, StreamStopped


class Toy(JsonEvents):
    """One stream's serializer."""

    name: ClassVar[str] = "toy"
    max_lead_ms: ClassVar[int] = 0
    has_marks: ClassVar[bool] = False
    has_clear: ClassVar[bool] = False
    call_outlives_stream: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """The toy writes the event first."""
        return bytes(data[:16]) == b'{"event":"audio"'

    def media(self, payload: bytes) -> bytes:
        """One frame."""
        return b'{"audio":"' + b2a_base64(payload, newline=False) + b'"}'

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "start": lambda self, body: [StreamStarted(stream_id=text(body["ring"]), call_sid=text(body["ring"]))],
        "audio": lambda self, body: [MediaReceived(payload(body["audio"], self.oddities))],
        "key": lambda self, body: [digit(body["key"])],
        "stop": lambda self, body: [StreamStopped()],
    }
