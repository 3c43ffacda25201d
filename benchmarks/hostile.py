"""What strangers, callers and neighbours can do to calls: each attack beside talking calls, and all of them at once.

    python benchmarks/hostile.py --json benchmarks/results/hostile.json
    python benchmarks/hostile.py --calls 20 --seconds 3 --only pings --only sip-flood

A real server runs on a core of its own where there are two; callers, engine and attackers share the other. The calls
speak the hummed voice of the `tone` engine all the time. The attackers are a process of lower priority. Everything
stays on 127.0.0.0/8, whose addresses are the sources. The gateway may open 1024 files. Each step is measured like the
first one, `calm`, in which nobody attacks. The exit code is 1 if a figure is missed.

`secrets` is a step without calls: it asks servers with the shipped configurations for tokens, as strangers, and looks
for seeded secrets in what the servers say, log and show.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from hostile.attacks import (
    ATTACKS,
    LET_IN,
    MEDIA,
    UNAUTHENTICATED,
    WEBHOOKS,
    Target,
    ask,
    hurtful_sounds,
    webhooks,
)

from gateway.listener.server import raise_open_files
from talkspurt.bench.calls import ROUTE as BENCH_ROUTE
from talkspurt.bench.calls import CallLoad, CallLoadSettings, Talking
from talkspurt.bench.load import STANDARD, read_load
from talkspurt.bench.results import write
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator.carrier_leg import CarrierLeg, Leg, Uplink
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.carriers.sip import SipCarrier
from talkspurt.simulator.figures import pacing_errors_ms, summary
from talkspurt.simulator.manager import ManagedCall, Manager
from talkspurt.simulator.peer_socket import PeerError
from talkspurt.simulator.sip_leg import SipLeg

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent / "hostile"
DESCRIPTORS = 1024
CALM, ALL, SECRETS = "calm", "all", "secrets"
_HONEST = 5_000_000
"""Number of the address that honest requests come from; no attacker has it."""
_WAIT_S = 5.0
"""An honest request or call that takes longer has failed."""

_CONFIG = """
server: {{host: 127.0.0.1}}
engine: {{kind: tone}}
clips: {{folder: {folder}/clips}}
carriers: {{twilio: {{verify: false}}}}
sip:
  port: {sip}
  rtp_ports: 20000-20999
  trunks:
    phones: {{addresses: [127.0.0.1], codecs: [PCMU], route: phone}}
routes:
  hostile: {{}}
  neighbour: {{}}
  phone: {{dialogue: {{script: talk.yaml}}}}
"""

_SCRIPT = """
start: one
steps:
  one:
    - say: We connect people all over the world, day and night, in every season of the year. Please stay on the line.
    - pause: 0.02
    - goto: one
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    calls: int
    seconds: float
    only: tuple[str, ...]
    pinned: bool


Figures = dict[str, Any]


