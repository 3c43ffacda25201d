"""The switch's side of FreeSWITCH's mod_audio_stream 1.0.3 or later: binary s16le at 8 kHz, no marks, no clear.

It assumes an ESL application that forwards digits with ``send_text``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from talkspurt.simulator.carriers.carrier import Command, Noted, Violation
from talkspurt.simulator.carriers.shape import parsed, whole
from voicecodecs.registry import AudioFormat

_SHAPES: Mapping[str, Mapping[str, Any]] = {"rawAudio": {"data": {"sampleRate": 8000}}}


class FreeSwitchCarrier:
    """One ``uuid_audio_stream`` of one call."""

    dialect: ClassVar = "freeswitch"
    format: ClassVar = AudioFormat("L16", 8000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = str(UUID(int=call_number))
        self._metadata = dict(parameters)
        self._raw = False

    def opening(self) -> Sequence[str]:
        return [json.dumps({"uuid": self.call_sid, **self._metadata})]

    def media(self, payload: bytes) -> bytes:
        return payload

    def dtmf(self, digit: str) -> str:
        return json.dumps({"event": "dtmf", "digit": digit})

    def mark(self, name: str) -> str:
        raise NotImplementedError("mod_audio_stream has no marks")

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return []

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return whole(message, 2) if self._raw else Violation("binary audio before rawAudio")
        body = parsed(message, _SHAPES, "type")
        if isinstance(body, Violation):
            return body
        self._raw = True
        return Noted()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {secret}"}


class LateFreeSwitchCarrier(FreeSwitchCarrier):
    """A switch whose audio overtakes the metadata (amigniter/mod_audio_stream, issue 121)."""

    def opening(self) -> Sequence[str | bytes]:  # type: ignore[override]
        audio = bytes(self.format.frame_bytes or 0)
        return [audio, audio, *super().opening()]


CARRIER = FreeSwitchCarrier
