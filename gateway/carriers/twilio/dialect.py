"""Twilio Media Streams, bidirectional (``<Connect><Stream>``): mu-law at 8 kHz in base64 in JSON text messages.

Twilio plays our audio in order, and buffers ahead of real time. ``clear`` empties that buffer and returns all pending
marks immediately, so our marks carry a generation number. Outgoing messages have exactly the documented keys, because
an extra key raises warning 31951. There is no message for hang-up (we close the socket) or for outgoing DTMF (tones go
into the audio).
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
    parameters,
    payload,
    section,
    text,
)
from gateway.errors import ProtocolError
from gateway.seams.media_messages import Ignored, MarkReached, MediaReceived, Message, StreamStarted, StreamStopped
from voicecodecs.registry import AudioFormat


class Twilio(JsonEvents):
    """The serializer of one stream.

    Args:
        message_ms: audio per outgoing message, milliseconds.
    """

    name: ClassVar[str] = "twilio"
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
        """Return True for audio: such messages begin with ``{"event":"media"``."""
        return data[:16] == b'{"event":"media"'

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        return self._media_head + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes:
        """Encode a mark, which comes back when everything before it was played, or immediately after ``clear``."""
        return orjson.dumps({"event": "mark", "streamSid": self._stream_id, "mark": {"name": name}})

    def clear(self) -> bytes:
        """Encode the message that empties the peer's buffer."""
        return orjson.dumps({"event": "clear", "streamSid": self._stream_id})

    # --- readers ---------------------------------------------------------------------------------------------------

    def _format(self, media: Any) -> AudioFormat:
        return audio_format(self.name, media, AudioFormat("PCMU", 8000), self.oddities)

    def _started(self, body: Body) -> Iterable[Message]:
        odd = self.oddities
        start = section(body.get("start"), odd)
        fmt = self._format(start.get("mediaFormat", {}))
        self._name_stream(first_label(odd, start.get("streamSid"), body.get("streamSid")))
        yield StreamStarted(
            stream_id=self._stream_id,
            call_sid=label(start.get("callSid"), odd),
            account_sid=label(start.get("accountSid"), odd),
            inbound=fmt,
            outbound=replace(fmt, ptime_ms=self._message_ms),
            custom_parameters=parameters(start.get("customParameters"), odd),
        )

    def _audio(self, data: bytes) -> bytes:
        return data

    def _media(self, body: Body) -> Iterable[Message]:
        self._check(body)
        media = body["media"]
        if media.get("track") in ("outbound", "outbound_track"):
            yield Ignored()
        else:
            yield MediaReceived(self._audio(payload(media["payload"], self.oddities)))

    def _dtmf(self, body: Body) -> Iterable[Message]:
        self._check(body)
        yield digit(body["dtmf"]["digit"])

    def _marked(self, body: Body) -> Iterable[Message]:
        self._check(body)
        yield MarkReached(text(body["mark"]["name"]))

    def _name_stream(self, stream_id: str) -> None:
        self._stream_id = stream_id
        self._media_head = b'{"event":"media","streamSid":' + orjson.dumps(stream_id) + b',"media":{"payload":"'

    def _check(self, body: Body) -> None:
        """Check the stream's id. If the start named none, take it from the first message that does."""
        named = body.get("streamSid")
        if self._begun and not self._stream_id and isinstance(named, str):
            self._name_stream(named)
        if self._stream_id and named is not None and str(named) != self._stream_id:
            raise ProtocolError(f"{self.name}: {body['event']} is for another stream than this one", field="streamSid")

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "connected": lambda self, body: [Ignored()],
        "start": _started,
        "media": _media,
        "dtmf": _dtmf,
        "mark": _marked,
        "stop": lambda self, body: [StreamStopped()],
    }
