"""Plivo Audio Streaming, bidirectional. mu-law or L16 in base64; numbers are numbers here.

``playAudio`` names encoding and rate with every frame. A ``checkpoint`` comes back as ``playedStream`` when it has
really been played, and never once ``clearAudio`` threw it away. There is no ``connected`` and no ``stop``: the end is
the socket closing. Audio more than some 40 s ahead is said to be lost, which the lead stays far below.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    audio_format,
    digit,
    integer,
    item,
    json_object,
    parameters,
    payload,
    text,
)
from gateway.errors import ProtocolError
from gateway.seams.media_messages import (
    Ignored,
    MarkReached,
    MediaReceived,
    Message,
    PeerError,
    PlayoutCleared,
    StreamStarted,
    StreamStopped,
)

_CONTENT_TYPES = {"PCMU": "audio/x-mulaw", "L16": "audio/x-l16"}


class Plivo(JsonEvents):
    """One stream's serializer."""

    name: ClassVar[str] = "plivo"
    max_lead_ms: ClassVar[int] = 2000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    goes_on_after: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._stream_id = ""
        self._media_head = b""

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """``{"event":"media"`` first, with or without a blank."""
        return bytes(data[:17]).replace(b" ", b"").startswith(b'{"event":"media"')

    def media(self, payload: bytes) -> bytes:
        """One frame."""
        return self._media_head + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes:
        """Comes back as ``playedStream``."""
        return orjson.dumps({"event": "checkpoint", "streamId": self._stream_id, "name": name})

    def clear(self) -> bytes:
        """Empties the buffer; answered with ``clearedAudio``."""
        return orjson.dumps({"event": "clearAudio", "streamId": self._stream_id})

    def dtmf(self, digits: str) -> bytes:
        """Tones to the caller."""
        return orjson.dumps({"event": "sendDTMF", "dtmf": digits})

    def hangup(self, handoff_data: str | None = None) -> None:
        """Plivo has no such message."""

    # --- readers ---------------------------------------------------------------------------------------------------

    def _started(self, body: Body) -> Iterable[Message]:
        start = body["start"]
        media = start.get("mediaFormat", {})
        encoding, _, options = text(media.get("encoding", "audio/x-mulaw")).partition(";")
        rate = options.partition("rate=")[2] or media.get("sampleRate", 8000)
        fmt = audio_format(encoding, integer(rate))
        if fmt.encoding not in _CONTENT_TYPES:
            raise ProtocolError(f"plivo: stream is {fmt.encoding}, expected audio/x-mulaw or audio/x-l16")
        self._stream_id = text(start.get("streamId") or body["streamId"])
        self._media_head = (
            f'{{"event":"playAudio","media":{{"contentType":"{_CONTENT_TYPES[fmt.encoding]}",'
            f'"sampleRate":{fmt.sample_rate},"payload":"'
        ).encode()
        yield StreamStarted(
            stream_id=self._stream_id,
            call_sid=text(start.get("callId", "")),
            account_sid=str(start.get("accountId", "")),
            inbound=fmt,
            outbound=fmt,
            custom_parameters=_extra_headers(body.get("extra_headers")),
        )

    def _media(self, body: Body) -> Iterable[Message]:
        media = body["media"]
        if media.get("track", "inbound") != "inbound":
            yield Ignored()
        else:
            yield MediaReceived(payload(media["payload"]))

    def _failed(self, body: Body) -> Iterable[Message]:
        yield PeerError(f"{body['event']} {str(body.get('reason', ''))[:80]}".strip())

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "start": _started,
        "media": _media,
        "dtmf": lambda self, body: [digit(body["dtmf"]["digit"])],
        "playedStream": lambda self, body: [MarkReached(text(item(body, "name")))],
        "played": lambda self, body: [MarkReached(text(item(body, "name")))],
        "clearedAudio": lambda self, body: [PlayoutCleared()],
        "playFailed": _failed,
        "error": _failed,
        "stop": lambda self, body: [StreamStopped()],
    }


def _extra_headers(value: Any) -> dict[str, str]:
    """``k=v;k2=v2``, or with commas, or a JSON object (as text or as itself)."""
    if value is None or isinstance(value, Mapping):
        return parameters(value)
    if text(value).lstrip().startswith("{"):
        return parameters(json_object(value))
    pairs = (pair.partition("=") for pair in value.replace(",", ";").split(";"))
    return {_own_name(name.strip()): _value(entry.strip()) for name, _, entry in pairs if name.strip()}


def _own_name(name: str) -> str:
    """Our webhook's fields lost their dot on the way: only letters and digits are let through."""
    return f"talkspurt.{name[9:]}" if name.startswith("talkspurt") and name[9:10].isupper() else name


def _value(entry: str) -> str:
    """And what had other characters came as hex."""
    try:
        return bytes.fromhex(entry[2:]).decode() if entry.startswith("0x") else entry
    except ValueError:
        return entry
