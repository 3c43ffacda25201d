"""The switch's side of Asterisk's chan_websocket: binary slin16 and JSON control messages. A flush drops the marks."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from talkspurt.simulator.carriers.carrier import (
    CarrierHangsUp,
    Clear,
    Command,
    MarkRequest,
    MediaFrame,
    Noted,
    Violation,
)
from talkspurt.simulator.carriers.shape import parsed
from voicecodecs.registry import AudioFormat

_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "MARK_MEDIA": {"correlation_id": str},
    "FLUSH_MEDIA": {},
    "HANGUP": {},
    "ANSWER": {},
}
_TEXT_LIMIT, _BINARY_LIMIT = 128, 65_500


class AsteriskCarrier:
    """One ``WebSocket/`` channel."""

    dialect: ClassVar = "asterisk"
    format: ClassVar = AudioFormat("L16", 16000)
    subprotocol: ClassVar = "media"

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = f"1772446830.{call_number}"
        self._variables = dict(parameters)

    def opening(self) -> Sequence[str]:
        return [
            self._event(
                "MEDIA_START",
                connection_id="c-1",
                channel="WebSocket/mybot-00000001",
                format="slin16",
                optimal_frame_size=self.format.frame_bytes,
                ptime=self.format.ptime_ms,
                channel_variables=self._variables,
            )
        ]

    def media(self, payload: bytes) -> bytes:
        return payload

    def dtmf(self, digit: str) -> str:
        return self._event("DTMF_END", digit=digit)

    def mark(self, name: str) -> str:
        return self._event("MEDIA_MARK_PROCESSED", correlation_id=name)

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return []

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            unit = self.format.frame_bytes or 1
            if not message or len(message) % unit or len(message) > _BINARY_LIMIT:
                return Violation(f"audio of {len(message)} bytes, expected a multiple of {unit} up to {_BINARY_LIMIT}")
            return MediaFrame(message)
        if len(message) > _TEXT_LIMIT:
            return Violation(f"text message of {len(message)} bytes is ignored, expected at most {_TEXT_LIMIT}")
        body = parsed(message, _SHAPES, "command")
        if isinstance(body, Violation):
            return body
        match body["command"]:
            case "MARK_MEDIA":
                return MarkRequest(body["correlation_id"])
            case "FLUSH_MEDIA":
                return Clear()
            case "HANGUP":
                return CarrierHangsUp()
        return Noted()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """``secret`` is ``USER:PASSWORD``."""
        return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}

    def _event(self, event: str, **more: Any) -> str:
        return json.dumps({"event": event, "channel_id": self.call_sid, **more})


CARRIER = AsteriskCarrier
