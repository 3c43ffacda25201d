"""Vonage Voice API WebSocket: text messages are JSON, binary messages are exactly 20 ms of s16le, both ways.

The first message has the endpoint's ``headers`` at top level, next to ``event`` and ``content-type``. A ``notify`` is
queued like audio and comes back when it is reached; ``clear`` cancels waiting ones. Outgoing DTMF and hang-up would
need REST. When the socket closes, the event webhook gets ``disconnected``, and may answer with the next action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import Body, JsonEvents, WholeSamples, audio_format, digit, parameters, text
from gateway.seams.media_messages import (
    DtmfReceived,
    MarkReached,
    MediaReceived,
    Message,
    PlayoutCleared,
    StreamStarted,
)
from voicecodecs.registry import AudioFormat

_PROTOCOL_FIELDS = ("event", "content-type")


class Vonage(JsonEvents):
    """The serializer of one stream."""

    name: ClassVar[str] = "vonage"
    start_event: ClassVar[str] = "websocket:connected"
    max_lead_ms: ClassVar[int] = 2000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = False
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._samples = WholeSamples()

    def decode_binary(self, data: bytes) -> list[Message]:
        """Decode the caller's audio."""
        return [MediaReceived(self._samples.push(data))]

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: every binary message is."""
        return binary and not len(data) % 2 and self._samples.aligned

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        return payload

    def mark(self, name: str) -> bytes:
        """Encode a mark, which comes back as ``websocket:notify``."""
        return orjson.dumps({"action": "notify", "payload": {"name": name}})

    def clear(self) -> bytes:
        """Encode the message that empties the buffer; the peer answers with ``websocket:cleared``."""
        return b'{"action":"clear"}'

    def starts(self, body: Body) -> bool:
        """Return True if a message has a content type, as the first one does."""
        return "content-type" in body

    # --- readers ---------------------------------------------------------------------------------------------------

    def _connected(self, body: Body) -> Iterable[Message]:
        fmt = audio_format(self.name, {"encoding": body.get("content-type")}, AudioFormat("L16", 16000), self.oddities)
        self._samples = WholeSamples()  # audio before the start is dropped
        own = parameters({key: value for key, value in body.items() if key not in _PROTOCOL_FIELDS}, self.oddities)
        call = own.pop("talkspurt.CallSid", "")
        yield StreamStarted(
            stream_id=call,
            call_sid=call,
            inbound=fmt,
            outbound=fmt,
            custom_parameters=own,
        )

    def _read(self, body: Body) -> list[Message]:
        if "event" not in body and "digit" in body:  # older releases send keys without the name of an event
            return [digit(body["digit"])]
        return super()._read(body)

    def _dtmf(self, body: Body) -> Iterable[DtmfReceived]:
        yield digit(body["digit"])

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "websocket:connected": _connected,
        "websocket:dtmf": _dtmf,
        "websocket:notify": lambda self, body: [MarkReached(text(body["payload"]["name"]))],
        "websocket:cleared": lambda self, body: [PlayoutCleared()],
    }
