"""The RTP of one call, the same for SIP and WebRTC. Pure: time is an argument, and datagrams leave through ``RtpPath``.

The session numbers and encrypts what is sent. It decrypts, counts and orders what arrives, receives and sends touch
tones as events, and reports by RTCP. It knows neither sockets nor signalling: its owner sets the negotiated terms,
passes each datagram, and calls ``on_timer`` at ``deadline``.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.errors import ProtocolError
from gateway.media.arrival import Arrival
from gateway.media.dtmf import EventPacket, TelephoneEvents, event_packets, is_key
from gateway.media.jitter_buffer import LOST, JitterBuffer
from gateway.media.latch import Latch, PeerAddress
from gateway.media.rtcp import INTERVAL_S, Reporter, is_rtcp
from gateway.media.rtp import IncomingStream, OutgoingStream, RtpPacket, is_rtp, parse
from gateway.media.srtp import Srtp
from gateway.seams.leg import RtpReport
from voicecodecs.comfort_noise import noise_frames, read_level_dbov, write_level_dbov
from voicecodecs.registry import AudioFormat
from voicecodecs.transcode import Transcoder

KEEP_ALIVE_S = 5.0
"""Interval of packets during sent silence, seconds. Without them, gateways drop the call, and address translators
forget its path."""

_CHECK_INTERVAL_S = 0.1
"""Interval of checks for silence, seconds: the peer's, which ends speech, and the sent one, which needs keep-alives."""

_SENT_NOISE_DBOV = -70
"""Level of the noise that a listener hears while the bot is silent: almost nothing, but it shows that the line is
alive."""

_AFTER_DTMF_S = 0.08
"""Time from the last packet of a tone to the audio that follows, seconds."""


_USUAL_NOISE_TYPES = (13, 19)
"""Payload types of comfort noise: the static one (RFC 3389), and the one of its draft, which old gateways use."""

_DYNAMIC_TYPES = range(96, 128)
"""Payload types without a meaning of their own. Some peers send touch tones with one of them without agreement, usually
with 101 (FreeSWITCH with ``rtp_liberal_dtmf``; pull request 24 of eigger/hass-sip)."""

_MOST_SENDERS = 8
"""Most streams (SSRC) whose touch tones are told apart. Some gateways send each tone as a stream of its own."""


class _Kind(enum.Enum):
    """The meaning of a received packet."""

    AUDIO = "audio"
    EVENT = "touch tone"
    NOISE = "comfort noise"


class RtpEvents(Protocol):
    """The call's side of a session."""

    @property
    def listening(self) -> bool:
        """True if any part needs the caller's audio now."""
        ...

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio, empty for a lost frame. Called only while ``listening``."""
        ...

    def on_digit(self, digit: str) -> None: ...

    def on_round_trip(self, seconds: float) -> None:
        """Take the round-trip time from the peer's report."""
        ...


