"""One call's RTP: two sockets, and between them and the call the pure parts of ``gateway/media``.

Sends what it is given, when it is given: the pacing is the session's. Follows a peer behind an address translator
(``Latch``), hands on the caller's frames in order, tells digits and the end of the media, reports by RTCP.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator

from gateway.errors import ProtocolError
from gateway.media.dtmf import TelephoneEvents, event_packets
from gateway.media.jitter_buffer import JitterBuffer
from gateway.media.latch import Latch, PeerAddress
from gateway.media.rtcp import Reporter, is_rtcp
from gateway.media.rtp import IncomingStream, OutgoingStream, parse
from gateway.media.srtp import Srtp
from gateway.seams.leg import CallEvents
from sip_bridge.io.ports import PortPair
from sip_bridge.message.sdp import Agreed
from voicecodecs.comfort_noise import noise_frames, read_level_dbov, write_level_dbov

_KEEP_ALIVE_S = 5.0
"""In our silence a packet each so often: gateways drop calls whose media has stopped, translators forget their way."""

_OUR_NOISE_DBOV = -70
"""What a listener should hear while we are silent: almost nothing, but a line that is alive."""

_DATAGRAM_BYTES = 4096
"""More than a packet of any codec of ours."""


class _Port:
    """A bound socket. Not an asyncio transport: that would queue what the kernel does not take, and be late with it."""

    def __init__(self, receive: Callable[[bytes, PeerAddress], None]) -> None:
        self._receive = receive
        self._socket: socket.socket | None = None

    def open(self, bound: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = bound
        loop.add_reader(bound.fileno(), self._readable)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._socket is not None:
            loop.remove_reader(self._socket.fileno())
            self._socket = None

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            # One a turn of the loop: a flood at one port must not stop the others.
            data, source = self._socket.recvfrom(_DATAGRAM_BYTES)
        except OSError:
            return
        self._receive(data, (source[0], source[1]))

    def send(self, data: bytes, to: PeerAddress) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.sendto(data, to)
        except OSError:  # a full buffer, or an address without a way to it
            return False
        return True


class RtpLeg:
    """The media of one call.

    Args:
        events: told of frames, digits and silence.
        latch: where to send, and whom to believe.
        silence_s: without a packet for so long while not on hold, the media is lost (``on_leg_closed``).
        on_report: told with every report of ours, and at the end: packets lost since then, and jitter (seconds).
    """

    _WATCH_S = 0.1

    def __init__(
        self,
        events: CallEvents,
        latch: Latch,
        *,
        silence_s: float = 30.0,
        on_report: Callable[[int, float], None] = lambda lost, jitter_s: None,
    ) -> None:
        self.unreadable = 0
        """Packets that were no RTP of this call."""
        self.incoming: IncomingStream | None = None
        self.outgoing: OutgoingStream | None = None
        self.reporter: Reporter | None = None
        self._events = events
        self._latch = latch
        self._silence_s = silence_s
        self._on_report = on_report
        self._lost_told = 0
        self._loop = asyncio.get_running_loop()
        self._rtp, self._rtcp = _Port(self._received), _Port(self._received_report)
        self._agreed: Agreed | None = None
        self._srtp: Srtp | None = None
        self._keys = TelephoneEvents()
        self._order = JitterBuffer(8000)
        self._expiry: asyncio.TimerHandle | None = None
        self._silence = b""
        self._noise: Iterator[bytes] = itertools.repeat(b"")
        self._sent_at = 0.0
        self._noise_told = False
        self._heard_at = 0.0
        self._digits_end = 0.0
        self._timers: set[asyncio.TimerHandle] = set()
        self._ports: PortPair | None = None
        self._closed = False

    def open(self, ports: PortPair) -> None:
        """Receive on these ports; ``close`` gives them back."""
        self._ports = ports
        self._rtp.open(ports.rtp, self._loop)
        self._rtcp.open(ports.rtcp, self._loop)
        self._heard_at = self._loop.time()
        self._later(self._WATCH_S, self._watch)

    def negotiated(self, agreed: Agreed) -> None:
        """Take what an offer and its answer came to. What stays the same goes on undisturbed."""
        before, self._agreed = self._agreed, agreed
        now = self._loop.time()
        self._heard_at = now
        # A hold keeps the address that was followed: the call resumes there.
        if agreed.host not in ("0.0.0.0", "::"):
            self._latch.negotiated((agreed.host, agreed.port), now=now)
        keys = (agreed.send_crypto, agreed.receive_crypto)
        if agreed.send_crypto and agreed.receive_crypto:
            if before is None or keys != (before.send_crypto, before.receive_crypto):
                self._srtp = Srtp(
                    agreed.send_crypto.suite,
                    send_key=agreed.send_crypto.key,
                    receive_key=agreed.receive_crypto.key,
                )
        else:
            self._srtp = None
        # The number is the peer's and may change; the stream behind it does not, unless its clock or frame does.
        sent = (agreed.codec.payload_type, agreed.codec.clock_hz, agreed.ptime_ms)
        if before is None or sent != (before.codec.payload_type, before.codec.clock_hz, before.ptime_ms):
            self.outgoing = OutgoingStream(
                ssrc=secrets.randbits(32),
                payload_type=agreed.codec.payload_type,
                clock_hz=agreed.codec.clock_hz,
                frame_s=agreed.ptime_ms / 1000,
                sequence=secrets.randbits(15),
                timestamp=secrets.randbits(32),
            )
            self.reporter = Reporter(self.outgoing, secrets.token_hex(8), now=now, share=_share())
            self._silence = agreed.sent_format.silence_frame()
            self._noise = itertools.repeat(self._silence)
        # At once, so that an address translator on the way lets the peer's packets in (RFC 4961, RFC 6263).
        self._send_silence(now)

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Number, encrypt and send one frame; nothing while a digit stands in its place. False: on hold, or the socket
        takes no more."""
        if self.outgoing is None or not self._sends:
            return False
        if now < self._digits_end:
            return True
        self._sent_at, self._noise_told = now, False
        return self._send(self.outgoing.packet(payload, now=now))

    @property
    def carries_dtmf(self) -> bool:
        """Whether the peer agreed to telephone events, and is not on hold."""
        return self._agreed is not None and self._agreed.events is not None and self._sends

    def send_dtmf(self, digits: str) -> bool:
        """Send touch tones in the place of audio, after those under way. False: the peer takes none.

        Raises:
            ValueError: a character that is no key.
        """
        agreed = self._agreed
        if agreed is None or agreed.events is None or not self._sends:
            return False
        packets = list(event_packets(digits, agreed.events.clock_hz))
        begin = max(self._digits_end, self._loop.time())
        for packet in packets:
            self._at(begin + packet.at_s, self._send_event, agreed.events.payload_type, packet.payload, packet.begins)
        if packets:
            self._digits_end = begin + packets[-1].at_s + 0.08
        return True

    def close(self) -> None:
        """Say goodbye and close both sockets."""
        if self._closed:
            return
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        if self.reporter and self._agreed:
            streams = [self.incoming] if self.incoming else []
            self._send_report(self.reporter.goodbye(streams, now=self._loop.time(), wall=time.time()))
        self._tell_losses()
        for port in (self._rtp, self._rtcp):
            port.close(self._loop)
        if self._ports:
            self._ports.close()

    # --- out -------------------------------------------------------------------------------------------------------

    @property
    def _sends(self) -> bool:
        return self._agreed is not None and not self._agreed.held and self._latch.remote is not None

    def _send(self, packet: bytes) -> bool:
        if not self._sends or self._latch.remote is None:
            return False
        return self._rtp.send(self._srtp.protect(packet) if self._srtp else packet, self._latch.remote)

    def _send_silence(self, now: float) -> None:
        """Show that we are there, and how quiet it is here."""
        agreed = self._agreed
        if agreed is None or self.outgoing is None or not self._sends or now < self._digits_end:
            return
        self._sent_at, self._noise_told = now, agreed.noise_type is not None
        if agreed.noise_type is None:
            self._send(self.outgoing.packet(self._silence, now=now))
        else:
            self._send(self.outgoing.comfort_noise(agreed.noise_type, write_level_dbov(_OUR_NOISE_DBOV), now=now))

    def _send_event(self, payload_type: int, payload: bytes, begins: bool) -> None:
        if self.outgoing:
            self._send(self.outgoing.event(payload_type, payload, begins=begins, now=self._loop.time()))

    def _send_report(self, report: bytes) -> None:
        agreed = self._agreed
        if agreed is None:
            return
        data = self._srtp.protect_rtcp(report) if self._srtp else report
        if agreed.rtcp_port == agreed.port:
            self._rtp.send(data, self._latch.remote or (agreed.host, agreed.port))
        else:
            host, port = self._latch.remote or (agreed.host, agreed.port)
            moved = (host, port) != (agreed.host, agreed.port)
            self._rtcp.send(data, (host, port + 1 if moved else agreed.rtcp_port))

    # --- in --------------------------------------------------------------------------------------------------------

    def _received(self, data: bytes, source: PeerAddress) -> None:
        if is_rtcp(data):
            self._received_report(data, source)
            return
        agreed, now = self._agreed, self._loop.time()
        if agreed is None or self._closed:
            return
        try:
            packet = parse(self._srtp.unprotect(data) if self._srtp else data)
        except ProtocolError:
            self.unreadable += 1
            return
        if packet.payload_type not in (agreed.receive_type, agreed.events_receive_type, agreed.noise_type):
            self.unreadable += 1
            return
        if not self._latch.accept(source, packet.ssrc, packet.sequence, now=now):
            return
        self._heard_at = now
        if self.incoming is None or self.incoming.ssrc != packet.ssrc:
            # A transfer or hold music: a new stream, not a new call.
            self._tell_losses()
            self.incoming = IncomingStream(ssrc=packet.ssrc, clock_hz=agreed.codec.clock_hz)
            self._lost_told = 0
            self._order, self._keys = JitterBuffer(agreed.codec.clock_hz), TelephoneEvents()
        self.incoming.add(packet.sequence, packet.timestamp, now=now)
        payload: bytes | None = packet.payload or None
        if packet.payload_type == agreed.events_receive_type:
            digit = self._keys.add(packet.timestamp, packet.payload)
            if digit is not None:
                self._events.on_digit(digit)
            payload = None
        elif packet.payload_type == agreed.noise_type:
            self._noise = itertools.cycle(noise_frames(agreed.sent_format, read_level_dbov(packet.payload)))
            payload = None
        self._hand_on(self._order.add(packet.sequence, packet.timestamp, payload, now=now))

    def _hand_on(self, ready: Iterable[bytes]) -> None:
        if self._events.listening:
            for payload in ready:
                self._events.on_audio(payload)
        deadline = self._order.deadline
        if deadline is not None and self._expiry is None:
            self._expiry = self._at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._hand_on(self._order.expire(now=self._loop.time()))

    def _received_report(self, data: bytes, source: PeerAddress) -> None:
        agreed = self._agreed
        known = agreed and source[0] in (agreed.host, self._latch.remote and self._latch.remote[0])
        if not known or self.reporter is None or self._closed:
            return
        try:
            self.reporter.received(self._srtp.unprotect_rtcp(data) if self._srtp else data, now=self._loop.time())
        except ProtocolError:
            self.unreadable += 1

    # --- time ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = self._loop.time()
        agreed = self._agreed
        if agreed is not None:
            if agreed.direction.receives and not agreed.held and now - self._heard_at > self._silence_s:
                self._events.on_leg_closed("media timeout")
                return
            if self._events.listening:
                # Without it, speech would not end at a caller whose phone sends nothing in silence.
                silent_s = self._order.pause(now=now) * self._order.frame_s
                self._hand_on(next(self._noise) for _ in range(round(silent_s * 1000 / agreed.ptime_ms)))
            idle_s = now - self._sent_at
            if idle_s > _KEEP_ALIVE_S or (agreed.noise_type is not None and not self._noise_told and idle_s > 0.1):
                self._send_silence(now)
            if self.reporter and now >= self.reporter.due:
                streams = [self.incoming] if self.incoming else []
                self._send_report(self.reporter.report(streams, now=now, wall=time.time(), share=_share()))
                self._tell_losses()
        self._later(self._WATCH_S, self._watch)

    def _tell_losses(self) -> None:
        if self.incoming is not None and self._agreed is not None:
            lost = max(self.incoming.lost, self._lost_told)  # a late packet makes it fall: a counter cannot
            self._on_report(lost - self._lost_told, self.incoming.jitter / self._agreed.codec.clock_hz)
            self._lost_told = lost

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._at(self._loop.time() + delay_s, call)

    def _at(self, when: float, call: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        def fire() -> None:
            self._timers.discard(timer)
            if not self._closed:
                call(*args)

        timer = self._loop.call_at(when, fire)
        self._timers.add(timer)
        return timer


def _share() -> float:
    return secrets.randbelow(1000) / 999
