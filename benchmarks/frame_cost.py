"""What does a frame cost the gateway? Processor time of its own objects, on any machine, however busy.

    python benchmarks/frame_cost.py
    python benchmarks/frame_cost.py --uplink --old build/old
    python benchmarks/frame_cost.py --bare

Calls of real sessions with ready sound, the real ticker and real media sockets; the time is a number, so every run
sends the same frames in the same ticks. A child process reads them. One thread does all the work, and its processor
time counts, in rounds of a virtual second: the best and the median, in us a frame, of ``send`` (a tick, up to the
system call), ``hear`` (the uplink's thread) and, with ``--uplink``, ``receive`` (a caller's message, up to the thread's
queue; all callers are in quiet rooms). What is not in it: wake-ups of the loop, the engine's messages, beginnings and
ends of turns. ``talkspurt bench gateway`` has all of these.

``--bare`` sends ready messages by the same timer through the same sockets: less is not possible with them.
``--old DIR`` measures another checkout and this one in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
if "PYTHONSAFEPATH" not in os.environ:
    sys.path[:0] = [str(ROOT), str(ROOT / "codecs")]

import numpy as np
import uvloop
from picows import WSMsgType, ws_create_server

from gateway.call.defaults import turn_defaults
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.session import Services, Session
from gateway.calling.policy import CallingPolicy
from gateway.carriers.twilio.dialect import Twilio
from gateway.config import BargeInConfig, CallingConfig, PlayoutConfig, RouteConfig
from gateway.listener.connection import MediaConnection
from gateway.listener.turns import LoopTurns
from gateway.media.playout import StartPolicy
from gateway.media.ticker import SLOT_S, Ticker
from gateway.metrics import Metrics
from gateway.seams.dialogue import DialogueLink, DialogueSink
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound, Text
from gateway.uplink.worker import UplinkWorker
from talkspurt.simulator.carriers.twilio import TwilioCarrier
from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from tts_engine.service.garbage import keep_what_exists
from voicecodecs.g711 import encode_ulaw
from voicecodecs.registry import AudioFormat

FRAME = 160
SLOTS = round(0.02 / SLOT_S)
"""Slots from one frame of a call to its next."""
WORK_SLOTS = 5
"""The uplink's thread gathers for 10 ms."""
WORD_FRAMES = 18
"""A word of 0.36 s, as in English."""
HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
READY = bytes(303)
"""As long as a frame is in Twilio's JSON."""


