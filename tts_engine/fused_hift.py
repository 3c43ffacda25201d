"""The vocoders on a GPU. CosyVoice3's is channels-last from the mel to the spectrum, a launch a convolution: product,
bias, residual, sum and the next one's activation. CosyVoice2's has its activations fused."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine import vocoder_kernels as kernels
from tts_engine.models import hift
from tts_engine.models.hift_causal import CausalHift, F0Predictor, Feed, LeftConv1d, TailShape

_POST_SLOPE = 0.01
_BINS = 32
"""Real and imaginary parts of a spectrum are 18: zeros make it what a product takes."""


@dataclass(slots=True)
class _Conv:
    """A convolution with the activation before it."""

    weight: Tensor
    """Shape ``(taps, inputs, outputs)``, fp16."""
    bias: Tensor
    tail: int
    dilation: int = 1
    alpha: Tensor | None = None
    """Of Snake; None: leaky ReLU of ``slope``."""
    slope: float = 0.0

    def activation(self, feed: Feed) -> kernels.Activation:
        return kernels.Activation(feed.tails[self.tail], self.alpha, self.slope)

    def activate(self, x: Tensor, feed: Feed) -> Tensor:
        """``x`` ``(rows, n, inputs)`` to what a call takes; where no convolution has done it."""
        return kernels.activate(x, self.activation(feed), feed.slots)

    def __call__(self, activated: Tensor, feed: Feed, rate: int, *, then: _Conv | None = None, **into: Any) -> Any:
        """``into``: see ``left_conv``. Returns what ``then`` takes."""
        return kernels.left_conv(
            activated,
            self.weight,
            self.bias,
            dilation=self.dilation,
            tail=feed.tails[self.tail],
            slots=feed.slots,
            frames=feed.frames,
            rate=rate,
            then=None if then is None else then.activation(feed),
            **into,
        )


class _Block:
    """A ``ResBlock``."""

    def __init__(self, pairs: list[tuple[_Conv, _Conv]]) -> None:
        self._pairs = pairs
        self.first = pairs[0][0]

    def __call__(self, x: Tensor, activated: Tensor, feed: Feed, rate: int, **into: Any) -> Any:
        """``activated``: ``x`` as ``first`` takes it. ``into``: as a convolution's, of the block's output."""
        for (conv1, conv2), (following, _) in pairwise(self._pairs):
            y = torch.empty_like(x)
            activated = conv1(activated, feed, rate, then=conv2)
            activated = conv2(activated, feed, rate, residual=x, out=y, then=following)
            x = y
        conv1, conv2 = self._pairs[-1]
        return conv2(conv1(activated, feed, rate, then=conv2), feed, rate, residual=x, **into)


@dataclass(slots=True)
class _Stage:
    up: _Conv
    upsample_rate: int
    source_stride: int
    source_down: tuple[Tensor, Tensor]
    """Weight and bias of a convolution over pieces of as many STFT frames as the stride."""
    source_block: _Block
    blocks: list[_Block]


class FusedCausalHift(CausalHift):
    """``CausalHift`` with fused weights and kernels; its tails are channels-last, fp16 and activated."""

    def __init__(self, plain: CausalHift) -> None:
        """``plain`` is read and may be dropped after."""
        nn.Module.__init__(self)  # no networks of its own
        network: Any = plain  # submodules are Tensor | Module to a type checker
        config = self.config = plain.config
        self.m_source, self.spectrum, self.strides = plain.m_source, plain.spectrum, plain.strides
        self.register_buffer("noise", plain.noise, persistent=False)
        self.tail_shapes = plain.tail_shapes[: self._FIRST_CONVOLUTION]
        self.f0_predictor = FusedF0Predictor(network.f0_predictor, self.tail_shapes)  # type: ignore[assignment]
        self._pre = _half(network.conv_pre.weight.permute(2, 1, 0)), _exact(network.conv_pre.bias)
        count = len(config.resblock_kernels)
        self._stages = [
            _Stage(
                up=self._conv(_repeated(up, rate), up.bias.repeat(rate), slope=config.leaky_slope),
                upsample_rate=rate,
                source_stride=stride,
                source_down=_piecewise(down, stride),
                source_block=self._block(source_block),
                blocks=[self._block(block) for block in network.resblocks[i * count : (i + 1) * count]],
            )
            for i, (up, rate, stride, down, source_block) in enumerate(
                zip(
                    network.ups,
                    config.upsample_rates,
                    plain.strides,
                    network.source_downs,
                    network.source_resblocks,
                    strict=True,
                )
            )
        ]
        post = network.conv_post
        unused = _BINS - post.out_channels
        self._post = self._conv(
            F.pad(post.weight.permute(2, 1, 0), (0, unused)), F.pad(post.bias, (0, unused)), slope=_POST_SLOPE
        )

    def _conv(self, weight: Tensor, bias: Tensor, *, dilation: int = 1, **activation: Any) -> _Conv:
        taps, inputs, _ = weight.shape
        self.tail_shapes.append(TailShape(((taps - 1) * dilation, inputs), torch.float16))
        return _Conv(_half(weight), _exact(bias), len(self.tail_shapes) - 1, dilation, **activation)

    def _block(self, block: Any) -> _Block:
        def conv(conv: LeftConv1d, snake: hift.Snake) -> _Conv:
            assert conv.bias is not None
            return self._conv(
                conv.weight.permute(2, 1, 0), conv.bias, dilation=conv.dilation[0], alpha=_exact(snake.alpha)
            )

        convs = zip(block.convs1, block.activations1, block.convs2, block.activations2, strict=True)
        return _Block([(conv(conv1, snake1), conv(conv2, snake2)) for conv1, snake1, conv2, snake2 in convs])

    def _upsample(self, window: Tensor, spectrum: Tensor, first: Tensor, feed: Feed) -> Tensor:
        bins = spectrum.shape[1]
        mel = window.transpose(1, 2).half().contiguous()
        spectrum = F.pad(spectrum.transpose(1, 2).half(), (0, _BINS - bins))
        ups = [stage.up for stage in self._stages]
        activated: Any = kernels.left_conv(mel, *self._pre, slots=feed.slots, then=ups[0].activation(feed))
        rate = 1
        for stage, following in zip(self._stages, [*ups[1:], self._post], strict=True):
            x = self._up(stage, activated, first, feed, rate, again=following is self._post)
            rate *= stage.upsample_rate
            skip = self.strides[0] - stage.source_stride
            pieces = spectrum[:, skip:].view(len(x), -1, stage.source_stride * _BINS)
            source = torch.empty_like(x)
            beside = stage.source_block
            activated = kernels.left_conv(
                pieces, *stage.source_down, out=source, slots=feed.slots, then=beside.first.activation(feed)
            )
            activated = beside(source, activated, feed, rate, out=x, add=True, then=stage.blocks[0].first)
            mean = torch.empty_like(x)
            for number, block in enumerate(stage.blocks):
                if number > 0:
                    activated = block.first.activate(x, feed)
                then = following if number == len(stage.blocks) - 1 else None
                done = block(x, activated, feed, rate, out=mean, scale=1 / len(stage.blocks), add=number > 0, then=then)
            activated = done
        out = torch.empty(*mean.shape[:2], _BINS, device=mean.device)
        self._post(activated, feed, rate, out=out)
        return out[:, :, :bins].transpose(1, 2)

    def _up(self, stage: _Stage, activated: Tensor, first: Tensor, feed: Feed, rate: int, *, again: bool) -> Tensor:
        """``again``: one position more, with the last of the chunk before; the reflected one where there is none."""
        taps, _, outputs = stage.up.weight.shape
        rows, n = activated.shape[0], activated.shape[1] - (taps - 1)
        channels = outputs // stage.upsample_rate
        out = torch.empty(rows, again + n * stage.upsample_rate, channels, device=activated.device)
        stage.up(activated, feed, rate, out=out[:, int(again) :].view(rows, n, outputs))
        if again:
            tail = feed.tails[self._UP]
            before = tail.index_select(0, feed.slots)[:, :, 0]
            out[:, 0] = before
            end = (feed.frames * rate * stage.upsample_rate)[:, None, None]
            tail.index_copy_(0, feed.slots, out.gather(1, end.expand(-1, 1, channels)).transpose(1, 2))
            out[:, 0] = torch.where(first[:, None], out[:, 2], before)
        return out


class FusedF0Predictor(nn.Module):
    """``F0Predictor`` as products of inputs side by side; still fp64."""

    def __init__(self, plain: F0Predictor, tail_shapes: list[TailShape]) -> None:
        """Adds its tails' shapes, ``(context, channels)``."""
        super().__init__()
        convs: Any = list(plain.condnet)[::2]
        self._convs = [(conv.weight.detach().permute(2, 1, 0).flatten(0, 1).contiguous(), conv.bias) for conv in convs]
        self._taps = [conv.kernel_size[0] for conv in convs]
        self._first_tail = len(tail_shapes)
        for conv in convs[1:]:
            tail_shapes.append(TailShape((conv.context, conv.in_channels), torch.float64))
        self._classifier = plain.classifier

    def forward(self, mel: Tensor, feed: Feed) -> Tensor:
        """As ``F0Predictor``'s."""
        x = mel.transpose(1, 2)
        for number, ((weight, bias), taps) in enumerate(zip(self._convs, self._taps, strict=True)):
            if number > 0:  # the first looks ahead: needs no past
                x = _extend(feed, self._first_tail + number - 1, x)
            rows, n = x.shape[0], x.shape[1] - taps + 1
            side_by_side = torch.cat([x[:, tap : tap + n] for tap in range(taps)], dim=2)
            x = F.elu(torch.addmm(bias, side_by_side.view(rows * n, -1), weight)).view(rows, n, -1)
        out: Tensor = self._classifier(x)
        return out[..., 0].abs()


