"""One call's RTP: two sockets around an ``RtpSession``.

A leg sends each frame at once; the call's session paces them. The leg follows a peer behind a NAT (``Latch``), and
reports when the peer's media stops.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable
from typing import Protocol

from gateway.media.arrival import Arrival
from gateway.media.latch import Latch, PeerAddress
from gateway.media.rtp_session import RtpEvents, RtpSession, RtpTerms
from gateway.media.srtp import Srtp
from gateway.media.timer import DeadlineTimer
from gateway.seams.leg import Reception, RtpReport
from sip_bridge.io.ports import PortPair
from sip_bridge.message.sdp import Agreed
from voicecodecs.registry import AudioFormat

_DATAGRAM_BYTES = 4096
"""Receive buffer, larger than a packet of any supported codec."""

_PACKETS_PER_TURN = 3
"""Most packets that are read of one port in one turn of the loop, so that a flood at it does not starve the others."""

_LOOK_EVERY = 8
"""After so many reads, a port looks whether more than one packet waits."""


class _Port:
    """A bound socket. An asyncio transport would queue the packets that the kernel does not take, and send them
    late."""

    def __init__(self, receive: Callable[[bytes, PeerAddress], None]) -> None:
        self._receive = receive
        self._socket: socket.socket | None = None
        self._reads = 0
        self._is_behind = False
        """True: several packets waited at the last read. On a full machine, packets come faster than the turns of the
        loop, and must not grow old in the socket until it overflows."""

    def open(self, bound: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = bound
        loop.add_reader(bound.fileno(), self._readable)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._socket is not None:
            loop.remove_reader(self._socket.fileno())
            self._socket = None

    def _readable(self) -> None:
        self._reads += 1
        taken = 0
        for _ in range(_PACKETS_PER_TURN if self._is_behind or self._reads % _LOOK_EVERY == 0 else 1):
            if self._socket is None:  # the last packet has ended the call
                return
            try:
                data, source = self._socket.recvfrom(_DATAGRAM_BYTES)
            except OSError:
                break
            taken += 1
            self._receive(data, (source[0], source[1]))
        self._is_behind = taken > 1

    def send(self, data: bytes, to: PeerAddress) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.sendto(data, to)
        except (OSError, OverflowError):  # the buffer is full, there is no route, or the RTCP port would be 65536
            return False
        return True


class RtpLegEvents(RtpEvents, Protocol):
    """The events of a call's media."""

    def on_leg_closed(self, reason: str) -> None:
        """Handle the loss of the media."""
        ...


