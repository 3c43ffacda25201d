"""The carrier's side of Plivo Audio Streaming: L16 at 16 kHz. Numbers are numbers. A clear drops the checkpoints."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from talkspurt.simulator.carriers.carrier import Clear, Command, MarkRequest, Tones, Violation
from talkspurt.simulator.carriers.shape import audio, parsed
from voicecodecs.registry import AudioFormat


class PlivoCarrier:
    """One bidirectional stream of one call."""

    dialect: ClassVar = "plivo"
    format: ClassVar = AudioFormat("L16", 16000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = str(UUID(int=call_number))
        self.stream_id = str(UUID(int=call_number ^ 1 << 127))
        self._extra_headers = ";".join(f"{name}={value}" for name, value in parameters.items())
        self._sequence = 0
        self._chunk = 0
        self._shapes: Mapping[str, Mapping[str, Any]] = {
            "playAudio": {"media": {"contentType": "audio/x-l16", "sampleRate": 16000, "payload": str}},
            "checkpoint": {"streamId": self.stream_id, "name": str},
            "clearAudio": {"streamId": self.stream_id},
            "sendDTMF": {"dtmf": str},
        }

    def opening(self) -> Sequence[str]:
        start = {
            "callId": self.call_sid,
            "streamId": self.stream_id,
            "accountId": "100000",
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-l16", "sampleRate": 16000},
        }
        return [self._event("start", start=start, extra_headers=self._extra_headers)]

    def media(self, payload: bytes) -> str:
        self._chunk += 1
        at = str(1772446830000 + self._chunk * self.format.ptime_ms)
        media = {
            "track": "inbound",
            "timestamp": at,
            "chunk": self._chunk,
            "payload": base64.b64encode(payload).decode(),
        }
        return self._event("media", streamId=self.stream_id, media=media, extra_headers=self._extra_headers)

    def dtmf(self, digit: str) -> str:
        dtmf = {"track": "inbound", "digit": digit, "timestamp": "1772446833000"}
        return self._event("dtmf", streamId=self.stream_id, dtmf=dtmf, extra_headers=self._extra_headers)

    def mark(self, name: str) -> str:
        return self._event("playedStream", streamId=self.stream_id, name=name)

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [self._event("clearedAudio", streamId=self.stream_id)]

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return Violation("a binary message; this carrier takes text")
        body = parsed(message, self._shapes, "event")
        if isinstance(body, Violation):
            return body
        match body["event"]:
            case "playAudio":
                return audio(body["media"]["payload"], sample_bytes=2)
            case "checkpoint":
                return MarkRequest(body["name"])
            case "sendDTMF":
                return Tones(body["dtmf"])
        return Clear()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        return {}

    def _event(self, event: str, **more: Any) -> str:
        self._sequence += 1
        return json.dumps({"event": event, "sequenceNumber": self._sequence, **more}, separators=(",", ":"))


CARRIER = PlivoCarrier
