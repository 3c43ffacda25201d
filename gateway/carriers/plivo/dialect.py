"""Plivo Audio Streaming, bidirectional: mu-law or L16 in base64. Numbers in its JSON are numbers, not strings.

``playAudio`` names encoding and rate with every frame. A ``checkpoint`` comes back as ``playedStream`` after it was
played, and never if ``clearAudio`` dropped it. There is no ``connected`` and no ``stop``: the stream ends when the
socket closes. Audio more than about 40 s ahead is said to be lost, but we never send so far ahead.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from gateway.carriers.oddities import Oddities
from gateway.carriers.reading import (
    Body,
    JsonEvents,
    audio_format,
    digit,
    first_label,
    item,
    label,
    parameters,
    payload,
    section,
    text,
)
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
from gateway.seams.plain_text import plain
from voicecodecs.registry import AudioFormat

_CONTENT_TYPES = {"PCMU": "audio/x-mulaw", "L16": "audio/x-l16"}


class Plivo(JsonEvents):
    """The serializer of one stream.

    Args:
        message_ms: audio per outgoing message, milliseconds.
    """

    name: ClassVar[str] = "plivo"
    max_lead_ms: ClassVar[int] = 2000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message_ms: int = 20) -> None:
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
        """Encode a mark, which comes back as ``playedStream``."""
        return orjson.dumps({"event": "checkpoint", "streamId": self._stream_id, "name": name})

    def clear(self) -> bytes:
        """Encode the message that empties the buffer; the peer answers with ``clearedAudio``."""
        return orjson.dumps({"event": "clearAudio", "streamId": self._stream_id})

    def dtmf(self, digits: str) -> bytes:
        """Encode the message that sends tones to the caller."""
        return orjson.dumps({"event": "sendDTMF", "dtmf": digits})

    # --- readers ---------------------------------------------------------------------------------------------------

    def _started(self, body: Body) -> Iterable[Message]:
        odd = self.oddities
        start = section(body.get("start"), odd)
        inbound = audio_format(self.name, start.get("mediaFormat", {}), AudioFormat("PCMU", 8000), odd)
        fmt = inbound if inbound.encoding in _CONTENT_TYPES else AudioFormat("PCMU", 8000)
        self._stream_id = first_label(odd, start.get("streamId"), body.get("streamId"))
        self._media_head = (
            f'{{"event":"playAudio","media":{{"contentType":"{_CONTENT_TYPES[fmt.encoding]}",'
            f'"sampleRate":{fmt.sample_rate},"payload":"'
        ).encode()
        yield StreamStarted(
            stream_id=self._stream_id,
            call_sid=label(start.get("callId"), odd),
            account_sid=_account(start.get("accountId"), odd),
            inbound=inbound,
            outbound=replace(fmt, ptime_ms=self._message_ms),
            custom_parameters=_extra_headers(body.get("extra_headers"), odd),
        )

    def _media(self, body: Body) -> Iterable[Message]:
        media = body["media"]
        if media.get("track") == "outbound":
            yield Ignored()
        else:
            yield MediaReceived(payload(media["payload"], self.oddities))

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


def _account(value: Any, odd: Oddities) -> str:
    """Read the account id, which is text or a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else label(value, odd)


def _extra_headers(value: Any, odd: Oddities) -> dict[str, str]:
    """Read ``k=v;k2=v2``, the same with commas, or a JSON object (as text or decoded)."""
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return parameters(value, odd)
    pairs = (pair.partition("=") for pair in value.replace(",", ";").split(";"))
    return {_restored_name(name.strip()): _decoded_value(entry.strip()) for name, _, entry in pairs if name.strip()}


def _restored_name(name: str) -> str:
    """Restore the dot in our field names, since Plivo allows only letters and digits."""
    return f"talkspurt.{name[9:]}" if name.startswith("talkspurt") and name[9:10].isupper() else name


def _decoded_value(entry: str) -> str:
    """Decode a value that ``plivo_headers`` wrote as ``0x`` and hex."""
    try:
        return plain(bytes.fromhex(entry[2:]).decode()) if entry.startswith("0x") else entry
    except ValueError:
        return entry
