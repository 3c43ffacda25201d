"""One RTP session against scripted networks, on a clock of numbers.

``vectors/rtp`` holds how calls went with the two implementations that this session replaced, of SIP and of WebRTC.
"""

import itertools
import json
import random
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from gateway.media.arrival import Arrival
from gateway.media.latch import Latch
from gateway.media.rtp import RtpPacket, parse
from gateway.media.rtp_session import RtpSession, RtpTerms
from gateway.media.srtp import Srtp
from gateway.seams.leg import RtpReport
from tests.gateway.media import rtp_scripts as scripts
from tests.gateway.media.rtp_scripts import BEGIN_S, FAR_KEY, KEY, SIP, SUITE, WALL_S, WEB, Step, Terms, Transcript
from voicecodecs.registry import AudioFormat, decoder, encoder

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
    audio = AudioFormat(terms.encoding, rate, terms.ptime_ms)
    return RtpTerms(
        audio=audio,
        send_type=terms.payload_type,
        receives={terms.receive_type: audio},
        dtmf=None if terms.events_type is None else (terms.events_type, 8000),
        receives_dtmf={} if terms.events_receive_type is None else {terms.events_receive_type: 8000},
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


SIGNS = {
    "another type": scripts.Far().packet(kind=77),
    "no payload": scripts.Far().packet(b""),
    "only padding": b"\xa0\0\0\1" + bytes(8) + b"\0\0\0\4",
    "empty": b"",
    "line break": b"\r\n",
    "STUN": b"\0\1\0\0" + bytes(16),
    "ZRTP": b"\x10\0\0\1ZRTP" + bytes(8),
    "UDPTL": b"\0\1\1\x06\0\0",
    "DTLS": b"\x16\xfe\xfd" + bytes(10),
    "a video stream (issue 271 of baresip/baresip)": scripts.Far().packet(kind=34),
    "type 126 (issue 1818 of sipwise/rtpengine)": scripts.Far().packet(kind=126),
    "RTCP of type 254 (the same)": b"\x80\xfe\0\1" + bytes(4),
    "a report in place of audio": scripts.Far().report(20.0)[2],
    "only the goodbye of a stream": b"\x81\xcb\0\1" + bytes(4),
    "RTP of version 0": b"\0" + scripts.Far().packet()[1:],
    "four zeros": bytes(4),
}
"""Datagrams that a peer may send in place of audio, for example while it is muted (RFC 6263 section 4)."""


@pytest.mark.parametrize("datagram", SIGNS.values(), ids=SIGNS)
def test_any_packet_of_the_peer_is_a_sign_of_life_and_none_of_a_stranger(datagram: bytes) -> None:
    call = Call()
    call.session.receive(datagram, BEGIN_S + 20, ("203.0.113.1", 4000))
    assert call.session.heard_at == BEGIN_S
    call.session.receive(datagram, BEGIN_S + 21, scripts.HOME)
    assert call.session.heard_at == BEGIN_S + 21


@pytest.mark.parametrize(
    "packet",
    [scripts.Far().packet(), scripts.Far().packet(b"\x40", kind=13), scripts.Far().packet(KEY_5, kind=101)],
    ids=["audio", "comfort noise", "touch tone"],
)
@pytest.mark.parametrize("policy", ["host", "strict"])
def test_another_port_of_the_peers_host_is_a_sign_of_life_and_is_not_heard(
    packet: bytes, policy: Literal["host", "strict"]
) -> None:
    """A translator gives a muted phone another port; its comfort noise comes too seldom to be followed at once."""
    call = Call()
    call.session._latch = latch = Latch(policy, signalling_host=scripts.HOME[0])
    latch.negotiated(scripts.HOME, now=BEGIN_S)
    call.session.receive(packet, BEGIN_S + 20, ("203.0.113.1", scripts.HOME[1] + 2))
    assert call.session.heard_at == BEGIN_S
    call.session.receive(packet, BEGIN_S + 21, (scripts.HOME[0], scripts.HOME[1] + 2))
    assert call.session.heard_at == BEGIN_S + 21 and call.session.dropped["stranger"] == 2


def test_reports_alone_are_a_sign_of_life() -> None:
    call = Call()
    call.session.receive_rtcp(scripts.Far().report(20.0)[2], BEGIN_S + 20, (scripts.HOME[0], scripts.HOME[1] + 1))
    assert call.session.heard_at == BEGIN_S + 20


@pytest.mark.parametrize("report", [b"\x80\xc9", b"\x80\xc9\0\1\0\0\0\1" + bytes(3), b"\x80\xcf\0\x20" + bytes(8)])
def test_a_report_that_cannot_be_read_is_a_sign_of_life_too(report: bytes) -> None:
    call = Call()
    call.session.receive_rtcp(report, BEGIN_S + 20, (scripts.HOME[0], scripts.HOME[1] + 1))
    assert call.session.heard_at == BEGIN_S + 20


@pytest.mark.parametrize("events", [None, 98])
@pytest.mark.parametrize("kind", [96, 101, 127])
def test_a_key_with_a_number_of_its_own_is_heard_although_that_was_not_negotiated(
    events: int | None, kind: int
) -> None:
    """Pull request 24 of eigger/hass-sip."""
    call = Call(replace(SIP, events_type=events, events_receive_type=events))
    far = scripts.Far()
    for payload in (KEY_5, KEY_5[:3], bytes(160), bytes([16, 10, 0, 160])):
        call.session.receive(far.packet(payload, kind=kind), BEGIN_S, scripts.HOME)
    assert [line for line in call.out.lines if "digit" in line] == ["0.0000 digit 5"]


@pytest.mark.parametrize(
    ("ssrc", "sequence"), [(0x999, 5000), (scripts.FAR, 1), (scripts.FAR, 2100), (scripts.FAR, 20_000), (None, 5000)]
)
@pytest.mark.parametrize("audio", [True, False], ids=["beside audio", "in place of audio"])
def test_touch_tones_of_another_stream_or_numbering_count_once_and_leave_the_audio_alone(
    ssrc: int | None, sequence: int, audio: bool
) -> None:
    """Issue 1569 of sipwise/rtpengine: a gateway sends tones as a stream of its own. None: a new one for each tone."""
    voice, steps, at = scripts.Far(sequence=1000), [(0.0, "agree", SIP), (0.0, "listen", True)], 0.1
    keys = scripts.Far(sequence=sequence, timestamp=77, ssrc=ssrc or 0)
    for code in (5, 5, 11):
        steps += voice.frames(20, at)
        keys.ssrc, keys.timestamp = keys.ssrc + (ssrc is None), keys.timestamp + 4000
        steps += keys.tone(code, at + 0.4)
        steps += [step for step in voice.frames(9, at + 0.405) if audio]
        if not audio:
            voice.sequence -= 9
        at += 0.6
    call = Call()
    lines = [line.split()[1:] for line in call.play(steps)]
    assert [line[1] for line in lines if line[0] == "digit"] == ["5", "5", "#"]
    assert ["lost"] not in lines and call.session.stats.lost == 0
    assert call.session.stats.packets_received == 60 + 27 * audio and not call.dropped


def test_a_keep_alive_is_a_sign_of_life_also_where_packets_are_encrypted() -> None:
    call = Call(replace(SIP, keyed=True))
    call.session.receive(scripts.Far().packet(), BEGIN_S + 20, scripts.HOME)  # not encrypted
    assert call.session.heard_at == BEGIN_S
    call.session.receive(b"\0\0\0\0", BEGIN_S + 21, scripts.HOME)
    assert call.session.heard_at == BEGIN_S + 21


def test_a_number_that_was_negotiated_for_audio_stays_audio() -> None:
    call = Call(replace(SIP, receive_type=101, events_type=None, events_receive_type=None))
    call.listening = True
    call.session.receive(scripts.Far().packet(KEY_5, kind=101), BEGIN_S, scripts.HOME)
    assert not [line for line in call.out.lines if "digit" in line]


# --- another codec in mid-call -------------------------------------------------------------------------------------

WIRE = {0: AudioFormat("PCMU"), 8: AudioFormat("PCMA"), 9: AudioFormat("G722", 16000), 107: AudioFormat("OPUS", 48000)}
NARROW = AudioFormat("PCMU")


def speaks(send_type: int, *, ptime_ms: int = 20) -> RtpTerms:
    """Terms that send one codec and accept all."""
    return RtpTerms(audio=replace(WIRE[send_type], ptime_ms=ptime_ms), send_type=send_type, receives=WIRE)


class Tone:
    """The sound of a peer, encoded as the packets need it, 20 ms each."""

    def __init__(self) -> None:
        self._encoders = {number: encoder(fmt) for number, fmt in WIRE.items()}
        self._n = 0

    def frame(self, payload_type: int) -> bytes:
        rate = WIRE[payload_type].sample_rate
        count = rate // 50
        t = (self._n * count + np.arange(count)) / rate
        self._n += 1
        return self._encoders[payload_type].encode((8000 * np.sin(2 * np.pi * 500 * t)).astype(np.int16))


class Speaking(Call):
    """A call whose session began with PCMU, whatever is agreed later."""

    def __init__(self, terms: RtpTerms) -> None:
        self.heard: list[bytes] = []
        self.sent: list[RtpPacket] = []
        super().__init__()
        self.listening = True
        self.sent.clear()
        self.session.agree(terms, now=BEGIN_S)
        self.session.keep_formats(NARROW, NARROW)

    def on_audio(self, payload: bytes) -> None:
        self.heard.append(payload)

    def send_rtp(self, datagram: bytes) -> bool:
        self.sent.append(parse(datagram))
        return True


def is_the_tone(pcm: np.ndarray, seconds: float) -> bool:
    """True if the sound is one tone of 500 Hz of this length, with at most small errors where codecs begin."""
    assert len(pcm) == round(seconds * 8000)
    t = np.arange(len(pcm)) / 8000
    basis = np.stack([np.sin(2 * np.pi * 500 * t), np.cos(2 * np.pi * 500 * t)])
    blocks = pcm.astype(float).reshape(-1, 160)
    powers = [np.hypot(*(basis[:, 160 * n : 160 * n + 160] @ block / 80)) for n, block in enumerate(blocks)]
    return all(power > 6000 for power in powers[2:])


@pytest.mark.parametrize("types", [(8,), (9,), (107,), (0, 8), (8, 0, 9), (0, 107), (107, 8), (9, 0)])
def test_audio_in_every_accepted_codec_is_heard_also_if_the_peer_switches(types: tuple[int, ...]) -> None:
    """RFC 3264 section 5.1. The tone is whole in the session's format."""
    call, tone = Speaking(speaks(0)), Tone()
    sequence = 100
    for part, payload_type in enumerate(types):
        clock_hz = WIRE[payload_type].rtp_clock_hz
        for n in range(25):
            packet = struct.pack(
                "!BBHII", 0x80, payload_type, sequence, (part * 25 + n) * clock_hz // 50, scripts.FAR
            ) + tone.frame(payload_type)
            call.session.receive(packet, BEGIN_S + 0.02 * (part * 25 + n), scripts.HOME)
            sequence += 1
    assert not call.session.dropped
    assert {len(payload) for payload in call.heard} == {160}
    heard = [decoder(NARROW).decode(payload) for payload in call.heard]
    for part in range(len(types)):
        assert is_the_tone(np.concatenate(heard[25 * part : 25 * part + 25]), 0.5)


@pytest.mark.parametrize("send_type", [8, 9, 107])
def test_another_codec_is_sent_from_the_agreement_on_without_a_gap(send_type: int) -> None:
    call, tone = Speaking(speaks(0)), Tone()
    for n in range(50):
        if n == 25:
            call.session.agree(speaks(send_type), now=BEGIN_S + 0.02 * n)
        assert call.session.send_frame(tone.frame(0), BEGIN_S + 0.02 * n)
    assert [packet.payload_type for packet in call.sent] == [0] * 25 + [send_type] * 25
    before, after = call.sent[:25], call.sent[25:]
    decode = decoder(replace(WIRE[send_type], sample_rate=8000) if send_type == 107 else WIRE[send_type]).decode
    pcm = np.concatenate([decode(packet.payload) for packet in after])
    assert is_the_tone(pcm[::2] if send_type == 9 else pcm, 0.5)
    if send_type != 107:  # the same clock: the same stream
        assert len({packet.ssrc for packet in call.sent}) == 1
        assert [(b.sequence - a.sequence) & 0xFFFF for a, b in itertools.pairwise(call.sent)] == [1] * 49
        assert [(b.timestamp - a.timestamp) & 0xFFFFFFFF for a, b in itertools.pairwise(call.sent)] == [160] * 49
    assert [(b.timestamp - a.timestamp) & 0xFFFFFFFF for a, b in itertools.pairwise(after)] == [
        960 if send_type == 107 else 160
    ] * 24
    assert before[0].payload == Tone().frame(0)


@pytest.mark.parametrize(("ptime_ms", "packets"), [(10, 50), (30, 16), (60, 8)])
def test_frames_of_another_length_keep_the_timetable(ptime_ms: int, packets: int) -> None:
    call, tone = Speaking(speaks(0)), Tone()
    call.session.agree(speaks(8, ptime_ms=ptime_ms), now=BEGIN_S)
    for n in range(25):
        call.session.send_frame(tone.frame(0), BEGIN_S + 0.02 * n)
    assert [len(packet.payload) for packet in call.sent] == [ptime_ms * 8] * packets
    steps = [(b.timestamp - a.timestamp) & 0xFFFFFFFF for a, b in itertools.pairwise(call.sent)]
    assert steps == [ptime_ms * 8] * (packets - 1)


def test_a_packet_that_cannot_be_decoded_is_one_lost_frame() -> None:
    call = Speaking(speaks(0))
    for n, payload in enumerate((b"\xff" * 7, Tone().frame(8))):
        packet = struct.pack("!BBHII", 0x80, (107, 8)[n], n, n * 160, scripts.FAR + n) + payload
        call.session.receive(packet, BEGIN_S + 0.02 * n, scripts.HOME)
    call.session.report(BEGIN_S + 0.1)
    assert call.heard[0] == b"" and len(call.heard[1]) == 160 and call.dropped["unreadable"] == 1


def test_silence_and_noise_have_the_format_of_the_session() -> None:
    call = Speaking(speaks(9))
    far = scripts.Far(replace(SIP, encoding="G722", payload_type=9, receive_type=9))
    for n in range(5):
        call.session.receive(far.packet(Tone().frame(9)), BEGIN_S + 0.02 * n, scripts.HOME)
    call.heard.clear()
    call.until(0.5)
    assert set(call.heard) == {NARROW.silence_frame()}
