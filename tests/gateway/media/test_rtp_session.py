"""One RTP session against scripted networks, on a clock of numbers.

``vectors/rtp`` holds how calls went with the two implementations that this session replaced, of SIP and of WebRTC.
"""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.media.arrival import Arrival
from gateway.media.latch import Latch
from gateway.media.rtp_session import RtpSession, RtpTerms
from gateway.media.srtp import Srtp
from gateway.seams.leg import RtpReport
from tests.gateway.media import rtp_scripts as scripts
from tests.gateway.media.rtp_scripts import BEGIN_S, FAR_KEY, KEY, SIP, SUITE, WALL_S, WEB, Step, Terms, Transcript
from voicecodecs.registry import AudioFormat

BEFORE = json.loads((Path(__file__).parents[2] / "vectors/rtp/transcripts.json").read_text())
NAME = "22" * 8


class Luck(random.Random):
    """None."""

    def getrandbits(self, k: int) -> int:
        return scripts.SSRC & ((1 << k) - 1)

    def random(self) -> float:
        return 0.0


def rtp_terms(terms: Terms) -> RtpTerms:
    rate = {"PCMU": 8000, "G722": 16000, "OPUS": 48000}[terms.encoding]
    return RtpTerms(
        audio=AudioFormat(terms.encoding, rate, terms.ptime_ms),
        send_type=terms.payload_type,
        receive_type=terms.receive_type,
        dtmf=None if terms.events_type is None else (terms.events_type, 8000),
        receive_dtmf_type=terms.events_receive_type,
        noise_type=terms.noise_type,
        on_hold=terms.on_hold,
    )


def srtp(terms: Terms) -> Srtp | None:
    return Srtp.keyed(SUITE, send_key=KEY, receive_key=FAR_KEY) if terms.keyed else None


class Call:
    """A session, and what comes out of it.

    Args:
        sip: as a SIP leg leads it: a timer, a latch, and packets in silence. Else as a browser's connection did: what
            is due is looked at when a packet comes.
    """

    def __init__(self, terms: Terms = SIP, *, sip: bool = True) -> None:
        self.out = Transcript()
        self.listening = False
        self.trips: list[float] = []
        self.told: list[tuple[int, float]] = []
        self.dropped: Counter[str] = Counter()
        self._sip = self._telling = sip
        self._terms = terms
        self._latch = Latch("any") if sip else None
        self._name(terms)
        self.arrival = Arrival()
        self.session = RtpSession(
            rtp_terms(terms), self, self, name=NAME, now=BEGIN_S, wall=WALL_S, latch=self._latch, srtp=srtp(terms),
            keep_alive=sip, luck=Luck(), on_report=self.on_report, arrival=self.arrival,
        )  # fmt: skip
        self._agreed()

    def _name(self, terms: Terms) -> None:
        if self._latch is not None and terms.host != "0.0.0.0":
            self._latch.negotiated(scripts.HOME, now=self.out.now)

    def _agreed(self) -> None:
        if self._sip:
            self.session.send_silence(self.out.now)

    def agree(self, terms: Terms) -> None:
        before, self._terms = self._terms, terms
        self._name(terms)
        self.session.agree(rtp_terms(terms), now=self.out.now)
        if terms.keyed != before.keyed:
            self.session.srtp = srtp(terms)
        self._agreed()

    def until(self, at: float) -> None:
        """Let time pass."""
        at += BEGIN_S
        while self._sip and (due := self.session.deadline()) <= at:
            self.out.now = max(self.out.now, due)
            self.session.on_timer(self.out.now)
        self.out.now = max(self.out.now, at)

    def play(self, steps: list[Step]) -> list[str]:
        at, now = 0.0, 0.0
        for at, what, *given in sorted(steps, key=lambda step: step[0]):
            self.until(at)
            now = self.out.now
            match what:
                case "agree" if given[0] is not self._terms:
                    self.agree(given[0])
                case "listen":
                    self.listening = given[0]
                case "in":
                    self.session.receive(given[0], now, given[1])
                case "report":
                    self.session.receive_rtcp(given[0], now, given[1])
                case "frame" if not self.session.send_frame(given[0], now):
                    self.out.add("not sent")
                case "dtmf":
                    self.out.add(f"dtmf {self.session.send_dtmf(given[0], now)}")
                case "tell" if not self._sip:
                    self._telling = True
                    self.session.report(now)
                    self._telling = False
        if self._sip:
            self.until(at + 1.0)
            self.session.close(self.out.now)
        else:
            s = self.session.stats
            self.out.add(
                f"stats {s.packets_sent} {s.packets_received} {s.lost} {s.jitter_s:.6f} {s.remote_lost}"
                f" {s.remote_jitter_s:.6f} {s.round_trip_s}"
            )
        return self.out.lines

    # What the session tells, and where it sends.

    def on_audio(self, payload: bytes) -> None:
        self.out.audio(payload)

    def on_digit(self, digit: str) -> None:
        self.out.add(f"digit {digit}")

    def on_round_trip(self, seconds: float) -> None:
        self.trips.append(seconds)

    def on_report(self, report: RtpReport) -> None:
        self.dropped.update(report.dropped)
        if self._telling and report.jitter_s is not None:
            self.out.add(f"reception {report.lost} {report.jitter_s:.6f}")

    def send_rtp(self, datagram: bytes) -> bool:
        self.out.rtp(datagram)
        return True

    def send_rtcp(self, datagram: bytes) -> None:
        self.out.rtcp(datagram)


