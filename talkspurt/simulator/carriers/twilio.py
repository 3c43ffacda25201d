"""The carrier's side of Twilio Media Streams: ``<Connect><Stream>``, mu-law at 8000 Hz, JSON text in both directions.

It sends ``connected start media dtmf mark stop`` and takes ``media mark clear``. Twilio warns (31951) about unknown
keys and does not understand binary messages (31950).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from talkspurt.simulator.carriers.carrier import Clear, Command, MarkRequest, MediaFrame, Violation
from voicecodecs.registry import AudioFormat

_KEYS = {
    "media": {"event", "streamSid", "media"},
    "mark": {"event", "streamSid", "mark"},
    "clear": {"event", "streamSid"},
}
_INNER = {"media": "payload", "mark": "name"}


class TwilioCarrier:
    """One bidirectional stream of one call."""

    dialect: ClassVar = "twilio"
    format: ClassVar = AudioFormat("PCMU", 8000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.stream_sid = f"MZ{call_number:032x}"
        self.call_sid = f"CA{call_number:032x}"
        self.account_sid = f"AC{0:032x}"
        self._parameters = dict(parameters)
        self._sequence = 0
        self._chunk = 0
        # The most frequent message is built from these pieces; json.dumps takes longer than the rest of an uplink
        # frame.
        self._media_tail = f'"}},"streamSid":"{self.stream_sid}"}}'

    def opening(self) -> Sequence[str]:
        start = {
            "accountSid": self.account_sid,
            "streamSid": self.stream_sid,
            "callSid": self.call_sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": self._parameters,
        }
        return [
            json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}),
            self._event("start", start),
        ]

    def media(self, payload: bytes) -> str:
        self._sequence += 1
        self._chunk += 1
        return (
            f'{{"event":"media","sequenceNumber":"{self._sequence}","media":{{"track":"inbound",'
            f'"chunk":"{self._chunk}","timestamp":"{self._chunk * self.format.ptime_ms}",'
            f'"payload":"{base64.b64encode(payload).decode()}{self._media_tail}'
        )

    def dtmf(self, digit: str) -> str:
        return self._event("dtmf", {"track": "inbound_track", "digit": digit})

    def mark(self, name: str) -> str:
        return self._event("mark", {"name": name})

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return [self.mark(name) for name in marks]

    def stop(self) -> str:
        return self._event("stop", {"accountSid": self.account_sid, "callSid": self.call_sid})

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            return Violation("a binary message; this carrier takes text")
        try:
            body = orjson.loads(message)
        except orjson.JSONDecodeError:
            return Violation(f"not JSON, {len(message)} bytes")
        if not isinstance(body, dict):
            return Violation(f"expected a JSON object, got {type(body).__name__}")
        event = body.get("event")
        if event not in _KEYS:
            return Violation(f"unknown event, known are {sorted(_KEYS)}")
        if body.keys() != _KEYS[event]:
            return Violation(f"{event} has the keys {sorted(body)}, expected {sorted(_KEYS[event])}")
        if body["streamSid"] != self.stream_sid:
            return Violation(f"{event} names another streamSid")
        if event == "clear":
            return Clear()
        inner, key = body[event], _INNER[event]
        if not isinstance(inner, dict) or inner.keys() != {key} or not isinstance(inner[key], str):
            return Violation(f"{event}.{event} has to be an object with the string {key} and nothing else")
        if event == "mark":
            return MarkRequest(inner["name"])
        try:
            return MediaFrame(binascii.a2b_base64(inner["payload"], strict_mode=True))
        except ValueError:
            return Violation("media.payload is not base64")

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        digest = hmac.new(secret.encode(), url.encode(), hashlib.sha1).digest()
        return {"X-Twilio-Signature": base64.b64encode(digest).decode()}

    def _event(self, event: str, inner: dict[str, Any]) -> str:
        self._sequence += 1
        body = {"event": event, "sequenceNumber": str(self._sequence), "streamSid": self.stream_sid, event: inner}
        return json.dumps(body, separators=(",", ":"))


CARRIER = TwilioCarrier
