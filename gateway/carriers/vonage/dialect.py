"""Vonage Voice API WebSocket: text messages are JSON, binary ones are s16le, exactly 20 ms each, both ways.

The first message holds the endpoint's ``headers`` at top level beside ``event`` and ``content-type``. ``notify`` is
queued like audio and comes back when it is reached; a ``clear`` cancels those that wait. DTMF out and hang-up are
REST; closing the socket raises ``disconnected`` at the event webhook, which may answer with what follows.
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

_OURS = ("event", "content-type")


class Vonage(JsonEvents):
    """One stream's serializer."""

    name: ClassVar[str] = "vonage"
    start_event: ClassVar[str] = "websocket:connected"
    max_lead_ms: ClassVar[int] = 2000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    goes_on_after: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = False
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._samples = WholeSamples()

    def decode_binary(self, data: bytes) -> list[Message]:
        """Caller audio."""
        return [MediaReceived(self._samples.push(data))]

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Every binary message is."""
        return binary and not len(data) % 2 and self._samples.aligned

    def media(self, payload: bytes) -> bytes:
        """One frame."""
        return payload

    def mark(self, name: str) -> bytes:
        """Comes back as ``websocket:notify``."""
        return orjson.dumps({"action": "notify", "payload": {"name": name}})

    def clear(self) -> bytes:
        """Empties the buffer; answered with ``websocket:cleared``."""
        return b'{"action":"clear"}'

    def dtmf(self, digits: str) -> None:
        """Vonage has no such message."""

    def hangup(self, handoff_data: str | None = None) -> None:
        """Vonage has no such message."""

    # --- readers ---------------------------------------------------------------------------------------------------

    def _connected(self, body: Body) -> Iterable[Message]:
        encoding, _, options = text(body["content-type"]).partition(";")
        fmt = audio_format(encoding, int(options.partition("rate=")[2] or 16000))
        own = parameters({key: value for key, value in body.items() if key not in _OURS})
        call = own.pop("talkspurt.CallSid", "")
        yield StreamStarted(
            stream_id=call,
            call_sid=call,
            inbound=fmt,
            outbound=fmt,
            custom_parameters=own,
        )

    def _dtmf(self, body: Body) -> Iterable[DtmfReceived]:
        yield digit(body["digit"])

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "websocket:connected": _connected,
        "websocket:dtmf": _dtmf,
        "websocket:notify": lambda self, body: [MarkReached(text(body["payload"]["name"]))],
        "websocket:cleared": lambda self, body: [PlayoutCleared()],
    }