# --- honest peers ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """How often an honest peer asked for something, and got it."""

    tried: int = 0
    served: int = 0
    longest_ms: float = 0.0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count one try, served unless ``PeerError`` ends the block. A try that is cancelled does not count."""
        began = time.monotonic()
        try:
            yield
            self.served += 1
        except PeerError:
            pass
        self.tried += 1
        self.longest_ms = max(self.longest_ms, (time.monotonic() - began) * 1000)


@dataclass(slots=True)
class Honest:
    """Peers that go on as usual during a step."""

    target: Target
    health: Asked = field(default_factory=Asked)
    speech: Asked = field(default_factory=Asked)
    media: Asked = field(default_factory=Asked)
    sip: Asked = field(default_factory=Asked)
    late_ms: float = 0.0
    """How late this process itself was at most. Its measurements are not better than this."""
    over: bool = False

    async def run(self) -> None:
        """Ask until ``over``, or cancelled."""
        text = json.dumps({"text": "Hello.", "format": "pcm"})
        speech = "POST /v1/tts HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
        speech += f"Content-Length: {len(text)}\r\n\r\n{text}"
        health = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(0.1, lambda: self._request(self.health, health.encode())))
            group.create_task(self._again(0.5, lambda: self._request(self.speech, speech.encode())))
            group.create_task(self._again(0.5, self._media_call))
            group.create_task(self._again(0.1, self._sip_call))
            group.create_task(self._watch_self())

    async def _again(self, every_s: float, what: Callable[[], Any]) -> None:
        while not self.over:  # Python 3.11's wait_for may lose a cancellation
            await what()
            await asyncio.sleep(every_s)

    async def _watch_self(self) -> None:
        while not self.over:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            self.late_ms = max(self.late_ms, (time.monotonic() - before - 0.005) * 1000)

    async def _request(self, asked: Asked, request: bytes) -> None:
        with asked.one():
            status, _ = await ask(self.target, request, _HONEST, wait_s=_WAIT_S)
            if status != "200":
                raise PeerError(f"the answer is {status}")

    async def _media_call(self) -> None:
        host, port = self.target.http
        leg = CarrierLeg(TwilioCarrier(time.monotonic_ns(), {}))
        await self._call(self.media, leg, f"ws://{host}:{port}/media/twilio/phone")

    async def _sip_call(self) -> None:
        leg = SipLeg(SipCarrier(time.monotonic_ns(), {}))
        await self._call(self.sip, leg, f"sip:1@127.0.0.1:{self.target.sip}")

    async def _call(self, asked: Asked, leg: Leg, url: str) -> None:
        """Call, wait for the first sound, hang up."""
        heard = asyncio.Event()
        leg.on_audible = lambda now: heard.set()
        with asked.one():
            await leg.connect(url, timeout_s=_WAIT_S)
            try:
                await asyncio.wait_for(heard.wait(), _WAIT_S)
            except TimeoutError as exc:
                raise PeerError("no sound") from exc
        await leg.aclose()


class _NotedLeg(CarrierLeg):
    """Notes when it sent each frame of caller audio."""

    def __init__(self) -> None:
        super().__init__(TwilioCarrier(time.monotonic_ns(), {}))
        self.sent: list[float] = []

    def send_uplink(self) -> None:
        self.sent.append(time.monotonic())
        super().send_uplink()


class Neighbour:
    """A call whose manager listens to the caller's audio."""

    def __init__(self) -> None:
        self._leg = _NotedLeg()
        self._samples = 0
        self._delays: list[tuple[float, float]] = []
        """When audio reached the manager, and how long before the caller had sent it, seconds. What was sent before
        the manager listened makes all delays longer by the same time."""

    @contextlib.asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[None]:
        """Call, and note when caller audio reaches the manager."""

        def begin(call: ManagedCall) -> None:
            call.on_audio = self._heard
            call.send("subscribe", media=True)

        manager, uplink = Manager(begin), Uplink()
        try:
            await manager.dial_in(f"ws://{address}/v1/dialogue?route=neighbour")
            await self._leg.connect(f"ws://{address}/media/twilio/neighbour")
            uplink.join(self._leg)
            yield
        finally:
            uplink.stop()
            await self._leg.aclose()
            await manager.aclose()

    def _heard(self, pcm: bytes) -> None:
        self._samples += len(pcm) // 2
        now = time.monotonic()
        self._delays.append((now, now - self._leg.sent[self._samples // 160 - 1]))

    def longest_gap_ms(self, since: float, until: float) -> float:
        """Return how much longer than the shortest time of a step caller audio took at most, or stood still."""
        found = [delay for at, delay in self._delays if since <= at <= until] or [0.0]
        still_waiting = until - self._delays[-1][0]
        return max(still_waiting, max(found) - min(found)) * 1000


# --- a step ----------------------------------------------------------------------------------------------------------


class Bench:
    """A server, its talking calls, and what is measured in each step."""

    def __init__(self, server: ServerUnderTest, folder: Path, load: CallLoad, neighbour: Neighbour, sip: int) -> None:
        self._server = server
        self._load = load
        self._neighbour = neighbour
        host, _, port = server.address.partition(":")
        self._http, self._sip = (host, int(port)), sip
        self._clock = np.memmap(folder / "clock", np.float64, "r+", shape=(2,))

    async def step(self, attacks: Sequence[str], seconds: float) -> Figures:
        """Run the attacks at once beside the calls; no attack: only measure."""
        target = Target(self._http, self._sip, seconds)
        honest = Honest(target)
        attackers = await _attackers(target, attacks)
        errors, gaps = self._errors(), self._gaps()
        rss = highest = self._server.gateway_rss_mb()
        self._clock[:] = 0
        since = time.monotonic()
        peers = asyncio.create_task(honest.run())
        attacking = asyncio.create_task(_attack(attackers, seconds))
        while not attacking.done():
            await asyncio.sleep(0.05)
            highest = max(highest, self._server.gateway_rss_mb())
        until = time.monotonic()
        stall, held_up = (float(value) * 1000 for value in self._clock)
        honest.over = True
        peers.cancel()
        await asyncio.wait({peers})
        return {
            "attacks": list(attacks),
            "loop_stall_ms": round(stall, 1),
            "loop_held_up_ms": round(held_up, 1),
            "pacing_error_ms": self._pacing(since, until),
            "gaps": self._gaps() - gaps,
            "call_errors": self._errors() - errors,
            "neighbour_gap_ms": round(self._neighbour.longest_gap_ms(since, until), 1),
            "rss_growth_mb": round(highest - rss, 1),
            "service": {name: asdict(getattr(honest, name)) for name in ("health", "speech", "media", "sip")},
            "own_lateness_ms": round(honest.late_ms, 1),
            "done": attacking.result(),
        }

    def _gaps(self) -> int:
        return sum(len(call.leg.gaps) for call in self._load.calls)

    def _errors(self) -> int:
        return sum(self._load.errors.values())

    def _pacing(self, since: float, until: float) -> dict[str, float] | None:
        """Return the pacing of the calls' frames in a window, by the kernel's times of arrival."""
        found = []
        for call in self._load.calls:
            for spurt in call.leg.spurts:
                errors = pacing_errors_ms(spurt, 8000)
                arrivals = np.asarray(spurt.arrivals[: len(errors)])
                found.append(errors[(arrivals >= since) & (arrivals <= until)])
        return summary(np.concatenate(found) if found else [])


async def _attackers(target: Target, names: Sequence[str]) -> asyncio.subprocess.Process | None:
    """Start a process of lower priority that is ready to attack. None: there are no attacks."""
    if not names:
        return None
    given = {"http": target.http, "sip": target.sip, "seconds": target.seconds, "names": names}
    process = await asyncio.create_subprocess_exec(
        *("nice", sys.executable, str(HERE / "attacks.py"), json.dumps(given)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def _attack(process: asyncio.subprocess.Process | None, seconds: float) -> Any:
    """Let the attackers begin. Return what each did, when they have ended."""
    if process is None:
        await asyncio.sleep(seconds)
        return {}
    try:
        out, _ = await asyncio.wait_for(process.communicate(b"go\n"), 10 * seconds + 60)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return json.loads(out)


async def _measure(settings: Settings, folder: Path) -> dict[str, Figures]:
    sip = _free_port()
    (folder / "clips").mkdir()
    for name, data in hurtful_sounds().items():
        (folder / "clips" / name).write_bytes(data)
    (folder / "talk.yaml").write_text(_SCRIPT)
    (folder / "config.yaml").write_text(_CONFIG.format(folder=folder, sip=sip))
    environment = overrides(route=BENCH_ROUTE, calls=settings.calls + 100, limits__connections_per_address="1000")
    steps = [[name] for name in ATTACKS if not settings.only or name in settings.only]
    if not settings.only or ALL in settings.only:
        steps.append(list(ATTACKS))
    if not steps:
        return {}
    standard = read_load(STANDARD)
    load = CallLoad(
        CallLoadSettings(calls=settings.calls, seconds=3600, tokens_per_s=0),
        standard,
        Talking([standard.long_text(120) for _ in range(40)]),
    )
    found: dict[str, Figures] = {}
    program = (str(HERE / "clock.py"), str(folder), str(DESCRIPTORS))
    async with serving(folder / "config.yaml", environment, program=program) as server:
        if settings.pinned:
            server.pin(gateway={0}, engine={1})
        neighbour, ready = Neighbour(), asyncio.Event()
        calling = asyncio.create_task(load.run(server.address, measured=lambda begins: ready.set()))
        try:
            await asyncio.wait({calling, waiting := asyncio.create_task(ready.wait())}, return_when="FIRST_COMPLETED")
            waiting.cancel()
            if calling.done():
                calling.result()
            async with neighbour.listening(server.address):
                bench = Bench(server, folder, load, neighbour, sip)
                for names in ([], *steps):
                    name = CALM if not names else names[0] if len(names) == 1 else ALL
                    await asyncio.sleep(2)  # what the step before left behind is not this step's
                    found[name] = await bench.step(names, settings.seconds)
                    print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
        finally:
            calling.cancel()
            await asyncio.wait({calling})
    return found


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- secrets ---------------------------------------------------------------------------------------------------------

SEEDS = {
    name: f"seeded-{number}-9f2c7b41d6e8"
    for number, name in enumerate(("TALKSPURT_API_KEY", "TWILIO_AUTH_TOKEN", "CARRIER_PASSWORD", "MANAGER_KEY"))
}
_SHIPPED = ("demo", "twilio", "callcenter-sip", "mandarin", "gpu-cosyvoice3")
_ALL_DIALECTS = {
    "all-proven": {
        "twilio": {"auth_token": SEEDS["TWILIO_AUTH_TOKEN"]},
        "signalwire": {"signing_key": SEEDS["TWILIO_AUTH_TOKEN"]},
        "telnyx": {"public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="},
        "plivo": {"auth_token": SEEDS["TWILIO_AUTH_TOKEN"]},
        "exotel": {"api_key": "key", "api_token": SEEDS["TWILIO_AUTH_TOKEN"]},
        "vonage": {"signature_secret": SEEDS["TWILIO_AUTH_TOKEN"]},
        "jambonz": {
            "webhook_secret": SEEDS["TWILIO_AUTH_TOKEN"],
            "username": "user",
            "password": SEEDS["CARRIER_PASSWORD"],
        },
    },
    "all-unproven": {dialect: {} for dialect in WEBHOOKS}
    | {"jambonz": {"username": "user", "password": SEEDS["CARRIER_PASSWORD"]}},
}
"""Two configurations more: every dialect with what proves it, and without."""


async def _secrets(folder: Path) -> Figures:
    """Ask a server with each configuration, as a stranger would. Everything that is not refused counts."""
    environment = {
        **SEEDS,
        "PUBLIC_HOST": "bot.example",
        "DIALOGUE_URL": f"wss://manager.invalid/call?api_key={SEEDS['MANAGER_KEY']}",
        **{"SIP_ADDRESS": "127.0.0.1", "PBX_NETWORK": "127.0.0.1", "PBX_HOST": "127.0.0.1"},
    }
    keys = {
        "server__public_url": "https://bot.example",
        "server__insecure": "false",
        "auth__api_keys": json.dumps([{"key": SEEDS["TALKSPURT_API_KEY"]}]),
        "engine__kind": "tone",
    }
    changed = {f"TALKSPURT__{key.upper()}": value for key, value in keys.items()}
    of_sip = {  # it would register at a stranger's, and ping
        "TALKSPURT__SIP__HOST": "127.0.0.1",
        "TALKSPURT__SIP__PORT": "0",
        "TALKSPURT__SIP__REGISTRATIONS__0__REGISTRAR": "sip:127.0.0.1:9",
        "TALKSPURT__SIP__TRUNKS__PBX__PING_S": "0",
    }
    files = {name: ROOT / f"configs/{name}.yaml" for name in _SHIPPED}
    for name, carriers in _ALL_DIALECTS.items():
        files[name] = folder / f"{name}.yaml"
        files[name].write_text(json.dumps({"carriers": carriers}))
    (folder / "log").unlink(missing_ok=True)
    yielded: list[str] = []
    refused: list[str] = []
    said = b""
    answers: Counter[str] = Counter()
    program = (str(HERE / "clock.py"), str(folder), str(DESCRIPTORS))
    for name, file in files.items():
        more = environment | changed | (of_sip if "sip" in name else {})
        shown = await asyncio.to_thread(_shown, file, more)
        said += shown.stdout + shown.stderr
        if shown.returncode:  # nobody can put this one on the internet
            refused.append(name)
            continue
        async with serving(file, more, program=program) as server:
            host, _, port = server.address.partition(":")
            target = Target((host, int(port)), 0, 0)
            for number, (what, request) in enumerate(_anonymous()):
                status, body = await ask(target, request, number)
                answers[status] += 1
                said += body
                if status[0] in "123":
                    yielded.append(f"{name}: {what} {status}")
    said += (folder / "log").read_bytes()
    leaked = {name: said.count(seed.encode()) for name, seed in SEEDS.items() if seed.encode() in said}
    return {
        "configurations": list(files), "refused": refused, "asked": answers.total(), "answers": dict(answers),
        "yielded": yielded, "leaked": leaked,
    }  # fmt: skip


def _anonymous() -> list[tuple[str, bytes]]:
    """Return requests that have to be refused, with names."""
    upgrade = (
        "Host: bot.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    dialects = (*WEBHOOKS, "genesys", "asterisk", "freeswitch", "freeswitch-fork")
    sockets = [f"/media/{dialect}/default{token}" for dialect in dialects for token in ("", "/AAAA")]
    sockets += ["/v1/dialogue?route=default", "/ws/tts"]
    paths = ["/v1/calls", "/v1/events", "/metrics", "/v1/voices", "/openapi.json", "/v1/handoffs/c1"]
    plain = [("GET", path) for path in paths] + [("POST", "/v1/calls"), ("POST", "/v1/tts")]
    return [
        *((f"webhook {dialect} {number}", request)
          for dialect in WEBHOOKS for number, request in enumerate(webhooks(dialect))),
        *((path, f"GET {path} HTTP/1.1\r\n{upgrade}".encode()) for path in sockets),
        *((path, f"{method} {path} HTTP/1.1\r\nHost: bot.example\r\nContent-Length: 0\r\n\r\n".encode())
          for method, path in plain),
    ]  # fmt: skip


def _shown(file: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run ``talkspurt config show``."""
    return subprocess.run(
        [sys.executable, "-m", "talkspurt", "config", "show", str(file)],
        env={**os.environ, **environment}, capture_output=True,
    )  # fmt: skip


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A figure to reach."""

    measure: str
    wanted: str
    measured: str
    met: bool


def _worst(steps: Mapping[str, Figures], names: Sequence[str], figure: Callable[[Figures], float]) -> Any:
    """Return the largest of a figure, and in which step; None: none of the steps ran."""
    found = [(figure(steps[name]), name) for name in names if name in steps]
    return max(found, default=None)


def rows(steps: Mapping[str, Figures], secrets: Figures | None) -> list[Row]:
    """Return the figures to reach, of what was measured."""
    found: list[Row] = []

    def largest(
        measure: str, names: Sequence[str], figure: Callable[[Figures], float], bound: float, unit: str,
        *, reaches: bool = False,
    ) -> None:  # fmt: skip
        if (worst := _worst(steps, names, figure)) is not None:
            value, name = worst
            calm = f", calm {figure(steps[CALM]):g}" if CALM in steps else ""
            met = value <= bound if reaches else value < bound
            sign = "<=" if reaches else "<"
            found.append(Row(measure, f"{sign} {bound:g}{unit}", f"{value:g}{unit} ({name}{calm})", met))

    def stall(step: Figures) -> float:
        return float(step["loop_stall_ms"])

    largest("longest loop stall, unauthenticated input to 64 kB", tuple(UNAUTHENTICATED), stall, 20, " ms")
    largest("the same, one media socket at 1 MB/s", tuple(MEDIA), stall, 20, " ms")
    largest("the same, others who are let in", tuple(LET_IN), stall, 20, " ms")
    largest("the same, all attacks at once", (ALL,), stall, 20, " ms")
    largest("a neighbour's caller-audio gap", tuple(ATTACKS), lambda s: s["neighbour_gap_ms"], 100, " ms")
    largest("RSS growth from one hostile media socket", tuple(MEDIA), lambda s: s["rss_growth_mb"], 5, " MB")
    for measure, names, kinds, least in (
        ("service beside idle and dripping sockets", ("idle", "slow"), ("health", "speech", "media"), 100.0),
        ("legitimate SIP accepted beside a flood", ("sip-flood", "sip-worst"), ("sip",), 99.0),
    ):
        asked = [steps[name]["service"][kind] for name in names if name in steps for kind in kinds]
        if tried := sum(entry["tried"] for entry in asked):
            served = sum(entry["served"] for entry in asked)
            share = 100 * served / tried
            found.append(Row(measure, f">= {least:g} %", f"{share:.1f} % ({served} of {tried})", share >= least))
    if "sip-flood" in steps:
        flood = steps["sip-flood"]["done"]["sip-flood"]
        ratio = flood["bytes_received"] / flood["bytes_sent"]
        found.append(Row("SIP reply bytes per request byte to strangers", "<= 1", f"{ratio:.2f}", ratio <= 1))
    if "sites" in steps:
        sites = steps["sites"]["done"]["sites"]
        measured = f"{sites['accepted']} of {sites['tried']}"
        found.append(Row("foreign Origin or Host accepted", "0", measured, not sites["accepted"]))
    if secrets is not None:
        count = len(secrets["yielded"]) + secrets["answers"].get("none", 0)
        leaks = sum(secrets["leaked"].values())
        measured = f"{count} of {secrets['asked']}"
        found.append(Row("anonymous requests that yield a token or secret", "0", measured, not count))
        found.append(Row("seeded secrets in logs, answers, `config show`", "0", f"{leaks}", not leaks))
    return found


def _lines(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def table(steps: Mapping[str, Figures], found: Sequence[Row]) -> str:
    """Return the steps, and the figures to reach, as lines for people."""

    def served(step: Figures) -> str:
        return " ".join(f"{asked['served']}/{asked['tried']}" for asked in step["service"].values())

    head = ["step", "stall ms", "held up ms", "pacing p99 ms", "gaps", "errors", "neighbour ms", "RSS +MB",
            "health speech media sip", "speech longest ms", "own ms"]  # fmt: skip
    cells = [
        [
            name, f"{step['loop_stall_ms']}", f"{step['loop_held_up_ms']}",
            f"{(step['pacing_error_ms'] or {}).get('p99')}",
            f"{step['gaps']}", f"{step['call_errors']}", f"{step['neighbour_gap_ms']}", f"{step['rss_growth_mb']}",
            served(step), f"{step['service']['speech']['longest_ms']:.0f}", f"{step['own_lateness_ms']}",
        ]
        for name, step in steps.items()
    ]  # fmt: skip
    met = [[row.measure, row.wanted, row.measured, "yes" if row.met else "NO"] for row in found]
    parts = [_lines([head, *cells])] if cells else []
    return "\n\n".join([*parts, _lines([["measure", "wanted", "measured", "met"], *met])])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="talking calls (default 100)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each step (default 6)")
    parser.add_argument("--only", action="append", default=[], choices=(*ATTACKS, ALL, SECRETS), metavar="ATTACK",
                        help=f"only this one, may be repeated: {', '.join((*ATTACKS, ALL, SECRETS))}")  # fmt: skip
    parser.add_argument("--json", help="write the result here; -: print it instead of the table")
    given = parser.parse_args()
    raise_open_files()
    settings = Settings(given.calls, given.seconds, tuple(given.only), (os.cpu_count() or 1) > 1)
    with tempfile.TemporaryDirectory() as name:
        if settings.pinned:
            os.sched_setaffinity(0, {1})
        steps = uvloop.run(_measure(settings, Path(name)))
        asks = not settings.only or SECRETS in settings.only
        secrets = uvloop.run(_secrets(Path(name))) if asks else None
    found = rows(steps, secrets)
    result = {"settings": asdict(settings), "rows": [asdict(row) for row in found], "steps": steps, "secrets": secrets}
    write(result, given.json, table(steps, found))
    return 0 if all(row.met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
