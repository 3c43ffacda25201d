"""The vocoders on a GPU, channels-last from mel to spectrum. A convolution is one launch: product, bias, residual, sum,
and the activation for the next convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels import vocoder as kernels
from tts_engine.cosyvoice.models import hift, hift_causal
from tts_engine.cosyvoice.models.config import FRAME_SAMPLES
from tts_engine.cosyvoice.models.hift_causal import CausalHift, Feed, TailShape

_POST_SLOPE = 0.01
_LEAST_CHANNELS = 16
_BINS = 32
"""Channels of a spectrum: 18 real and imaginary parts, padded with zeros to a size for products."""


@dataclass(slots=True)
class _Conv:
    """A convolution with the activation before it."""

    weight: Tensor
    """Shape ``(taps, inputs, outputs)``, fp16."""
    bias: Tensor
    dilation: int = 1
    alpha: Tensor | None = None
    """Snake's alpha. None: the activation is a leaky ReLU with ``slope``."""
    slope: float = 1.0
    tail: int | None = None
    """Index of this convolution's tail. None: it has none."""

    def __call__(self, activated: Tensor, rows: _Rows, *, then: _Conv | None = None, **into: Any) -> Any:
        """Run the convolution and return the input of ``then``. ``into``: arguments of ``convolve`` for the output."""
        following = None if then is None else rows.activation(then)
        return kernels.convolve(
            activated, self.weight, self.bias, dilation=self.dilation, then=following, **rows.ends(self), **into
        )


class _Rows(Protocol):
    """The start and end of a batch's rows at one rate, which decide the padding of convolutions."""

    def activation(self, conv: _Conv) -> kernels.Activation:
        """Return the activation before ``conv`` and its padding."""

    def ends(self, conv: _Conv) -> dict[str, Any]:
        """Return the arguments of ``convolve`` for the ends of rows."""

    def activate(self, x: Tensor, conv: _Conv) -> Tensor:
        """Activate and pad ``x`` ``(rows, n, inputs)`` as the input of ``conv``."""


@dataclass(slots=True, frozen=True)
class _StreamRows:
    """Rows of streams. The tail of the previous feed precedes a row's inputs."""

    feed: Feed
    rate: int
    """Positions per mel frame."""

    def activation(self, conv: _Conv) -> kernels.Activation:
        assert conv.tail is not None
        return kernels.Activation(self.feed.tails[conv.tail], conv.alpha, conv.slope)

    def ends(self, conv: _Conv) -> dict[str, Any]:
        feed = self.feed
        tail = None if conv.tail is None else feed.tails[conv.tail]
        return {"tail": tail, "slots": feed.slots, "frames": feed.frames, "rate": self.rate}

    def activate(self, x: Tensor, conv: _Conv) -> Tensor:
        return kernels.activate(x, self.activation(conv), slots=self.feed.slots)


@dataclass(slots=True, frozen=True)
class _WholeRows:
    """Whole sequences, padded with zeros on both sides."""

    count: Tensor
    """Number of positions of each row, ``(rows,)``, int64."""

    def activation(self, conv: _Conv) -> kernels.Activation:
        padding = (len(conv.weight) - 1) * conv.dilation // 2
        return kernels.Activation(None, conv.alpha, conv.slope, padding)

    def ends(self, conv: _Conv) -> dict[str, Any]:
        return {"count": self.count}

    def activate(self, x: Tensor, conv: _Conv) -> Tensor:
        return kernels.activate(x, self.activation(conv), count=self.count)


class _Block:
    """A ``ResBlock``."""

    def __init__(self, pairs: list[tuple[_Conv, _Conv]]) -> None:
        self._pairs = pairs
        self.first = pairs[0][0]

    def __call__(self, x: Tensor, activated: Tensor, rows: _Rows, **into: Any) -> Any:
        """Run the block. ``activated``: input of the first convolution. ``into``: arguments of ``convolve`` for the
        output."""
        for (conv1, conv2), (following, _) in pairwise(self._pairs):
            y = torch.empty_like(x)
            activated = conv1(activated, rows, then=conv2)
            activated = conv2(activated, rows, residual=x, out=y, then=following)
            x = y
        conv1, conv2 = self._pairs[-1]
        return conv2(conv1(activated, rows, then=conv2), rows, residual=x, **into)


@dataclass(slots=True)
class _Stage:
    up: _Conv
    upsample_rate: int
    skip: int
    """STFT frames at the start of the spectrum that this stage does not use. The first stage uses all."""
    source_stride: int
    source_down: _Conv
    """The strided convolution as a convolution over groups of ``source_stride`` STFT frames."""
    source_block: _Block
    blocks: list[_Block]


