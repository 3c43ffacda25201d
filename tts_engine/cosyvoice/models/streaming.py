"""The state of chunked computation, kept outside the networks: paged keys and values, and convolution tails.

A row of a batch is one sequence that has been fed ``start`` frames and is now fed up to ``n`` more. A ``Span``
describes the rows for the networks, which own no state. A span without a cache computes whole sequences at once.

Keys and values are in pages of one chunk (50 frames). A page is written once, and rows may share the pages of a common
prefix, such as a voice prompt. Tails are the last inputs of each causal convolution; they are in slots. Page 0 and slot
0 are scratch, for rows that only pad a batch. All shapes depend only on the sizes of the arguments, and tensors index
all writes, so a call can be captured in a CUDA graph.

Under the chunk mask, a query attends to the keys up to the end of its own chunk. Feeding whole chunks therefore gives
the same values as one pass. Only the last feed of a sequence may end inside a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PagedKeys:
    """Keys and values of every attention layer of a network, in pages of ``page_frames`` positions."""

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        page_frames: int,
        channels: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        # Zeros, because a masked key has weight 0, and 0 times NaN is NaN.
        self.data = torch.zeros(layers, 2, pages, page_frames, channels, device=device, dtype=dtype)
        self.page_frames = page_frames

    def append(self, layer: int, new: Tensor, pages: Tensor, start: Tensor) -> Tensor:
        """Write the fed frames and return all keys and values of the rows.

        Args:
            new: shape ``(2, rows, n, channels)``, keys and values; ``n`` is padded to whole pages.
            pages: shape ``(rows, pages)``: page numbers of each row from position 0 on.
            start: shape ``(rows,)``, multiple of ``page_frames``.

        Returns:
            shape ``(2, rows, pages * page_frames, channels)``.
        """
        _, rows, n, channels = new.shape
        count = -(-n // self.page_frames)
        new = F.pad(new, (0, 0, 0, count * self.page_frames - n)).to(self.data.dtype)
        first = start // self.page_frames
        index = first[:, None] + torch.arange(count, device=start.device)
        # The padding of a row has no pages and is written to the scratch page.
        target = torch.where(
            index < pages.shape[1], pages.gather(1, index.clamp(max=pages.shape[1] - 1)), torch.zeros_like(index)
        )
        store = self.data[layer]
        store.index_copy_(1, target.flatten(), new.reshape(2, rows * count, self.page_frames, channels))
        return store.index_select(1, pages.flatten()).view(2, rows, -1, channels)


class ConvTails:
    """The last inputs of every causal convolution of a network, by slot."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        *,
        slots: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """``shapes``: ``(width, channels)`` of each convolution, from ``number_tails``. Consecutive tails of equal
        shape are adjacent in memory."""
        runs = ((shape, len(list(run))) for shape, run in groupby(shapes))
        self.data = [
            tail
            for shape, count in runs
            for tail in torch.zeros(count, slots, *shape, device=device, dtype=dtype).unbind()
        ]

    def reset(self, slots: Tensor) -> None:
        """Start sequences in these slots: set the tails to zero, the convolutions' padding."""
        for buffer in self.data:
            buffer.index_fill_(0, slots, 0)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy the slots ``source`` to ``target``, for example at the end of a voice prompt."""
        for buffer in self.data:
            buffer.index_copy_(0, target, buffer.index_select(0, source))

    def extend(self, tail: int, x: Tensor, slots: Tensor, length: Tensor) -> Tensor:
        """Prepend the tail to ``x`` ``(rows, n, channels)`` and store the last inputs before ``length`` as the new
        tail."""
        buffer = self.data[tail]
        width = buffer.shape[1]
        x = torch.cat([buffer.index_select(0, slots).to(x.dtype), x], dim=1)
        last = (length[:, None] + torch.arange(width, device=x.device))[:, :, None].expand(-1, -1, x.shape[2])
        buffer.index_copy_(0, slots, x.gather(1, last).to(buffer.dtype))
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The rows of a batch: what is fed now, what it may attend to, and where the state is."""

    start: Tensor
    """Number of frames fed before, a multiple of ``chunk`` if there is a cache; shape ``(rows,)``, int64."""
    length: Tensor
    """Number of real frames fed now; the rest is padding on the right. Shape ``(rows,)``, int64."""
    chunk: int | None
    """Frames per chunk of the attention mask. None: every frame attends to its whole row."""
    keys: PagedKeys | None = None
    tails: ConvTails | None = None
    pages: Tensor | None = None
    """Pages of each row from position 0 on: shape ``(rows, pages)``, int64."""
    slots: Tensor | None = None
    """Slot of each row's tails: shape ``(rows,)``, int64."""

    @staticmethod
    def whole(length: Tensor, *, chunk: int | None) -> Span:
        """Return the span of whole sequences from position 0, without a cache."""
        return Span(start=torch.zeros_like(length), length=length, chunk=chunk)

    def scaled(self, factor: int, keys: PagedKeys | None) -> Span:
        """Return the same rows at ``factor`` times the rate, with the keys of that rate."""
        return replace(
            self,
            start=self.start * factor,
            length=self.length * factor,
            chunk=None if self.chunk is None else self.chunk * factor,
            keys=keys,
        )

    def positions(self, n: int) -> Tensor:
        """Return the absolute positions of the fed frames, shape ``(rows, n)``."""
        return self.start[:, None] + torch.arange(n, device=self.start.device)

    def key_count(self, n: int) -> int:
        """Return the number of keys that ``append`` returns if ``n`` frames are fed."""
        if self.keys is None or self.pages is None:
            return n
        return self.pages.shape[1] * self.keys.page_frames

    def mask(self, n: int) -> Tensor:
        """Return the attention mask, True where a query attends to a key: shape ``(rows, n, keys)``.

        Every query has at least one key (in a row of padding, key 0), because a softmax over no key is NaN.
        """
        limit = (self.start + self.length).clamp(min=1)[:, None].expand(-1, n)
        if self.chunk is not None:
            limit = torch.minimum(limit, (self.positions(n) // self.chunk + 1) * self.chunk)
        return torch.arange(self.key_count(n), device=limit.device) < limit[:, :, None]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values ``(rows, n, channels)`` of a layer. Return all that ``mask`` covers."""
        if self.keys is None:
            return k, v
        assert self.pages is not None
        k, v = self.keys.append(layer, torch.stack([k, v]), self.pages, self.start).to(k.dtype)
        return k, v

    def extend(self, tail: int, x: Tensor, width: int) -> Tensor:
        """Prepend the ``width`` earlier frames to ``x`` ``(rows, n, channels)``; zeros at the start of a sequence."""
        if self.tails is None:
            return F.pad(x, (0, 0, width, 0))
        assert self.slots is not None
        return self.tails.extend(tail, x, self.slots, self.length)


class CausalConv1d(nn.Conv1d):
    """A causal convolution over frames. Input and output have shape ``(rows, n, channels)``."""

    tail = -1
    """Index of this convolution's tail in ``ConvTails``, set by ``number_tails``."""

    def forward(self, x: Tensor, span: Span) -> Tensor:  # type: ignore[override]
        x = span.extend(self.tail, x, self.kernel_size[0] - 1)
        return F.conv1d(x.transpose(1, 2), self.weight, self.bias, groups=self.groups).transpose(1, 2)


def number_tails(network: nn.Module) -> list[tuple[int, int]]:
    """Number the causal convolutions of a network. Return ``(width, channels)`` of each, for ``ConvTails``."""
    convolutions = [m for m in network.modules() if isinstance(m, CausalConv1d)]
    for number, convolution in enumerate(convolutions):
        convolution.tail = number
    return [(c.kernel_size[0] - 1, c.in_channels) for c in convolutions]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape ``(..., heads * head_dim)`` to ``(..., heads, head_dim)``."""
    return x.reshape(*x.shape[:-1], heads, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Compute scaled dot-product attention on ``(rows, n, heads * head_dim)``; the mask is ``(rows, n, keys)``."""
    q, k, v = (split_heads(part, heads).transpose(1, 2) for part in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    return out.transpose(1, 2).flatten(2)


def sinusoid(x: Tensor, dim: int) -> Tensor:
    """Embed times ``(n,)`` in [0, 1] as ``(n, dim)``: first the sines, then the cosines of ``1000 x``."""
    half = dim // 2
    decay = torch.log(torch.tensor(10000.0)).item() / (half - 1)
    rate = torch.exp(torch.arange(half, device=x.device).float() * -decay)
    phase = 1000.0 * x[:, None] * rate
    return torch.cat([phase.sin(), phase.cos()], dim=-1)
