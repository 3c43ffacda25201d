"""SIP under load: a real server, sipp calling it from processes of its own (Debian: sip-tester).

    python benchmarks/sip_load.py --json benchmarks/results/sip.json

Three steps. The hummed voice (``--engine embedded`` for the real one) never stops, so that RTP goes both ways:

    talk    ``--calls`` at once, ``--rate`` a second, each ``--seconds`` long: failures, pacing, processor time per call
    churn   ``--total`` short calls: what the server holds before and after (tables, tasks, sockets, memory)
    fuzz    ``--mutants`` damaged datagrams a second for ``--fuzz-s`` beside ``--beside`` calls: failures, pacing
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from talkspurt.bench.ports import free_port
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from voicecodecs.g711 import encode_ulaw

SCENARIO = Path(__file__).parent.parent / "tests/peers/sip/scenarios/call.xml"
SCRIPT = Path(__file__).parent / "load/talk.yaml"

_CONFIG = """
engine: {{kind: {engine}}}
sip:
  port: {port}
  rtp_ports: 20000-{last_port}
  trunks:
    load: {{addresses: [127.0.0.0/8], codecs: [PCMU]}}
  timeouts: {{t1_s: 0.1}}
  limits: {{requests_per_s: 100000, calls_per_s: 100000}}
routes:
  default:
    interruptible: {interruptible}
    dialogue: {{script: {script}}}
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a run."""

    engine: str
    interruptible: str
    calls: int
    rate: float
    seconds: float
    total: int
    mutants: float
    fuzz_s: float
    beside: int


class Server:
    """The server and what it tells of itself."""

    def __init__(self, process: ServerUnderTest, port: int, folder: Path) -> None:
        self.process = process
        self.port = port
        self.folder = folder

    async def metrics(self) -> dict[str, float]:
        """Samples by name and labels; of histograms the buckets too."""
        async with aiohttp.ClientSession() as http, http.get(f"http://{self.process.address}/metrics") as answer:
            text = await answer.text()
        return {
            sample.name + "".join(f"{{{value}}}" for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def quiet(self) -> dict[str, float]:
        """The metrics when no call is left and every transaction has ended."""
        while True:
            found = await self.metrics()
            if not any(value for name, value in found.items() if name.startswith("talkspurt_sip_kept")):
                return found
            await asyncio.sleep(0.5)

    async def held(self) -> dict[str, float]:
        """What it holds, without calls."""
        found = await self.quiet()
        return {
            "tasks": found["talkspurt_tasks"],
            "open_files": len(os.listdir(f"/proc/{self.process.pid}/fd")),
            "rss_mb": round(self.process.rss_mb(), 1),
        }

    async def sipp(self, *, calls: int, concurrent: int, rate: float, seconds: float) -> dict[str, Any]:
        """Make calls; how many failed, and how the sound was paced meanwhile."""
        before, cpu_before, began = await self.metrics(), self.process.cpu_s(), time.monotonic()
        # Away from its media, which begins at 6000 and takes four ports a call.
        ports = ["-p", "15062", "-i", "127.0.0.1", "-mi", "127.0.0.1"]
        process = await asyncio.create_subprocess_exec(
            "sipp", f"127.0.0.1:{self.port}", "-sf", str(SCENARIO), *ports, "-nostdin",
            "-m", str(calls), "-l", str(concurrent), "-r", f"{rate:g}", "-d", f"{1000 * seconds:g}",
            "-trace_stat", "-stf", "stat.csv", "-fd", "1", "-trace_err", "-error_file", "errors",
            cwd=self.folder, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        code = await process.wait()
        lasted_s = time.monotonic() - began
        await asyncio.sleep(0.5)
        after, cpu_after = await self.metrics(), self.process.cpu_s()
        gateway_s, engine_s = (b - a for a, b in zip(cpu_before, cpu_after, strict=True))
        ended = _grown(before, after, "talkspurt_calls_total{completed}{sip}")
        return {
            "calls": calls,
            "sipp_exit_code": code,
            "completed": ended,
            "failed": calls - ended,
            "lasted_s": round(lasted_s, 1),
            "gaps": _grown(before, after, "talkspurt_gaps_total{sip}"),
            "send_stalls": _grown(before, after, "talkspurt_send_stalls_total{sip}"),
            "rtp_lost": _grown(before, after, "talkspurt_rtp_lost_total"),
            "pacing_error_ms": {
                name: _quantile_ms(before, after, "talkspurt_pacing_error_seconds", share)
                for name, share in (("p50_below", 0.5), ("p95_below", 0.95), ("p99_below", 0.99))
            },
            "gateway_cpu_ms_per_call": round(1000 * gateway_s / calls, 1),
            "engine_cpu_ms_per_call": round(1000 * engine_s / calls, 1),
            "gateway_cpu_share_of_a_core": round(gateway_s / lasted_s, 3),
        }


def _grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def _quantile_ms(before: dict[str, float], after: dict[str, float], name: str, share: float) -> float | None:
    """The bucket's bound below which that share of the new observations lies."""
    bounds: dict[float, float] = {}
    for key in after:
        if key.startswith(f"{name}_bucket") and "{sip}" in key:
            bounds[float(key.partition("{")[2].partition("}")[0])] = _grown(before, after, key)
    total = max(bounds.values(), default=0.0)
    return next((1000 * bound for bound in sorted(bounds) if total and bounds[bound] >= share * total), None)


# --- damage ----------------------------------------------------------------------------------------------------------


