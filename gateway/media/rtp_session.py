"""One call's RTP, the same for SIP and WebRTC. Pure: time is an argument, and a datagram leaves through ``RtpPath``.

The session numbers and encrypts what is sent; it decrypts, counts and orders what arrives; it receives and sends touch
tones as events, and reports by RTCP. It knows neither sockets nor signalling: its owner tells it what was agreed,
passes it each datagram, and calls ``on_timer`` when ``deadline`` has come.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import ProtocolError
from gateway.media.arrival import Arrival
from gateway.media.dtmf import EventPacket, TelephoneEvents, event_packets
from gateway.media.jitter_buffer import JitterBuffer
from gateway.media.latch import Latch, PeerAddress
from gateway.media.rtcp import INTERVAL_S, Reporter, is_rtcp
from gateway.media.rtp import IncomingStream, OutgoingStream, parse
from gateway.media.srtp import Srtp
from voicecodecs.comfort_noise import noise_frames, read_level_dbov, write_level_dbov
from voicecodecs.registry import AudioFormat

KEEP_ALIVE_S = 5.0
"""Time between packets in our silence. Without them, gateways drop the call, and address translators forget its
path."""

_LOOK_EVERY_S = 0.1
"""Time between checks for silence: the peer's, which ends speech, and ours, in which we send signs of life."""

_OUR_NOISE_DBOV = -70
"""Level of the noise that a listener hears while we are silent. It is almost nothing, but shows that the line is
alive."""

_AFTER_DTMF_S = 0.08
"""Time from the last packet of a tone to the audio that follows."""