class RtpLeg:
    """The media of one call.

    Args:
        events: takes frames, digits and the loss of media.
        latch: decides where to send, and whose packets to accept.
        silence_s: if no packet comes for this long while the call is not on hold, the media is lost
            (``on_leg_closed``).
        on_report: called with each report that we send and at the end.
        answered: False while the call rings. Silence counts from the answer on, because many peers send nothing before.
    """

    def __init__(
        self,
        events: RtpLegEvents,
        latch: Latch,
        *,
        silence_s: float = 30.0,
        on_report: Callable[[RtpReport], None] = lambda report: None,
        answered: Callable[[], bool] = lambda: True,
    ) -> None:
        self.session: RtpSession | None = None
        """The RTP session, which begins with the first agreement. None: there is no agreement yet."""
        self._events = events
        self._latch = latch
        self._silence_s = silence_s
        self._on_report = on_report
        self._answered = answered
        self._rang_at = 0.0
        """The last time at which the call was not answered."""
        self._arrival = Arrival()
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self)
        self._rtp, self._rtcp = _Port(self._received), _Port(self._received_rtcp)
        self._agreed: Agreed | None = None
        self._formats: tuple[AudioFormat, AudioFormat] | None = None
        self._ports: PortPair | None = None
        self._closed = False

    def reception(self) -> Reception | None:
        """Return the reception statistics of the caller's audio. None: nothing came."""
        return self._arrival.reception()

    def open(self, ports: PortPair) -> None:
        """Receive on these ports. ``close`` gives them back."""
        self._ports = ports
        self._rtp.open(ports.rtp, self._loop)
        self._rtcp.open(ports.rtcp, self._loop)

    def keep_formats(self, outbound: AudioFormat, inbound: AudioFormat) -> None:
        """Fix the formats of ``send_frame`` and ``on_audio``, whatever is agreed later."""
        self._formats = (outbound, inbound)
        if self.session is not None:
            self.session.keep_formats(outbound, inbound)

    def negotiated(self, agreed: Agreed) -> None:
        """Apply the result of an offer and its answer. Unchanged parts are not disturbed."""
        before, self._agreed = self._agreed, agreed
        now = time.monotonic()
        # On hold, the leg keeps the address that it latched to, because the call resumes there.
        if agreed.host not in ("0.0.0.0", "::"):
            self._latch.negotiated((agreed.host, agreed.port), now=now)
        terms = RtpTerms(
            audio=agreed.sent_format,
            send_type=agreed.codec.payload_type,
            receives=agreed.received_formats,
            dtmf=(agreed.events.payload_type, agreed.events.clock_hz) if agreed.events else None,
            receives_dtmf=agreed.received_events,
            noise_type=agreed.noise_type,
            on_hold=agreed.on_hold,
        )
        if self.session is None:
            self.session = RtpSession(
                terms,
                self,
                self._events,
                name=secrets.token_hex(8),
                now=now,
                wall=time.time(),
                latch=self._latch,
                on_report=self._on_report,
                arrival=self._arrival,
            )
            if self._formats is not None:
                self.session.keep_formats(*self._formats)
        else:
            self.session.agree(terms, now=now)
        kept = _same_keys(before, agreed)
        if before is None or not all(kept):
            earlier, self.session.srtp = self.session.srtp, _srtp(agreed)
            if earlier is not None and self.session.srtp is not None:
                self.session.srtp.keep(earlier, outgoing=kept[0], incoming=kept[1])
        # Send at once, to open a NAT on the path for the peer's packets (RFC 4961, RFC 6263).
        self.session.send_silence(now)
        self._timer.arm()

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Send one frame, or drop it while a digit is sent in its place. False: the call is on hold, or the socket is
        full."""
        return self.session is not None and self.session.send_frame(payload, now)

    @property
    def carries_dtmf(self) -> bool:
        """True if the peer agreed to telephone events and is not on hold."""
        return self.session is not None and self.session.carries_dtmf

    def send_dtmf(self, digits: str) -> bool:
        """Send touch tones in the place of audio, after those under way. False: the peer takes none.

        Raises:
            ValueError: a character is not a key.
        """
        sent = self.session is not None and self.session.send_dtmf(digits, time.monotonic())
        self._timer.arm()
        return sent

    def close(self) -> None:
        """Send RTCP BYE and close both sockets."""
        if self._closed:
            return
        self._closed = True
        self._timer.close()
        if self.session is not None:
            self.session.close(time.monotonic())
        for port in (self._rtp, self._rtcp):
            port.close(self._loop)
        if self._ports:
            self._ports.close()

    # --- RtpPath ---------------------------------------------------------------------------------------------------

    def send_rtp(self, datagram: bytes) -> bool:
        """Send a packet to the peer."""
        return self._latch.remote is not None and self._rtp.send(datagram, self._latch.remote)

    def send_rtcp(self, datagram: bytes) -> None:
        """Send a report to the port that the peer named for it, or to the port after that of its media."""
        agreed = self._agreed
        assert agreed is not None
        named = (agreed.host, agreed.port)
        remote = self._latch.remote or named
        if agreed.rtcp_port == agreed.port:
            self._rtp.send(datagram, remote)
        else:
            self._rtcp.send(datagram, (remote[0], agreed.rtcp_port if remote == named else remote[1] + 1))

    # --- in and time -----------------------------------------------------------------------------------------------

    def _received(self, data: bytes, source: PeerAddress) -> None:
        if self.session is not None and not self._closed:
            self.session.receive(data, time.monotonic(), source)
            self._timer.arm()

    def _received_rtcp(self, data: bytes, source: PeerAddress) -> None:
        if self.session is not None and not self._closed:
            self.session.receive_rtcp(data, time.monotonic(), source)

    def deadline(self) -> float | None:
        """Return the time at which ``on_timer`` must be called."""
        return self.session.deadline() if self.session else None

    def on_timer(self, now: float) -> None:
        """Do what is due. If the peer has been silent for too long, report that the media is lost."""
        session, agreed = self.session, self._agreed
        assert session is not None and agreed is not None
        if not self._answered():
            self._rang_at = now
        silent_s = now - max(session.heard_at, self._rang_at)
        if agreed.direction.receives and not agreed.on_hold and silent_s > self._silence_s:
            self._timer.close()
            self._events.on_leg_closed("media timeout")
        else:
            session.on_timer(now)


def _same_keys(before: Agreed | None, agreed: Agreed) -> tuple[bool, bool]:
    """Return True for the sent and for the received packets if their keys stay the same. Tags may change."""
    if before is None:
        return False, False
    pairs = (before.send_crypto, agreed.send_crypto), (before.receive_crypto, agreed.receive_crypto)
    sent, received = (
        old == new or (old and new and (old.suite, old.key) == (new.suite, new.key)) for old, new in pairs
    )
    return bool(sent), bool(received)


def _srtp(agreed: Agreed) -> Srtp | None:
    if agreed.send_crypto is None or agreed.receive_crypto is None:
        return None
    return Srtp.keyed(agreed.send_crypto.suite, send_key=agreed.send_crypto.key, receive_key=agreed.receive_crypto.key)
