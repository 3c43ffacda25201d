"""Exotel Voicebot applet: snake_case JSON in which all numbers are strings, with s16le audio in base64.

Outgoing payloads must be multiples of 320 bytes and at least about 3200 bytes, so frames have 200 ms at 8 kHz and
100 ms above. Some samples of the vendor spell keys in camelCase. We read both spellings and send snake_case. When the
socket closes, the call flow continues with its next applet.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import Body, JsonEvents, audio_format, digit, item, parameters, payload, text
from gateway.seams.media_messages import Ignored, MarkReached, MediaReceived, Message, StreamStarted, StreamStopped
from voicecodecs.registry import AudioFormat


class Exotel(JsonEvents):
    """The serializer of one stream.

    Args:
        message_ms: audio per outgoing message, milliseconds; 0 takes a length that makes 3200 bytes or more.
    """

    name: ClassVar[str] = "exotel"
    max_lead_ms: ClassVar[int] = 1000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = False
    media_is_text: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message_ms: int = 0) -> None:
        self._message_ms = message_ms
        self._stream_id = ""
        self._media_head = b""

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: such messages begin with ``{"event":"media"``, with or without a space."""
        return bytes(data[:17]).replace(b" ", b"").startswith(b'{"event":"media"')

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        return self._media_head + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes:
        """Encode a mark, which comes back when everything before it was played."""
        return orjson.dumps({"event": "mark", "stream_sid": self._stream_id, "mark": {"name": name}})

    def clear(self) -> bytes:
        """Encode the message that empties the peer's buffer."""
        return orjson.dumps({"event": "clear", "stream_sid": self._stream_id})

    def dtmf(self, digits: str) -> None:
        """Return None, because Exotel has no such message."""

    def hangup(self, handoff_data: str | None = None) -> None:
        """Return None, because Exotel has no such message."""

    # --- readers ---------------------------------------------------------------------------------------------------

    def _started(self, body: Body) -> Iterable[Message]:
        start = body["start"]
        fmt = audio_format(self.name, start.get("media_format", start.get("mediaFormat", {})), AudioFormat("L16", 8000))
        fmt = replace(fmt, ptime_ms=self._message_ms or (200 if fmt.sample_rate < 16000 else 100))
        names = ("stream_sid", "streamSid")
        self._stream_id = text(item({**start, **body}, *names))
        self._media_head = b'{"event":"media","stream_sid":' + orjson.dumps(self._stream_id) + b',"media":{"payload":"'
        yield StreamStarted(
            stream_id=self._stream_id,
            call_sid=text(start.get("call_sid", start.get("callSid", ""))),
            account_sid=text(start.get("account_sid", start.get("accountSid", ""))),
            from_=text(start.get("from") or ""),
            to=text(start.get("to") or ""),
            inbound=fmt,
            outbound=fmt,
            custom_parameters=parameters(start.get("custom_parameters", start.get("customParameters"))),
        )

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "connected": lambda self, body: [Ignored()],
        "start": _started,
        "media": lambda self, body: [MediaReceived(payload(body["media"]["payload"]))],
        "dtmf": lambda self, body: [digit(body["dtmf"]["digit"])],
        "mark": lambda self, body: [MarkReached(text(body["mark"]["name"]))],
        "stop": lambda self, body: [StreamStopped()],
    }
