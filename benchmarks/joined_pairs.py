"""Joined pairs of SIP legs: processor time of a pair, and the pacing of its frames.

    python -m benchmarks.joined_pairs --pairs 100 --seconds 20 [--untouched | --mixed]

A process of its own holds the legs: real sockets, RTP sessions, seats and rooms, without signalling and sessions. This
process sends 50 packets a second to each leg from one socket for each, and measures when packets come back. With
``--untouched`` both legs of a pair have PCMU and payloads pass as they are; otherwise one has PCMU and the other PCMA,
and each byte is translated; with ``--mixed`` a gain of 1 dB has every frame decoded, mixed and encoded. The
number of pairs that a core carries is extrapolated from the processor time of a sent frame; it is a bound, not an
observation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import struct
import time
from multiprocessing.connection import Connection

import numpy as np

from gateway.histogram import Histogram
from gateway.media.latch import Latch
from gateway.media.ticker import Ticker
from gateway.mixing.room import Room
from gateway.mixing.seat import Seat
from gateway.seams.leg import UnbufferedLeg
from sip_bridge.io.ports import PortPool
from sip_bridge.io.rtp_leg import RtpLeg
from sip_bridge.message.sdp import Agreed, Negotiation, parse
from talkspurt.bench.results import commit, machine
from voicecodecs.registry import AudioFormat

_FRAMES_A_PAIR_AND_SECOND = 100

_TYPES = {"PCMU": 0, "PCMA": 8}


class _Leg(UnbufferedLeg):
    """One leg: RTP below, a seat above."""

    listening = True

    def __init__(self, pool: PortPool, codec: str, peer: int) -> None:
        self.outbound = AudioFormat(codec)
        ports = pool.take()
        self.port = ports.port
        self.rtp = RtpLeg(self, Latch("host", signalling_host="127.0.0.1"))
        self.rtp.open(ports)
        self.rtp.negotiated(_agreed(codec, ports.port, peer))
        self.rtp.keep_formats(self.outbound, self.outbound)
        self.seat = Seat(self, self.outbound)

    def reception(self) -> None:
        return None

    def send_frame(self, payload: bytes, now: float) -> bool:
        return self.rtp.send_frame(payload, now)

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None: ...

    def on_audio(self, payload: bytes) -> None:
        self.seat.on_audio(payload, time.monotonic())

    def on_digit(self, digit: str) -> None: ...

    def on_round_trip(self, seconds: float) -> None: ...

    def on_leg_closed(self, reason: str) -> None: ...


def _agreed(codec: str, ours: int, theirs: int) -> Agreed:
    kind = _TYPES[codec]
    offer = (
        f"v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {theirs} RTP/AVP {kind}\r\n"
        f"a=rtpmap:{kind} {codec}/8000\r\na=ptime:20\r\n"
    )
    negotiation = Negotiation(host="127.0.0.1", peer_host="127.0.0.1", port=ours, codecs=(codec,), srtp="off")
    negotiation.answer(parse(offer.encode()))
    assert negotiation.agreed is not None
    return negotiation.agreed


def _serve(pipe: Connection, peers: list[int], untouched: bool, mixed: bool) -> None:
    """Hold the legs, tell their ports, and at the end the processor time and the lateness of ticks."""

    async def run() -> None:
        ticker, pool, lateness = Ticker(), PortPool("127.0.0.1", 30000, 30000 + 2 * len(peers) + 20), Histogram()
        rooms = []
        legs = [_Leg(pool, "PCMU" if untouched or n % 2 == 0 else "PCMA", peer) for n, peer in enumerate(peers)]
        for n in range(0, len(legs), 2):
            room = Room(ticker, pacing_error=lateness)
            rooms.append(room)
            for name, leg in (("a", legs[n]), ("b", legs[n + 1])):
                room.enter(name, leg.seat)
            room.join("a", "b")
            if mixed:
                room.mixer.hear("a", "b", 1.0)
                room.mixer.hear("b", "a", 1.0)
        pipe.send([leg.port for leg in legs])
        loop = asyncio.get_running_loop()
        begun = time.process_time(), time.monotonic()
        await loop.run_in_executor(None, pipe.recv)
        busy, passed = time.process_time() - begun[0], time.monotonic() - begun[1]
        late = 1 - dict(lateness.cumulative())["0.005"] / lateness.count if lateness.count else 0.0
        sent = sum(leg.rtp.session.stats.packets_sent for leg in legs if leg.rtp.session is not None)
        pipe.send((busy / passed, busy / max(1, sent), late))

    try:
        import uvloop

        uvloop.run(run())
    except ImportError:
        asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--untouched", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    arguments = parser.parse_args()
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2 * arguments.pairs)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
        each.setblocking(False)
    ours, theirs = multiprocessing.Pipe()
    peers = [each.getsockname()[1] for each in sockets]
    server = multiprocessing.Process(target=_serve, args=(theirs, peers, arguments.untouched, arguments.mixed))
    server.start()
    ports = ours.recv()
    late = _exchange(sockets, ports, arguments.seconds, arguments.untouched)
    ours.send("over")
    share, a_frame_s, late_ticks = ours.recv()
    server.join()
    print(
        json.dumps(
            {
                "commit": commit(),
                "machine": machine(),
                "pairs": arguments.pairs,
                "untouched": arguments.untouched,
                "mixed": arguments.mixed,
                "core_share": round(share, 3),
                "frame_us": round(1e6 * a_frame_s, 1),
                "pairs_a_core": round(1 / (_FRAMES_A_PAIR_AND_SECOND * a_frame_s)),
                "ticks_over_5_ms": round(late_ticks, 5),
                "spacing_error_ms_p50_p99": [round(1000 * float(np.quantile(late, q)), 2) for q in (0.5, 0.99)],
                "frames": len(late),
            }
        )
    )


def _exchange(sockets: list[socket.socket], ports: list[int], seconds: float, untouched: bool) -> list[float]:
    """Send to each leg every 20 ms, each at a phase of its own; return by how much the spacing of what comes
    differs."""
    phases = sorted((random.Random(1).random() * 0.02, n) for n in range(len(sockets)))
    begun = time.monotonic() + 0.2
    payload = bytes(range(160))
    last: dict[int, float] = {}
    late: list[float] = []
    for number in range(int(seconds * 50)):
        for phase, n in phases:
            at = begun + number * 0.02 + phase
            while (now := time.monotonic()) < at:
                time.sleep(min(0.0005, at - now))
            kind = 0 if untouched or n % 2 == 0 else 8
            packet = struct.pack("!BBHII", 0x80, kind, number & 0xFFFF, number * 160, n + 1) + payload
            sockets[n].sendto(packet, ("127.0.0.1", ports[n]))
            try:
                while True:
                    data = sockets[n].recv(2048)
                    if len(data) == 172:
                        now = time.monotonic()
                        if n in last and number > 50:
                            late.append(abs(now - last[n] - 0.02))
                        last[n] = now
            except BlockingIOError:
                pass
    return late


if __name__ == "__main__":
    main()