class RtpPath(Protocol):
    """The way out for a session's datagrams."""

    def send_rtp(self, datagram: bytes) -> bool:
        """Send a datagram. Return False if the socket takes no more."""
        ...

    def send_rtcp(self, datagram: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RtpTerms:
    """The negotiated terms for RTP. Types are payload types (RFC 3551)."""

    audio: AudioFormat
    """Format of the sent audio."""
    send_type: int
    receives: Mapping[int, AudioFormat]
    """Formats of accepted audio by type. The peer may change between them at any packet (RFC 3264 section 5.1)."""
    dtmf: tuple[int, int] | None = None
    """Type and clock (Hz) of touch tones that the peer takes as events. None: it takes no events."""
    receives_dtmf: Mapping[int, int] = field(default_factory=dict)
    """Clocks (Hz) of accepted touch tones by type."""
    noise_type: int | None = None
    """Type of comfort noise (RFC 3389) in both directions. None: silence is not sent, or is sent as audio."""
    on_hold: bool = False
    """True if the peer does not want audio now. Reports continue."""


@dataclass(frozen=True, slots=True)
class RtpStats:
    """Counters of both ends."""

    packets_sent: int
    packets_received: int
    lost: int
    """The peer's packets that did not arrive. Negative with duplicates."""
    jitter_s: float
    remote_lost: int
    """Sent packets that the peer did not receive."""
    remote_jitter_s: float
    round_trip_s: float | None


class _PeerStream:
    """One stream of the peer (SSRC)."""

    __slots__ = ("clock_hz", "late_reported", "lost_reported", "order", "stream")

    def __init__(self, ssrc: int, clock_hz: int) -> None:
        self.clock_hz = clock_hz
        self.stream = IncomingStream(ssrc=ssrc, clock_hz=clock_hz)
        self.order = JitterBuffer(clock_hz)
        self.lost_reported = 0
        self.late_reported = 0

    def numbers(self, packet: RtpPacket) -> bool:
        """Return True if a packet without audio has its place among those of this stream."""
        return packet.ssrc == self.stream.ssrc and self.order.is_near(packet.sequence)


class RtpSession:
    """The RTP of one call.

    Args:
        terms: the first negotiated terms; ``agree`` sets later ones.
        name: canonical name in reports; must not identify the sender (RFC 7022).
        now, wall: one instant in seconds, on the owner's monotonic clock and since 1970. Reports derive wall time from
            the difference, so a step of the wall clock during a call has no effect.
        latch: decides which sources are accepted; None if the path knows its peer (ICE).
        srtp: encryption of both directions from now on; may also be set later.
        report_every_s: mean interval of reports.
        keep_alive: send keep-alives during silence.
        on_report: called with every sent report, when the peer begins another stream, and at the end.
        arrival: reception statistics of a call that may have several sessions.
        luck: source of first numbers and report times; must not be guessable (RFC 3550 section 5.1).
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
        on_report: Callable[[RtpReport], None] = lambda report: None,
        arrival: Arrival | None = None,
        luck: random.Random | None = None,
    ) -> None:
        self.terms = terms
        self.srtp = srtp
        self.heard_at = now
        """Time of the peer's last packet of any kind, or of the last agreement."""
        self.dropped: Counter[str] = Counter()
        """Datagrams that were not used, by the reasons of ``RtpReport.dropped``, since the last report."""
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
        self._arrivals: _PeerStream | None = None
        self._keys: dict[int, TelephoneEvents] = {}
        """Decoders of touch tones by SSRC, the oldest first."""
        self._outbound: AudioFormat | None = None
        self._inbound: AudioFormat | None = None
        self._to_wire: Transcoder | None = None
        self._from_wire: dict[int, Transcoder] = {}
        """Converters of received audio whose format is not the owner's, by payload type."""
        self._dtmf: deque[tuple[float, int, EventPacket]] = deque()
        """Packets of touch tones that wait to be sent: time, payload type, packet."""
        self._dtmf_end = 0.0
        self._sent_at = 0.0
        self._noise_sent = False
        self._check_at = now + _CHECK_INTERVAL_S
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Begin a new sent stream."""
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
        self._silence: Iterator[bytes] = itertools.repeat(self._heard.silence_frame())
        """Frames that stand for the peer's silence."""

    @property
    def _heard(self) -> AudioFormat:
        """Format of the payloads of ``on_audio``."""
        return self._inbound or self.terms.audio

    def keep_formats(self, outbound: AudioFormat, inbound: AudioFormat) -> None:
        """Fix the formats of the owner's frames: ``outbound`` of ``send_frame``, ``inbound`` of ``on_audio``.

        From now on the session converts whatever is agreed, or received in another format. Before, the owner's frames
        have the format of the terms.
        """
        self._outbound, self._inbound = outbound, inbound
        self._silence = itertools.repeat(inbound.silence_frame())
        self._prepare()

    def _prepare(self) -> None:
        """Make the converters that the terms require. Those of unchanged formats keep their state."""
        sent, ours = self.terms.audio, self._outbound
        if ours is None or (sent.encoding, sent.ptime_ms) == (ours.encoding, ours.ptime_ms):
            self._to_wire = None
        elif self._to_wire is None or self._to_wire.target != sent:
            self._to_wire = Transcoder(ours, sent)
        made, self._from_wire = self._from_wire, {}
        if self._inbound is not None:
            for payload_type, received in self.terms.receives.items():
                if received.encoding != self._inbound.encoding:
                    known = made.get(payload_type)
                    if known is None or (known.source, known.target) != (received, self._inbound):
                        known = Transcoder(received, self._inbound)
                    self._from_wire[payload_type] = known

    def agree(self, terms: RtpTerms, *, now: float) -> None:
        """Apply later negotiated terms. Streams whose terms are unchanged continue undisturbed."""
        before, self.terms = self.terms, terms
        self.heard_at = now
        if terms.audio.rtp_clock_hz != before.audio.rtp_clock_hz:
            self._begin(now)  # a stream has one clock (RFC 7160)
        else:
            self.outgoing.change(terms.send_type, terms.audio.ptime_ms / 1000)
            if terms.audio != before.audio:
                self._silence = itertools.repeat(self._heard.silence_frame())
        self._prepare()

    # --- out -------------------------------------------------------------------------------------------------------

    @property
    def sends(self) -> bool:
        """True if the peer wants audio and its address is known."""
        return not self.terms.on_hold and (self._latch is None or self._latch.remote is not None)

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Number, encrypt and send one frame, unless a touch tone replaces it. An empty frame was lost on its way here.

        Return False if the call is on hold, the socket takes no more, or the frame is empty.
        """
        if not self.sends:
            return False
        if now < self._dtmf_end:
            return True
        if not payload:
            self.outgoing.skip(now=now)
            return False
        self._sent_at, self._noise_sent = now, False
        if self._to_wire is None:
            return self._send(self.outgoing.packet(payload, now=now))
        frame_s = self.terms.audio.ptime_ms / 1000
        frames = enumerate(self._to_wire.convert(payload))
        return all([self._send(self.outgoing.packet(frame, now=now + n * frame_s)) for n, frame in frames])

    def send_silence(self, now: float) -> None:
        """Send comfort noise or silence as a keep-alive."""
        if not self.sends or now < self._dtmf_end:
            return
        noise_type = self.terms.noise_type
        self._sent_at, self._noise_sent = now, noise_type is not None
        if noise_type is None:
            self._send(self.outgoing.packet(self.terms.audio.silence_frame(), now=now))
        else:
            self._send(self.outgoing.comfort_noise(noise_type, write_level_dbov(_SENT_NOISE_DBOV), now=now))

    @property
    def carries_dtmf(self) -> bool:
        """True if the peer takes touch tones as events and the call is not on hold."""
        return self.terms.dtmf is not None and self.sends

    def send_dtmf(self, digits: str, now: float) -> bool:
        """Send touch tones in place of audio, after those under way. Return False if the peer takes none.

        Raises:
            ValueError: a character has no tone.
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
        """Send a report, and pass the losses since the last one to ``on_report``."""
        self._send_rtcp(self.reporter.report(self._streams, now=now, share=self._luck.random()))
        self._report_losses()

    def close(self, now: float) -> None:
        """Send the last report, with BYE."""
        self._send_rtcp(self.reporter.goodbye(self._streams, now=now))
        self._report_losses()

    def _send(self, packet: bytes) -> bool:
        return self._path.send_rtp(self.srtp.protect(packet) if self.srtp else packet)

    def _send_rtcp(self, report: bytes) -> None:
        self._path.send_rtcp(self.srtp.protect_rtcp(report) if self.srtp else report)

    # --- in --------------------------------------------------------------------------------------------------------

    def receive(self, datagram: bytes, now: float, source: PeerAddress | None = None) -> None:
        """Take a datagram of the media port, RTP or RTCP (RFC 5761).

        Args:
            source: the datagram's source; required with a latch.
        """
        if is_rtcp(datagram):
            self.receive_rtcp(datagram, now, source)
            return
        terms = self.terms
        clear = datagram
        if self.srtp is not None:
            try:
                clear = self.srtp.unprotect(datagram)
            except ProtocolError:
                self.dropped["rejected"] += 1
                if not is_rtp(datagram):
                    self._note_life(now, source)  # a keep-alive, which no key protects
                return
        try:
            packet = parse(clear)
        except ProtocolError:
            self._unread(now, source)
            return
        kind = self._kind(packet)
        if kind is None:
            self._unread(now, source)
            return
        latch = self._latch
        if latch is not None and not (source and latch.accept(source, packet.ssrc, packet.sequence, now=now)):
            self.dropped["stranger"] += 1
            self._note_life(now, source)  # another port of the peer's host, which may not be followed or not yet
            return
        self.heard_at = now
        arrivals = self._arrivals
        if kind is not _Kind.AUDIO and arrivals is not None and not arrivals.numbers(packet):
            # Some gateways send touch tones as another stream, or with numbers of their own, while the audio continues
            # (issue 1569 of sipwise/rtpengine).
            self._take_sign(kind, packet, now)
            return
        clock_hz = arrivals.clock_hz if arrivals else terms.audio.rtp_clock_hz
        if kind is _Kind.AUDIO:
            clock_hz = terms.receives[packet.payload_type].rtp_clock_hz
        if arrivals is None or arrivals.stream.ssrc != packet.ssrc or arrivals.clock_hz != clock_hz:
            # A transfer, hold music or a codec with another clock (RFC 7160) begins a new stream, but not a new call.
            self._report_losses()
            arrivals = self._arrivals = _PeerStream(packet.ssrc, clock_hz)
            self._arrival.begin(arrivals.stream)
        arrivals.stream.add(packet.sequence, packet.timestamp, now=now)
        # The type stays with the payload in the buffer, because the peer may change it between two packets.
        payload: bytes | None = bytes((packet.payload_type,)) + packet.payload if packet.payload else None
        if kind is not _Kind.AUDIO:
            self._take_sign(kind, packet, now)
            payload = None
        self._pass_on(arrivals.order.add(packet.sequence, packet.timestamp, payload, now=now))

    def _take_sign(self, kind: _Kind, packet: RtpPacket, now: float) -> None:
        """Take a packet without audio: of a touch tone, or of comfort noise."""
        if kind is _Kind.NOISE:
            self._silence = itertools.cycle(noise_frames(self._heard, read_level_dbov(packet.payload)))
            return
        keys = self._keys.get(packet.ssrc)
        if keys is None:
            keys = self._keys[packet.ssrc] = TelephoneEvents()
            if len(self._keys) > _MOST_SENDERS:
                del self._keys[next(iter(self._keys))]
        digit = keys.add(
            packet.timestamp,
            packet.payload,
            sequence=packet.sequence,
            now=now,
            clock_hz=self.terms.receives_dtmf.get(packet.payload_type, 8000),
        )
        if digit is not None:
            self._events.on_digit(digit)

    def _kind(self, packet: RtpPacket) -> _Kind | None:
        """Return the meaning of a packet by its payload type. None: it has none in this call."""
        terms, payload_type = self.terms, packet.payload_type
        if payload_type in terms.receives:
            return _Kind.AUDIO
        if payload_type in terms.receives_dtmf:
            return _Kind.EVENT
        if payload_type == terms.noise_type:
            return _Kind.NOISE
        # Some peers use what was not negotiated, with the usual numbers.
        if payload_type in _USUAL_NOISE_TYPES:
            return _Kind.NOISE
        if payload_type in _DYNAMIC_TYPES and is_key(packet.payload):
            return _Kind.EVENT
        return None

    def _unread(self, now: float, source: PeerAddress | None) -> None:
        """Count a packet that has no meaning here. It shows that the peer is alive."""
        self.dropped["unreadable"] += 1
        self._note_life(now, source)

    def _note_life(self, now: float, source: PeerAddress | None) -> None:
        if self._latch is None or (source and self._latch.knows(source[0])):
            self.heard_at = now

    def receive_rtcp(self, datagram: bytes, now: float, source: PeerAddress | None = None) -> None:
        """Take a datagram of the RTCP port."""
        if self._latch is not None and not (source and self._latch.knows(source[0])):
            self.dropped["stranger"] += 1
            return
        clear = datagram
        if self.srtp is not None:
            try:
                clear = self.srtp.unprotect_rtcp(datagram)
            except ProtocolError:
                self.dropped["rejected"] += 1
                return
        try:
            self.heard_at = now  # also if the report cannot be read
            trip_s = self.reporter.received(clear, now=now)
        except ProtocolError:
            self.dropped["unreadable"] += 1
            return
        remote = self.reporter.remote
        if remote is not None:
            self._arrival.remote = remote.lost, remote.jitter / self.terms.audio.rtp_clock_hz
        if trip_s is not None:
            self._events.on_round_trip(trip_s)

    def _pass_on(self, frames: Iterable[bytes]) -> None:
        """Pass frames with their types to the owner, in the owner's format. A lost one stays empty."""
        if not self._events.listening:
            return
        for frame in frames:
            transcoder = self._from_wire.get(frame[0]) if frame and self._from_wire else None
            if transcoder is None:
                self._events.on_audio(frame[1:])
                continue
            try:
                converted = transcoder.convert(frame[1:])
            except ValueError:
                self.dropped["unreadable"] += 1
                converted = [LOST]
            for payload in converted:
                self._events.on_audio(payload)

    # --- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """Return the time of the next ``on_timer``."""
        when = self._check_at
        if self._dtmf:
            when = min(when, self._dtmf[0][0])
        hole = self._arrivals.order.deadline if self._arrivals else None
        return when if hole is None else min(when, hole)

    def on_timer(self, now: float) -> None:
        """Send what is due, and give up overdue packets."""
        while self._dtmf and self._dtmf[0][0] <= now:
            _, payload_type, packet = self._dtmf.popleft()
            event = self.outgoing.event(payload_type, packet.payload, begins=packet.begins, now=now)
            if self.sends:
                self._send(event)
        if self._arrivals is not None:
            hole = self._arrivals.order.deadline
            if hole is not None and hole <= now:
                self._pass_on(self._arrivals.order.expire(now=now))
        if self._check_at <= now:
            self._check_at = now + _CHECK_INTERVAL_S
            self._check_silence(now)

    def _check_silence(self, now: float) -> None:
        if self._arrivals is not None and self._events.listening:
            # Without this, the speech of a caller whose phone sends nothing in silence would not end.
            order = self._arrivals.order
            silent_s = order.pause(now=now) * order.frame_s
            for payload in itertools.islice(self._silence, round(silent_s * 1000 / self._heard.ptime_ms)):
                self._events.on_audio(payload)
        idle_s = now - self._sent_at
        if self._keep_alive and (
            idle_s > KEEP_ALIVE_S or (self.terms.noise_type is not None and not self._noise_sent and idle_s > 0.1)
        ):
            self.send_silence(now)
        if now >= self.reporter.due:
            self.report(now)

    # --- figures ---------------------------------------------------------------------------------------------------

    @property
    def _streams(self) -> list[IncomingStream]:
        return [self._arrivals.stream] if self._arrivals else []

    def _report_losses(self) -> None:
        arrivals, dropped = self._arrivals, self.dropped
        self.dropped = Counter()
        if arrivals is not None:
            lost = max(arrivals.stream.lost, arrivals.lost_reported)  # a late packet reduces it, which a counter cannot
            new, arrivals.lost_reported = lost - arrivals.lost_reported, lost
            if late := arrivals.order.late - arrivals.late_reported:
                dropped["late"], arrivals.late_reported = late, arrivals.order.late
            self._on_report(RtpReport(lost=new, jitter_s=arrivals.stream.jitter_s, dropped=dropped))
        elif dropped:  # all of the peer's packets, for example because it has another key
            self._on_report(RtpReport(dropped=dropped))

    @property
    def stats(self) -> RtpStats:
        """Current figures of the current streams."""
        incoming, remote = self._arrivals and self._arrivals.stream, self.reporter.remote
        return RtpStats(
            packets_sent=self.outgoing.packets,
            packets_received=incoming.received if incoming else 0,
            lost=incoming.lost if incoming else 0,
            jitter_s=incoming.jitter_s if incoming else 0.0,
            remote_lost=remote.lost if remote else 0,
            remote_jitter_s=remote.jitter / self.terms.audio.rtp_clock_hz if remote else 0.0,
            round_trip_s=self.reporter.round_trip_s,
        )