class _Network:
    """The network from mel and the excitation's spectrum to the output spectrum."""

    def __init__(self, plain: Any, tails: list[TailShape] | None = None) -> None:
        """``tails``: list to which a causal network appends the shapes of its tails. None: the network is symmetric."""
        config = plain.config
        self._tails = tails
        strides = hift.source_strides(config)
        count = len(config.resblock_kernels)
        sides = 2 if tails is None else 1
        self.pre = _Conv(_half(plain.conv_pre.weight.permute(2, 1, 0)), _exact(plain.conv_pre.bias))
        self._stages = [
            _Stage(
                up=self._conv(
                    (_transposed if isinstance(up, nn.ConvTranspose1d) else _repeated)(up, rate),
                    up.bias.repeat(rate),
                    slope=config.leaky_slope,
                ),
                upsample_rate=rate,
                skip=(strides[0] - stride) // sides,
                source_stride=stride,
                source_down=_piecewise(down, stride),
                source_block=self._block(source_block),
                blocks=[self._block(block) for block in plain.resblocks[i * count : (i + 1) * count]],
            )
            for i, (up, rate, stride, down, source_block) in enumerate(
                zip(plain.ups, config.upsample_rates, strides, plain.source_downs, plain.source_resblocks, strict=True)
            )
        ]
        post = plain.conv_post
        self._bins = post.out_channels
        unused = _BINS - self._bins
        self._post = self._conv(
            F.pad(post.weight.permute(2, 1, 0), (0, unused)), F.pad(post.bias, (0, unused)), slope=_POST_SLOPE
        )

    def _conv(self, weight: Tensor, bias: Tensor, *, dilation: int = 1, **activation: Any) -> _Conv:
        conv = _Conv(_half(weight), _exact(bias), dilation, **activation)
        if self._tails is not None:
            taps, inputs, _ = weight.shape
            conv.tail = len(self._tails)
            self._tails.append(TailShape(((taps - 1) * dilation, inputs), torch.float16))
        return conv

    def _block(self, block: Any) -> _Block:
        def conv(conv: nn.Conv1d, snake: hift.Snake) -> _Conv:
            assert conv.bias is not None
            return self._conv(
                conv.weight.permute(2, 1, 0), conv.bias, dilation=conv.dilation[0], alpha=_exact(snake.alpha)
            )

        convs = zip(block.convs1, block.activations1, block.convs2, block.activations2, strict=True)
        return _Block([(conv(conv1, snake1), conv(conv2, snake2)) for conv1, snake1, conv2, snake2 in convs])

    def __call__(self, mel: Tensor, spectrum: Tensor, rates: list[_Rows], begin: Callable[[Tensor], None]) -> Tensor:
        """Return raw values of the output spectrum, ``(rows, 18, 120 n + 1)``.

        Args:
            mel: the input of ``pre``.
            spectrum: STFT of the excitation, ``(rows, frames, 18)``, with its context.
            rates: the rows at the mel frame rate and at the rate after each stage.
            begin: fills the first position of the last stage's up-sampled input.
        """
        spectrum = F.pad(spectrum.half(), (0, _BINS - self._bins))
        ups = [stage.up for stage in self._stages]
        activated = self.pre(mel, rates[0], then=ups[0])
        for stage, (before, rows), following in zip(self._stages, pairwise(rates), [*ups[1:], self._post], strict=True):
            again = int(following is self._post)
            x = self._up(stage, activated, before, again)
            if again:
                begin(x)
            frames = (x.shape[1] + len(stage.source_down.weight) - 1) * stage.source_stride
            pieces = spectrum[:, stage.skip : stage.skip + frames].view(len(x), -1, stage.source_stride * _BINS)
            source = torch.empty_like(x)
            beside = stage.source_block
            activated = stage.source_down(pieces, rows, out=source, then=beside.first)
            activated = beside(source, activated, rows, out=x, add=True, then=stage.blocks[0].first)
            mean = torch.empty_like(x)
            for number, block in enumerate(stage.blocks):
                if number > 0:
                    activated = rows.activate(x, block.first)
                then = following if number == len(stage.blocks) - 1 else None
                done = block(x, activated, rows, out=mean, scale=1 / len(stage.blocks), add=number > 0, then=then)
            activated = done
        out = torch.empty(*mean.shape[:2], _BINS, device=mean.device)
        self._post(activated, rates[-1], out=out)
        return out[:, :, : self._bins].transpose(1, 2)

    @staticmethod
    def _up(stage: _Stage, activated: Tensor, rows: _Rows, again: int) -> Tensor:
        """Up-sample. ``again``: number of positions left free at the start."""
        taps, _, outputs = stage.up.weight.shape
        count, n = activated.shape[0], activated.shape[1] - (taps - 1)
        channels = outputs // stage.upsample_rate
        out = torch.empty(count, again + n * stage.upsample_rate, channels, device=activated.device)
        stage.up(activated, rows, out=out[:, again:].view(count, n, outputs))
        return out


