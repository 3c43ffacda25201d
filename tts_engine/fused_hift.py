"""The residual blocks of the vocoders on a GPU: activation and what the convolution after it needs in one launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine import kernels
from tts_engine.models import hift
from tts_engine.models.hift_causal import CausalHift, ResBlock


class FusedResBlock(nn.Module):
    """Stands in for CosyVoice3's; the same values. The tail and its update are in the activation's launch."""

    def __init__(self, block: ResBlock) -> None:
        super().__init__()
        self._block = block

    def forward(self, x: Tensor, feed: Any, rate: int) -> Tensor:
        block = self._block
        for conv1, conv2, snake1, snake2 in zip(
            block.convs1, block.convs2, block.activations1, block.activations2, strict=True
        ):
            y = _convolve(conv1, snake1, x, feed, rate)
            x = x + _convolve(conv2, snake2, y, feed, rate)
        return x


def _convolve(conv: Any, snake: Any, x: Tensor, feed: Any, rate: int) -> Tensor:
    y = kernels.snake_extend(x, snake.alpha, feed.tails[conv.tail], feed.slots, feed.frames, rate)
    return F.conv1d(y, conv.weight, conv.bias, dilation=conv.dilation)


class FusedSymmetricResBlock(nn.Module):
    """Stands in for CosyVoice2's; the same values. The zeros beyond a row's end are in the activation's launch."""

    def __init__(self, block: hift.ResBlock) -> None:
        super().__init__()
        self._block = block

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        block: Any = self._block
        for conv1, conv2, snake1, snake2 in zip(
            block.convs1, block.convs2, block.activations1, block.activations2, strict=True
        ):
            y = conv1(kernels.snake_until(x, snake1.alpha, count))
            x = x + conv2(kernels.snake_until(y, snake2.alpha, count))
        return x


def fuse(vocoder: hift.Hift | CausalHift) -> None:
    """Exchange the residual blocks in place."""
    for blocks in (vocoder.source_resblocks, vocoder.resblocks):
        for number, block in enumerate(blocks):
            if isinstance(block, ResBlock):
                blocks[number] = FusedResBlock(block)
            elif isinstance(block, hift.ResBlock):
                blocks[number] = FusedSymmetricResBlock(block)
