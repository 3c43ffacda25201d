"""The platform's side of Genesys Cloud's Audio Connector: numbered JSON texts, binary PCMU, 200 ms a message."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import UUID

from talkspurt.simulator.carriers.carrier import CarrierHangsUp, Clear, Command, MediaFrame, Noted, Violation
from talkspurt.simulator.carriers.shape import parsed
from voicecodecs.registry import AudioFormat

_MEDIA = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}
_MOST = 64_000


class GenesysCarrier:
    """One Audio Connector session. It reports no marks."""

    dialect: ClassVar = "genesys"
    format: ClassVar = AudioFormat("PCMU", 8000, 200)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.session_id = str(UUID(int=call_number ^ 1 << 127))
        self.call_sid = str(UUID(int=call_number))
        self._variables = dict(parameters)
        self._seq = 0
        self._server_seq = 0
        self._sent_ms = 0
        self._opened = False
        same = {"version": "2", "seq": int, "clientseq": int, "id": self.session_id}
        self._shapes: Mapping[str, Mapping[str, Any]] = {
            "opened": {**same, "parameters": {"startPaused": bool, "media": list}},
            "pong": {**same, "parameters": {}},
            "closed": {**same, "parameters": {}},
            "event": {**same, "parameters": {"entities": list}},
            "disconnect": {**same, "parameters": dict},
        }

    def opening(self) -> Sequence[str]:
        return [
            self._message(
                "open",
                organizationId=str(UUID(int=1)),
                conversationId=self.call_sid,
                participant={
                    "id": str(UUID(int=2)), "ani": "+4930000001", "aniName": "A", "dnis": "+4930000002",
                },
                media=[_MEDIA, {**_MEDIA, "channels": ["external", "internal"]}],
                language="de-DE",
                inputVariables=self._variables,
            ),
            self._message("ping"),
        ]  # fmt: skip

    def media(self, payload: bytes) -> bytes:
        self._sent_ms += self.format.ptime_ms
        return payload

    def dtmf(self, digit: str) -> str:
        return self._message("dtmf", digit=digit)

    def mark(self, name: str) -> str:
        raise NotImplementedError("Genesys has no marks")

    def playback(self, *, started: bool) -> str:
        return self._message("playback_started" if started else "playback_completed")

    def cleared(self, marks: Sequence[str]) -> Sequence[str]:
        return []

    def stop(self) -> str:
        return self._message("close", reason="end")

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if binary:
            if not self._opened:
                return Violation("audio before opened")
            if not 0 < len(message) <= _MOST:
                return Violation(f"audio of {len(message)} bytes, expected up to {_MOST}")
            return MediaFrame(message)
        body = parsed(message, self._shapes, "type")
        if isinstance(body, Violation):
            return body
        if body["seq"] != self._server_seq + 1 or not 0 <= body["clientseq"] <= self._seq:
            return Violation(
                f"seq {body['seq']} after {self._server_seq}, clientseq {body['clientseq']} of {self._seq}"
            )
        self._server_seq = body["seq"]
        if not self._opened and body["type"] != "opened":
            return Violation(f"{body['type']} before opened")
        match body["type"]:
            case "opened":
                self._opened = True
                if body["parameters"]["media"] != [_MEDIA]:
                    return Violation("opened has to name exactly one of the offered media")
            case "event":
                if body["parameters"]["entities"] != [{"type": "barge_in", "data": {}}]:
                    return Violation("event holds another entity than one barge_in")
                return Clear()
            case "disconnect":
                if not {"reason"} <= body["parameters"].keys() <= {"reason", "info", "outputVariables"}:
                    return Violation("disconnect has other parameters than reason, info, outputVariables")
                return CarrierHangsUp((self._message("close", reason="disconnect"),))
        return Noted()

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """``secret`` is ``API_KEY:CLIENT_SECRET``, the latter in base64."""
        key, _, client_secret = secret.partition(":")
        parts = urlsplit(url)
        headers = {
            "audiohook-organization-id": str(UUID(int=1)),
            "audiohook-session-id": str(UUID(int=3)),
            "audiohook-correlation-id": str(UUID(int=4)),
            "x-api-key": key,
        }
        values = {
            "@request-target": parts.path + (f"?{parts.query}" if parts.query else ""),
            "@authority": parts.netloc,
        }
        values |= headers
        now = int(time.time())
        covered = " ".join(f'"{name}"' for name in values)
        inputs = f'({covered});keyid="{key}";nonce="{secrets.token_urlsafe(18)}";alg="hmac-sha256"'
        inputs += f";created={now};expires={now + 10}"
        base = "".join(f'"{name}": {value}\n' for name, value in values.items()) + f'"@signature-params": {inputs}'
        digest = hmac.new(base64.b64decode(client_secret), base.encode(), hashlib.sha256).digest()
        return headers | {
            "Signature-Input": f"sig1={inputs}",
            "Signature": f"sig1=:{base64.b64encode(digest).decode()}:",
        }

    def _message(self, kind: str, **parameters: Any) -> str:
        self._seq += 1
        return json.dumps(
            {
                "version": "2",
                "type": kind,
                "seq": self._seq,
                "serverseq": self._server_seq,
                "id": self.session_id,
                "position": f"PT{self._sent_ms / 1000:g}S",
                "parameters": parameters,
            }
        )


CARRIER = GenesysCarrier
