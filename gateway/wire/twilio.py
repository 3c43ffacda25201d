"""Twilio Media Streams, bidirectional (``<Connect><Stream>``). mu-law 8 kHz in base64 in JSON text messages.

Twilio plays what we send in order and buffers ahead of real time; ``clear`` empties that buffer and returns all
pending marks at once, which is why marks of ours carry a generation number. Outgoing messages hold exactly the
documented keys: an extra one raises warning 31951. There is no message for hang-up (closing the socket is one) nor for
outgoing DTMF (tones go in the audio).
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.errors import ProtocolError
from gateway.wire.messages import (
    DtmfReceived,
    Ignored,
    MarkReached,
    MediaReceived,
    Message,
    StreamStarted,
    StreamStopped,
    UnknownEvent,
)
from voicecodecs.registry import AudioFormat

_DIGITS = frozenset("0123456789*#ABCD")
_PCMU = AudioFormat("PCMU", 8000)


class Twilio:
    """One stream's serializer."""

    name: ClassVar[str] = "twilio"
    max_lead_ms: ClassVar[int] = 2000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    goes_on_after: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = True

    def __init__(self) -> None:
        self._stream_id = ""
        self._media_head = b""

    def decode(self, data: str | bytes) -> list[Message]:
        """One text message to messages; see ``Dialect.decode``."""
        if isinstance(data, bytes):
            raise ProtocolError(f"{self.name}: got a binary message of {len(data)} bytes, expected JSON text")
        try:
            body = orjson.loads(data)
            event = body["event"]
            reader = _READERS.get(event)
            if reader is None:
                return [UnknownEvent(str(event)[:64])]
            if self._stream_id and body.get("streamSid", self._stream_id) != self._stream_id:
                raise ProtocolError(f"{self.name}: {event} is for another stream than this one", field="streamSid")
            message = reader(body)
        except ProtocolError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, Base64Error) as exc:
            raise ProtocolError(f"{self.name}: cannot read {len(data)} characters: {exc!r:.120}") from exc
        if isinstance(message, StreamStarted):
            self._stream_id = message.stream_id
            self._media_head = b'{"event":"media","streamSid":' + orjson.dumps(message.stream_id)
            self._media_head += b',"media":{"payload":"'
        return [message]

    def is_media(self, data: bytes | memoryview) -> bool:
        """Twilio writes ``{"event":"media"`` first."""
        return data[:16] == b'{"event":"media"'

    def media(self, payload: bytes) -> bytes:
        """One frame."""
        return self._media_head + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes:
        """Comes back when all before it was played, or at once on ``clear``."""
        return orjson.dumps({"event": "mark", "streamSid": self._stream_id, "mark": {"name": name}})

    def clear(self) -> bytes:
        """Empties Twilio's buffer."""
        return orjson.dumps({"event": "clear", "streamSid": self._stream_id})

    def dtmf(self, digits: str) -> None:
        """Twilio has no such message."""

    def hangup(self) -> None:
        """Twilio has no such message."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, expected a string")
    return value


def _started(body: Mapping[str, Any]) -> Message:
    start = body["start"]
    media = start.get("mediaFormat", {})
    encoding, rate = media.get("encoding", "audio/x-mulaw"), int(media.get("sampleRate", 8000))
    if encoding != "audio/x-mulaw" or rate != 8000:
        raise ProtocolError(
            f"twilio: stream is {str(encoding)[:40]} at {rate} Hz, expected audio/x-mulaw at 8000", field="mediaFormat"
        )
    stream_id = _text(start.get("streamSid") or body["streamSid"])
    custom = start.get("customParameters") or {}
    return StreamStarted(
        stream_id=stream_id,
        call_sid=_text(start.get("callSid", "")),
        account_sid=_text(start.get("accountSid", "")),
        inbound=_PCMU,
        outbound=_PCMU,
        custom_parameters={_text(key): str(value) for key, value in custom.items()},
    )


def _media(body: Mapping[str, Any]) -> Message:
    media = body["media"]
    if media.get("track", "inbound") not in ("inbound", "inbound_track"):
        return Ignored()
    return MediaReceived(a2b_base64(_text(media["payload"]), strict_mode=True))


def _dtmf(body: Mapping[str, Any]) -> Message:
    digit = _text(body["dtmf"]["digit"])
    if digit not in _DIGITS or len(digit) != 1:
        raise ValueError("digit is not one of 0-9 * # A-D")
    return DtmfReceived(digit)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Message]] = {
    "connected": lambda body: Ignored(),
    "start": _started,
    "media": _media,
    "dtmf": _dtmf,
    "mark": lambda body: MarkReached(_text(body["mark"]["name"])),
    "stop": lambda body: StreamStopped(),
}