def be_carriers(port: int, calls: int) -> None:
    """Open the streams, then read until standard input ends."""
    selector = selectors.DefaultSelector()
    for number in range(calls):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.sendall(HANDSHAKE.encode())
        assert b" 101 " in peer.recv(4096)
        for text in TwilioCarrier(number, {}).opening():
            body = text.encode()
            length = len(body).to_bytes(1) if len(body) < 126 else b"\x7e" + len(body).to_bytes(2)
            masked = bytes([0x80 | length[0]]) + length[1:] + bytes(4) + body  # the mask is zero
            peer.sendall(b"\x81" + masked)
        peer.setblocking(False)
        selector.register(peer, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(1 << 16):
                selector.unregister(key.fileobj)


class SteppedTicker(Ticker):
    """The ticker at a time that the benchmark sets. The kernel's timer is armed as ever, for a day far ahead."""

    def __init__(self) -> None:
        super().__init__()
        self._slots = int(time.monotonic() / SLOT_S) + 1_000_000_000
        self.at = 0.0

    def now(self) -> float:  # type: ignore[override]  # that of the class is static
        return self.at

    def step(self) -> None:
        self._slots += 1
        self.at = self._slots * SLOT_S + 1e-4  # as late as on an idle machine
        self.on_timer(now=self.at)


class Ready:
    """A speech engine, and all its utterances: sound and words are there at once. Also a line to a manager that does
    not answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = round(seconds)
        coded = encode_ulaw(np.random.default_rng(1).normal(0, 3000, 50 * FRAME).astype(np.int16))
        self._second = [coded[at : at + FRAME] for at in range(0, len(coded), FRAME)]

    def open(self, request: UtteranceRequest) -> Self:
        return self

    def feed(self, text: str) -> None: ...
    def end_text(self) -> None: ...
    def played(self, samples: int, *, at: float) -> None: ...

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        length = WORD_FRAMES * FRAME
        for first in range(0, 50 * self._seconds, 50):
            words = range(-(-first // WORD_FRAMES), -(-(first + 50) // WORD_FRAMES))
            spans = [TextSpan(5 * w, 5 * w + 4, w * length, (w + 1) * length - FRAME) for w in words]
            yield AudioChunk(frames=self._second, first_sample=first * FRAME, samples=50 * FRAME, spans=spans)

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def send(self, message: Outbound) -> None: ...
    def send_audio(self, pcm: bytes) -> None: ...

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        return self


class Gateway:
    """Calls as the server makes them, with media sockets."""

    def __init__(self, seconds: float) -> None:
        self.ticker = SteppedTicker()
        self.ticker.step()
        self.connections: list[MediaConnection] = []
        self.sessions: list[Session] = []
        self._text = "word " * (4 * round(seconds))
        self._route = RouteConfig()
        self._uplink = UplinkWorker({"": self._route}, BargeInConfig(), clock=self.ticker.now)
        self._uplink.close()  # its thread; ``hear`` does the work
        ready: Any = Ready(seconds)
        second_legs = SecondLegs(ready)
        self._services = Services(
            engine=ready, ticker=self.ticker, dialogues=second_legs, second_legs=second_legs, clips=ready,
            meter=Metrics(), uplink=self._uplink,
            playout=PlayoutConfig(), start=StartPolicy(quantile=1.0, max_delay_s=0.0),
            calling=CallingPolicy(CallingConfig(), {"": self._route}),
        )  # fmt: skip
        self._tasks: list[asyncio.Task[str]] = []

    def connection(self) -> MediaConnection:
        connection = MediaConnection(
            Twilio(), "", self._begin, setup_timeout_s=1e6, max_message_bytes=1 << 20, max_errors=10, turns=LoopTurns(),
            floods=LoopTurns(),
        )  # fmt: skip
        self.connections.append(connection)
        return connection

    def _begin(self, connection: MediaConnection, incoming: IncomingCall) -> Session:
        route = self._route
        defaults = turn_defaults(
            route, route.dialogue, self._services.playout, BargeInConfig(), turn_chars=1 << 20, turns_queued=4
        )
        call = CallInfo(call_id=f"VX{len(self.sessions):032x}", route="", transport="twilio")
        session = Session(call, connection, AudioFormat(), route, defaults, self._services)
        self.sessions.append(session)
        self._tasks.append(asyncio.create_task(session.run()))
        return session

    async def talk(self) -> None:
        """Let all calls begin to speak, evenly over the slots of a frame."""
        for slot in range(SLOTS):
            group = self.sessions[slot::SLOTS]
            for session in group:
                session.on_message(Text(token=self._text, last=True))
            while not all(session.turns.live[0].track.done for session in group):
                await asyncio.sleep(0)
            self.ticker.step()
        for _ in range(2 * SLOTS):  # what is sent ahead has left
            self.ticker.step()

    @property
    def frames(self) -> int:
        return sum(session.speech.playout.pacer.sent_frames for session in self.sessions)

    def hear(self) -> None:
        posted: list[Callable[[], None]] = []
        self._uplink._work(posted.append)
        for tell in posted:
            tell()

    async def aclose(self) -> None:
        assert not any(session.stats.stalls or session.stats.gaps for session in self.sessions), "a peer did not read"
        for session in self.sessions:
            session.end("over", hang_up=False)
        await asyncio.gather(*self._tasks)
        self.ticker.close()


class Stopwatch:
    """Adds up processor time by what it was spent on."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()

    def run(self, part: str, work: Callable[[], object]) -> None:
        begun = time.thread_time()
        work()
        self.spent_s[part] += time.thread_time() - begun


def send_ready(connections: Sequence[MediaConnection]) -> None:
    """Send what is sent of a frame, and nothing else."""
    for connection in connections:
        assert connection._transport is not None
        connection._transport.send(WSMsgType.TEXT, READY)


def take(messages: Sequence[tuple[MediaConnection, bytes]]) -> None:
    """Give connections what came from their callers, behind picows."""
    for connection, message in messages:
        connection._take(WSMsgType.TEXT, True, message)


async def rounds_of(args: argparse.Namespace) -> list[dict[str, float]]:
    """Return for each round the microseconds of a frame, by what they were spent on."""
    gateway = Gateway(args.rounds + 2)
    server = await ws_create_server(
        lambda request: gateway.connection(), "127.0.0.1", 0, use_aiofastnet=False, enable_auto_pong=False
    )
    port = server.sockets[0].getsockname()[1]
    carriers = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--carriers-of", str(port), "--calls", str(args.calls), stdin=subprocess.PIPE
    )
    while len(gateway.sessions) < args.calls:
        await asyncio.sleep(0.01)
    callers = [TwilioCarrier(number, {}) for number in range(args.calls)]
    noise = np.random.default_rng(2).normal(0, 32768 * 10 ** (args.noise_db / 20), FRAME)
    room = encode_ulaw(noise.astype(np.int16))
    if not args.bare:
        await gateway.talk()
    keep_what_exists()
    rounds = []
    for _ in range(args.rounds):
        watch, before = Stopwatch(), gateway.frames
        for slot in range(50 * SLOTS):
            if args.bare:
                watch.run("send", partial(send_ready, gateway.connections[slot % SLOTS :: SLOTS]))
                continue
            if args.uplink:
                speaking = range(slot % SLOTS, args.calls, SLOTS)
                messages = [(gateway.connections[n], callers[n].media(room).encode()) for n in speaking]
                watch.run("receive", partial(take, messages))
            watch.run("send", gateway.ticker.step)
            if slot % WORK_SLOTS == 0:
                watch.run("hear", gateway.hear)
        frames = 50 * args.calls
        assert args.bare or gateway.frames - before == frames
        rounds.append({part: spent_s / frames * 1e6 for part, spent_s in watch.spent_s.items()})
    await gateway.aclose()
    server.close()
    await carriers.communicate(b"")
    return rounds


