"""The language model of both versions: a Qwen2 backbone, speech embedding and speech head.

An utterance is one sequence: ``[sos] [prompt text] [text] [task] [prompt speech]``, then generated speech ids. The
module has no state: keys and values are in a ``KeyValueCache`` with one slot per sequence. The checkpoint's text head
is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.config import LanguageModelConfig
from tts_engine.cosyvoice.models.streaming import split_heads


class KeyValueCache:
    """The KV cache ``[layers, 2, slots, kv_heads, max_length, head_dim]``. A slot has one sequence from position 0.

    It is never cleared: a new sequence overwrites the old one, and masks hide positions beyond its length.
    """

    def __init__(
        self,
        config: LanguageModelConfig,
        *,
        slots: int,
        max_length: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (config.layers, 2, slots, config.kv_heads, max_length, config.head_dim)
        self.data = torch.zeros(shape, device=device, dtype=dtype)

    def copy_prefix(self, source: int, target: Tensor, length: int) -> None:
        """Copy the first ``length`` positions of ``source`` (a voice's sos and prompt text) to the slots ``target``."""
        self.data[:, :, target, :, :length] = self.data[:, :, source : source + 1, :, :length]


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, eps=self.eps).to(x.dtype) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions by halves: x ``(rows, heads, n, head_dim)``, cos and sin ``(rows, 1, n, head_dim)``."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner)
        self.k_proj = nn.Linear(config.hidden_size, kv)
        self.v_proj = nn.Linear(config.hidden_size, kv)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor, step: _Step, layer: int) -> Tensor:
        rows, n, _ = x.shape
        q = rotate(split_heads(self.q_proj(x), self.heads).transpose(1, 2), step.cos, step.sin)
        k = rotate(split_heads(self.k_proj(x), self.kv_heads).transpose(1, 2), step.cos, step.sin)
        v = split_heads(self.v_proj(x), self.kv_heads).transpose(1, 2)
        k, v = step.append(layer, k, v)
        # Query heads that share a key head become queries of that head, so that keys are not copied for each query
        # head.
        q = q.reshape(rows, self.kv_heads, -1, q.shape[-1])
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=step.mask)
        out = out.reshape(rows, self.heads, n, -1).transpose(1, 2).reshape(rows, n, -1)
        projected: Tensor = self.o_proj(out)
        return projected


class Mlp(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, step: _Step, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), step, layer)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Step:
    """The positions and slots of one forward call, the same for all layers."""

    def __init__(
        self,
        config: LanguageModelConfig,
        x: Tensor,
        start: Tensor,
        slots: Tensor | None,
        cache: KeyValueCache,
        keys: int,
    ) -> None:
        rows, n, _ = x.shape
        self.cache, self.slots, self.rows, self.keys = cache, slots, rows, keys
        self.position = start[:, None] + torch.arange(n, device=x.device)
        half = config.head_dim // 2
        rate = config.rope_theta ** (-torch.arange(half, device=x.device).float() / half)
        phase = self.position[:, None, :, None].float() * rate
        self.cos, self.sin = (torch.cat([f, f], dim=-1).to(x.dtype) for f in (phase.cos(), phase.sin()))
        mask = torch.arange(keys, device=x.device) <= self.position[:, :, None]
        self.mask = mask[:, None].repeat(1, 1, config.heads // config.kv_heads, 1)
        # Right padding of a prefill may exceed the last position. It is then written to the last position, which the
        # sequence overwrites if it gets there.
        self.write = self.position.clamp(max=cache.data.shape[4] - 1)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        store = self.cache.data[layer]
        rows = torch.arange(self.rows, device=k.device) if self.slots is None else self.slots
        new = torch.stack([k, v]).permute(1, 3, 0, 2, 4).to(store.dtype)  # rows, n, 2, kv_heads, head_dim
        store.permute(1, 3, 0, 2, 4).index_put_((rows[:, None], self.write), new)
        seen = store[:, : self.rows] if self.slots is None else store.index_select(1, self.slots)
        k, v = seen[..., : self.keys, :].to(k.dtype)
        return k, v


class Backbone(nn.Module):
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class _Named(nn.Module):
    """A level of the checkpoint's names with one module, ``model``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class SpeechLanguageModel(nn.Module):
    """Turns embeddings into hidden states and speech logits. Names are those of ``llm.pt``, without the text head."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.llm = _Named(_Named(Backbone(config)))
        if config.version == 2:
            self.llm_embedding = nn.Embedding(2, config.hidden_size)
        self.speech_embedding = nn.Embedding(config.speech_vocab_size, config.hidden_size)
        self.llm_decoder = nn.Linear(config.hidden_size, config.speech_vocab_size, bias=config.version == 2)

    @property
    def backbone(self) -> Backbone:
        return self.llm.model.model  # type: ignore[return-value]

    def embed_text(self, ids: Tensor) -> Tensor:
        """Turn text ids of any shape into embeddings ``(..., hidden)``."""
        out: Tensor = self.backbone.embed_tokens(ids)
        return out

    def embed_speech(self, ids: Tensor) -> Tensor:
        """Turn speech ids of any shape into embeddings ``(..., hidden)``."""
        out: Tensor = self.speech_embedding(ids)
        return out

    @property
    def sos(self) -> Tensor:
        """The embedding that opens a sequence, shape ``(1, hidden)``."""
        if self.config.version == 2:
            return self.llm_embedding.weight[:1]
        first = self.config.speech_token_size
        return self.speech_embedding.weight[first : first + 1]

    @property
    def task(self) -> Tensor:
        """The embedding that separates text from speech, shape ``(1, hidden)``."""
        if self.config.version == 2:
            return self.llm_embedding.weight[1:2]
        third = self.config.speech_token_size + 2
        return self.speech_embedding.weight[third : third + 1]

    def prompt(self, prompt_text: Sequence[int], text: Sequence[int], prompt_speech: Sequence[int]) -> Tensor:
        """Return the sequence before the first generated id, shape ``(n, hidden)``.

        Cross-lingual, instruct and built-in voices have no ``prompt_speech``. Cross-lingual and built-in voices have no
        ``prompt_text`` either.
        """
        device = self.speech_embedding.weight.device
        text_ids = torch.tensor([*prompt_text, *text], dtype=torch.long, device=device)
        speech_ids = torch.tensor(prompt_speech, dtype=torch.long, device=device)
        return torch.cat([self.sos, self.embed_text(text_ids), self.task, self.embed_speech(speech_ids)])

    def forward(
        self,
        x: Tensor,
        start: Tensor,
        cache: KeyValueCache,
        *,
        slots: Tensor | None = None,
        keys: int | None = None,
    ) -> Tensor:
        """Return the hidden states after the final norm, ``(rows, n, hidden)``.

        Decode has ``n = 1``. Prefill has any ``n``, padded on the right; later ids overwrite the keys of the padding
        before anything attends to them. All shapes are fixed, so that a step can be captured in a CUDA graph.

        Args:
            x: embeddings, shape ``(rows, n, hidden)``.
            start: shape ``(rows,)``, int64: position of each row's first embedding.
            slots: shape ``(rows,)``, int64. None: row ``i`` is slot ``i``, and the cache is read without a copy.
            keys: number of positions to attend over, at least the highest position + 1. None: the whole cache.
        """
        step = _Step(self.config, x, start, slots, cache, cache.data.shape[4] if keys is None else keys)
        for number, layer in enumerate(self.backbone.layers):
            x = layer(x, step, number)
        out: Tensor = self.backbone.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the speech logits ``(..., speech_vocab_size)``, fp32."""
        out: Tensor = self.llm_decoder(hidden)
        return out.float()
