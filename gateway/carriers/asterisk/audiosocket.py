"""Reads and writes Asterisk's AudioSocket: frames of type, length (16 bits, big-endian) and payload on a TCP stream.

A call has only a UUID. Audio is s16le, and its frame type gives the rate, so the stream starts with the first audio
frame. Asterisk accepts audio frames and one end of session. Anything else, even an empty audio frame, is an error for
Asterisk, which then ends the call.

Asterisk ``res_audiosocket.c``, ``chan_audiosocket.c``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from uuid import UUID

from gateway.errors import ProtocolError
from gateway.seams.media_messages import (
    DtmfReceived,
    Ignored,
    MediaReceived,
    Message,
    PeerError,
    StreamStarted,
    StreamStopped,
    UnknownEvent,
)
from voicecodecs.registry import AudioFormat

RATES = {
    0x10: 8000, 0x11: 12000, 0x12: 16000, 0x13: 24000, 0x14: 32000,
    0x15: 44100, 0x16: 48000, 0x17: 96000, 0x18: 192000,
}  # fmt: skip
"""Frame type of audio -> sample rate in Hz. All except 0x10 need a recent Asterisk."""
END = b"\x00\x00\x00"
"""The frame that ends the session. The dialplan application then returns; the channel driver hangs up."""

_END, _UUID, _DTMF, _ERROR = 0x00, 0x01, 0x03, 0xFF
_TYPES = {rate: kind for kind, rate in RATES.items()}
_HEAD = struct.Struct(">BH")
_DIGITS = frozenset(b"0123456789*#ABCD")
_CALLER_HUNG_UP = 0x01


class AudioSocketWire:
    """One connection's frames."""

    def __init__(self) -> None:
        self.uuid: UUID | None = None
        """The call's UUID. None: its first frame has not arrived."""
        self.started = False
        self._rate = 0
        self._head = b""
        self._pending = bytearray()

    def push(self, data: bytes) -> None:
        """Add received bytes, in pieces of any size. ``messages`` reads them."""
        self._pending += data

    def messages(self) -> Iterator[Message]:
        """Read all complete frames. At most one unfinished frame (64 KiB) is kept.

        Raises:
            ProtocolError: a frame is wrong. It is skipped; call again for the frames after it.
        """
        pending = self._pending
        while len(pending) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(pending)
            if len(pending) < _HEAD.size + length:
                return
            payload = bytes(pending[_HEAD.size : _HEAD.size + length])
            del pending[: _HEAD.size + length]
            yield from self._read(kind, payload)

    def start(self, rate: int) -> StreamStarted:
        """Start the stream at a rate in Hz: that of the first audio frame, or a default if no frame comes."""
        self.started = True
        self._rate = rate
        fmt = AudioFormat("L16", rate)
        assert fmt.frame_bytes is not None
        self._head = _HEAD.pack(_TYPES[rate], fmt.frame_bytes)
        return StreamStarted(stream_id=str(self.uuid), call_sid=str(self.uuid), inbound=fmt, outbound=fmt)

    def audio(self, payload: bytes) -> bytes:
        """Return a frame with header and payload in one piece, because Asterisk waits only 5 ms for the payload."""
        return self._head + payload

    def _read(self, kind: int, payload: bytes) -> Iterator[Message]:
        size = len(payload)
        if self.uuid is None:
            if kind != _UUID or size != 16:
                raise ProtocolError(
                    f"audiosocket: the first frame has type 0x{kind:02x} and {size} bytes, expected the UUID: 0x01, 16"
                )
            self.uuid = UUID(bytes=payload)
            yield Ignored()
        elif kind in RATES:
            yield from self._audio(RATES[kind], payload)
        elif kind == _DTMF:
            if size != 1 or payload[0] not in _DIGITS:
                raise ProtocolError(f"audiosocket: {size} bytes of DTMF are not a digit, expected one of 0-9 * # A-D")
            yield DtmfReceived(payload.decode())
        elif kind == _END:
            yield StreamStopped()
        elif kind == _ERROR:
            code = payload[0] if payload else 0
            yield StreamStopped() if code & _CALLER_HUNG_UP else PeerError(f"error 0x{code:02x}")
        else:
            yield UnknownEvent(f"0x{kind:02x}")

    def _audio(self, rate: int, payload: bytes) -> Iterator[Message]:
        if len(payload) % 2:
            raise ProtocolError(f"audiosocket: {len(payload)} bytes of audio, expected whole 16-bit samples")
        if not self.started:
            yield self.start(rate)
        elif rate != self._rate:
            raise ProtocolError(f"audiosocket: audio at {rate} Hz on a stream that began at {self._rate} Hz")
        if payload:
            yield MediaReceived(payload)
