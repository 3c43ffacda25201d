"""SignalWire cXML ``<Connect><Stream>``: Twilio's messages, with L16 in addition to mu-law, and with DTMF to the
caller.

Ids are UUIDs, ``media`` and ``stop`` carry no stream id, and ``customParameters`` may be missing. The byte order of L16
is not documented; it is little-endian unless configured otherwise.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import orjson

from gateway.carriers.reading import audio_format
from gateway.carriers.twilio.dialect import Twilio
from voicecodecs.l16 import swap_byte_order
from voicecodecs.registry import AudioFormat


class SignalWire(Twilio):
    """The serializer of one stream. ``message_ms``: see ``Twilio``."""

    name: ClassVar[str] = "signalwire"

    def __init__(self, l16_byte_order: Literal["little", "big"] = "little", message_ms: int = 20) -> None:
        super().__init__(message_ms)
        self._big_endian = l16_byte_order == "big"
        self._swap = False

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        return super().media(swap_byte_order(payload) if self._swap else payload)

    def dtmf(self, digits: str) -> bytes | None:
        """Encode one key. None for several keys, whose tones must go into the audio."""
        if len(digits) != 1:
            return None
        return orjson.dumps({"event": "dtmf", "streamSid": self._stream_id, "dtmf": {"digit": digits}})

    def _format(self, media: Any) -> AudioFormat:
        fmt = audio_format(self.name, media, AudioFormat("PCMU", 8000), self.oddities)
        self._swap = self._big_endian and fmt.encoding == "L16"
        return fmt

    def _audio(self, data: bytes) -> bytes:
        return swap_byte_order(data) if self._swap else data
