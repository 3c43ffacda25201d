"""RTCP: the reports of both ends of an RTP stream and their timing (RFC 3550 section 6). Pure.

``Reporter`` is one leg's side: it schedules and writes reports, and reads the peer's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import ProtocolError
from gateway.media.rtp import IncomingStream, OutgoingStream

INTERVAL_S = 5.0
"""Mean interval of reports, seconds (RFC 3550 section 6.2); each is drawn between 0.5 and 1.5 times this."""

_LONGEST_TRIP_S = 60
"""Longest plausible round trip, seconds. A longer one means that the peer's clock or numbers are wrong."""

_SR, _RR, _SDES, _BYE = 200, 201, 202, 203
_CNAME = 1
_BLOCK = struct.Struct("!IIIIII")
_SENDER = struct.Struct("!IQIII")
_NTP_EPOCH_S = 2_208_988_800
"""Seconds from 1900 to 1970."""


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """Reception of one stream at its receiver (section 6.4.1)."""

    ssrc: int
    fraction_lost: int
    """Share of packets lost since the previous report, in 256ths."""
    lost: int
    """Packets lost since the beginning, 24 bits signed. Negative with duplicates."""
    highest: int
    """Highest sequence number, extended by its wraps; 32 bits."""
    jitter: int
    """Interarrival jitter in units of the stream's clock."""
    last_report: int
    """Middle 32 bits of the NTP time of the sender's last report. 0: there was none."""
    delay: int
    """Time since that report arrived, in 1/65536 s."""


