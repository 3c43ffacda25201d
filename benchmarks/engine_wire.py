"""What the wire between gateway and engine costs, with an engine that answers at once, in its own process.

Prints one JSON line: ``first_chunk_ms`` from ``open`` with text to the first chunk, one utterance after the other over
a unix socket; ``burst_of_50_ms`` the same for 50 in one instant; ``client_us_per_chunk`` and ``server_us_per_chunk``
processor time for chunks of 100 ms (PCMU) that come one at a time on 50 utterances at once, as speech does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop

from tts_engine.api import AudioChunk, EngineStatus, TextSpan, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.service.client import GrpcEngine
from tts_engine.service.process import EngineProcess
from tts_engine.service.runner import run_child

TURNS = 1000
STREAMS, CHUNKS, INTERVAL_S = 50, 100, 0.05

CHUNK = AudioChunk(
    frames=[bytes(160)] * 5,
    first_sample=0,
    samples=800,
    spans=[TextSpan(0, 5, 0, 400), TextSpan(6, 11, 400, 800)],
    stages_ms={"text": 0.1, "queue": 0.1, "engine": 5.0, "codec": 0.1},
)


class InstantEngine:
    """Answers the end of text: one chunk at once, or as many as the text says at a steady pace."""

    def open(self, request):
        return InstantUtterance()

    async def status(self):
        return EngineStatus(ready=True, engine="instant", model="instant")

    async def aclose(self):
        pass


class InstantUtterance:
    def __init__(self):
        self.text = ""
        self.ended = asyncio.Event()

    def feed(self, text):
        self.text += text

    def end_text(self):
        self.ended.set()

    def played(self, samples, *, at):
        pass

    async def __aiter__(self):
        await self.ended.wait()
        yield CHUNK
        for _ in range(int(self.text)):
            await asyncio.sleep(INTERVAL_S)
            yield CHUNK

    async def aclose(self):
        pass


async def speak(engine: GrpcEngine, text: str) -> float:
    """Seconds to the first chunk; takes all."""
    begun, first = time.perf_counter(), 0.0
    async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
        utterance.feed(text)
        utterance.end_text()
        async for _ in utterance:
            first = first or time.perf_counter()
    return first - begun


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def measure() -> None:
    config = EngineConfig(kind="tone")
    process = EngineProcess("engine_wire", config)
    await process.start()
    engine = GrpcEngine(process.target, config)
    await asyncio.gather(*(speak(engine, "2") for _ in range(20)))
    first_ms = sorted([1000 * await speak(engine, "0") for _ in range(TURNS)])
    client, server = cpu_s(os.getpid()), cpu_s(process.pid)
    busy_ms = sorted(1000 * s for s in await asyncio.gather(*(speak(engine, str(CHUNKS)) for _ in range(STREAMS))))
    chunks = STREAMS * CHUNKS
    client, server = cpu_s(os.getpid()) - client, cpu_s(process.pid) - server
    print(
        json.dumps(
            {
                "first_chunk_ms": {
                    p: round(first_ms[int(TURNS * q)], 2) for p, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
                },
                f"burst_of_{STREAMS}_ms": {"p50": round(busy_ms[STREAMS // 2], 1), "max": round(busy_ms[-1], 1)},
                "client_us_per_chunk": round(1e6 * client / chunks),
                "server_us_per_chunk": round(1e6 * server / chunks),
            }
        )
    )
    await engine.aclose()
    await process.aclose()


async def make(config: EngineConfig) -> InstantEngine:
    return InstantEngine()


if __name__ == "__main__":
    if sys.argv[1:]:
        file, parent = sys.argv[1:]
        sys.exit(run_child(EngineConfig.model_validate_json(Path(file).read_text()), make, parent_pid=int(parent)))
    uvloop.run(measure())
