"""The conformer encoder of CosyVoice2's flow: tokens at 25 Hz in, hidden frames at 50 Hz out, chunk-causal.

The layers are pre-norm transformer layers with relative positions (Transformer-XL: content and position bias), without
convolution module and macaron half. Attention scores depend on positions only by ``i - j``, so computing in chunks with
cached keys is exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, FlowV2Config
from tts_engine.cosyvoice.models.lookahead import PreLookahead
from tts_engine.cosyvoice.models.streaming import CausalConv1d, PagedKeys, Span, split_heads

_LAYER_NORM_EPS = 1e-12


def relative_sinusoids(offsets: Tensor, dim: int) -> Tensor:
    """Embed offsets ``(n,)``, positive to the left, as ``(n, dim)``: sines on even channels, cosines on odd ones."""
    rate = torch.exp(torch.arange(0, dim, 2, device=offsets.device).float() * -(math.log(10000.0) / dim))
    phase = offsets[:, None].float() * rate
    return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1)


class RelativeOffsets:
    """The offsets ``i - j`` that a batch needs, computed once for all layers of one rate."""

    def __init__(self, span: Span, n: int, dim: int) -> None:
        keys = span.key_count(n)
        right = keys - 1 if span.chunk is None else span.chunk - 1  # largest look-ahead of a query
        self.sinusoids = relative_sinusoids(torch.arange(-right, keys, device=span.start.device), dim)
        offset = span.positions(n)[:, :, None] - torch.arange(keys, device=span.start.device)
        self.index = (offset + right).clamp(0, right + keys - 1)
        """The row of ``sinusoids`` for each pair, shape ``(rows, n, keys)``. Pairs outside the table are masked."""


class RelativeAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_out = nn.Linear(dim, dim)
        self.linear_pos = nn.Linear(dim, dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, dim // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, dim // heads))

    def forward(self, x: Tensor, span: Span, layer: int, offsets: RelativeOffsets, mask: Tensor) -> Tensor:
        q = split_heads(self.linear_q(x), self.heads)
        k, v = span.append(layer, self.linear_k(x), self.linear_v(x))
        k, v = (split_heads(part, self.heads).transpose(1, 2) for part in (k, v))
        r = split_heads(self.linear_pos(offsets.sinusoids.to(x.dtype)), self.heads).transpose(0, 1)
        by_content = (q + self.pos_bias_u).transpose(1, 2) @ k.transpose(-1, -2)
        by_offset = (q + self.pos_bias_v).transpose(1, 2) @ r.transpose(-1, -2)
        by_offset = by_offset.gather(-1, offsets.index[:, None].expand(-1, self.heads, -1, -1))
        scores = (by_content + by_offset) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask[:, None], -math.inf).softmax(dim=-1)
        out: Tensor = self.linear_out((weights @ v).transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(dim, inner)
        self.w_2 = nn.Linear(inner, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w_2(F.silu(self.w_1(x)))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, config: FlowV2Config) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.dim, config.encoder_heads)
        self.feed_forward = FeedForward(config.dim, config.encoder_ffn)
        self.norm_mha = nn.LayerNorm(config.dim, eps=_LAYER_NORM_EPS)
        self.norm_ff = nn.LayerNorm(config.dim, eps=_LAYER_NORM_EPS)

    def forward(self, x: Tensor, span: Span, layer: int, offsets: RelativeOffsets, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm_mha(x), span, layer, offsets, mask)
        out: Tensor = x + self.feed_forward(self.norm_ff(x))
        return out


class LinearEmbedding(nn.Module):
    """Linear, LayerNorm, times ``sqrt(dim)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x) * math.sqrt(x.shape[-1])
        return out


class Upsample(nn.Module):
    """Repeats each token twice, then applies a causal convolution over five frames."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = CausalConv1d(dim, dim, 5)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        out: Tensor = self.conv(x.repeat_interleave(FRAMES_PER_TOKEN, dim=1), span)
        return out


class UpsampleConformer(nn.Module):
    def __init__(self, config: FlowV2Config) -> None:
        super().__init__()
        self.embed = LinearEmbedding(config.dim)
        self.pre_lookahead_layer = PreLookahead(config.dim, config.dim)
        self.encoders = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.up_layer = Upsample(config.dim)
        self.up_embed = LinearEmbedding(config.dim)
        self.up_encoders = nn.ModuleList(EncoderLayer(config) for _ in range(config.up_layers))
        self.after_norm = nn.LayerNorm(config.dim)

    def forward(self, x: Tensor, valid: Tensor, span: Span, frame_keys: PagedKeys | None) -> Tensor:
        """Turn token embeddings ``(rows, n + 3, dim)`` into ``(rows, 2 n, dim)``; arguments as in
        ``Flow.condition``."""
        x = self.embed(x)
        x = x * (torch.arange(x.shape[1], device=x.device) < valid[:, None])[:, :, None]
        x = self.pre_lookahead_layer(x, span)
        x = _run(self.encoders, x, span)
        span = span.scaled(FRAMES_PER_TOKEN, frame_keys)
        x = self.up_embed(self.up_layer(x, span))
        out: Tensor = self.after_norm(_run(self.up_encoders, x, span))
        return out


def _run(layers: nn.ModuleList, x: Tensor, span: Span) -> Tensor:
    offsets = RelativeOffsets(span, x.shape[1], x.shape[2])
    mask = span.mask(x.shape[1])
    for number, layer in enumerate(layers):
        x = layer(x, span, number, offsets, mask)
    return x
