"""The language model on vLLM.

vLLM runs in its own processes; this is the asyncio side. Ids are drawn by the sampler of ``vllm_plugin``, because vLLM
has no repetition-aware sampling.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_engine.cosyvoice.lm.api import EAGER, Reader, never, room
from tts_engine.cosyvoice.lm.bistream import Bistream, FeedPositions
from tts_engine.cosyvoice.lm.sequence import joined_id
from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel
from tts_engine.cosyvoice.vllm_plugin import CONTROLS, HISTORY, OWNER, SAMPLER, SAMPLING
from tts_engine.cosyvoice.vllm_plugin.joined_table import JoinedTable, export_vllm
from tts_engine.errors import InvalidRequest, SynthesisFailed, Unavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """vLLM's start options."""

    max_model_len: int = 2048
    """Most positions of a request, prompt and speech together. A 30 s voice prompt takes 750 and leaves 40 s of
    speech."""
    max_num_seqs: int = 128
    """Most clauses in one decode step. Further ones wait in vLLM's queue."""
    dtype: str = "bfloat16"
    kv_cache_bytes: int = 4_000_000_000
    """Size of the KV cache: 12 kB a position, so 128 clauses of 2048 positions need 3.2 GB. Weights (1.2 GB), graphs
    and workspace (2 to 3 GB) come on top. The size is fixed because vLLM would otherwise measure free memory while
    token-to-wave allocates on the same GPU. Ignored on a CPU."""
    enforce_eager: bool = False
    """True: no CUDA graphs. vLLM then starts in 6 s instead of 12 to 48, and decodes at a fifth of the speed."""
    stream_interval: int = 10
    """After the first id, readers are woken every so many ids. 1 + 10 are the 11 ids of the shortest first chunk."""
    warm_up_rows: Sequence[int] = (1, 2, 8, 32)
    """Batch sizes of the warm-up, which compiles the kernels."""
    logits_processors: Sequence[str] = (SAMPLER,)
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of ``AsyncEngineArgs``; they override those set here. With ``gpu_memory_utilization``, vLLM takes
    that share of the GPU's memory, and ``kv_cache_bytes`` is ignored."""


def export_model(model: SpeechLanguageModel, folder: Path) -> None:
    """Write a language model to a folder that ``VllmBackend`` can load, in bf16."""
    config = model.config
    qwen = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        SAMPLING: asdict(config.sampling),
    }
    export_vllm(model.state_dict(), qwen, folder, speech_tokens=config.speech_token_size)