class RtpEvents(Protocol):
    """What a session tells its call."""

    @property
    def listening(self) -> bool:
        """Does anybody want the caller's audio now?"""
        ...

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio. It is empty for a lost frame. Called only while ``listening``."""
        ...

    def on_digit(self, digit: str) -> None: ...

    def on_round_trip(self, seconds: float) -> None:
        """Take the round trip to the peer, as its report shows it."""
        ...


class RtpPath(Protocol):
    """Where a session's datagrams leave."""

    def send_rtp(self, datagram: bytes) -> bool:
        """Send a datagram. Return False if the socket takes no more."""
        ...

    def send_rtcp(self, datagram: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RtpTerms:
    """The part of an agreement by offer and answer that concerns RTP. Types are payload types (RFC 3551)."""

    audio: AudioFormat
    """The format that we send. What arrives has the same RTP clock."""
    send_type: int
    receive_type: int
    dtmf: tuple[int, int] | None = None
    """Type and clock (Hz) of touch tones that the peer takes as events. None: it takes no events."""
    receive_dtmf_type: int | None = None
    noise_type: int | None = None
    """Type of comfort noise (RFC 3389), both ways. None: silence is not sent, or is sent as audio."""
    on_hold: bool = False
    """Does the peer not want to hear us now? Reports go on."""

    @property
    def sent(self) -> tuple[int, int, int]:
        """Return what a stream of ours cannot change: its type, clock and frame."""
        return self.send_type, self.audio.rtp_clock_hz, self.audio.ptime_ms


@dataclass(frozen=True, slots=True)
class RtpStats:
    """What both ends have counted."""

    packets_sent: int
    packets_received: int
    lost: int
    """Number of the peer's packets that never came. Negative with duplicates."""
    jitter_s: float
    remote_lost: int
    """Number of our packets that the peer did not get."""
    remote_jitter_s: float
    round_trip_s: float | None


class _Arrivals:
    """One stream of the peer (SSRC)."""

    __slots__ = ("dtmf", "lost_told", "order", "stream")

    def __init__(self, ssrc: int, clock_hz: int) -> None:
        self.stream = IncomingStream(ssrc=ssrc, clock_hz=clock_hz)
        self.order = JitterBuffer(clock_hz)
        self.dtmf = TelephoneEvents()
        self.lost_told = 0


class RtpSession:
    """The RTP of one call.

    Args:
        terms: what was agreed first; ``agree`` tells of later agreements.
        name: our canonical name in reports; must not say who or where we are (RFC 7022).
        now, wall: one instant in seconds, on the owner's monotonic clock and since 1970. Reports tell wall time by the
            difference, so that a step of the wall clock in mid-call changes nothing.
        latch: whose packets to believe; None where the path below knows its peer (ICE).
        srtp: protects both ways from now on; may be set later, too.
        report_every_s: mean pause between reports.
        keep_alive: show in silence of ours that we are there.
        on_report: told with every report of ours, when the peer begins another stream, and at the end: packets lost
            since then, and jitter (seconds).
        arrival: adds up what came, for a call that may have several sessions.
        luck: where numbers begin and when reports are sent; must not be guessable (RFC 3550 section 5.1).
    """

    def __init__(
        self,
        terms: RtpTerms,
        path: RtpPath,
        events: RtpEvents,
        *,
        name: str,
        now: float,
        wall: float,
        latch: Latch | None = None,
        srtp: Srtp | None = None,
        report_every_s: float = INTERVAL_S,
        keep_alive: bool = True,
        on_report: Callable[[int, float], None] = lambda lost, jitter_s: None,
        arrival: Arrival | None = None,
        luck: random.Random | None = None,
    ) -> None:
        self.terms = terms
        self.srtp = srtp
        self.heard_at = now
        """When the peer's last packet, or the last agreement, came."""
        self.unreadable = 0
        """Number of datagrams that were no RTP or RTCP of this call."""
        self._path = path
        self._events = events
        self._name = name
        self._wall_s = wall - now
        self._latch = latch
        self._report_every_s = report_every_s
        self._keep_alive = keep_alive
        self._on_report = on_report
        self._arrival = arrival or Arrival()
        self._luck = luck or random.SystemRandom()
        self._arrivals: _Arrivals | None = None
        self._dtmf: deque[tuple[float, int, EventPacket]] = deque()
        """Packets of touch tones that are still to be sent: time, payload type, packet."""
        self._dtmf_end = 0.0
        self._sent_at = 0.0
        self._noise_told = False
        self._look_at = now + _LOOK_EVERY_S
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Begin a stream of ours."""
        audio, bits = self.terms.audio, self._luck.getrandbits
        self.outgoing = OutgoingStream(
            ssrc=bits(32),
            payload_type=self.terms.send_type,
            clock_hz=audio.rtp_clock_hz,
            frame_s=audio.ptime_ms / 1000,
            sequence=bits(15),
            timestamp=bits(32),
        )
        self.reporter = Reporter(
            self.outgoing,
            self._name,
            now=now,
            wall=now + self._wall_s,
            every_s=self._report_every_s,
            share=self._luck.random(),
        )
        self._silence: Iterator[bytes] = itertools.repeat(audio.silence_frame())
        """Frames that stand for the peer's silence."""

    def agree(self, terms: RtpTerms, *, now: float) -> None:
        """Take a later agreement. What stays the same goes on undisturbed."""
        before, self.terms = self.terms, terms
        self.heard_at = now
        if terms.sent != before.sent:
            self._begin(now)
        if terms.audio.rtp_clock_hz != before.audio.rtp_clock_hz:
            self._tell_losses()
            self._arrivals = None  # the peer may keep its SSRC, but its timestamps mean something else now

    # --- out -------------------------------------------------------------------------------------------------------

    @property
    def sends(self) -> bool:
        """Does the peer want to hear us, and is its address known?"""
        return not self.terms.on_hold and (self._latch is None or self._latch.remote is not None)

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Number, encrypt and send one frame, unless a touch tone is sent in its place.

        Return False if the call is on hold or the socket takes no more.
        """
        if not self.sends:
            return False
        if now < self._dtmf_end:
            return True
        self._sent_at, self._noise_told = now, False
        return self._send(self.outgoing.packet(payload, now=now))

    def send_silence(self, now: float) -> None:
        """Send comfort noise or silence as a sign of life."""
        if not self.sends or now < self._dtmf_end:
            return
        noise_type = self.terms.noise_type
        self._sent_at, self._noise_told = now, noise_type is not None
        if noise_type is None:
            self._send(self.outgoing.packet(self.terms.audio.silence_frame(), now=now))
        else:
            self._send(self.outgoing.comfort_noise(noise_type, write_level_dbov(_OUR_NOISE_DBOV), now=now))

    @property
    def carries_dtmf(self) -> bool:
        """Does the peer take touch tones as events, and is the call not on hold?"""
        return self.terms.dtmf is not None and self.sends

    def send_dtmf(self, digits: str, now: float) -> bool:
        """Send touch tones in the place of audio, after those under way. Return False if the peer takes none.

        Raises:
            ValueError: a character stands for no tone.
        """
        if self.terms.dtmf is None or not self.sends:
            return False
        payload_type, clock_hz = self.terms.dtmf
        begin = max(self._dtmf_end, now)
        packets = [(begin + packet.at_s, payload_type, packet) for packet in event_packets(digits, clock_hz)]
        if packets:
            self._dtmf.extend(packets)
            self._dtmf_end = packets[-1][0] + _AFTER_DTMF_S
        return True

    def report(self, now: float) -> None:
        """Send a report, and tell ``on_report`` what was lost since the last one."""
        self._send_rtcp(self.reporter.report(self._streams, now=now, share=self._luck.random()))
        self._tell_losses()

    def close(self, now: float) -> None:
        """Send the last report, with BYE."""
        self._send_rtcp(self.reporter.goodbye(self._streams, now=now))
        self._tell_losses()

    def _send(self, packet: bytes) -> bool:
        return self._path.send_rtp(self.srtp.protect(packet) if self.srtp else packet)

    def _send_rtcp(self, report: bytes) -> None:
        self._path.send_rtcp(self.srtp.protect_rtcp(report) if self.srtp else report)

    # --- in --------------------------------------------------------------------------------------------------------

    def receive(self, datagram: bytes, now: float, source: PeerAddress | None = None) -> None:
        """Take a datagram of the media port, RTP or RTCP (RFC 5761).

        Args:
            source: the datagram's source. It is needed if there is a latch.
        """
        if is_rtcp(datagram):
            self.receive_rtcp(datagram, now, source)
            return
        terms = self.terms
        try:
            packet = parse(self.srtp.unprotect(datagram) if self.srtp else datagram)
        except ProtocolError:
            self.unreadable += 1
            return
        if packet.payload_type not in (terms.receive_type, terms.receive_dtmf_type, terms.noise_type):
            self.unreadable += 1
            return
        latch = self._latch
        if latch is not None and not (source and latch.accept(source, packet.ssrc, packet.sequence, now=now)):
            return
        self.heard_at = now
        arrivals = self._arrivals
        if arrivals is None or arrivals.stream.ssrc != packet.ssrc:
            # A transfer or hold music begins a new stream, but not a new call.
            self._tell_losses()
            arrivals = self._arrivals = _Arrivals(packet.ssrc, terms.audio.rtp_clock_hz)
            self._arrival.begin(arrivals.stream)
        arrivals.stream.add(packet.sequence, packet.timestamp, now=now)
        payload: bytes | None = packet.payload or None
        if packet.payload_type == terms.receive_dtmf_type:
            digit = arrivals.dtmf.add(packet.timestamp, packet.payload)
            if digit is not None:
                self._events.on_digit(digit)
            payload = None
        elif packet.payload_type == terms.noise_type:
            self._silence = itertools.cycle(noise_frames(terms.audio, read_level_dbov(packet.payload)))
            payload = None
        self._hand_on(arrivals.order.add(packet.sequence, packet.timestamp, payload, now=now))

    def receive_rtcp(self, datagram: bytes, now: float, source: PeerAddress | None = None) -> None:
        """Take a datagram of the port for reports."""
        if self._latch is not None and not (source and self._latch.knows(source[0])):
            return
        try:
            trip_s = self.reporter.received(self.srtp.unprotect_rtcp(datagram) if self.srtp else datagram, now=now)
        except ProtocolError:
            self.unreadable += 1
            return
        remote = self.reporter.remote
        if remote is not None:
            self._arrival.remote = remote.lost, remote.jitter / self.terms.audio.rtp_clock_hz
        if trip_s is not None:
            self._events.on_round_trip(trip_s)

    def _hand_on(self, frames: Iterable[bytes]) -> None:
        if self._events.listening:
            for payload in frames:
                self._events.on_audio(payload)

    # --- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """Return when to call ``on_timer`` next."""
        when = self._look_at
        if self._dtmf:
            when = min(when, self._dtmf[0][0])
        hole = self._arrivals.order.deadline if self._arrivals else None
        return when if hole is None else min(when, hole)

    def on_timer(self, now: float) -> None:
        """Send what is due, and give up what is overdue."""
        while self._dtmf and self._dtmf[0][0] <= now:
            _, payload_type, packet = self._dtmf.popleft()
            event = self.outgoing.event(payload_type, packet.payload, begins=packet.begins, now=now)
            if self.sends:
                self._send(event)
        if self._arrivals is not None:
            hole = self._arrivals.order.deadline
            if hole is not None and hole <= now:
                self._hand_on(self._arrivals.order.expire(now=now))
        if self._look_at <= now:
            self._look_at = now + _LOOK_EVERY_S
            self._look(now)

    def _look(self, now: float) -> None:
        if self._arrivals is not None and self._events.listening:
            # Without this, the speech of a caller whose phone sends nothing in silence would not end.
            order = self._arrivals.order
            silent_s = order.pause(now=now) * order.frame_s
            self._hand_on(itertools.islice(self._silence, round(silent_s * 1000 / self.terms.audio.ptime_ms)))
        idle_s = now - self._sent_at
        if self._keep_alive and (
            idle_s > KEEP_ALIVE_S or (self.terms.noise_type is not None and not self._noise_told and idle_s > 0.1)
        ):
            self.send_silence(now)
        if now >= self.reporter.due:
            self.report(now)

    # --- figures ---------------------------------------------------------------------------------------------------

    @property
    def _streams(self) -> list[IncomingStream]:
        return [self._arrivals.stream] if self._arrivals else []

    def _tell_losses(self) -> None:
        arrivals = self._arrivals
        if arrivals is not None:
            lost = max(arrivals.stream.lost, arrivals.lost_told)  # a late packet reduces it, which a counter cannot
            self._on_report(lost - arrivals.lost_told, arrivals.stream.jitter_s)
            arrivals.lost_told = lost

    @property
    def stats(self) -> RtpStats:
        """Return the present figures of the present streams."""
        theirs, remote = self._arrivals and self._arrivals.stream, self.reporter.remote
        return RtpStats(
            packets_sent=self.outgoing.packets,
            packets_received=theirs.received if theirs else 0,
            lost=theirs.lost if theirs else 0,
            jitter_s=theirs.jitter_s if theirs else 0.0,
            remote_lost=remote.lost if remote else 0,
            remote_jitter_s=remote.jitter / self.terms.audio.rtp_clock_hz if remote else 0.0,
            round_trip_s=self.reporter.round_trip_s,
        )
