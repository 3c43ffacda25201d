"""The platform's side of Vonage's Voice API WebSocket: binary s16le at 16 kHz, 20 ms a message, and a few JSON
texts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

import jwt

from talkspurt.simulator.carriers.carrier import Clear, Command, MarkRequest, MediaFrame, Violation
from talkspurt.simulator.carriers.shape import parsed
from voicecodecs.registry import AudioFormat

_SHAPES: Mapping[str, Mapping[str, Any]] = {"notify": {"payload": {"name": str}}, "clear": {}}


class VonageCarrier:
    """One WebSocket endpoint of one call. The endpoint's ``headers`` contain the call's id."""

    dialect: ClassVar = "vonage"
    format: ClassVar = AudioFormat("L16", 16000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = str(UUID(int=call_number))
        self._headers = {**parameters, "talkspurt.CallSid": self.call_sid}

    def opening(self) -> Sequence[str]:
        first = {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"}
        return [json.dumps(first | self._headers)]

    def media(self, payload: bytes) -> bytes:
        return payload

    def dtmf(self, digit: str) -> str:
        return json.dumps({"event": "websocket:dtmf", "digit": digit, "duration": 260})

    def mark(self, name: str) -> str:
        return json.dumps({"event": "websocket:notify", "payload": {"name": name}})

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [json.dumps({"event": "websocket:cleared"})]

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            if len(message) != self.format.frame_bytes:
                return Violation(f"audio of {len(message)} bytes, expected exactly {self.format.frame_bytes}")
            return MediaFrame(message)
        body = parsed(message, _SHAPES, "action")
        if isinstance(body, Violation):
            return body
        return MarkRequest(body["payload"]["name"]) if body["action"] == "notify" else Clear()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        token = jwt.encode({"iat": int(time.time()), "jti": "1", "api_key": "k"}, secret, "HS256")
        return {"Authorization": f"Bearer {token}"}


CARRIER = VonageCarrier
