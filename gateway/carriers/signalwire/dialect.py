"""SignalWire cXML ``<Connect><Stream>``: Twilio's messages, L16 beside mu-law, and DTMF towards the caller.

Ids are UUIDs, ``media`` and ``stop`` carry no stream id, ``customParameters`` may be missing. The byte order of L16 is
not documented: little-endian unless configured.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import orjson

from gateway.carriers.reading import Body, audio_format, integer, text
from gateway.carriers.twilio.dialect import Twilio
from voicecodecs.l16 import swap_byte_order
from voicecodecs.registry import AudioFormat


class SignalWire(Twilio):
    """One stream's serializer."""

    name: ClassVar[str] = "signalwire"

    def __init__(self, l16_byte_order: Literal["little", "big"] = "little") -> None:
        super().__init__()
        self._big_endian = l16_byte_order == "big"
        self._swap = False

    def media(self, payload: bytes) -> bytes:
        """One frame."""
        return super().media(swap_byte_order(payload) if self._swap else payload)

    def dtmf(self, digits: str) -> bytes | None:
        """One key a message; several go in the audio."""
        if len(digits) != 1:
            return None
        return orjson.dumps({"event": "dtmf", "streamSid": self._stream_id, "dtmf": {"digit": digits}})

    def _format(self, media: Body) -> AudioFormat:
        fmt = audio_format(text(media.get("encoding", "audio/x-mulaw")), integer(media.get("sampleRate", 8000)))
        self._swap = self._big_endian and fmt.encoding == "L16"
        return fmt

    def _audio(self, data: bytes) -> bytes:
        return swap_byte_order(data) if self._swap else data
