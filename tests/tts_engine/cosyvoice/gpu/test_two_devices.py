"""``engine.devices``: an engine process a GPU, both speaking; one that is killed loses no turn."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from talkspurt.engines import engine_for_gateway
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.service.client import GrpcEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device: this needs two"),
]
TURNS = 16


async def speak(engine: GrpcEngine, number: int, begun: asyncio.Semaphore) -> list[AudioChunk]:
    chunks: list[AudioChunk] = []
    async with engine.open(UtteranceRequest(utterance_id=f"u{number}")) as utterance:
        utterance.feed(f"Your order {number} comes tomorrow. It is on its way, and you need not be at home for it.")
        utterance.end_text()
        async for chunk in utterance:
            if not chunks:
                begun.release()
            chunks.append(chunk)
    return chunks


def processes_by_gpu() -> dict[str, set[int]]:
    command = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    found: dict[str, set[int]] = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        uuid, pid = line.split(", ")
        found.setdefault(uuid, set()).add(int(pid))
    return found


async def test_two_devices_speak_and_a_killed_engine_loses_no_turn(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    make(folder, 3, size="full")
    config = EngineConfig(kind="cosyvoice3", model_folder=str(folder), devices=("cuda:0", "cuda:1"))
    async with engine_for_gateway(config) as engine:
        print(processes_by_gpu())
        begun = asyncio.Semaphore(0)
        turns = [asyncio.create_task(speak(engine, number, begun)) for number in range(TURNS)]
        for _ in range(TURNS):
            await begun.acquire()
        assert [backend.active for backend in engine._backends] == [TURNS / 2] * 2, "both speak"
        children = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
        os.kill(children[0], signal.SIGKILL)
        for chunks in await asyncio.gather(*turns):
            ends = [chunk.first_sample + chunk.samples for chunk in chunks]
            assert [chunk.first_sample for chunk in chunks] == [0, *ends[:-1]]
        assert engine.moves == TURNS / 2
        assert await speak(engine, TURNS, begun), "the other engine takes new turns"