@pytest.mark.parametrize("name", BEFORE["sip"])
def test_a_sip_call_goes_as_before(name: str) -> None:
    steps = scripts.sip_scripts()[name]
    assert Call(steps[0][2]).play(steps) == BEFORE["sip"][name]


@pytest.mark.parametrize("name", BEFORE["webrtc"])
def test_a_browsers_call_goes_as_before(name: str) -> None:
    assert Call(WEB, sip=False).play(scripts.web_scripts()[name]) == BEFORE["webrtc"][name]


@pytest.mark.parametrize("terms", [SIP, WEB], ids=["sip", "webrtc"])
def test_any_network_goes_as_before(terms: Terms) -> None:
    kind = "sip" if terms is SIP else "webrtc"
    wrong = []
    for name, steps in scripts.random_scripts(terms).items():
        call = Call(terms, sip=terms is SIP)
        call.play(steps)
        if call.out.digest() != BEFORE[f"{kind} random"][name]:
            wrong.append(name)
    assert not wrong


def test_the_deadline_is_the_first_thing_to_do() -> None:
    call = Call()
    session, far = call.session, scripts.Far()
    assert session.deadline() == pytest.approx(BEGIN_S + 0.1)
    call.listening = True
    session.receive(far.packet(b"a"), BEGIN_S, scripts.HOME)
    far.packet()  # is lost
    session.receive(far.packet(b"c"), BEGIN_S + 0.04, scripts.HOME)
    assert session.deadline() == pytest.approx(BEGIN_S + 0.06)  # the hole was due at 0.02 and is waited for 40 ms
    assert session.send_dtmf("1", BEGIN_S + 0.05)
    assert session.deadline() == pytest.approx(BEGIN_S + 0.05)
    call.until(0.2)
    assert [line for line in call.out.lines if "lost" in line] == ["0.0600 lost"]


def test_a_hole_at_the_end_of_a_browsers_words_is_given_up_in_its_time() -> None:
    call = Call(WEB, sip=False)
    call.listening = True
    far = scripts.Far(WEB)
    for at, index in ((0.0, 0), (0.04, 2)):
        if index:
            far.packet()
        call.session.receive(far.packet(), BEGIN_S + at)
    assert len(call.out.lines) == 1
    call.session.on_timer(call.session.deadline())
    assert len(call.out.lines) == 3


def test_a_browser_that_stops_sending_falls_silent() -> None:
    call = Call(WEB, sip=False)
    call.listening = True
    for at, _, data, _ in scripts.Far(WEB).frames(3, 0.0):
        call.session.receive(data, BEGIN_S + at)
    call.session.on_timer(BEGIN_S + 0.5)
    silence = AudioFormat("OPUS", 48000).silence_frame()
    assert call.out.lines[-1].endswith(f"frame {scripts.short(silence)} x20")


def test_a_browser_gets_no_packets_in_silence_but_reports() -> None:
    call = Call(WEB, sip=False)
    for tenth in range(1, 300):
        call.session.on_timer(BEGIN_S + tenth / 10)
    assert {line.split()[1] for line in call.out.lines} == {"rtcp"}


def test_the_keys_of_another_stream_are_heard_whatever_its_clock_says() -> None:
    call = Call(WEB, sip=False)
    digit = bytes([5, 10, 0, 160])
    for ssrc, timestamp in ((1, 90_000), (2, 80_000)):
        packet = scripts.Far(WEB, ssrc=ssrc, timestamp=timestamp).packet(digit, kind=126)
        call.session.receive(packet, BEGIN_S)
    assert [line for line in call.out.lines if "digit" in line] == ["0.0000 digit 5 x2"]


def test_a_tone_under_way_ends_although_the_peer_takes_no_more() -> None:
    call = Call()
    call.session.send_dtmf("1", BEGIN_S)
    call.until(0.05)
    sent = len(call.out.lines)
    call.session.agree(rtp_terms(replace(SIP, events_type=None)), now=call.out.now)
    assert not call.session.send_dtmf("2", call.out.now)
    call.until(0.3)
    assert len(call.out.lines) - sent >= 8


def test_reports_of_strangers_are_not_read() -> None:
    call = Call()
    report = scripts.Far().report(0.0, scripts.about_us(lost=7))[2]
    for source in (None, ("203.0.113.1", 4001)):
        call.session.receive_rtcp(report, BEGIN_S, source)
    assert call.session.stats.remote_lost == 0
    call.session.receive(report, BEGIN_S, (scripts.HOME[0], 999))
    assert call.session.stats.remote_lost == 7
    assert call.arrival.remote is not None and call.arrival.remote[0] == 7