def _extend(feed: Feed, tail: int, x: Tensor) -> Tensor:
    """``Feed.extend`` of ``x`` ``(rows, n, channels)``, one input a mel frame."""
    buffer = feed.tails[tail]
    x = torch.cat([buffer.index_select(0, feed.slots), x], dim=1)
    last = feed.frames[:, None] + torch.arange(buffer.shape[1], device=x.device)
    buffer.index_copy_(0, feed.slots, x.gather(1, last[:, :, None].expand(-1, -1, x.shape[2])))
    return x


def _half(value: Tensor) -> Tensor:
    return value.detach().half().contiguous()


def _exact(value: Tensor) -> Tensor:
    return value.detach().float().contiguous()


def _repeated(conv: Any, rate: int) -> Tensor:
    """A convolution over inputs that are repeated ``rate`` times as one over the inputs themselves, whose outputs are
    those of ``rate`` positions: shape ``(taps, inputs, rate * outputs)``."""
    outputs, inputs, kernel = conv.weight.shape
    past = -(-(kernel - 1) // rate)
    weight: Tensor = conv.weight.new_zeros(past + 1, inputs, rate, outputs)
    for phase in range(rate):
        for tap in range(kernel):
            weight[past + (phase - (kernel - 1) + tap) // rate, :, phase] += conv.weight[:, :, tap].T
    return weight.flatten(2)


def _piecewise(conv: Any, stride: int) -> tuple[Tensor, Tensor]:
    """A strided convolution over a spectrum as one over pieces of ``stride`` frames of ``_BINS`` each."""
    weight = F.pad(conv.weight.permute(2, 1, 0), (0, 0, 0, _BINS - conv.in_channels))
    return _half(weight.reshape(-1, stride * _BINS, conv.out_channels)), _exact(conv.bias)


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


@torch.no_grad()
def fuse(vocoder: hift.Hift | CausalHift) -> hift.Hift | CausalHift:
    """The vocoder for a GPU; ``vocoder`` itself is not to be used any more."""
    if isinstance(vocoder, CausalHift):
        return FusedCausalHift(vocoder)
    for blocks in (vocoder.source_resblocks, vocoder.resblocks):
        for number, block in enumerate(blocks):
            blocks[number] = FusedSymmetricResBlock(block)  # type: ignore[arg-type]
    return vocoder
