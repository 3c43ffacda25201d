"""The switch's side of Asterisk's AudioSocket: frames of type, length and payload on TCP. Nothing is buffered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from uuid import UUID

from talkspurt.simulator.carriers.carrier import CarrierHangsUp, Command, MediaFrame, Violation
from voicecodecs.registry import AudioFormat

_KINDS = {8000: 0x10, 16000: 0x12}


class AudioSocketCarrier:
    """One ``AudioSocket()`` of one call. A message is one frame, with its header."""

    dialect: ClassVar = "audiosocket"
    format: ClassVar = AudioFormat("L16", 8000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.uuid = UUID(int=call_number % (1 << 128))
        self.call_sid = str(self.uuid)
        self.parameters = dict(parameters)

    def opening(self) -> Sequence[bytes]:
        return [b"\x01\x00\x10" + self.uuid.bytes]

    def media(self, payload: bytes) -> bytes:
        return bytes((_KINDS[self.format.sample_rate],)) + len(payload).to_bytes(2, "big") + payload

    def dtmf(self, digit: str) -> bytes:
        return b"\x03\x00\x01" + digit.encode()

    def mark(self, name: str) -> bytes:
        raise NotImplementedError("AudioSocket has no marks")

    def cleared(self, marks: Sequence[str]) -> Sequence[bytes]:
        return []

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        kind, payload = message[0], message[3:]
        if kind == 0x00:
            return (
                CarrierHangsUp()
                if not payload
                else Violation(f"end of session with {len(payload)} bytes, expected none")
            )
        if kind != _KINDS[self.format.sample_rate]:
            return Violation(f"frame of type 0x{kind:02x} ends the application")
        if len(payload) != self.format.frame_bytes:
            return Violation(f"audio of {len(payload)} bytes, expected {self.format.frame_bytes}")
        return MediaFrame(payload)

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        """``secret`` is an API key, for the announcement over HTTP."""
        return {"Authorization": f"Bearer {secret}"}
