"""The carrier's side of Telnyx media streaming in ``rtp`` mode: PCMU in both directions, snake_case, numbers as
strings."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from talkspurt.simulator.carriers.carrier import FROM, TO, Clear, Command, MarkRequest, MediaFrame, Violation
from talkspurt.simulator.carriers.shape import audio, parsed
from voicecodecs.registry import AudioFormat

_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "media": {"media": {"payload": str}},
    "mark": {"mark": {"name": str}},
    "clear": {},
}
_SHORTEST, _LONGEST = 160, 30 * 8000


class TelnyxCarrier:
    """One bidirectional stream of one call."""

    dialect: ClassVar = "telnyx"
    format: ClassVar = AudioFormat("PCMU", 8000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = f"v3:{call_number:032x}"
        self.stream_id = str(UUID(int=call_number))
        self._parameters = dict(parameters)
        self._sequence = 0
        self._chunk = 0

    def opening(self) -> Sequence[str]:
        start: dict[str, Any] = {
            "user_id": str(UUID(int=0)),
            "call_control_id": self.call_sid,
            "call_session_id": str(UUID(int=1)),
            "from": self._parameters.get(FROM, "+4930000001"),
            "to": self._parameters.get(TO, "+4930000002"),
            "tags": [],
            "client_state": None,
            "custom_parameters": self._parameters,
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        }
        return [json.dumps({"event": "connected", "version": "1.0.0"}), self._event("start", start=start)]

    def media(self, payload: bytes) -> str:
        self._chunk += 1
        media = {"track": "inbound", "chunk": str(self._chunk), "timestamp": str(self._chunk * self.format.ptime_ms)}
        return self._event("media", media={**media, "payload": base64.b64encode(payload).decode()})

    def dtmf(self, digit: str) -> str:
        return self._event("dtmf", occurred_at="2026-03-02T10:20:30.123Z", dtmf={"digit": digit})

    def mark(self, name: str) -> str:
        return self._event("mark", mark={"name": name})

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [self.mark(name) for name in marks]

    def stop(self) -> str:
        return self._event("stop", stop={"user_id": str(UUID(int=0)), "call_control_id": self.call_sid})

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return Violation("a binary message; this carrier takes text")
        body = parsed(message, _SHAPES, "event")
        if isinstance(body, Violation):
            return body
        if body["event"] == "mark":
            return MarkRequest(body["mark"]["name"])
        if body["event"] == "clear":
            return Clear()
        media = audio(body["media"]["payload"])
        if isinstance(media, MediaFrame) and not _SHORTEST <= len(media.payload) <= _LONGEST:
            return Violation(f"media of {len(media.payload)} bytes, expected 20 ms to 30 s")
        return media

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        return {"x-telnyx-streaming-auth-token": secret}

    def _event(self, event: str, **more: Any) -> str:
        self._sequence += 1
        body = {"event": event, "sequence_number": str(self._sequence), **more, "stream_id": self.stream_id}
        return json.dumps(body, separators=(",", ":"))


CARRIER = TelnyxCarrier
