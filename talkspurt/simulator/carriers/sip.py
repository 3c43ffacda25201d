"""The media of a SIP phone: PCMU in RTP (RFC 3550, RFC 3551). A message is one packet. ``sip_leg`` has the
signalling."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import ClassVar

from talkspurt.simulator.carriers.carrier import Command, MediaFrame, Noted, Violation
from voicecodecs.registry import AudioFormat

PCMU, EVENTS = 0, 101
_NEW_CLOCK_SAMPLES = 8000
"""A jump of the timestamps by a second or more is a new stream."""
_HEAD = struct.Struct(">BBHII")


class SipCarrier:
    """One call's RTP stream."""

    dialect: ClassVar = "sip"
    format: ClassVar = AudioFormat("PCMU", 8000)
    subprotocol: ClassVar = ""

    def __init__(self, call_number: int, parameters: Mapping[str, str]) -> None:
        self.call_sid = f"{call_number:032x}@phone.invalid"
        self.parameters = dict(parameters)
        self._ssrc = call_number & 0xFFFFFFFF
        self._sequence = 0
        self._timestamp = 0
        self._heard_until: tuple[int, int] | None = None
        """SSRC of the other side's stream, and the timestamp at which its audio so far ends."""

    def opening(self) -> Sequence[bytes]:
        return []

    def media(self, payload: bytes) -> bytes:
        packet = self._packet(PCMU, payload)
        self._timestamp += len(payload)
        return packet

    def dtmf(self, digit: str) -> bytes:
        """Return the end packet of a 100 ms event (RFC 4733 section 2.3), which a receiver takes for the whole
        event."""
        code = "0123456789*#ABCD".index(digit)
        return self._packet(EVENTS, struct.pack(">BBH", code, 0x80 | 10, 800))

    def mark(self, name: str) -> bytes:
        raise NotImplementedError("RTP has no marks")

    def cleared(self, marks: Sequence[str]) -> Sequence[bytes]:
        return []

    def stop(self) -> None:
        return None

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        if len(message) < _HEAD.size or message[0] >> 6 != 2:
            return Violation(f"{len(message)} bytes that are no RTP")
        _, _, _, timestamp, ssrc = _HEAD.unpack_from(message)
        kind = message[1] & 0x7F
        payload = message[_HEAD.size + 4 * (message[0] & 0x0F) :]
        if kind == EVENTS:
            return Noted()
        if kind != PCMU:
            return Violation(f"payload type {kind}, agreed were {PCMU} and {EVENTS}")
        if len(payload) != self.format.frame_bytes:
            return Violation(f"audio of {len(payload)} bytes, expected {self.format.frame_bytes}")
        known, until = self._heard_until or (ssrc, timestamp)
        skipped = (timestamp - until + (1 << 31)) % (1 << 32) - (1 << 31)
        if known != ssrc or abs(skipped) >= _NEW_CLOCK_SAMPLES:
            skipped = 0
        if skipped < 0:
            return Noted()  # it is out of order, and its place has been counted as missing
        self._heard_until = ssrc, (timestamp + len(payload)) % (1 << 32)
        return MediaFrame(payload, skipped)

    @staticmethod
    def signature(url: str, secret: str) -> Mapping[str, str]:
        return {}

    def _packet(self, kind: int, payload: bytes) -> bytes:
        self._sequence = (self._sequence + 1) & 0xFFFF
        return _HEAD.pack(0x80, kind, self._sequence, self._timestamp & 0xFFFFFFFF, self._ssrc) + payload