def _seeds(port: int) -> list[bytes]:
    """Messages as they should be."""
    sdp = (
        "v=0\r\no=- 1 1 IN IP4 127.0.0.2\r\ns=-\r\nc=IN IP4 127.0.0.2\r\nt=0 0\r\n"
        "m=audio 9 RTP/AVP 0 101\r\na=rtpmap:101 telephone-event/8000\r\n"
    )
    head = (
        "{0} sip:bot@127.0.0.1:" + str(port) + " SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.2:5060;branch=z9hG4bK{1};rport\r\n"
        "From: <sip:ann@example.org>;tag={1}\r\nTo: <sip:bot@example.org>{2}\r\nCall-ID: {1}\r\nCSeq: 1 {0}\r\n"
        "Contact: <sip:ann@127.0.0.2>\r\nMax-Forwards: 70\r\n"
    )
    bodies = {"INVITE": sdp, "UPDATE": sdp}
    return [
        (
            head.format(method, f"seed{number}", ";tag=x" if method in ("BYE", "ACK", "UPDATE", "INFO") else "")
            + f"Content-Type: application/sdp\r\nContent-Length: {len(bodies.get(method, ''))}\r\n\r\n"
            + bodies.get(method, "")
        ).encode()
        for number, method in enumerate("INVITE BYE ACK CANCEL OPTIONS REGISTER UPDATE INFO REFER NOTIFY".split())
    ]


def _damaged(seed: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 40)]
            case 2:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 40)))
            case 3:
                data[at:at] = data[: chance.randint(1, 200)]
            case 4:
                data[at:at] = chance.choice([b"\r\n", b"\0", b"99999999999999", b";;;", b"<<", b'"', b"%", b"\xff"])
            case 5:
                del data[at:]
    return bytes(data)


async def _damage(port: int, per_s: float, seconds: float, chance: random.Random) -> int:
    """Send damaged datagrams from another address than the calls'; returns how many."""
    seeds = _seeds(port)
    sent, began = 0, time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
        source.bind(("127.0.0.2", 0))
        source.setblocking(False)
        while (now := time.monotonic()) < began + seconds:
            while sent < per_s * (now - began):
                source.sendto(_damaged(chance.choice(seeds), chance)[:60000], ("127.0.0.1", port))
                sent += 1
            await asyncio.sleep(0.01)
    return sent


# --- steps -----------------------------------------------------------------------------------------------------------


async def _talk(server: Server, settings: Settings) -> dict[str, Any]:
    # The last call begins when all others still talk, so that they are all there at once.
    seconds = max(settings.seconds, settings.calls / settings.rate + 5)
    return await server.sipp(calls=2 * settings.calls, concurrent=settings.calls, rate=settings.rate, seconds=seconds)


async def _churn(server: Server, settings: Settings) -> dict[str, Any]:
    rate = 2 * settings.rate
    await server.sipp(calls=100, concurrent=50, rate=rate, seconds=0.2)
    before = await server.held()
    calls = await server.sipp(calls=settings.total, concurrent=settings.calls, rate=rate, seconds=0.2)
    return calls | {"before": before, "after": await server.held()}


async def _fuzz(server: Server, settings: Settings) -> dict[str, Any]:
    before = await server.quiet()
    calling = asyncio.create_task(
        server.sipp(calls=settings.beside, concurrent=settings.beside, rate=20, seconds=settings.fuzz_s + 3)
    )
    await asyncio.sleep(2)
    sent = await _damage(server.port, settings.mutants, settings.fuzz_s, random.Random(1))
    calls = await calling
    # Some of the damaged ones are calls still: their 200 has no ACK, so they end by themselves.
    after = await server.quiet()
    ended = _grown(before, after, "talkspurt_calls_total{completed}{sip}")
    return calls | {
        "completed": ended, "failed": int(calls["sipp_exit_code"] != 0), "damaged_sent": sent,
        "damaged_that_were_calls": ended - settings.beside,
        "failed_calls": _grown(before, after, "talkspurt_calls_total{failed}{sip}"),
    }  # fmt: skip


_STEPS = {"talk": _talk, "churn": _churn, "fuzz": _fuzz}


async def measure(settings: Settings, steps: Sequence[str]) -> dict[str, Any]:
    """Every step on one server after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        tone = 8000 * np.sin(2 * np.pi * 440 / 8000 * np.arange(8000))
        (folder / "tone.ulaw").write_bytes(encode_ulaw(tone.astype(np.int16)))
        config = _CONFIG.format(
            script=SCRIPT,
            engine=settings.engine,
            interruptible=settings.interruptible,
            port=port,
            last_port=20003 + 4 * settings.calls,
        )
        (folder / "sip.yaml").write_text(config)
        environment = overrides(route="load", calls=max(settings.calls, settings.beside + 200))
        results: dict[str, Any] = {}
        async with serving(folder / "sip.yaml", environment) as process:
            server = Server(process, port, folder)
            for step in steps:
                results[step] = await _STEPS[step](server, settings)
                print(step, json.dumps(results[step], indent=1), file=sys.stderr)
        return {"commit": commit(), "machine": machine(), "settings": asdict(settings), "steps": results}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="tone", choices=("tone", "embedded"))
    parser.add_argument(
        "--interruptible", default="dtmf", choices=("dtmf", "any"), help="any: caller speech is listened for too"
    )
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--total", type=int, default=2000)
    parser.add_argument("--mutants", type=float, default=500)
    parser.add_argument("--fuzz-s", type=float, default=60)
    parser.add_argument("--beside", type=int, default=20)
    parser.add_argument("--steps", nargs="+", default=list(_STEPS), choices=_STEPS)
    parser.add_argument("--json", type=Path)
    given = vars(parser.parse_args())
    path, steps = given.pop("json"), given.pop("steps")
    if shutil.which("sipp") is None:
        parser.error("sipp is not installed (Debian: sip-tester)")
    result = asyncio.run(measure(Settings(**given), steps))
    text = json.dumps(result, indent=1)
    print(text)
    if path:
        path.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