@dataclass(frozen=True, slots=True)
class SenderReport:
    """Sender report (section 6.4.1)."""

    ssrc: int
    ntp: int
    """Seconds since 1900: 64 bits, the lower 32 are the fraction."""
    rtp_timestamp: int
    """The stream's time at that instant."""
    packets: int
    octets: int
    blocks: tuple[ReportBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """Receiver report (section 6.4.2)."""

    ssrc: int
    blocks: tuple[ReportBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Goodbye:
    """BYE (section 6.6)."""

    ssrcs: tuple[int, ...]


Report: TypeAlias = SenderReport | ReceiverReport | Goodbye


def is_rtcp(data: bytes) -> bool:
    """Return True if a packet on a shared port is RTCP (RFC 5761 section 4)."""
    return len(data) >= 2 and 192 <= data[1] <= 223


def parse(data: bytes) -> list[Report]:
    """Parse a compound packet. Unused packets (names, feedback, APP) are skipped.

    Raises:
        ProtocolError: the version is not 2, or a length points beyond the end.
    """
    reports: list[Report] = []
    at = 0
    if not data:
        raise ProtocolError("RTCP packet is empty")
    while at < len(data):
        if len(data) - at < 4 or data[at] >> 6 != 2:
            raise ProtocolError(f"RTCP at byte {at} of {len(data)}: expected version 2 and a header of 4 bytes")
        count, kind = data[at] & 0x1F, data[at + 1]
        end = at + 4 + 4 * int.from_bytes(data[at + 2 : at + 4], "big")
        if end > len(data):
            raise ProtocolError(f"RTCP at byte {at} says it ends at {end}, the packet has {len(data)} bytes")
        body = data[at + 4 : end]
        head = {_SR: _SENDER.size, _RR: 4}.get(kind, 0)
        needed = {_SR: head + count * _BLOCK.size, _RR: head + count * _BLOCK.size, _BYE: 4 * count}.get(kind, 0)
        if len(body) < needed:
            raise ProtocolError(f"RTCP kind {kind} at byte {at} has {len(body)} bytes, expected at least {needed}")
        if kind in (_SR, _RR):
            blocks = tuple(_block(body, head + index * _BLOCK.size) for index in range(count))
            if kind == _SR:
                ssrc, ntp, rtp_timestamp, packets, octets = _SENDER.unpack_from(body)
                reports.append(SenderReport(ssrc, ntp, rtp_timestamp, packets, octets, blocks))
            else:
                reports.append(ReceiverReport(int.from_bytes(body[:4], "big"), blocks))
        elif kind == _BYE:
            reports.append(Goodbye(struct.unpack_from(f"!{count}I", body)))
        at = end
    return reports


def _block(body: bytes, at: int) -> ReportBlock:
    ssrc, losses, highest, jitter, last_report, delay = _BLOCK.unpack_from(body, at)
    lost = losses & 0xFFFFFF
    return ReportBlock(ssrc, losses >> 24, lost - (lost >> 23 << 24), highest, jitter, last_report, delay)


def serialise(report: Report) -> bytes:
    """Serialise one packet of a compound."""
    if isinstance(report, Goodbye):
        return _packet(_BYE, len(report.ssrcs), struct.pack(f"!{len(report.ssrcs)}I", *report.ssrcs))
    blocks = b"".join(
        _BLOCK.pack(b.ssrc, b.fraction_lost << 24 | b.lost & 0xFFFFFF, b.highest, b.jitter, b.last_report, b.delay)
        for b in report.blocks
    )
    if isinstance(report, ReceiverReport):
        return _packet(_RR, len(report.blocks), report.ssrc.to_bytes(4, "big") + blocks)
    head = _SENDER.pack(report.ssrc, report.ntp, report.rtp_timestamp, report.packets, report.octets)
    return _packet(_SR, len(report.blocks), head + blocks)


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return bytes((0x80 | count, kind)) + (len(body) // 4).to_bytes(2, "big") + body


def _name(ssrc: int, cname: str) -> bytes:
    text = cname.encode()[:255]
    item = ssrc.to_bytes(4, "big") + bytes((_CNAME, len(text))) + text + b"\0"
    return _packet(_SDES, 1, item + b"\0" * (-len(item) % 4))


class Reporter:
    """One leg's reports.

    Args:
        outgoing: the sent stream.
        cname: canonical name during the call. It must not identify the sender (RFC 7022).
        now: seconds on the leg's monotonic clock.
        wall: the same instant in seconds since 1970. Later steps of that clock are ignored, because reported times are
            compared with those that the peer repeats.
        share: a random number from 0 to 1 that decides the first interval.
        every_s: mean interval of reports.
    """

    def __init__(
        self,
        outgoing: OutgoingStream,
        cname: str,
        *,
        now: float,
        wall: float,
        share: float,
        every_s: float = INTERVAL_S,
    ) -> None:
        self._outgoing = outgoing
        self._cname = cname
        # The first report comes after half the interval, so that a short call is reported too (section 6.2).
        self.due = now + every_s / 2 * (0.5 + share)
        """Time of the next report."""
        self.round_trip_s: float | None = None
        """Round trip from the peer's last report, seconds."""
        self.remote: ReportBlock | None = None
        """The peer's last report on the sent stream."""
        self._last_report = 0
        self._last_report_at = 0.0
        self._every_s = every_s
        self._wall_s = wall - now

    def report(self, incoming: Sequence[IncomingStream], *, now: float, share: float) -> bytes:
        """Return the due compound packet: a sender report (a receiver report if nothing was sent) and the name.

        Args:
            incoming: the incoming streams, at most 31.
            share: a random number from 0 to 1 that decides the next interval.
        """
        self.due = now + self._every_s * (0.5 + share)
        return self._report(incoming, now) + _name(self._outgoing.ssrc, self._cname)

    def goodbye(self, incoming: Sequence[IncomingStream], *, now: float) -> bytes:
        """Return the last packet of a leg: a report with BYE at its end (section 6.6)."""
        return self.report(incoming, now=now, share=0.0) + serialise(Goodbye((self._outgoing.ssrc,)))

    def received(self, data: bytes, *, now: float) -> float | None:
        """Read the peer's packet and keep its report on the sent stream. Return the round trip that it shows, seconds.

        Raises:
            ProtocolError: as in ``parse``.
        """
        trip_s = None
        for report in parse(data):
            if isinstance(report, Goodbye):
                continue
            if isinstance(report, SenderReport):
                self._last_report, self._last_report_at = report.ntp >> 16 & 0xFFFFFFFF, now
            for block in report.blocks:
                if block.ssrc == self._outgoing.ssrc:
                    self.remote = block
                    trip_s = self._trip_s(block, now)
        if trip_s is not None:
            self.round_trip_s = trip_s
        return trip_s

    def _trip_s(self, block: ReportBlock, now: float) -> float | None:
        if not block.last_report:
            return None
        units = (self._ntp(now) >> 16) - block.last_report - block.delay & 0xFFFFFFFF
        return units / 65536 if units < _LONGEST_TRIP_S << 16 else None

    def _ntp(self, now: float) -> int:
        return int((now + self._wall_s + _NTP_EPOCH_S) * 65536) << 16 & 0xFFFFFFFFFFFFFFFF

    def _report(self, incoming: Sequence[IncomingStream], now: float) -> bytes:
        delay = min(int((now - self._last_report_at) * 65536), 0xFFFFFFFF) if self._last_report else 0
        blocks = tuple(
            ReportBlock(
                stream.ssrc,
                stream.fraction_lost(),
                max(-0x800000, min(stream.lost, 0x7FFFFF)),
                stream.highest & 0xFFFFFFFF,
                int(stream.jitter) & 0xFFFFFFFF,
                self._last_report,
                delay,
            )
            for stream in incoming[:31]
        )
        out = self._outgoing
        if not out.packets:
            return serialise(ReceiverReport(out.ssrc, blocks))
        packets, octets = out.packets & 0xFFFFFFFF, out.octets & 0xFFFFFFFF
        return serialise(SenderReport(out.ssrc, self._ntp(now), out.timestamp_at(now), packets, octets, blocks))
