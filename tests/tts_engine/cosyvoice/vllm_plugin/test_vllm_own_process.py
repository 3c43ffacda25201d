"""A model with vLLM in a process of its own, which has vLLM's as a child: started, spoken with, closed or killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is missing: .ci/vllm installs it and runs these")

from talkspurt import voice_model  # noqa: E402
from tests.tts_engine.cosyvoice.vllm_plugin.plugin_path import plugin_path  # noqa: E402
from tests.waiting import until  # noqa: E402
from tts_engine.config import EngineConfig  # noqa: E402
from tts_engine.cosyvoice.checkpoint import make  # noqa: E402
from tts_engine.cosyvoice.models.config import SAMPLE_RATE  # noqa: E402
from tts_engine.cosyvoice.voice_list import VoiceList  # noqa: E402
from tts_engine.metrics import PrometheusObserver  # noqa: E402
from tts_engine.service.child import ChildTimes  # noqa: E402
from tts_engine.synthesizer import ClauseRequest, Playhead  # noqa: E402
from tts_engine.voice_model.parent import RemoteSynthesizer  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]
TEXT = "Your order left the warehouse this morning and it will arrive on Friday."


def descendants(pid: int) -> set[int]:
    """Processes that this one has started, and those that they have."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | descendants(child)
    return found


def alive(pid: int) -> bool:
    try:
        return re.search(r"^State:\s+[^ZX]", Path(f"/proc/{pid}/status").read_text(), re.M) is not None
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
async def test_a_model_on_vllm_speaks_from_a_process_of_its_own_and_leaves_none_behind(
    killed: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny3"
    make(folder, 3)
    config = EngineConfig.model_validate(
        {
            "model_folder": str(folder),
            "device": "cpu",
            "voices_folder": str(tmp_path / "voices"),
            "cache_folder": str(tmp_path / "cache"),
            "cosyvoice": {
                "language_model": "vllm", "first_chunk_s": 1e6, "max_positions": 512,
                "max_clauses": 8, "text_processes": 0,
                "vllm": {"dtype": "float32", "enforce_eager": True},
            },
        }
    )  # fmt: skip
    model = RemoteSynthesizer(
        config.kind,
        voice_model.__name__,
        voice_model.settings(config, config, "engine"),
        times=ChildTimes(start_s=240, hang_s=60, end_s=30, restart_backoff_s=60),
        sample_rate=SAMPLE_RATE,
        streams_text=False,
        voices=lambda own: VoiceList(folder, 3, [voice.voice_id for voice in own], None),
        observer=PrometheusObserver(),
    )

    async def speak() -> list[str]:
        clause = ClauseRequest(text=TEXT, voice="", language="en-US", speed=1.0, instruct="", first=True)
        chunks = [chunk async for chunk in model.synthesize(clause, Playhead())]
        return [TEXT[word.start_char : word.end_char] for chunk in chunks for word in chunk.words]

    with plugin_path(tmp_path):
        await model.start()
        try:
            assert await asyncio.gather(speak(), speak()) == [TEXT.split()] * 2
            assert model._process.pid is not None
            family = {model._process.pid} | descendants(model._process.pid)
            assert len(family) > 1, "vLLM has a process"
            if killed:
                os.kill(model._process.pid, signal.SIGKILL)
                await until(lambda: not any(map(alive, family)))
        finally:
            await model.aclose()
    await until(lambda: not any(map(alive, family)))
