"""The language model's steps on a GPU: fused weights, fixed shapes, one CUDA graph per batch size.

Each sequence has a slot. Its KV cache, position, last id, history and seed stay on the device, so a decode step takes
only slot numbers from the host and returns one id per slot. A prefill takes concatenated prompts (``flat_prompts``),
without cached prefixes (``prefixes``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels import decode_step
from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.sampling import sample
from tts_engine.cosyvoice.lm import flat_prompts
from tts_engine.cosyvoice.lm.api import DRAW, Input, SequencePrefill
from tts_engine.cosyvoice.lm.flat_prompts import FlatPrompts
from tts_engine.cosyvoice.lm.prefixes import Prefixes
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel

log = logging.getLogger(__name__)

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
"""Batch sizes of the decode graphs. Other batches use the next larger graph, padded with the scratch slot."""
_FILLED_ROWS = DECODE_ROWS[DECODE_ROWS.index(8) :]
"""Batch sizes up to which a step is filled. A step of eight clauses takes as long as one of one."""
_PREFIXES = 8
"""Number of cached prefixes. Each has its own slot."""


def sizes_for(most: int, sizes: Sequence[int] = DECODE_ROWS) -> list[int]:
    """Return the sizes of the graphs for steps of up to ``most`` rows. The last is the first that is large enough, or
    the largest."""
    largest = min((size for size in sizes if size >= most), default=max(sizes))
    return [size for size in sizes if size <= largest]


class SlotState:
    """The state of the slots other than the KV cache, as tensors on the device."""

    def __init__(self, slots: int, max_length: int, device: torch.device, *, window: int) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        self.max_length = max_length
        self.seeds, self.steps, self.least, self.positions, self.last = (zeros(slots) for _ in range(5))
        self.rings = zeros(slots, window)
        self.draws = torch.full((slots,), DRAW, dtype=torch.long, device=device)

    def begin(self, slots: Tensor, lengths: Tensor, seeds: Tensor, least: Tensor) -> None:
        self.positions.index_copy_(0, slots, lengths)
        self.seeds.index_copy_(0, slots, seeds)
        self.least.index_copy_(0, slots, least)
        self.steps.index_fill_(0, slots, 0)
        self.rings.index_fill_(0, slots, -1)
        self.draws.index_fill_(0, slots, DRAW)

    def give(self, inputs: Tensor) -> None:
        """Set the next inputs of slots, ``(n, 4)``: slot, joined id, draw, min_tokens (``api.Input``)."""
        slots, ids, draws, least = inputs.T.contiguous().unbind(0)
        self.last.index_copy_(0, slots, ids)
        self.draws.index_copy_(0, slots, draws)
        self.least.index_copy_(0, slots, least)


class Pending:
    """The ids of a launched step, being copied to the host."""

    def __init__(self, host: Tensor, event: torch.cuda.Event, rows: int) -> None:
        self._host, self._event, self._rows = host, event, rows

    def ids(self) -> list[int]:
        """Wait for the step, with the interpreter lock released, and return the ids."""
        self._event.synchronize()
        out: list[int] = self._host[: self._rows].tolist()
        return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())


@dataclass(slots=True)
class _Layer:
    qkv: Tensor
    qkv_bias: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    norm1: Tensor
    norm2: Tensor


class CudaLm:
    """Prefill and decode of up to ``slots`` sequences, on its own CUDA stream. Only one thread may use it at a time."""

    def __init__(
        self,
        model: SpeechLanguageModel,
        *,
        slots: int,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Read ``model``, which may be dropped afterwards."""
        config = self.config = model.config
        network: Any = model  # submodules are Tensor | Module to a type checker
        self.device, self.dtype, self.slots, self.max_length = device, dtype, slots, max_length

        def take(*parts: Tensor) -> Tensor:
            return torch.cat([p.detach().to(device=device, dtype=dtype) for p in parts]).contiguous()

        head = [network.llm_embedding.weight] if config.version == 2 else []
        self.table = take(network.speech_embedding.weight, *head, network.backbone.embed_tokens.weight)
        self.layers = [
            _Layer(
                qkv=take(a.q_proj.weight, a.k_proj.weight, a.v_proj.weight),
                qkv_bias=take(a.q_proj.bias, a.k_proj.bias, a.v_proj.bias),
                o=take(a.o_proj.weight),
                gate_up=take(m.gate_proj.weight, m.up_proj.weight),
                down=take(m.down_proj.weight),
                norm1=take(layer.input_layernorm.weight),
                norm2=take(layer.post_attention_layernorm.weight),
            )
            for layer in network.backbone.layers
            for a, m in [(layer.self_attn, layer.mlp)]
        ]
        self.norm = take(network.backbone.norm.weight)
        # cuBLAS has no fast kernels for an odd number of columns.
        ids, bias = config.speech_vocab_size, network.llm_decoder.bias
        padding = -ids % 64
        self.head = take(F.pad(network.llm_decoder.weight, (0, 0, 0, padding)))
        self.head_bias = None if bias is None else F.pad(take(bias), (0, padding))
        # After the sequences' slots come one scratch slot, to which rows of padding write, and the slots of prefixes.
        self.scratch = slots
        self.state = SlotState(slots + 1, max_length, device, window=config.sampling.window)
        total = slots + 1 + _PREFIXES
        self.cache = torch.zeros(
            config.layers, 2, total, config.kv_heads, max_length, config.head_dim, device=device, dtype=dtype
        )
        self._prefixes = Prefixes(range(slots + 1, total))
        half = config.head_dim // 2
        rate = config.rope_theta ** (-torch.arange(half, device=device).double() / half)
        phase = torch.arange(max_length, device=device)[:, None] * rate
        self.cos, self.sin = phase.cos().float(), phase.sin().float()
        self._one_launch = decode_step.load(model, device=device, dtype=dtype)
        """The kernel for steps of up to ``decode_step.MOST_ROWS`` sequences. None: the GPU cannot run it."""
        self.stream: Any = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._decode: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._prefill: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._pool: Any = None

    # -- the network -----------------------------------------------------------------------------------------------

    def decode_logits(self, slots: Tensor) -> Tensor:
        """Feed the last id of each slot and append its keys and values to the cache. Return logits ``(rows, ids)``,
        padded on the right."""
        config, state = self.config, self.state
        if self._one_launch is not None and len(slots) <= decode_step.MOST_ROWS:
            return self._one_launch(self.table, self.cache, slots, state.last, state.positions, self.cos, self.sin)
        h = self.table.index_select(0, state.last.index_select(0, slots))
        y: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x = kernels.add_rms_norm(y, h, layer.norm1, config.rms_norm_eps)
            qkv = _product(x, layer.qkv, layer.qkv_bias)
            x = kernels.decode_attention(
                qkv, self.cache[number], slots, self.state.positions, self.cos, self.sin, config.heads
            )
            y = _product(x, layer.o)
            x = kernels.add_rms_norm(y, h, layer.norm2, config.rms_norm_eps)
            y = _product(kernels.silu_mul(_product(x, layer.gate_up)), layer.down)
        return self._logits(kernels.add_rms_norm(y, h, self.norm, config.rms_norm_eps))

    def prefill_logits(self, prompts: FlatPrompts) -> Tensor:
        """Feed concatenated prompts. Return logits ``(ROWS, ids)`` at the last position of each."""
        config = self.config
        slots, *_, last, read, written, shared = prompts.rows.unbind(0)
        ids, line_slots, positions = prompts.lines.unbind(0)
        kernels.copy_positions(self.cache, read, slots, shared)
        h = self.table.index_select(0, ids)
        y: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x = kernels.add_rms_norm(y, h, layer.norm1, config.rms_norm_eps)
            qkv = _product(x, layer.qkv, layer.qkv_bias)
            kernels.rotate_store(qkv, self.cache[number], line_slots, positions, self.cos, self.sin, config.heads)
            x = kernels.prompt_attention(qkv, self.cache[number], prompts.blocks, config.heads)
            y = _product(x, layer.o)
            x = kernels.add_rms_norm(y, h, layer.norm2, config.rms_norm_eps)
            y = _product(kernels.silu_mul(_product(x, layer.gate_up)), layer.down)
        kernels.copy_positions(self.cache, slots, written, shared)
        assert y is not None
        return self._logits(
            kernels.add_rms_norm(y.index_select(0, last), h.index_select(0, last), self.norm, config.rms_norm_eps)
        )

    def _logits(self, x: Tensor) -> Tensor:
        return _product(x, self.head, self.head_bias)

    def _decode_step(self, slots: Tensor, tokens: Tensor) -> None:
        self._sample(self.decode_logits(slots), slots, tokens, advance=True)

    def _prefill_step(self, prompts: FlatPrompts, tokens: Tensor) -> None:
        slots, lengths, seeds, least = prompts.rows[:4].unbind(0)
        self.state.begin(slots, lengths, seeds, least)
        self._sample(self.prefill_logits(prompts), slots, tokens, advance=False)

    def _sample(self, logits: Tensor, slots: Tensor, tokens: Tensor, *, advance: bool) -> None:
        config = self.config
        sample(
            logits,
            slots,
            self.state,
            tokens,
            config.sampling,
            ids=config.speech_vocab_size,
            first_stop=config.speech_token_size,
            fill=config.fill,
            advance=advance,
        )

    # -- steps -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def warm_up(self, rows: Sequence[int] = DECODE_ROWS, lines: Sequence[int] = flat_prompts.LINES) -> None:
        """Capture the CUDA graphs. This destroys running sequences."""
        assert self.stream is not None
        with torch.cuda.stream(self.stream):
            for count in sorted(sizes_for(self.slots, rows), reverse=True):
                slots = torch.full((count,), self.scratch, dtype=torch.long, device=self.device)
                tokens = torch.zeros(count, dtype=torch.long, device=self.device)
                self._decode[count] = (self._capture(self._decode_step, slots, tokens), slots, tokens)
            nobody = SequencePrefill(slot=self.scratch, ids=np.zeros(1, np.int64), seed=0, min_tokens=0)
            most = min(self.slots, flat_prompts.ROWS) * self.max_length
            for count in sorted(sizes_for(most, lines), reverse=True):
                packed = self._packed(count, [nobody], [-1], [-1]).to(self.device)
                tokens = torch.zeros(flat_prompts.ROWS, dtype=torch.long, device=self.device)
                graph = self._capture(self._prefill_step, flat_prompts.views(packed, count), tokens)
                self._prefill[count] = (graph, packed, tokens)
        self.stream.synchronize()

    def _capture(self, step: Callable[..., None], *buffers: Any) -> torch.cuda.CUDAGraph:
        for _ in range(2):
            step(*buffers)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
            step(*buffers)
        self._pool = self._pool or graph.pool()
        return graph

    def computed(self, admission: SequencePrefill) -> int:
        """See ``torch_lm.LmSteps``."""
        return self._prefixes.computed(admission)

    def filled(self, rows: int) -> int:
        """See ``torch_lm.LmSteps``."""
        return next(count for count in _FILLED_ROWS if count >= rows)

    @torch.inference_mode()
    def prefill(self, admissions: Sequence[SequencePrefill]) -> Pending:
        """Prefill up to ``flat_prompts.ROWS`` sequences. Return the first id of each."""
        with torch.cuda.stream(self.stream):
            return self._send(self._launch_prefill(admissions), len(admissions))

    def _launch_prefill(self, admissions: Sequence[SequencePrefill]) -> Tensor:
        """Return the ids on the device, ``(ROWS,)``."""
        total = sum(self._prefixes.computed(a) for a in admissions)
        # Kernels are specialised for multiples of 16, so a size without a graph is rounded too.
        lines = next((n for n in flat_prompts.LINES if n >= total), -(-total // 64) * 64)
        with self._prefixes.placed(admissions) as (read, written):
            host = self._packed(lines, admissions, read, written)
            if lines in self._prefill:
                graph, packed, tokens = self._prefill[lines]
                packed.copy_(host, non_blocking=True)
                graph.replay()
            else:
                tokens = torch.zeros(flat_prompts.ROWS, dtype=torch.long, device=self.device)
                packed = host.to(self.device, non_blocking=True)
                self._prefill_step(flat_prompts.views(packed, lines), tokens)
        return tokens

    def _packed(
        self, lines: int, admissions: Sequence[SequencePrefill], read: Sequence[int], written: Sequence[int]
    ) -> Tensor:
        """Return a filled host buffer (``flat_prompts``)."""
        # A new buffer each time, because the copy of the previous prefill may still run. Torch caches pinned memory.
        host = torch.empty(flat_prompts.buffer_size(lines), dtype=torch.long, pin_memory=self.device.type == "cuda")
        flat_prompts.lay_out(host.numpy(), lines, admissions, read=read, written=written, scratch=self.scratch)
        return host

    @torch.inference_mode()
    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = ()) -> Pending:
        """Draw the next id of each slot, after its last id or after the given input."""
        rows = len(slots)
        count = min(r for r in self._decode if r >= rows)
        graph, buffer, tokens = self._decode[count]
        host = torch.full((count,), self.scratch, dtype=torch.long, pin_memory=True)
        host.numpy()[:rows] = slots
        with torch.cuda.stream(self.stream):
            if inputs:
                given = torch.tensor([(i.slot, i.id, i.draw, i.min_tokens) for i in inputs]).pin_memory()
                self.state.give(given.to(self.device, non_blocking=True))
            buffer.copy_(host, non_blocking=True)
            graph.replay()
            return self._send(tokens, rows)

    def _send(self, tokens: Tensor, rows: int) -> Pending:
        host = torch.empty(tokens.shape, dtype=torch.long, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return Pending(host, event, rows)
