"""The language model's steps on a GPU: fused weights, fixed shapes, one CUDA graph per batch size.

A step reads and writes slots. Keys and values, position, last id, history and seed of every live sequence stay on the
device. So a decode step takes only slot numbers from the host, and returns one id a slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels import decode_step
from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels.sampling import sample
from tts_engine.cosyvoice.lm.api import DRAW, Admission, Input
from tts_engine.cosyvoice.lm.quantised import Quantised, WeightKind, quantise
from tts_engine.cosyvoice.models.llm import SpeechLanguageModel

log = logging.getLogger(__name__)

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
"""Batch sizes of the decode graphs. A batch in between takes the next larger graph, padded with the scratch slot."""
_FILLED_ROWS = DECODE_ROWS[DECODE_ROWS.index(8) :]
"""Sizes that a step is filled up to. For eight clauses it takes as long as for one."""
PREFILL_SHAPES = tuple(
    (rows, n)
    for n in (128, 160, 192, 224, 256, 320, 384, 512, 768)
    for rows in (1, 2, 3, 4, 6, 8, 12, 16)
    if rows * n <= 4096
)
"""Rows and positions of the prefill graphs. Padding takes as long as prompts do: on an H200 a row of 192 takes 0.23 ms,
and a prefill 1.1 beside. A longer prompt runs without a graph."""


def sizes_for(slots: int, rows: Sequence[int] = DECODE_ROWS) -> list[int]:
    """Return the batch sizes that a step of up to ``slots`` sequences needs: the last one holds them all, or is the
    largest of ``rows``."""
    largest = min((r for r in rows if r >= slots), default=max(rows))
    return [r for r in rows if r <= largest]


class SlotState:
    """The state of the slots other than keys and values, as tensors on the device."""

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
        """Set what slots are fed next, ``(n, 4)``: slot, joined id, draw, least (``api.Input``)."""
        slots, ids, draws, least = inputs.T.contiguous().unbind(0)
        self.last.index_copy_(0, slots, ids)
        self.draws.index_copy_(0, slots, draws)
        self.least.index_copy_(0, slots, least)


class Pending:
    """Ids on their way to the host."""

    def __init__(self, host: Tensor, event: torch.cuda.Event, rows: int) -> None:
        self._host, self._event, self._rows = host, event, rows

    def ids(self) -> list[int]:
        """Wait for the step, without the interpreter lock, and return the ids."""
        self._event.synchronize()
        out: list[int] = self._host[: self._rows].tolist()
        return out


Weight = Tensor | Quantised


def _product(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    if isinstance(weight, Quantised):
        return kernels.matmul_8bit(x, weight.values, weight.scale, bias)
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())


@dataclass(slots=True)
class _Layer:
    qkv: Weight
    qkv_bias: Tensor
    o: Weight
    gate_up: Weight
    down: Weight
    norm1: Tensor
    norm2: Tensor


class CudaLm:
    """Prefill and decode of ``slots`` sequences. It is used by one thread at a time, on a stream of its own."""

    def __init__(
        self,
        model: SpeechLanguageModel,
        *,
        slots: int,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
        weights: WeightKind = "full",
    ) -> None:
        """Read ``model``, which may be dropped afterwards. ``weights``: kind of the products' weights; tables stay
        full."""
        config = self.config = model.config
        network: Any = model  # submodules are Tensor | Module to a type checker
        self.device, self.dtype, self.slots, self.max_length = device, dtype, slots, max_length

        def take(*parts: Tensor) -> Tensor:
            return torch.cat([p.detach().to(device=device, dtype=dtype) for p in parts]).contiguous()

        def weight(*parts: Tensor) -> Weight:
            if weights == "full":
                return take(*parts)
            return quantise(torch.cat([p.detach().to(device) for p in parts]), weights)

        head = [network.llm_embedding.weight] if config.version == 2 else []
        self.table = take(network.speech_embedding.weight, *head, network.backbone.embed_tokens.weight)
        self.layers = [
            _Layer(
                qkv=weight(a.q_proj.weight, a.k_proj.weight, a.v_proj.weight),
                qkv_bias=take(a.q_proj.bias, a.k_proj.bias, a.v_proj.bias),
                o=weight(a.o_proj.weight),
                gate_up=weight(m.gate_proj.weight, m.up_proj.weight),
                down=weight(m.down_proj.weight),
                norm1=take(layer.input_layernorm.weight),
                norm2=take(layer.post_attention_layernorm.weight),
            )
            for layer in network.backbone.layers
            for a, m in [(layer.self_attn, layer.mlp)]
        ]
        self.norm = take(network.backbone.norm.weight)
        # With an odd number of columns cuBLAS does not use its fast kernels: 28 us instead of 7 at 128 rows.
        ids, bias = config.speech_vocab_size, network.llm_decoder.bias
        padding = -ids % 64
        self.head = weight(F.pad(network.llm_decoder.weight, (0, 0, 0, padding)))
        self.head_bias = None if bias is None else F.pad(take(bias), (0, padding))
        # There is one slot more than is given out, to which rows of padding write.
        self.scratch = slots
        self.state = SlotState(slots + 1, max_length, device, window=config.sampling.window)
        self.cache = torch.zeros(
            config.layers, 2, slots + 1, config.kv_heads, max_length, config.head_dim, device=device, dtype=dtype
        )
        half = config.head_dim // 2
        rate = config.rope_theta ** (-torch.arange(half, device=device).double() / half)
        phase = torch.arange(max_length, device=device)[:, None] * rate
        self.cos, self.sin = phase.cos().float(), phase.sin().float()
        self._one_launch = decode_step.load(model, device=device, dtype=dtype) if weights == "full" else None
        """The steps of up to ``decode_step.MOST_ROWS`` sequences, where the GPU can run them."""
        self.stream: Any = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._decode: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._prefill: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._pool: Any = None

    # -- the network -----------------------------------------------------------------------------------------------

    def decode_logits(self, slots: Tensor) -> Tensor:
        """Feed the last id of each slot, whose keys the cache gets. Return logits ``(rows, ids)``, padded on the
        right."""
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

    def prefill_logits(self, ids: Tensor, slots: Tensor, lengths: Tensor) -> Tensor:
        """Feed whole prompts ``(rows, n)`` from position 0. Return logits ``(rows, ids)`` at each row's last
        position."""
        config = self.config
        rows, n = ids.shape
        h = self.table.index_select(0, ids.flatten())
        y: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x = kernels.add_rms_norm(y, h, layer.norm1, config.rms_norm_eps)
            qkv = _product(x, layer.qkv, layer.qkv_bias).view(rows, n, -1)
            kernels.rotate_store(qkv, self.cache[number], slots, self.cos, self.sin, config.heads)
            heads = qkv.view(rows, n, -1, config.head_dim).transpose(1, 2)
            q, k, v = torch.split(heads, [config.heads, config.kv_heads, config.kv_heads], dim=1)
            # Padding is on the right, so the causal mask hides it from the real positions.
            x = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            y = _product(x.transpose(1, 2).reshape(rows * n, -1), layer.o)
            x = kernels.add_rms_norm(y, h, layer.norm2, config.rms_norm_eps)
            y = _product(kernels.silu_mul(_product(x, layer.gate_up)), layer.down)
        assert y is not None
        last = (lengths - 1).clamp(min=0) + torch.arange(rows, device=ids.device) * n
        return self._logits(
            kernels.add_rms_norm(y.index_select(0, last), h.index_select(0, last), self.norm, config.rms_norm_eps)
        )

    def _logits(self, x: Tensor) -> Tensor:
        return _product(x, self.head, self.head_bias)

    def _decode_step(self, slots: Tensor, tokens: Tensor) -> None:
        self._sample(self.decode_logits(slots), slots, tokens, advance=True)

    def _prefill_step(self, packed: Tensor, tokens: Tensor) -> None:
        """Run a prefill step. ``packed``: ``(rows, 4 + n)``, int64: slot, length, seed, least, ids."""
        slots, lengths, seeds, least = packed[:, :4].T.contiguous().unbind(0)
        self.state.begin(slots, lengths, seeds, least)
        self._sample(self.prefill_logits(packed[:, 4:].contiguous(), slots, lengths), slots, tokens, advance=False)

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
    def warm_up(self, rows: Sequence[int] = DECODE_ROWS, shapes: Sequence[tuple[int, int]] = PREFILL_SHAPES) -> None:
        """Capture the graphs. Running sequences are lost."""
        assert self.stream is not None
        with torch.cuda.stream(self.stream):
            for count in sorted(sizes_for(self.slots, rows), reverse=True):
                slots = torch.full((count,), self.scratch, dtype=torch.long, device=self.device)
                tokens = torch.zeros(count, dtype=torch.long, device=self.device)
                self._decode[count] = (self._capture(self._decode_step, slots, tokens), slots, tokens)
            for count, n in shapes:
                if n > self.max_length or (count > 1 and count > self.slots):
                    continue
                packed = torch.zeros(count, 4 + n, dtype=torch.long, device=self.device)
                packed[:, 0], packed[:, 1] = self.scratch, 1
                tokens = torch.zeros(count, dtype=torch.long, device=self.device)
                self._prefill[count, n] = (self._capture(self._prefill_step, packed, tokens), packed, tokens)
        self.stream.synchronize()

    def _capture(self, step: Callable[..., None], *buffers: Tensor) -> torch.cuda.CUDAGraph:
        for _ in range(2):
            step(*buffers)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
            step(*buffers)
        self._pool = self._pool or graph.pool()
        return graph

    def prefill_rows(self, longest: int) -> int:
        """See ``torch_lm.LmSteps``. Without a graph, a prefill takes 100 ms or more."""
        return max((rows for rows, n in self._prefill if n >= longest), default=self.slots)

    def filled(self, rows: int) -> int:
        """See ``torch_lm.LmSteps``."""
        return next(count for count in _FILLED_ROWS if count >= rows)

    @torch.inference_mode()
    def prefill(self, admissions: Sequence[Admission]) -> Pending:
        """Begin sequences. Return the first id of each."""
        rows, longest = len(admissions), max(len(a.ids) for a in admissions)
        shape = min(
            (s for s in self._prefill if s[0] >= rows and s[1] >= longest), key=lambda s: s[0] * s[1], default=None
        )
        count, n = shape or (rows, longest)
        host = torch.zeros(count, 4 + n, dtype=torch.long, pin_memory=True)
        view = host.numpy()
        view[:, 0], view[:, 1] = self.scratch, 1
        for line, a in zip(view, admissions, strict=False):
            line[:4] = a.slot, len(a.ids), a.seed, a.min_tokens
            line[4 : 4 + len(a.ids)] = a.ids
        with torch.cuda.stream(self.stream):
            if shape is None:
                packed = host.to(self.device, non_blocking=True)
                tokens = torch.zeros(count, dtype=torch.long, device=self.device)
                self._prefill_step(packed, tokens)
            else:
                graph, packed, tokens = self._prefill[shape]
                packed.copy_(host, non_blocking=True)
                graph.replay()
            return self._send(tokens, rows)

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