def run_of(tree: Path, arguments: Sequence[str]) -> list[dict[str, float]]:
    """Measure a checkout in a process of its own."""
    environment = {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'codecs'}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, __file__, *arguments, "--json"]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    rounds: list[dict[str, float]] = json.loads(done.stdout)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=8, help="virtual seconds")
    parser.add_argument("--uplink", action="store_true")
    parser.add_argument("--noise-db", type=float, default=-64.0, help="of the callers' rooms (default -64)")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--old", type=Path, metavar="DIR")
    parser.add_argument("--runs", type=int, default=3, help="processes of each tree")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--carriers-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.carriers_of:
        be_carriers(args.carriers_of, args.calls)
        return
    if args.json:
        print(json.dumps(uvloop.run(rounds_of(args))))
        return
    trees = {"old": args.old.resolve(), "new": ROOT} if args.old else {"new": ROOT}
    asked = ["--calls", str(args.calls), "--rounds", str(args.rounds)]
    asked += ["--uplink"] * args.uplink + ["--bare"] * args.bare + ["--noise-db", str(args.noise_db)]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(args.runs):
        for name, tree in trees.items():
            rounds[name] += run_of(tree, asked)
    print("us a frame: best, median")
    for name, all_rounds in rounds.items():
        for part in all_rounds[0]:
            figures = [each[part] for each in all_rounds]
            print(f"{name:4} {part:8} {min(figures):6.2f} {statistics.median(figures):6.2f}")


if __name__ == "__main__":
    main()