def test_dropped_packets_are_reported_with_their_reason() -> None:
    """Also if none of the peer's packets can be used, as with a wrong key."""
    call, far = Call(replace(SIP, keyed=True)), scripts.Far()
    call.session.receive(far.packet(), BEGIN_S, scripts.HOME)
    call.session.receive_rtcp(far.report(0.0, scripts.about_us(lost=7))[2], BEGIN_S, scripts.HOME)
    call.session.report(BEGIN_S)
    assert call.dropped == {"rejected": 2}

    call, far = Call(), scripts.Far()
    first = far.packet()
    for datagram, source in (
        (first, scripts.HOME), (first, scripts.HOME), (b"no packet", scripts.HOME), (far.packet(kind=77), scripts.HOME),
        (far.packet(), ("203.0.113.1", 4000)), (b"\x80\xc8", scripts.HOME),
    ):  # fmt: skip
        call.session.receive(datagram, BEGIN_S, source)
    call.session.report(BEGIN_S)
    call.session.report(BEGIN_S)
    assert call.dropped == {"late": 1, "unreadable": 3, "stranger": 1}


def test_packets_whose_source_is_unknown_are_not_the_calls_where_sources_count() -> None:
    call = Call()
    call.session.receive(scripts.Far().packet(), BEGIN_S)
    assert call.session.stats.packets_received == 0


def test_the_round_trip_is_told_when_a_report_of_the_peer_shows_it() -> None:
    call = Call()
    far = scripts.Far()
    for at, told_at in ((2.0, 1.5), (3.0, 2.75)):
        block = scripts.about_us(last_report=scripts.ours_at(told_at), delay=0x2000)  # it waited 125 ms
        call.session.receive(far.report(at, block)[2], BEGIN_S + at, scripts.HOME)
    call.session.receive(far.report(4.0)[2], BEGIN_S + 4.0, scripts.HOME)
    assert call.trips == [pytest.approx(0.375, abs=1e-4), pytest.approx(0.125, abs=1e-4)]


def test_a_stream_that_goes_on_with_another_clock_is_counted_anew() -> None:
    call = Call()
    opus = replace(SIP, encoding="OPUS", payload_type=107, receive_type=107)
    for terms, at in ((SIP, 0.0), (opus, 0.2)):
        if terms is opus:
            call.agree(opus)
        for after, _, data, source in scripts.Far(terms, sequence=100 + round(at * 50)).frames(10, at):
            call.session.receive(data, BEGIN_S + after, source)
    assert call.session.stats.jitter_s < 0.001
    whole = call.arrival.reception()
    assert whole is not None and (whole.received, whole.lost) == (20, 0) and whole.max_jitter_s < 0.001


KEY_5 = bytes([5, 10, 0, 160])


@pytest.mark.parametrize("noise_type", [13, 19])
def test_comfort_noise_that_was_not_negotiated_is_noise_and_a_sign_of_life(noise_type: int) -> None:
    call = Call(replace(SIP, noise_type=None))
    call.session.receive(scripts.Far().packet(b"\x40", kind=noise_type), BEGIN_S + 20, scripts.HOME)
    assert call.session.heard_at == BEGIN_S + 20 and not call.session.dropped


@pytest.mark.parametrize("datagram", [scripts.Far().packet(kind=77), b"", b"\r\n", b"\0\1\0\0" + bytes(16)])
def test_any_packet_of_the_peer_is_a_sign_of_life_and_none_of_a_stranger(datagram: bytes) -> None:
    call = Call()
    call.session.receive(datagram, BEGIN_S + 20, ("203.0.113.1", 4000))
    assert call.session.heard_at == BEGIN_S
    call.session.receive(datagram, BEGIN_S + 21, scripts.HOME)
    assert call.session.heard_at == BEGIN_S + 21


def test_reports_alone_are_a_sign_of_life() -> None:
    call = Call()
    call.session.receive_rtcp(scripts.Far().report(20.0)[2], BEGIN_S + 20, (scripts.HOME[0], scripts.HOME[1] + 1))
    assert call.session.heard_at == BEGIN_S + 20


@pytest.mark.parametrize("events", [None, 96])
def test_a_key_with_the_usual_number_is_heard_although_that_was_not_negotiated(events: int | None) -> None:
    call = Call(replace(SIP, events_type=events, events_receive_type=events))
    far = scripts.Far()
    for payload in (KEY_5, KEY_5[:3], bytes(160), bytes([16, 10, 0, 160])):
        call.session.receive(far.packet(payload, kind=101), BEGIN_S, scripts.HOME)
    assert [line for line in call.out.lines if "digit" in line] == ["0.0000 digit 5"]


def test_a_number_that_was_negotiated_for_audio_stays_audio() -> None:
    call = Call(replace(SIP, receive_type=101, events_type=None, events_receive_type=None))
    call.listening = True
    call.session.receive(scripts.Far().packet(KEY_5, kind=101), BEGIN_S, scripts.HOME)
    assert not [line for line in call.out.lines if "digit" in line]
