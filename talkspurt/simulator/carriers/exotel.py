"""The carrier's side of Exotel's Voicebot applet: s16le at 8 kHz, 100 ms a message. All numbers are strings."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from talkspurt.simulator.carriers.carrier import FROM, TO, Clear, Command, MarkRequest, MediaFrame, Violation
from talkspurt.simulator.carriers.shape import audio, parsed
from voicecodecs.registry import AudioFormat

_UNIT, _LEAST, _MOST = 320, 3200, 100_000


class ExotelCarrier:
    """One bidirectional stream of one call."""

    dialect: ClassVar = "exotel"
    format: ClassVar = AudioFormat("L16", 8000, 100)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = f"c{call_number:032x}"
        self.stream_sid = f"ex{call_number:032x}"
        self._parameters = dict(parameters)
        self._sequence = 0
        self._chunk = 0
        same = {"stream_sid": self.stream_sid}
        self._shapes: Mapping[str, Mapping[str, Any]] = {
            "media": {**same, "media": {"payload": str}},
            "mark": {**same, "mark": {"name": str}},
            "clear": same,
        }

    def opening(self) -> Sequence[str]:
        start = {
            "stream_sid": self.stream_sid,
            "call_sid": self.call_sid,
            "account_sid": "acme1",
            "from": self._parameters.get(FROM, "09000000001"),
            "to": self._parameters.get(TO, "08000000002"),
            "custom_parameters": self._parameters,
            # As in logs of real calls, the encoding is that of the transport.
            "media_format": {"encoding": "base64", "sample_rate": "8000", "bit_rate": "128kbps"},
        }
        return [json.dumps({"event": "connected"}), self._event("start", start=start)]

    def media(self, payload: bytes) -> str:
        self._chunk += 1
        media = {"chunk": str(self._chunk), "timestamp": str(self._chunk * self.format.ptime_ms)}
        return self._event("media", media={**media, "payload": base64.b64encode(payload).decode()})

    def dtmf(self, digit: str) -> str:
        return self._event("dtmf", dtmf={"digit": digit, "duration": "120"})

    def mark(self, name: str) -> str:
        return self._event("mark", mark={"name": name})

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [self.mark(name) for name in marks]

    def stop(self) -> str:
        stop = {"call_sid": self.call_sid, "account_sid": "acme1", "reason": "callended"}
        return self._event("stop", stop=stop)

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return Violation("a binary message; this carrier takes text")
        body = parsed(message, self._shapes, "event")
        if isinstance(body, Violation):
            return body
        if body["event"] == "mark":
            return MarkRequest(body["mark"]["name"])
        if body["event"] == "clear":
            return Clear()
        media = audio(body["media"]["payload"], sample_bytes=2)
        if isinstance(media, MediaFrame) and (len(media.payload) % _UNIT or not _LEAST <= len(media.payload) <= _MOST):
            return Violation(
                f"media of {len(media.payload)} bytes, expected a multiple of {_UNIT}, {_LEAST} to {_MOST}"
            )
        return media

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """``secret`` is ``KEY:TOKEN``."""
        return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}

    def _event(self, event: str, **more: Any) -> str:
        self._sequence += 1
        body = {"event": event, "sequence_number": str(self._sequence), "stream_sid": self.stream_sid, **more}
        return json.dumps(body, separators=(",", ":"))


class ExotelConnectCarrier(ExotelCarrier):
    """A call by Exotel's Connect API: camelCase and no media format, as in the vendor's own bridge
    (exotel/Agent-Stream), and our messages in the same spelling, with numbers."""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        super().__init__(call_number, parameters)
        same = {"streamSid": self.stream_sid}
        media = {"payload": str, "chunk": str, "timestamp": str, "sequenceNumber": str}
        self._shapes = {
            "media": {**same, "sequenceNumber": str, "media": media},
            "mark": {**same, "mark": {"name": str}},
            "clear": same,
        }

    def opening(self) -> Sequence[str]:
        start = {"streamSid": self.stream_sid, "callSid": self.call_sid, "from": "+919000000001", "to": "08000000002"}
        connected = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
        return [json.dumps(connected), self._event("start", start=start)]

    def _event(self, event: str, **more: Any) -> str:
        return json.dumps({"event": event, "streamSid": self.stream_sid, **more}, separators=(",", ":"))


CARRIER = ExotelCarrier
