"""Packet sequences with their times, for an RTP session to be played against, and what is kept of how it answers.

A script is a list of steps in the order of time. ``transcript`` lines are what came out, each with its time. The far
end numbers its packets here and not through ``gateway.media.rtp``, so that a mistake there cannot hide itself.
"""

import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gateway.media.rtcp import Goodbye, ReceiverReport, ReportBlock, SenderReport, serialise
from gateway.media.srtp import Srtp

BEGIN_S = 1000.0
WALL_S = 1_700_000_000.0
"""Seconds since 1970 at ``BEGIN_S``."""
SSRC = 0x22222222
"""The SSRC of our stream: all 32 random bits are these."""
FAR = 0xAABBCCDD
KEY, FAR_KEY = bytes(range(30)), bytes(range(1, 31))
SUITE = "AES_CM_128_HMAC_SHA1_80"
HOME = ("192.0.2.9", 4000)
"""The address that the far end states."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms that an offer and its answer agreed on."""

    encoding: str = "PCMU"
    payload_type: int = 0
    receive_type: int = 0
    ptime_ms: int = 20
    events_type: int | None = 101
    events_receive_type: int | None = 101
    noise_type: int | None = 13
    on_hold: bool = False
    host: str = HOME[0]
    keyed: bool = False

    @property
    def clock_hz(self) -> int:
        return {"PCMU": 8000, "G722": 8000, "OPUS": 48000}[self.encoding]


SIP = Terms()
WEB = Terms(
    encoding="OPUS", payload_type=111, receive_type=111, events_type=None, events_receive_type=126, noise_type=None
)

Step = tuple[Any, ...]
"""(seconds from the beginning, what, arguments): ``agree`` terms; ``in`` and ``report`` (the second port) datagram,
source; ``frame`` payload; ``dtmf`` digits; ``listen`` bool; ``tell`` (a report now, where no timer says so)."""


