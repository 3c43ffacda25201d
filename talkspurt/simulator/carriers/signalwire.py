"""The carrier's side of SignalWire: cXML ``<Connect><Stream codec="L16@24000h">``.

The messages are Twilio's with UUIDs, without a stream id in ``media`` and ``stop``. It takes ``dtmf`` too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from talkspurt.simulator.carriers.carrier import Clear, Command, MarkRequest, Tones, Violation
from talkspurt.simulator.carriers.shape import audio, parsed
from voicecodecs.registry import AudioFormat


class SignalWireCarrier:
    """One bidirectional stream of one call."""

    dialect: ClassVar = "signalwire"
    format: ClassVar = AudioFormat("L16", 24000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = str(UUID(int=call_number))
        self.stream_sid = str(UUID(int=call_number ^ 1 << 127))
        self._parameters = dict(parameters)
        self._sequence = 0
        self._chunk = 0
        same = {"streamSid": self.stream_sid}
        self._shapes: Mapping[str, Mapping[str, Any]] = {
            "media": {**same, "media": {"payload": str}},
            "mark": {**same, "mark": {"name": str}},
            "clear": same,
            "dtmf": {**same, "dtmf": {"digit": str}},
        }

    def opening(self) -> Sequence[str]:
        start: dict[str, Any] = {
            "streamSid": self.stream_sid,
            "callSid": self.call_sid,
            "accountSid": str(UUID(int=0)),
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-L16", "sampleRate": self.format.sample_rate, "channels": 1},
        }
        if self._parameters:
            start["customParameters"] = self._parameters
        return [
            json.dumps({"event": "connected", "protocol": "Call", "version": "0.2.0"}),
            self._event("start", start=start),
        ]

    def media(self, payload: bytes) -> str:
        self._chunk += 1
        media = {"track": "inbound", "chunk": str(self._chunk), "timestamp": str(self._chunk * self.format.ptime_ms)}
        return self._event("media", media={**media, "payload": base64.b64encode(payload).decode()})

    def dtmf(self, digit: str) -> str:
        return self._event("dtmf", streamSid=self.stream_sid, dtmf={"digit": digit, "duration": 180})

    def mark(self, name: str) -> str:
        return json.dumps({"event": "mark", "streamSid": self.stream_sid, "mark": {"name": name}})

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [self.mark(name) for name in marks]

    def stop(self) -> str:
        return self._event("stop")

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return Violation("a binary message; this carrier takes text")
        body = parsed(message, self._shapes, "event")
        if isinstance(body, Violation):
            return body
        match body["event"]:
            case "media":
                return audio(body["media"]["payload"], sample_bytes=2)
            case "mark":
                return MarkRequest(body["mark"]["name"])
            case "dtmf":
                return Tones(body["dtmf"]["digit"])
        return Clear()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {secret}"}

    def _event(self, event: str, **more: Any) -> str:
        self._sequence += 1
        return json.dumps({"event": event, "sequenceNumber": str(self._sequence), **more}, separators=(",", ":"))


CARRIER = SignalWireCarrier
