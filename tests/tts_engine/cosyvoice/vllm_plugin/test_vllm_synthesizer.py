"""A tiny checkpoint spoken with vLLM as its language model, on the CPU: export, start, batches, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

pytest.importorskip("vllm", reason="vLLM is missing: .ci/vllm installs it and runs these")

from tests.tts_engine.cosyvoice.vllm_plugin.plugin_path import plugin_path  # noqa: E402
from tests.waiting import until
from tts_engine.config import CosyVoiceConfig  # noqa: E402
from tts_engine.cosyvoice.checkpoint import make  # noqa: E402
from tts_engine.cosyvoice.lm.vllm_lm import VllmBackend, VllmConfig  # noqa: E402
from tts_engine.cosyvoice.loading import load_synthesizer  # noqa: E402
from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer  # noqa: E402
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead  # noqa: E402

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("default"),  # vLLM's own are many and not ours to mend
]
TEXT = "Your order left the warehouse this morning and it will arrive on Friday."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def synthesizer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CosyVoiceSynthesizer]:
    folder = tmp_path_factory.mktemp("vllm")
    make(folder / "tiny3", 3)
    # This machine may be too slow for three.
    settings = CosyVoiceConfig(first_chunk_s=1e6, language_model="vllm")
    vllm = VllmConfig(max_model_len=512, max_num_seqs=8, dtype="float32", enforce_eager=True)
    with plugin_path(folder):
        engine = load_synthesizer(
            folder / "tiny3", settings, device="cpu", vllm=vllm, export_folder=folder / "exported"
        )
        (exported,) = (folder / "exported").iterdir()
        written = (exported / "model.safetensors").stat().st_mtime_ns
        await engine.start()
        yield engine
        await engine.aclose()
        load_synthesizer(folder / "tiny3", settings, device="cpu", vllm=vllm, export_folder=folder / "exported")
        assert (exported / "model.safetensors").stat().st_mtime_ns == written, "it is exported once"


async def speak(engine: CosyVoiceSynthesizer, text: str = TEXT) -> list[PcmChunk]:
    clause = ClauseRequest(text=text, voice="", language="en-US", speed=1.0, instruct="", first=True)
    return [chunk async for chunk in engine.synthesize(clause, Playhead())]


def backend(engine: CosyVoiceSynthesizer) -> VllmBackend:
    assert isinstance(engine._lm, VllmBackend)
    return engine._lm


async def test_clauses_are_spoken_side_by_side(synthesizer: CosyVoiceSynthesizer) -> None:
    assert synthesizer.status().ready
    spoken = await asyncio.gather(*(speak(synthesizer) for _ in range(3)))
    for chunks in spoken:
        assert sum(len(chunk.pcm) for chunk in chunks) % 960 == 0  # whole tokens
        assert [TEXT[w.start_char : w.end_char] for chunk in chunks for w in chunk.words] == TEXT.split()
    assert backend(synthesizer).live == 0


async def test_closing_a_clause_takes_it_out_of_vllm(synthesizer: CosyVoiceSynthesizer) -> None:
    clause = ClauseRequest(text=TEXT, voice="", language="en-US", speed=1.0, instruct="", first=True)
    async with aclosing(synthesizer.synthesize(clause, Playhead())) as chunks:
        await anext(chunks)
    await until(lambda: not backend(synthesizer).live and not synthesizer.status().active)