class VllmBackend:
    """An ``LmBackend`` over vLLM's processes. Call ``start`` (up to a minute) before use and ``aclose`` at the end."""

    def __init__(
        self, folder: Path, config: VllmConfig | None = None, *, network: LanguageModelConfig | None = None
    ) -> None:
        """
        Args:
            folder: a folder that ``export_vllm`` or ``export_model`` wrote.
            network: configuration of the model. ``generate_streamed`` needs it.
        """
        self._folder, self._config, self._network = folder, config or VllmConfig(), network
        self._engine: Any = None
        self.table = JoinedTable.load(folder)
        self.busy = never
        """Unused, because vLLM decodes all clauses in every step."""

    async def start(self) -> None:
        """Load, compile and warm up.

        Raises:
            Unavailable: vLLM or the plugin is not installed, or vLLM does not start.
        """
        config = self._config
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it would import a package that is not needed
        os.environ[OWNER] = str(os.getpid())
        if not entry_points(group="vllm.general_plugins", name="talkspurt"):
            raise Unavailable(
                "vLLM cannot find the model class: the entry point vllm.general_plugins:talkspurt is missing"
            )
        try:
            self._engine = await asyncio.to_thread(_make_engine, self._folder, config)
        except ImportError as exc:
            raise Unavailable(f"vLLM cannot be imported: {exc}; install talkspurt[vllm]") from exc
        except Exception as exc:  # vLLM reports any fault, from OOM to a bad folder, as RuntimeError or ValueError
            raise Unavailable(f"vLLM did not start on {self._folder}: {exc}") from exc
        for rows in config.warm_up_rows:
            await asyncio.gather(*(self._warm_up() for _ in range(min(rows, config.max_num_seqs))))

    async def _warm_up(self) -> None:
        async for _ in self.generate(np.full(64, self.table.start), min_tokens=16, max_tokens=16, seed=0):
            pass

    @property
    def alive(self) -> bool:
        """See ``api.LmBackend``."""
        return self._engine is not None and not self._engine.errored

    @property
    def live(self) -> int:
        """Number of clauses that vLLM has neither finished nor dropped."""
        return 0 if self._engine is None else int(self._engine.output_processor.get_num_unfinished_requests())

    async def generate(
        self,
        prompt: NDArray[np.int64],
        *,
        min_tokens: int,
        max_tokens: int,
        seed: int,
        reader: Reader = EAGER,
        shared: int = 0,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw the speech ids of one clause.

        Closing the generator, or cancelling the task that reads it, takes the request out of the next step.

        Args:
            prompt: joined ids, see ``JoinedTable.prompt``.
            min_tokens: stop ids are masked until this many ids are drawn.
            max_tokens: the clause is cut after this many ids.
            seed: int64. The same seed draws the same ids in any batch.
            reader: unused.
            shared: unused; vLLM has its own prefix cache.

        Raises:
            InvalidRequest: the prompt leaves no room for ``min_tokens``.
            SynthesisFailed: vLLM gave up this request.
            Unavailable: vLLM's process has ended.
        """
        most = min(max_tokens, room(prompt, self._config.max_model_len, min_tokens=min_tokens))
        params = self._params(min_tokens=min_tokens, max_tokens=most, seed=seed)
        async with aclosing(self._run(prompt.tolist(), params)) as groups:
            async for ids in groups:
                if speech := [token for token in ids if token < self.table.speech_tokens]:
                    yield speech

    async def generate_streamed(
        self,
        text: AsyncIterator[Sequence[int]],
        *,
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        seed: int,
        reader: Reader = EAGER,
    ) -> AsyncGenerator[Sequence[int], None]:
        """Draw the speech ids of a clause whose text ids are still arriving, in groups of any size.

        vLLM takes whole prompts, so each block between two pieces of text is a separate request of at most 15 ids. Its
        prompt is everything fed so far, which vLLM finds in its prefix cache.

        Raises:
            InvalidRequest: CosyVoice3's prompt text has no end-of-prompt id.
            SynthesisFailed: voice prompt and text leave no room for speech.
            others: those of ``generate``, and those that ``text`` raises.
        """
        if self._network is None:
            raise Unavailable(
                "text cannot be streamed into this language model: its configuration (network) is missing"
            )
        try:
            machine = Bistream(self._network, prompt_text=prompt_text, prompt_speech=prompt_speech)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from exc
        fed: list[int] = []
        text_ids = spoken = 0
        changed = asyncio.Event()

        async def listen() -> None:
            nonlocal text_ids
            try:
                async for ids in text:
                    machine.push_text(ids)
                    text_ids += len(ids)
                    changed.set()
                machine.end_text()
            finally:
                changed.set()

        def feed_next() -> FeedPositions | None:
            if (feed := machine.next()) is not None:
                fed.extend(joined_id(item, self.table) for item in feed.items)
            return feed

        feeding = asyncio.create_task(listen(), name="text into vLLM")
        try:
            while not machine.finished:
                if (feed := feed_next()) is None:
                    if feeding.done():
                        feeding.result()
                    await changed.wait()
                    changed.clear()
                    continue
                if feed.forced is not None:
                    machine.drawn(feed.forced)
                    continue
                left = self._config.max_model_len - len(fed)
                if left < 1 and not spoken:
                    raise SynthesisFailed(
                        f"voice prompt and text take {len(fed)} positions, expected fewer than {len(fed) + left}"
                    )
                most = self._network.sampling.lengths(text_ids)[1] - spoken if feed.may_end else machine.until_fill
                if (count := min(left, most)) < 1:
                    break
                async with aclosing(self._block(fed, machine, seed, count, may_end=feed.may_end)) as groups:
                    begun = False
                    async for ids in groups:
                        for token in ids:
                            if feed.may_end and token >= self.table.speech_tokens:
                                return
                            if begun:  # vLLM itself feeds the id that it drew
                                feed_next()
                            begun = True
                            if (speech := machine.drawn(token)) is not None:
                                spoken += 1
                                yield [speech]
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])

    def _block(
        self, prompt: Sequence[int], machine: Bistream, seed: int, count: int, *, may_end: bool
    ) -> AsyncGenerator[Sequence[int], None]:
        assert self._network is not None
        extra: dict[str, Any] = {HISTORY: list(machine.history)}
        if not may_end:  # only the fill ends the request
            extra[CONTROLS] = [self.table.speech_tokens, self._network.fill]
        return self._run(prompt, self._params(min_tokens=0, max_tokens=count, seed=seed, extra_args=extra))

    async def _run(self, prompt: Sequence[int], params: Any) -> AsyncGenerator[Sequence[int], None]:
        """Yield the ids of one request, including its stop id."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._engine is None:
            raise Unavailable("the language model is not running")
        stream = self._engine.generate({"prompt_token_ids": list(prompt)}, params, uuid.uuid4().hex)
        try:
            async with aclosing(stream):
                async for output in stream:
                    yield output.outputs[0].token_ids  # several, if the reader was slow
                    if output.finished and output.outputs[0].finish_reason not in ("stop", "length"):
                        raise SynthesisFailed(f"vLLM ended the request: {output.outputs[0].finish_reason}")
        except EngineDeadError as exc:
            raise Unavailable("the language model's process has ended") from exc

    def _params(self, *, min_tokens: int, max_tokens: int, seed: int, **more: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=0.0,  # the plugin's sampler leaves only one id possible
            min_tokens=min(min_tokens, max_tokens),
            max_tokens=max_tokens,
            stop_token_ids=self.table.stop_ids,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={"ras_seed": seed, **more.pop("extra_args", {})},
            **more,
        )

    async def aclose(self) -> None:
        """End vLLM's processes. Running requests fail. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)


def _make_engine(folder: Path, config: VllmConfig) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(folder, config, cpu=current_platform.is_cpu())))


def engine_args(folder: Path, config: VllmConfig, *, cpu: bool) -> dict[str, Any]:
    """Return the fields of vLLM's ``AsyncEngineArgs``. ``config.extra`` overrides the others."""
    args: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        # A prompt is never split: the sampler would also draw for a part of it and add that id to its history.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(8192, config.max_model_len),
        "enforce_eager": config.enforce_eager,
        "stream_interval": config.stream_interval,
        "logits_processors": list(config.logits_processors),
    }
    if not cpu and "gpu_memory_utilization" not in config.extra:
        # ``gpu_memory_utilization`` is here only the share that must be free when vLLM starts.
        args |= {"kv_cache_memory_bytes": config.kv_cache_bytes, "gpu_memory_utilization": 0.05}
    return args | config.extra
