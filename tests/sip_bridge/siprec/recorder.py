"""A session recording server that shares no code with the product. It reads messages with regular expressions."""

from __future__ import annotations

import asyncio
import re
import socket

import numpy as np
from numpy.typing import NDArray

from tests.waiting import PATIENCE_S


def header(message: bytes, name: str) -> str:
    """The value of a header; empty if there is none."""
    found = re.search(rf"^{name}:[ \t]*(.*?)\r?$".encode(), message, re.IGNORECASE | re.MULTILINE)
    return found[1].decode() if found else ""


def _ulaw_level(payloads: list[bytes]) -> NDArray[np.float64]:
    """Samples of PCMU (ITU-T G.711), from its formula."""
    code = ~np.frombuffer(b"".join(payloads), np.uint8)
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = ((mantissa.astype(np.int64) << 3) + 132 << exponent) - 132
    return np.where(code & 128, -magnitude, magnitude).astype(np.float64)


def pitch(payloads: list[bytes]) -> float:
    """The strongest frequency of PCMU at 8000 Hz, in hertz."""
    samples = _ulaw_level(payloads)
    return float(np.argmax(np.abs(np.fft.rfft(samples)))) * 8000 / len(samples)


class Recorder:
    """One socket for SIP and two for RTP."""

    def __init__(self) -> None:
        self.sip, self.left, self.right = (self._socket() for _ in range(3))
        self.source: tuple[str, int] = ("", 0)
        self.cseq = 7

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setblocking(False)
        made.bind(("127.0.0.1", 0))
        return made

    @property
    def uri(self) -> str:
        return f"sip:srs@127.0.0.1:{self.sip.getsockname()[1]}"

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.sip, self.left, self.right):
            each.close()

    async def heard(self, start: bytes) -> bytes:
        """The next message that begins so; others are passed over."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message, self.source = await loop.sock_recvfrom(self.sip, 65536)
                if message.startswith(start):
                    return message

    def description(self, direction: str = "recvonly", *, ports: tuple[int, int] | None = None) -> bytes:
        first, second = ports or (self.left.getsockname()[1], self.right.getsockname()[1])
        return (
            "v=0\r\no=srs 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
            f"m=audio {first} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na={direction}\r\na=label:1\r\n"
            f"m=audio {second} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na={direction}\r\na=label:2\r\n"
        ).encode()

    def answer(self, request: bytes, status: str, body: bytes = b"", *more: str) -> None:
        to = header(request, "To")
        lines = [
            f"SIP/2.0 {status}",
            *(f"{name}: {header(request, name)}" for name in ("Via", "From", "Call-ID", "CSeq")),
            f"To: {to}" + ("" if "tag=" in to else ";tag=srs"),
            f"Contact: <{self.uri}>;+sip.srs",
            *more,
            *(["Content-Type: application/sdp"] if body else []),
            f"Content-Length: {len(body)}",
        ]
        self.sip.sendto("\r\n".join([*lines, "", ""]).encode() + body, self.source)

    def ask(self, invite: bytes, method: str, body: bytes = b"", content: str = "application/sdp") -> None:
        """A request in the dialog that an INVITE began."""
        self.cseq += 1
        target = re.search(r"<(.*?)>", header(invite, "Contact"))
        assert target
        lines = [
            f"{method} {target[1]} SIP/2.0",
            f"Via: SIP/2.0/UDP 127.0.0.1:{self.sip.getsockname()[1]};branch=z9hG4bKsrs{self.cseq}",
            "Max-Forwards: 70",
            f"From: {header(invite, 'To')};tag=srs",
            f"To: {header(invite, 'From')}",
            f"Call-ID: {header(invite, 'Call-ID')}",
            f"CSeq: {self.cseq} {method}",
            f"Contact: <{self.uri}>;+sip.srs",
            *([f"Content-Type: {content}"] if body else []),
            f"Content-Length: {len(body)}",
        ]
        self.sip.sendto("\r\n".join([*lines, "", ""]).encode() + body, self.source)

    async def sound(self, side: socket.socket, packets: int) -> list[bytes]:
        """The payloads of the next packets of a stream."""
        loop, found = asyncio.get_running_loop(), []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < packets:
                packet = await loop.sock_recv(side, 2048)
                if packet[1] & 0x7F == 0:
                    found.append(packet)
        numbers = [int.from_bytes(packet[2:4]) for packet in found]
        stamps = [int.from_bytes(packet[4:8]) for packet in found]
        assert numbers == list(range(numbers[0], numbers[0] + packets))
        steps = {(after - before) & 0xFFFFFFFF for before, after in zip(stamps[1:], stamps[2:], strict=False)}
        assert steps == {160}, steps
        return [packet[12:] for packet in found[1:]]

    def is_quiet(self, side: socket.socket) -> bool:
        """Return True if no packet waits, after taking those that came."""
        count = 0
        while True:
            try:
                side.recv(2048)
                count += 1
            except BlockingIOError:
                return not count
