"""The platform's side of jambonz's ``listen`` with streaming bidirectional audio: binary s16le at 16 kHz, JSON
control."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from talkspurt.simulator.carriers.carrier import FROM, TO, CarrierHangsUp, Clear, Command, MarkRequest, Noted, Violation
from talkspurt.simulator.carriers.shape import parsed, whole
from voicecodecs.registry import AudioFormat

_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "mark": {"data": {"name": str}},
    "killAudio": {},
    "clearMarks": {},
    "disconnect": {},
}


class JambonzCarrier:
    """One ``listen`` of one call."""

    dialect: ClassVar = "jambonz"
    format: ClassVar = AudioFormat("L16", 16000)
    subprotocol: ClassVar = "audio.jambonz.org"

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = str(UUID(int=call_number))
        self._metadata = dict(parameters)

    def opening(self) -> Sequence[str]:
        attributes = {
            "callSid": self.call_sid,
            "accountSid": str(UUID(int=0)),
            "direction": "inbound",
            "from": self._metadata.get(FROM, "+4930000001"),
            "to": self._metadata.get(TO, "+4930000002"),
            "sampleRate": self.format.sample_rate,
            "mixType": "mono",
        }
        return [json.dumps(attributes | self._metadata)]

    def media(self, payload: bytes) -> bytes:
        return payload

    def dtmf(self, digit: str) -> str:
        return json.dumps({"event": "dtmf", "dtmf": digit, "duration": "1600"})

    def mark(self, name: str) -> str:
        return self._mark(name, "playout")

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [self._mark(name, "cleared") for name in marks]

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return whole(message, 2)
        body = parsed(message, _SHAPES, "type")
        if isinstance(body, Violation):
            return body
        match body["type"]:
            case "mark":
                return MarkRequest(body["data"]["name"])
            case "killAudio":
                return Clear()
            case "disconnect":
                return CarrierHangsUp()
        return Noted()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """``secret`` is ``USER:PASSWORD``."""
        return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}

    @staticmethod
    def _mark(name: str, event: str) -> str:
        return json.dumps({"type": "mark", "data": {"name": name, "event": event}})


class FullJambonzCarrier(JambonzCarrier):
    """A call with all attributes of jambonz-feature-server, and parameters in ``customerData`` as for calls by REST."""

    def opening(self) -> Sequence[str]:
        attributes = {
            "sampleRate": self.format.sample_rate, "mixType": "mono", "callSid": self.call_sid, "direction": "outbound",
            "from": "+4930000001", "to": "+4930000002", "callId": str(UUID(int=1)), "sbcCallid": "sbc-3@192.0.2.3",
            "sipStatus": 200, "sipReason": "OK", "callStatus": "in-progress", "accountSid": str(UUID(int=0)),
            "traceId": "0123456789abcdef0123456789abcdef", "applicationSid": str(UUID(int=2)),
            "fsSipAddress": "10.0.0.1:5070", "originatingSipIp": "192.0.2.45", "originatingSipTrunkName": "Trunk A",
            "apiBaseUrl": "http://192.0.2.150/v1", "fsPublicIp": "192.0.2.9", "callerId": "+4930000001",
            "customerData": self._metadata,
        }  # fmt: skip
        return [json.dumps(attributes)]


CARRIER = JambonzCarrier