class FusedHift(hift.Hift):
    """``Hift`` with fused weights and kernels."""

    def __init__(self, plain: hift.Hift) -> None:
        """Read ``plain``, which may be dropped afterwards."""
        nn.Module.__init__(self)  # skip the plain layers
        self.config = plain.config
        self.m_source, self.spectrum = plain.m_source, plain.spectrum
        self.register_buffer("noise", plain.noise, persistent=False)
        self.register_buffer("fade", plain.fade, persistent=False)
        self.f0_predictor = FusedF0Predictor(plain.f0_predictor)  # type: ignore[assignment]
        self._network = _Network(plain)

    def _upsample(self, mel: Tensor, length: Tensor, spectrum: Tensor) -> Tensor:
        counts = list(accumulate(self.config.upsample_rates, mul, initial=length))
        counts[-1] = counts[-1] + 1  # the reflected position
        rates: list[_Rows] = [_WholeRows(count) for count in counts]
        padding = hift.source_strides(self.config)[0] // 2
        spectrum = F.pad(spectrum.transpose(1, 2), (0, 0, padding, padding))

        def reflect(x: Tensor) -> None:
            x[:, 0] = x[:, 2]

        return self._network(rates[0].activate(mel, self._network.pre), spectrum, rates, reflect)


class FusedCausalHift(CausalHift):
    """``CausalHift`` with fused weights and kernels. Its tails are channels-last, fp16 and activated."""

    def __init__(self, plain: CausalHift) -> None:
        """Read ``plain``, which may be dropped afterwards."""
        nn.Module.__init__(self)  # skip the plain layers
        self.config = plain.config
        self.m_source, self.spectrum, self.strides = plain.m_source, plain.spectrum, plain.strides
        self.register_buffer("noise", plain.noise, persistent=False)
        self.tail_shapes = plain.tail_shapes[: self._FIRST_CONVOLUTION]
        self.f0_predictor = FusedCausalF0Predictor(plain.f0_predictor, self.tail_shapes)  # type: ignore[assignment]
        self._network = _Network(plain, self.tail_shapes)

    def _upsample(self, window: Tensor, spectrum: Tensor, first: Tensor, feed: Feed) -> Tensor:
        rates: list[_Rows] = [
            _StreamRows(feed, rate) for rate in accumulate(self.config.upsample_rates, mul, initial=1)
        ]

        def begin(x: Tensor) -> None:
            """Fill in the last position of the previous chunk, or the reflected position at the start of a stream."""
            tail = feed.tails[self._UP]
            x[:, 0] = before = tail.index_select(0, feed.slots)[:, :, 0]
            end = (feed.frames * (FRAME_SAMPLES // self.config.hop))[:, None, None]
            tail.index_copy_(0, feed.slots, x.gather(1, end.expand(-1, 1, x.shape[2])).transpose(1, 2))
            x[:, 0] = torch.where(first[:, None], x[:, 2], before)

        mel = window.transpose(1, 2).half().contiguous()
        return self._network(mel, spectrum.transpose(1, 2), rates, begin)


class _F0Layers(nn.Module):
    """The predictor's convolutions as products over concatenated inputs, channels-last, in the precision of
    ``plain``."""

    def __init__(self, plain: hift.F0Predictor | hift_causal.F0Predictor) -> None:
        super().__init__()
        convs: Any = list(plain.condnet)[::2]
        self._convs = [
            (conv.weight.detach().permute(2, 1, 0).flatten(0, 1).contiguous(), conv.bias, conv.kernel_size[0])
            for conv in convs
        ]
        self._classifier = plain.classifier

    def _layer(self, number: int, x: Tensor) -> Tensor:
        """Run a convolution. ``x``: ``(rows, n + taps - 1, channels)``."""
        weight, bias, taps = self._convs[number]
        rows, n = x.shape[0], x.shape[1] - taps + 1
        side_by_side = torch.cat([x[:, tap : tap + n] for tap in range(taps)], dim=2)
        return F.elu(torch.addmm(bias, side_by_side.view(rows * n, -1), weight)).view(rows, n, -1)

    def _hertz(self, x: Tensor) -> Tensor:
        out: Tensor = self._classifier(x)
        return out[..., 0].abs()


class FusedF0Predictor(_F0Layers):
    """CosyVoice2's f0 predictor."""

    def forward(self, mel: Tensor, real: Tensor) -> Tensor:
        """See ``F0Predictor.forward``."""
        real = real.transpose(1, 2)
        x = mel.transpose(1, 2) * real
        for number in range(len(self._convs)):
            x = self._layer(number, F.pad(x, (0, 0, 1, 1))) * real
        return self._hertz(x)


class FusedCausalF0Predictor(_F0Layers):
    """CosyVoice3's f0 predictor, in fp64 like the plain one."""

    def __init__(self, plain: hift_causal.F0Predictor, tail_shapes: list[TailShape]) -> None:
        """Append the shapes of the tails, ``(context, channels)``, to ``tail_shapes``."""
        super().__init__(plain)
        self._first_tail = len(tail_shapes)
        for weight, _, taps in self._convs[1:]:
            tail_shapes.append(TailShape((taps - 1, len(weight) // taps), torch.float64))

    def forward(self, mel: Tensor, feed: Feed) -> Tensor:
        """See ``F0Predictor.forward``."""
        x = self._layer(0, mel.transpose(1, 2))  # looks ahead, needs no tail
        for number in range(1, len(self._convs)):
            x = self._layer(number, _extend(feed, self._first_tail + number - 1, x))
        return self._hertz(x)


def _extend(feed: Feed, tail: int, x: Tensor) -> Tensor:
    """Apply ``Feed.extend`` to ``x`` ``(rows, n, channels)``, which has one input per mel frame."""
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
    """Turn a convolution over inputs that are each repeated ``rate`` times into one over the inputs.

    Its outputs are those of ``rate`` positions: shape ``(taps, inputs, rate * outputs)``.
    """
    outputs, inputs, kernel = conv.weight.shape
    past = -(-(kernel - 1) // rate)
    weight: Tensor = conv.weight.new_zeros(past + 1, inputs, rate, outputs)
    for phase in range(rate):
        for tap in range(kernel):
            weight[past + (phase - (kernel - 1) + tap) // rate, :, phase] += conv.weight[:, :, tap].T
    return weight.flatten(2)


def _transposed(conv: Any, rate: int) -> Tensor:
    """Turn a transposed convolution that multiplies the length by ``rate`` into a convolution with zeros on both sides.

    Its outputs are those of ``rate`` positions: shape ``(taps, inputs, rate * outputs)``. Input ``i`` reaches position
    ``rate * i + tap - padding``. So position ``rate * q + phase`` takes input ``i`` with the tap for which
    ``rate * (i - q) = phase + padding - tap``.
    """
    inputs, outputs, kernel = conv.weight.shape
    (padding,) = conv.padding
    reach = max(rate - 1 + padding, kernel - 1 - padding) // rate
    weight: Tensor = conv.weight.new_zeros(2 * reach + 1, inputs, rate, outputs)
    for phase in range(rate):
        for tap in range(kernel):
            offset, rest = divmod(phase + padding - tap, rate)
            if rest == 0:
                weight[reach + offset, :, phase] = conv.weight[:, :, tap]
    return weight.flatten(2)


def _piecewise(conv: Any, stride: int) -> _Conv:
    """Turn a strided convolution over a spectrum into one over groups of ``stride`` frames of ``_BINS`` channels."""
    weight = F.pad(conv.weight.permute(2, 1, 0), (0, 0, 0, _BINS - conv.in_channels))
    return _Conv(_half(weight.reshape(-1, stride * _BINS, conv.out_channels)), _exact(conv.bias))


@torch.no_grad()
def fuse(vocoder: hift.Hift | CausalHift) -> hift.Hift | CausalHift:
    """Return the fused vocoder. Do not use ``vocoder`` afterwards.

    A tiny vocoder (tests), whose channels are too few for the kernels, is returned unchanged.
    """
    config = vocoder.config
    if config.base_channels >> len(config.upsample_rates) < _LEAST_CHANNELS:
        return vocoder
    return FusedCausalHift(vocoder) if isinstance(vocoder, CausalHift) else FusedHift(vocoder)
