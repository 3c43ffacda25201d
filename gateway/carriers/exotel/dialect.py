"""Exotel Voicebot applet: snake_case JSON in which all numbers are strings, with s16le audio in base64.

Outgoing payloads must be multiples of 320 bytes and at least about 3200 bytes, so frames have 200 ms at 8 kHz and
100 ms above. In logs of real calls the encoding is ``base64``, which is the transport's. Calls by Exotel's Connect API
spell keys in camelCase and have no media format; the rate is then in the address (``?sample-rate=16000``). To these we
answer in the same spelling, with numbered messages, as the vendor's own bridge does (exotel/Agent-Stream). When the
socket closes, the call flow continues with its next applet.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    audio_format,
    digit,
    first_label,
    label,
    linear_format,
    parameters,
    payload,
    section,
    text,
)
from gateway.seams.media_messages import Ignored, MarkReached, MediaReceived, Message, StreamStarted, StreamStopped
from voicecodecs.registry import AudioFormat

_ID_KEYS = ("stream_sid", "streamSid")
_RATE_NAMES = ("sample-rate", "sample_rate", "sampleRate")


class Exotel(JsonEvents):
    """The serializer of one stream.

    Args:
        message_ms: audio per outgoing message, milliseconds; 0 takes a length that makes 3200 bytes or more.
        query: parameters of the stream's address: ``sample-rate``.
    """

    name: ClassVar[str] = "exotel"
    max_lead_ms: ClassVar[int] = 1000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = False
    media_is_text: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message_ms: int = 0, query: Mapping[str, str] | None = None) -> None:
        self._message_ms = message_ms
        self._rate = next((value for name, value in (query or {}).items() if name in _RATE_NAMES), None)
        self._stream_id = ""
        self._id_key = "stream_sid"
        self._bytes_per_ms = 16
        self._sent_messages = 0
        self._sent_bytes = 0
        self._media_head = b""

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: such messages begin with ``{"event":"media"``, with or without a space."""
        return bytes(data[:17]).replace(b" ", b"").startswith(b'{"event":"media"')

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        if self._id_key == "stream_sid":
            return self._media_head + b2a_base64(payload, newline=False) + b'"}}'
        self._sent_messages += 1
        at_ms, number = self._sent_bytes // self._bytes_per_ms, b'"%d"' % self._sent_messages
        self._sent_bytes += len(payload)
        place = b'"sequenceNumber":%b,"media":{"chunk":%b,"timestamp":"%d","sequenceNumber":%b,"payload":"' % (
            number, number, at_ms, number,
        )  # fmt: skip
        return self._media_head + place + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes:
        """Encode a mark, which comes back when everything before it was played."""
        return orjson.dumps({"event": "mark", self._id_key: self._stream_id, "mark": {"name": name}})

    def clear(self) -> bytes:
        """Encode the message that empties the peer's buffer."""
        return orjson.dumps({"event": "clear", self._id_key: self._stream_id})

    # --- readers ---------------------------------------------------------------------------------------------------

    def _started(self, body: Body) -> Iterable[Message]:
        odd = self.oddities
        start = section(body.get("start"), odd)
        default = AudioFormat("L16", 8000)
        if self._rate is not None:
            default = linear_format(self._rate, default, odd)
        media = start.get("media_format", start.get("mediaFormat", {}))
        fmt = audio_format(self.name, media, default, odd)
        fmt = replace(fmt, ptime_ms=self._message_ms or (200 if fmt.sample_rate < 16000 else 100))
        self._stream_id = first_label(odd, *(part.get(key) for key in _ID_KEYS for part in (start, body)))
        keys = {*start, *body}
        if "streamSid" in keys and "stream_sid" not in keys:
            self._id_key = "streamSid"
        self._bytes_per_ms = max(1, (fmt.frame_bytes or 0) // fmt.ptime_ms)
        self._media_head = b'{"event":"media","%b":%b,' % (self._id_key.encode(), orjson.dumps(self._stream_id))
        if self._id_key == "stream_sid":
            self._media_head += b'"media":{"payload":"'
        yield StreamStarted(
            stream_id=self._stream_id,
            call_sid=label(start.get("call_sid", start.get("callSid")), odd),
            account_sid=label(start.get("account_sid", start.get("accountSid")), odd),
            from_=label(start.get("from"), odd),
            to=label(start.get("to"), odd),
            inbound=fmt,
            outbound=fmt,
            custom_parameters=parameters(start.get("custom_parameters", start.get("customParameters")), odd),
        )

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "connected": lambda self, body: [Ignored()],
        "start": _started,
        "media": lambda self, body: [MediaReceived(payload(body["media"]["payload"], self.oddities))],
        "dtmf": lambda self, body: [digit(body["dtmf"]["digit"])],
        "mark": lambda self, body: [MarkReached(text(body["mark"]["name"]))],
        "stop": lambda self, body: [StreamStopped()],
    }
