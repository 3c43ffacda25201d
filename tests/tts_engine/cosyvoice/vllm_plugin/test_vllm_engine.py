"""The real engine on CPU, on the golden networks. One engine a version; a start costs half a minute.

The golden networks have attention heads of 16, which vLLM's CPU kernels do not take. Doubling the hidden size with
zeros and the head size with it is exact: see ``doubled``.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("vllm", reason="vLLM is missing: .ci/vllm installs it and runs these")
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from tests.tts_engine.cosyvoice.lm.drawn import ids_of
from tests.tts_engine.cosyvoice.models.test_llm import ids, model  # noqa: E402
from tests.tts_engine.cosyvoice.vllm_plugin.plugin_path import plugin_path  # noqa: E402
from tests.waiting import until
from tts_engine.cosyvoice.lm.eager_steps import EagerLm  # noqa: E402
from tts_engine.cosyvoice.lm.torch_lm import TorchLm  # noqa: E402
from tts_engine.cosyvoice.lm.vllm_lm import VllmBackend, VllmConfig  # noqa: E402
from tts_engine.cosyvoice.models.config import SamplingConfig  # noqa: E402
from tts_engine.cosyvoice.vllm_plugin import SAMPLER  # noqa: E402
from tts_engine.cosyvoice.vllm_plugin.joined_table import export_vllm  # noqa: E402
from tts_engine.cosyvoice.vllm_plugin.ras import RasState  # noqa: E402
from tts_engine.errors import InvalidRequest  # noqa: E402

HERE = Path(__file__).parent
GOLDENS = HERE.parents[2] / "goldens/cosyvoice"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("default"),  # vLLM's own are many and not ours to mend
]


def doubled(weights: dict[str, torch.Tensor], heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """The same network with hidden size and head size doubled by zeros.

    RMSNorm divides by a mean over twice the values, so its weights shrink by sqrt(2) (and its epsilon halves, in the
    configuration). Attention divides by the root of the head size, so queries grow by sqrt(2). RoPE's frequency i of
    n is 2i of 2n, so pair i moves to pair 2i.
    """

    def spread(rows: torch.Tensor, count: int) -> torch.Tensor:
        head = rows.reshape(count, 2, -1, *rows.shape[1:])  # head, half, pair
        out = torch.zeros(count, 2, 2 * head.shape[2], *rows.shape[1:])
        out[:, :, ::2] = head
        return out.reshape(-1, *rows.shape[1:])

    def widen(value: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.cat([value, torch.zeros_like(value)], dim=axis)

    out = {}
    for key, value in weights.items():
        value = value.float()
        name = key.rsplit(".", 2)[-2]
        if name in ("q_proj", "k_proj", "v_proj"):
            rows = heads if name == "q_proj" else kv_heads
            value = spread(value, rows) * (2**0.5 if name == "q_proj" else 1.0)
            value = widen(value, 1) if value.ndim == 2 else value
        elif name == "o_proj":
            value = widen(spread(value.T.contiguous(), heads).T.contiguous(), 0)
        elif name.endswith("norm"):
            value = widen(value / 2**0.5, 0)
        elif name == "down_proj":
            value = widen(value, 0)
        elif value.ndim == 2:  # tables, head, gate and up
            value = widen(value, 1)
        out[key] = value
    return out


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["v2", "v3"])
async def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    version = request.param
    folder = tmp_path_factory.mktemp(version)
    golden = json.loads((GOLDENS / version / "config.json").read_text())
    llm = golden["llm"]
    weights = load_file(GOLDENS / version / "llm.safetensors")
    config = {key: value for key, value in llm.items() if key not in ("sos", "task_id", "eos", "fill", "stop")}
    config |= {"hidden_size": 128, "rms_norm_eps": llm["rms_norm_eps"] / 2, "hidden_act": "silu"}
    export_vllm(
        doubled(weights, llm["num_attention_heads"], llm["num_key_value_heads"]),
        config,
        folder / "model",
        speech_tokens=golden["speech_token_size"],
        dtype=torch.float32,
    )
    backend = VllmBackend(
        folder / "model",
        VllmConfig(
            max_model_len=512,
            max_num_seqs=8,
            dtype="float32",
            enforce_eager=True,
            logits_processors=("forced_tokens:ForcedTokens", SAMPLER),
            extra={"max_logprobs": 1000},
        ),
        network=model(int(version[1:])).config,
    )
    io = load_file(GOLDENS / version / "io_llm.safetensors")
    with plugin_path(folder, HERE):
        await backend.start()
        try:
            yield backend, io
        finally:
            await backend.aclose()


def prompt_of(backend: VllmBackend, io: dict[str, torch.Tensor]) -> NDArray[np.int64]:
    return backend.table.prompt(*(io[k][0].numpy() for k in ("prompt_text", "text", "prompt_speech_token")))


async def read(backend: VllmBackend, prompt: NDArray[np.int64], seed: int, tokens: int = 60) -> list[int]:
    return await ids_of(backend.generate(prompt, min_tokens=tokens, max_tokens=tokens, seed=seed))


async def test_teacher_forced_logits_match_the_golden_at_every_step(backend: Any) -> None:
    backend, io = backend
    forced = [*io["forced_tokens"][0].tolist(), 0]
    params = backend._params(
        min_tokens=0, max_tokens=13, seed=1, logprobs=backend.table.head_size, extra_args={"forced": forced}
    )
    got, tokens = [], []
    async for output in backend._engine.generate(
        {"prompt_token_ids": prompt_of(backend, io).tolist()}, params, "forced"
    ):
        tokens += output.outputs[0].token_ids
        for step in output.outputs[0].logprobs:
            got.append([step[index].logprob for index in range(backend.table.head_size)])
    assert tokens == forced
    expected = io["logits_steps"].log_softmax(-1)
    assert torch.allclose(torch.tensor(got), expected, rtol=0, atol=1e-4), (torch.tensor(got) - expected).abs().max()


async def test_draws_inside_vllm_equal_the_sampler_on_the_same_logits(backend: Any) -> None:
    backend, io = backend
    size, seed, steps = backend.table.head_size, 77, 50
    params = backend._params(min_tokens=steps, max_tokens=steps, seed=seed, logprobs=size)
    state = RasState(1, torch.device("cpu"), SamplingConfig())
    state.start(0, seed, [])
    drawn, expected = [], []
    async for output in backend._engine.generate(
        {"prompt_token_ids": prompt_of(backend, io).tolist()}, params, "drawn"
    ):
        drawn += output.outputs[0].token_ids
        for step in output.outputs[0].logprobs:
            scores = torch.tensor([[step[index].logprob for index in range(size)]])
            scores[:, backend.table.speech_tokens :] = float("-inf")  # min_tokens
            expected.append(int(state.apply(scores).argmax()))
    assert drawn == expected and len(drawn) == steps


async def test_same_seed_draws_the_same_alone_and_beside_others(backend: Any) -> None:
    backend, io = backend
    prompt = prompt_of(backend, io)
    alone = await read(backend, prompt, 11)
    assert len(alone) == 60 and len(set(alone)) > 10
    beside = await asyncio.gather(*(read(backend, prompt, seed) for seed in (11, 12, 13, 14)))
    assert beside[0] == alone and beside[1] != alone


async def test_a_closed_reader_frees_its_place(backend: Any) -> None:
    backend, io = backend
    prompt = prompt_of(backend, io)
    for _ in range(20):  # more than there are places: an abandoned request would hold one
        async with aclosing(backend.generate(prompt, min_tokens=400, max_tokens=400, seed=1)) as stream:
            async for _ids in stream:
                break
    async with asyncio.timeout(60):
        assert len(await read(backend, prompt, 5, 10)) == 10


async def test_cancelled_reader_aborts(backend: Any) -> None:
    backend, io = backend
    task = asyncio.create_task(read(backend, prompt_of(backend, io), 3, 400))
    await until(lambda: backend.live == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.live == 0


async def test_stop_ids_end_a_clause_and_are_not_passed_on(backend: Any) -> None:
    backend, io = backend
    prompt = prompt_of(backend, io)
    lengths = []
    for seed in range(6):
        tokens = await ids_of(backend.generate(prompt, min_tokens=5, max_tokens=300, seed=seed))
        assert all(0 <= token < backend.table.speech_tokens for token in tokens)
        lengths.append(len(tokens))
    assert min(lengths) >= 5 and len(set(lengths)) > 1


async def pieces(text: list[int], size: int) -> AsyncIterator[list[int]]:
    for first in range(0, len(text), size):
        await asyncio.sleep(0.002)
        yield text[first : first + size]


@pytest.mark.parametrize("size", [1, 100])
async def test_streamed_text_draws_what_the_torch_model_draws(backend: Any, size: int) -> None:
    backend, _ = backend
    version = backend._network.version
    steps = EagerLm(model(version), slots=2, max_length=512)
    torch_lm = TorchLm(steps)
    await torch_lm.start()
    try:
        for case in ("bistream0", "bistream1"):
            parts = {name: ids(version, f"{case}.{name}") for name in ("prompt_text", "prompt_speech_token", "text")}
            prompts: dict[str, Any] = {
                "prompt_text": parts["prompt_text"],
                "prompt_speech": parts["prompt_speech_token"],
                "seed": 5,
            }
            want, got = [
                await ids_of(lm.generate_streamed(pieces(parts["text"], size), **prompts)) for lm in (torch_lm, backend)
            ]
            assert got == want and len(got) > 15
    finally:
        await torch_lm.aclose()
    assert backend.live == 0


async def test_faults_of_streamed_text_reach_the_reader(backend: Any) -> None:
    async def text() -> AsyncIterator[list[int]]:
        yield parts["text"][:2]
        raise ValueError("the caller's text broke")

    backend, _ = backend
    version = backend._network.version
    parts = {name: ids(version, f"bistream0.{name}") for name in ("prompt_text", "text")}
    with pytest.raises(ValueError, match="caller"):
        async for _ in backend.generate_streamed(text(), prompt_text=parts["prompt_text"], prompt_speech=[], seed=1):
            pass
    if version == 3:
        with pytest.raises(InvalidRequest, match="endofprompt"):
            await anext(backend.generate_streamed(text(), prompt_text=[], prompt_speech=[], seed=1))


async def test_a_reader_who_leaves_streamed_text_frees_its_place(backend: Any) -> None:
    backend, _ = backend
    version = backend._network.version
    parts = {name: ids(version, f"bistream0.{name}") for name in ("prompt_text", "prompt_speech_token", "text")}

    async def endless() -> AsyncIterator[list[int]]:
        yield parts["text"]
        await asyncio.Event().wait()

    tasks = len(asyncio.all_tasks())
    stream = backend.generate_streamed(
        endless(), prompt_text=parts["prompt_text"], prompt_speech=parts["prompt_speech_token"], seed=2
    )
    async with aclosing(stream) as groups:
        async for _ids in groups:
            break
    assert backend.live == 0 and len(asyncio.all_tasks()) == tasks


async def test_prompt_without_room_is_refused(backend: Any) -> None:
    backend, _ = backend
    with pytest.raises(InvalidRequest, match="500 of 512 positions, expected at least 20"):
        await anext(backend.generate(np.ones(500, np.int64), min_tokens=20, max_tokens=200, seed=1))
