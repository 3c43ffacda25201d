"""The toy telephone network's side."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from talkspurt.simulator.carriers.carrier import Command, MediaFrame, Violation
from voicecodecs.registry import AudioFormat


class ToyCarrier:
    """One stream of one call."""

    dialect: ClassVar = "toy"
    format: ClassVar = AudioFormat("PCMU", 8000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = f"ring-{call_number}"

    def opening(self) -> Sequence[str]:
        return [json.dumps({"event": "start", "ring": self.call_sid})]

    def media(self, payload: bytes) -> str:
        return json.dumps({"event": "audio", "audio": base64.b64encode(payload).decode()}, separators=(",", ":"))

    def dtmf(self, digit: str) -> str:
        return json.dumps({"event": "key", "key": digit})

    def mark(self, name: str) -> str:
        raise AssertionError("the toy has no marks")

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return []

    def stop(self) -> str:
        return json.dumps({"event": "stop"})

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        body = json.loads(message)
        return MediaFrame(base64.b64decode(body["audio"])) if body.keys() == {"audio"} else Violation("no audio")

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {secret}"}


CARRIER = ToyCarrier