class Far:
    """The far end's stream, which begins at these numbers."""

    def __init__(self, terms: Terms = SIP, *, sequence: int = 100, timestamp: int = 5000, ssrc: int = FAR) -> None:
        self.terms = terms
        self.sequence, self.timestamp, self.ssrc = sequence, timestamp, ssrc
        self.number = 0
        self.source = HOME
        self.srtp = Srtp.keyed(SUITE, send_key=FAR_KEY, receive_key=KEY) if terms.keyed else None

    def packet(
        self, payload: bytes | None = None, *, kind: int | None = None, timestamp: int | None = None, held: bool = False
    ) -> bytes:
        """The next packet. ``held``: the clock stands still, as between the packets of one touch tone."""
        self.number += 1
        data = struct.pack(
            "!BBHII",
            0x80,
            self.terms.receive_type if kind is None else kind,
            self.sequence,
            self.timestamp if timestamp is None else timestamp,
            self.ssrc,
        ) + (self.number.to_bytes(2, "big") * 20 if payload is None else payload)
        self.sequence = (self.sequence + 1) & 0xFFFF
        if not held:
            self.timestamp = (self.timestamp + self.terms.clock_hz // 50) & 0xFFFFFFFF
        return self.srtp.protect(data) if self.srtp else data

    def frames(self, count: int, at: float, late: Callable[[int], float | None] = lambda index: 0.0) -> Iterator[Step]:
        """Yield ``count`` frames, 20 ms apart; ``late`` gives a frame's delay in seconds, None if it is lost."""
        for index in range(count):
            data, delay = self.packet(), late(index)
            if delay is not None:
                yield (at + index * 0.02 + delay, "in", data, self.source)

    def tone(self, code: int, at: float, *, steps: int = 6, repeats: int = 3, begins: bool = True) -> Iterator[Step]:
        """A touch tone as events; without ``begins`` only its end arrives."""
        begun = self.timestamp
        kind = self.terms.events_receive_type
        for index in range(steps + repeats):
            last = index >= steps
            payload = struct.pack("!BBH", code, 0x8A if last else 0x0A, 160 * min(index + 1, steps))
            data = self.packet(payload, kind=kind, timestamp=begun)
            if begins or last:
                yield (at + index * 0.02, "in", data, self.source)

    def report(self, at: float, *blocks: ReportBlock, port: str = "report", bye: bool = False) -> Step:
        """A sender report at that time, with what it says of us."""
        ntp = int((9_000_000.0 + at) * 65536) << 16
        data = serialise(SenderReport(self.ssrc, ntp, self.timestamp, self.number, self.number * 40, tuple(blocks)))
        data += serialise(Goodbye((self.ssrc,))) if bye else b""
        return (at, port, self.srtp.protect_rtcp(data) if self.srtp else data, self.source)


def about_us(*, lost: int = 0, last_report: int = 0, delay: int = 0) -> ReportBlock:
    return ReportBlock(SSRC, 3, lost, 0x10001, 77, last_report, delay)


def ours_at(at: float) -> int:
    """The middle of our NTP time, from the report that we sent at that time."""
    return int((WALL_S + at + 2_208_988_800) * 65536) & 0xFFFFFFFF


def steady(count: int, at: float = 0.0, *, size: int = 160) -> list[Step]:
    """Return our frames, 20 ms apart."""
    return [(at + index * 0.02, "frame", bytes([index & 0xFF]) * size) for index in range(count)]


def reception(terms: Terms) -> dict[str, list[Step]]:
    """Return, by name, the events that happen to packets on their way."""
    start: list[Step] = [(0.0, "agree", terms), (0.0, "listen", True)]

    def far(**of: int) -> Far:
        return Far(terms, **of)

    changed = [*far().frames(10, 0.1), *far(ssrc=0x1234, sequence=7, timestamp=99).frames(10, 0.3)]
    one = far()
    keys = [
        *one.frames(5, 0.1), *one.tone(5, 0.2), *one.frames(5, 0.38), *one.tone(5, 0.48, begins=False),
        *one.tone(11, 0.66, repeats=5), *one.tone(16, 0.9), *one.frames(5, 1.1),
    ]  # fmt: skip
    short = far()
    keys += [(1.3, "in", short.packet(b"\x01", kind=terms.events_receive_type), HOME)]
    two = far()
    other = [
        *two.frames(5, 0.1), (0.2, "in", two.packet(kind=77), HOME), (0.21, "in", two.packet(b""), HOME),
        *two.frames(5, 0.3), (0.5, "in", b"", HOME), (0.5, "in", b"\x80", HOME), (0.5, "in", bytes(40), HOME),
        (0.5, "in", b"\x9f" + bytes(30), HOME), *two.frames(3, 0.52),
    ]  # fmt: skip
    twice = [step for step in far().frames(12, 0.1) for _ in range(2)]
    three = far()
    told = [
        *three.frames(20, 0.1, lambda n: None if n in (4, 5) else 0.0), (0.6, "tell"), *steady(30, 0.7, size=40),
        three.report(1.4, about_us(lost=2)), (1.5, "tell"),
        three.report(2.0, about_us(last_report=ours_at(1.5), delay=0x4000)), (2.2, "tell"),
        three.report(2.3, about_us(last_report=ours_at(9.0)), port="in"), *three.frames(10, 2.31),
        (2.6, "report", serialise(ReceiverReport(FAR, (about_us(lost=-3),))), HOME),
        (2.7, "report", b"\x80\xc8\0\x09", HOME), three.report(2.8, bye=True), (2.9, "tell"),
    ]  # fmt: skip
    return {
        "in order": [*start, *far().frames(40, 0.1, lambda n: 0.001 * (n % 4))],
        "a jittery network": [*start, *far().frames(60, 0.1, lambda n: 0.017 * (n * 7 % 5))],
        "reordered": [*start, *far().frames(40, 0.1, lambda n: 0.035 if n % 6 == 2 else 0.0)],
        "single losses": [*start, *far().frames(40, 0.1, lambda n: None if n % 9 == 4 else 0.0)],
        "a burst is lost": [*start, *far().frames(40, 0.1, lambda n: None if 10 <= n < 17 else 0.0)],
        "too late for its place": [*start, *far().frames(40, 0.1, lambda n: 0.4 if n == 10 else 0.0)],
        "every packet twice": [*start, *twice],
        "numbers and clock wrap": [
            *start,
            *far(sequence=65520, timestamp=0xFFFFFFFF - 4000).frames(40, 0.1, lambda n: None if n == 17 else 0.0),
        ],
        "a new stream": [*start, *changed],
        "keys": [*start, *keys],
        "kinds that were not agreed": [*start, *other],
        "no listener": [
            start[0], *far().frames(10, 0.1), (0.35, "listen", True), *far(sequence=110, timestamp=6600).frames(5, 0.4)
        ],
        "reports": [*start, *told],
    }  # fmt: skip


def sip_scripts() -> dict[str, list[Step]]:
    """All scripts of a SIP call, by name."""
    start: list[Step] = [(0.0, "agree", SIP), (0.0, "listen", True)]
    quiet = replace(SIP, noise_type=None)
    g722 = replace(SIP, encoding="G722", payload_type=9, receive_type=9)
    keyed = replace(SIP, keyed=True)
    moved = Far(SIP)
    moved.source = ("198.51.100.7", 999)
    secret = Far(keyed)
    first = list(secret.frames(5, 0.1))
    named = Far(SIP)
    noise = [
        *named.frames(10, 0.1), (0.3, "in", named.packet(b"\x32", kind=13), HOME), (3.0, "listen", False),
        (4.0, "listen", True),
    ]  # fmt: skip
    return reception(SIP) | {
        "srtp": [
            (0.0, "agree", keyed), (0.0, "listen", True), *first, (0.22, *first[0][1:]),
            (0.23, "in", Far(SIP).packet(), HOME), (0.24, "in", first[1][2][:-1] + b"\0", HOME), *steady(10, 0.3),
            secret.report(0.6, about_us()), *secret.frames(5, 0.7), (0.9, "agree", SIP), *Far(SIP).frames(5, 1.0),
            (1.2, "agree", keyed), *steady(5, 1.3), (6.0, "listen", True),
        ],
        "we speak, are silent and speak again": [*start, *steady(20, 0.1), *steady(20, 3.0), *steady(5, 20.0)],
        "silence is sent as audio": [(0.0, "agree", quiet), *steady(5, 0.1), *steady(5, 12.0), (30.0, "listen", True)],
        "touch tones in the place of audio": [
            *start, *steady(100, 0.1), (0.31, "dtmf", "1w#"), (0.5, "dtmf", "9"), *steady(5, 8.0),
        ],
        "hold and resume": [
            *start, *steady(5, 0.1), (0.3, "agree", replace(SIP, on_hold=True)), *steady(5, 0.4), (0.45, "dtmf", "1"),
            (0.6, "agree", replace(SIP, on_hold=True, host="0.0.0.0")), *steady(2, 7.0), (8.0, "agree", SIP),
            *steady(5, 8.1),
        ],
        "another codec, another number, another frame": [
            *start, *steady(5, 0.1), (0.3, "agree", replace(SIP, payload_type=9)), *steady(5, 0.4),
            (0.6, "agree", g722), *Far(g722).frames(5, 0.61), *steady(5, 0.7),
            (0.9, "agree", replace(g722, ptime_ms=40)), *steady(5, 1.0),
        ],
        "a sender that stops": [
            *start, *Far(SIP).frames(10, 0.1), *Far(SIP, sequence=110, timestamp=29000).frames(5, 3.1),
        ],
        "comfort noise": [*start, *noise],
        "a sender behind a translator": [*start, *moved.frames(10, 0.1), *steady(3, 0.4)],
        "long enough for reports": [
            *start, *Far(SIP).frames(300, 0.1, lambda n: None if n % 50 == 9 else 0.002 * (n % 3)), *steady(300, 0.11)
        ],
    }  # fmt: skip


def random_script(terms: Terms, seed: int) -> list[Step]:
    """Seconds of a bad network, keys, reports and our own speech."""
    luck = random.Random(seed)
    steps: list[Step] = [(0.0, "agree", terms), (0.0, "listen", True)]
    at = 0.1
    far = Far(terms, sequence=luck.randrange(65536), timestamp=luck.randrange(1 << 32), ssrc=luck.getrandbits(32))
    for _ in range(luck.randrange(3, 9)):
        what = luck.randrange(7)
        if what == 0:
            steps += far.tone(luck.randrange(17), at, begins=luck.random() < 0.8, repeats=luck.randrange(1, 5))
        elif what == 1:
            far = Far(terms, sequence=luck.randrange(65536), timestamp=luck.getrandbits(32), ssrc=luck.getrandbits(32))
        elif what == 2:
            pause = luck.randrange(5, 100)
            far.timestamp = (far.timestamp + pause * terms.clock_hz // 50) & 0xFFFFFFFF
            at += pause * 0.02
        elif what == 3:
            steps += steady(luck.randrange(1, 40), at + 0.0007)
        elif what == 4:
            steps.append(far.report(at, about_us(last_report=ours_at(at - 0.3), delay=luck.randrange(9000))))
        elif what == 5 and terms.events_type is not None:
            steps.append((at + 0.0003, "dtmf", "".join(luck.choices("0123*#Dw", k=3))))
        spread, loss = luck.choice((0.0, 0.004, 0.03, 0.09)), luck.choice((0.0, 0.0, 0.05, 0.3))
        count = luck.randrange(5, 60)
        late = [None if luck.random() < loss else luck.random() * spread for _ in range(count)]
        steps += far.frames(count, at, late.__getitem__)
        at += count * 0.02
        steps.append((at, "tell"))
    return sorted(steps, key=lambda step: step[0])


def web_scripts() -> dict[str, list[Step]]:
    """All scripts of a browser's call, by name."""
    return reception(WEB) | {
        "we speak, are silent and speak again": [(0.0, "agree", WEB), *steady(9, 0.1), *steady(9, 3.0)]
    }


def random_scripts(terms: Terms, count: int = 150) -> dict[str, list[Step]]:
    return {f"random {seed}": random_script(terms, seed) for seed in range(count)}


class Transcript:
    """The output of a session, a line each."""

    def __init__(self) -> None:
        self.now = BEGIN_S
        self._lines: list[tuple[str, int]] = []

    def add(self, line: str) -> None:
        line = f"{self.now - BEGIN_S:.4f} {line}"
        if self._lines and self._lines[-1][0] == line:
            self._lines[-1] = (line, self._lines[-1][1] + 1)
        else:
            self._lines.append((line, 1))

    @property
    def lines(self) -> list[str]:
        return [f"{line} x{count}" if count > 1 else line for line, count in self._lines]

    def rtp(self, data: bytes) -> None:
        self.add(f"rtp {data[:12].hex()} {short(data[12:])}")

    def rtcp(self, data: bytes) -> None:
        self.add(f"rtcp {data.hex()}")

    def audio(self, payload: bytes) -> None:
        self.add(f"frame {short(payload)}" if payload else "lost")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def short(data: bytes) -> str:
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()[:8]}"
