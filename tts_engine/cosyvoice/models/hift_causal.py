"""HiFT of CosyVoice3. Every convolution is causal, so vocoding in chunks is exact and has constant cost.

The first convolution (``conv_pre``) has four frames of look-ahead and the f0 network three. The inverse STFT of a
sample needs the frames around it. The output therefore lags the input by four frames and eight samples. Upstream waits
for eight frames; the samples are the same.

The state of a stream is a slot in ``VocoderCache``: mel frames that are not decoded yet, phases of the nine sines,
convolution tails, last samples of excitation and last STFT frames. Rows of a batch may be at their start, middle or end
and have different lengths, padded on the right. Slot 0 is scratch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.config import FRAME_SAMPLES, MEL_CHANNELS, SAMPLE_RATE, HiftConfig
from tts_engine.cosyvoice.models.hift import (
    Snake,
    SourceLinear,
    Spectrum,
    phase_steps,
    sine_source,
    source_strides,
    spectrum_of,
)

LOOK_AHEAD_FRAMES = 4
DELAY_SAMPLES = 8
"""Samples at the end of a chunk that the inverse STFT cannot finish yet."""
NOISE_SECONDS = 300


class LeftConv1d(nn.Conv1d):
    """Convolution over ``(rows, channels, n)`` that needs ``context`` earlier inputs."""

    tail = -1

    @property
    def context(self) -> int:
        return (self.kernel_size[0] - 1) * self.dilation[0]


def _left(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> LeftConv1d:
    return LeftConv1d(inputs, outputs, kernel, dilation=dilation)


class Feed:
    """One pass of a batch through the network. It prepends each convolution's tail to its input and stores the new
    tail."""

    def __init__(self, tails: list[Tensor], slots: Tensor, frames: Tensor) -> None:
        self.tails, self.slots, self.frames = tails, slots, frames

    def __call__(self, conv: LeftConv1d, x: Tensor, rate: int) -> Tensor:
        """Run a convolution. ``rate`` is its number of inputs per mel frame."""
        x = self.extend(conv.tail, x, self.frames * rate)
        return F.conv1d(x, conv.weight, conv.bias, dilation=conv.dilation)

    def extend(self, tail: int, x: Tensor, length: Tensor) -> Tensor:
        """Prepend the tail to ``x`` and store the last inputs before ``length``, shape ``(rows,)``, as the new tail."""
        buffer = self.tails[tail]
        x = torch.cat([buffer.index_select(0, self.slots).to(x.dtype), x], dim=2)
        last = length[:, None] + torch.arange(buffer.shape[2], device=x.device)
        last = last[:, None].expand(-1, x.shape[1], -1)
        buffer.index_copy_(0, self.slots, x.gather(2, last).to(buffer.dtype))
        return x


class ResBlock(nn.Module):
    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_left(channels, channels, kernel, d) for d in dilations)
        self.convs2 = nn.ModuleList(_left(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor, feed: Feed, rate: int) -> Tensor:
        for conv1, conv2, snake1, snake2 in zip(
            self.convs1, self.convs2, self.activations1, self.activations2, strict=True
        ):
            x = x + feed(conv2, snake2(feed(conv1, snake1(x), rate)), rate)  # type: ignore[arg-type]
        return x


class F0Predictor(nn.Module):
    """Predicts the fundamental frequency per frame, Hz. It is fp64, as in upstream, because rounding could flip a frame
    at the voicing threshold."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convs = [_left(MEL_CHANNELS, channels, 4), *(_left(channels, channels, 3) for _ in range(4))]
        self.condnet = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ELU())))
        self.classifier = nn.Linear(channels, 1)
        self.double()

    def forward(self, mel: Tensor, feed: Feed) -> Tensor:
        """Turn mel ``(rows, 80, n + 3)``, fp64, into ``(rows, n)``."""
        first: LeftConv1d = self.condnet[0]  # type: ignore[assignment]
        x = F.elu(F.conv1d(mel, first.weight, first.bias))  # looks ahead, needs no tail
        for conv in list(self.condnet)[2::2]:
            x = F.elu(feed(conv, x, 1))  # type: ignore[arg-type]
        out: Tensor = self.classifier(x.transpose(1, 2))
        return out[..., 0].abs()


@dataclass(frozen=True, slots=True)
class TailShape:
    """Shape of one tail: ``(channels, n)``, or ``(n, channels)`` in the network for a GPU."""

    shape: tuple[int, int]
    dtype: torch.dtype | None = None
    """dtype of this tail. None: the dtype of the cache."""


class CausalHift(nn.Module):
    """CosyVoice3's vocoder."""

    noise: Tensor

    def __init__(self, config: HiftConfig, *, noise_seconds: int = NOISE_SECONDS) -> None:
        """``noise_seconds``: length of the excitation's noise table (259 MB at 300 s); longer streams repeat it."""
        super().__init__()
        self.config = config
        base = config.base_channels
        self.m_source = SourceLinear(config.harmonics)
        self.f0_predictor = F0Predictor(config.f0_channels)
        self.conv_pre = _left(MEL_CHANNELS, base, LOOK_AHEAD_FRAMES + 1)
        self.ups = nn.ModuleList(
            _left(base >> i, base >> (i + 1), kernel) for i, kernel in enumerate(config.upsample_kernels)
        )
        bins = config.n_fft + 2
        self.strides = source_strides(config)
        self.source_downs = nn.ModuleList(
            nn.Conv1d(bins, base >> (i + 1), 2 * stride if stride > 1 else 1, stride)
            for i, stride in enumerate(self.strides)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(base >> (i + 1), kernel, config.resblock_dilations)
            for i, kernel in enumerate(config.source_resblock_kernels)
        )
        self.resblocks = nn.ModuleList(
            ResBlock(base >> (i + 1), kernel, config.resblock_dilations)
            for i in range(len(config.upsample_rates))
            for kernel in config.resblock_kernels
        )
        self.conv_post = _left(base >> len(config.upsample_rates), bins, 7)
        self.spectrum = Spectrum(config.n_fft, config.hop)
        self.register_buffer("noise", source_noise(seconds=noise_seconds), persistent=False)
        self.tail_shapes = self._number_tails()

    # Numbers of the first tails of a slot; those of the convolutions follow.
    _UP, _MEL, _SOURCE, _FRAMES = range(4)
    _FIRST_CONVOLUTION = 4

    def _number_tails(self) -> list[TailShape]:
        config = self.config
        shapes = [
            TailShape((config.base_channels >> len(config.upsample_rates), 1)),
            TailShape((MEL_CHANNELS, LOOK_AHEAD_FRAMES), torch.float32),
            TailShape((1, self._source_context), torch.float32),
            TailShape((config.n_fft, 3), torch.float32),
        ]
        ahead = {self.conv_pre, self.f0_predictor.condnet[0]}
        doubles = set(self.f0_predictor.modules())
        for conv in self.modules():
            if isinstance(conv, LeftConv1d) and conv not in ahead:
                conv.tail = len(shapes)
                dtype = torch.float64 if conv in doubles else None
                shapes.append(TailShape((conv.in_channels, conv.context), dtype))
        return shapes

    @property
    def _source_context(self) -> int:
        """Samples of excitation needed before a chunk.

        The first ``source_down`` reaches 14 STFT frames back, and an STFT frame reaches 8 samples back.
        """
        return (self.strides[0] - 1) * self.config.hop + self.config.n_fft // 2

    @torch.inference_mode()
    def forward(
        self,
        mel: Tensor,
        length: Tensor,
        slots: Tensor,
        cache: VocoderCache,
        final: Tensor,
        *,
        any_final: bool = True,
    ) -> Tensor:
        """Vocode the next frames of each row.

        Args:
            mel: shape ``(rows, n, 80)``; padding on the right.
            length: shape ``(rows,)``, int64: number of real frames.
            slots: shape ``(rows,)``, int64; 0 for rows of padding.
            final: shape ``(rows,)``, bool: True where the stream ends with these frames.
            any_final: False promises that ``final`` is False everywhere, which saves four frames of work.

        Returns:
            samples, shape ``(rows, 480 (n + 4) + 8)``, or four frames fewer; ``valid`` says which of them are real.
        """
        config = self.config
        half, hop = config.n_fft // 2, config.hop
        count = cache.frames.index_select(0, slots)
        pending = cache.pending.index_select(0, slots)
        decoded = count - pending  # frames that have been decoded, except for the last samples
        first = decoded == 0
        steps = mel.shape[1] + (LOOK_AHEAD_FRAMES if any_final else 0)
        ready = (pending + length - torch.where(final, 0, LOOK_AHEAD_FRAMES)).clamp(min=0)
        feed = Feed(cache.tails, slots, ready)

        # The mel of this call: frames `decoded` to `ready + 4`, with zeros after the end.
        history = cache.tails[self._MEL].index_select(0, slots)
        window = torch.cat([history, mel.transpose(1, 2).float()], dim=2)
        frame = torch.arange(steps + LOOK_AHEAD_FRAMES, device=mel.device)
        waiting = pending[:, None]
        index = torch.where(frame < waiting, frame, frame - waiting + LOOK_AHEAD_FRAMES).clamp(max=window.shape[2] - 1)
        window = window.gather(2, index[:, None].expand(-1, MEL_CHANNELS, -1))
        window = window * (frame < waiting + length[:, None])[:, None]
        keep = (ready[:, None] + torch.arange(LOOK_AHEAD_FRAMES, device=mel.device))[:, None]
        cache.tails[self._MEL].index_copy_(0, slots, window.gather(2, keep.expand(-1, MEL_CHANNELS, -1)))

        # The excitation is one frame longer than the output, because the STFT at the chunk's end looks eight samples
        # ahead.
        f0 = self.f0_predictor(window.double(), feed).float()
        turn = phase_steps(f0, config.harmonics).double()
        begun = cache.turns.index_select(0, slots)[:, :, None]
        turns = torch.cat([begun, begun + turn.cumsum(dim=-1)], dim=-1)
        last = ready[:, None, None].expand(-1, turns.shape[1], 1)
        cache.turns.index_copy_(0, slots, turns.gather(2, last)[:, :, 0])
        # As in upstream: rounded to fp32 here, and constant within a frame.
        phase = (turns[:, :, 1:].float() * 2 * math.pi * FRAME_SAMPLES).repeat_interleave(FRAME_SAMPLES, dim=2)
        position = decoded[:, None] * FRAME_SAMPLES + torch.arange(phase.shape[2], device=mel.device)
        noise = self.noise[position % len(self.noise)].float()
        excitation = self.m_source(sine_source(config, f0, phase, noise))[..., 0]
        source = feed.extend(self._SOURCE, excitation[:, None], ready * FRAME_SAMPLES)[:, 0]

        spectrum = self._source_spectrum(source, first, final, ready)
        x = self._upsample(window, spectrum, first, feed)
        frames = self.spectrum.frames(*spectrum_of(x.float(), half + 1))

        # The samples begin 8 before the chunk. Frames -3, -2 and -1 of the previous chunk reach into them.
        tail = cache.tails[self._FRAMES]
        frames = torch.cat([tail.index_select(0, slots).transpose(1, 2), frames], dim=1)
        number = torch.arange(-3, frames.shape[1] - 3, device=mel.device)
        rate = FRAME_SAMPLES // hop
        present = ((number >= 0) | ~first[:, None]) & (number <= (ready * rate)[:, None])
        keep = (ready * rate)[:, None, None] + torch.arange(3, device=mel.device)[:, None]
        tail.index_copy_(0, slots, frames.gather(1, keep.expand(-1, -1, frames.shape[2])).transpose(1, 2))
        samples = self.spectrum.overlap_add(frames, present.float())
        # Frame -3 begins 12 samples and half a window before the chunk; the output begins 8 samples before the chunk.
        begin = 3 * hop + half - DELAY_SAMPLES
        samples = samples[:, begin : begin + steps * FRAME_SAMPLES + DELAY_SAMPLES]

        cache.frames.index_copy_(0, slots, count + length)
        cache.pending.index_copy_(0, slots, pending + length - ready)
        return samples.clamp(-config.audio_limit, config.audio_limit)

    @staticmethod
    def valid(*, before: int, frames: int, final: bool) -> tuple[int, int]:
        """Return the range of real samples of a row that got ``frames`` frames after ``before`` earlier ones."""
        decoded = max(before - LOOK_AHEAD_FRAMES, 0)
        ready = before + frames - decoded if final else max(before + frames - LOOK_AHEAD_FRAMES, 0) - decoded
        begin = 0 if decoded else DELAY_SAMPLES
        return begin, max(begin, ready * FRAME_SAMPLES + (DELAY_SAMPLES if final else 0))

    def new_cache(self, *, slots: int, device: torch.device | str = "cpu") -> VocoderCache:
        """Return a cache for ``slots - 1`` streams; slot 0 is scratch."""
        return VocoderCache(self, slots=slots, device=device)

    def _source_spectrum(self, source: Tensor, first: Tensor, final: Tensor, ready: Tensor) -> Tensor:
        """Return the STFT frames from 14 before the chunk to its end: ``(rows, 18, 14 + 120 n + 1)``.

        ``source`` begins ``_source_context`` samples before the chunk and is reflected at the ends of a stream. Frames
        before the start of a stream are zeros, the padding of ``source_downs``.
        """
        config = self.config
        context, half = self._source_context, config.n_fft // 2
        steps = (source.shape[1] - context) // FRAME_SAMPLES - 1
        local = torch.arange(source.shape[1], device=source.device) - context
        index = torch.where(first[:, None], local.abs(), local)
        end = (ready * FRAME_SAMPLES)[:, None]
        index = torch.where(final[:, None] & (index >= end), 2 * end - 2 - index, index) + context
        source = source.gather(1, index.clamp(0, source.shape[1] - 1))
        spectrum = self.spectrum(source[:, : context + steps * FRAME_SAMPLES + half])
        before = torch.arange(spectrum.shape[2], device=source.device) < self.strides[0] - 1
        out: Tensor = spectrum.masked_fill((before & first[:, None])[:, None], 0)
        return out

    def _upsample(self, window: Tensor, spectrum: Tensor, first: Tensor, feed: Feed) -> Tensor:
        """Turn mel ``(rows, 80, n + 4)`` and the excitation's STFT into raw values of the output spectrum.

        The result has shape ``(rows, 18, 120 n + 1)``. The network makes ``120 T + 1`` STFT frames for ``T`` mel
        frames. A chunk has frames ``120 a`` to ``120 b`` inclusive, so its first frame repeats the last one of the
        previous chunk. Tails end before the frame that will be repeated.
        """
        config = self.config
        x = F.conv1d(window.to(self.conv_pre.weight.dtype), self.conv_pre.weight, self.conv_pre.bias)
        spectrum = spectrum.to(x.dtype)
        count = len(config.resblock_kernels)
        rate = 1
        for i, up in enumerate(self.ups):
            rate *= config.upsample_rates[i]
            x = F.leaky_relu(x, config.leaky_slope).repeat_interleave(config.upsample_rates[i], dim=2)
            x = feed(up, x, rate)  # type: ignore[arg-type]
            if i == len(self.ups) - 1:
                reflected = x[:, :, 1:2]
                x = feed.extend(self._UP, x, feed.frames * rate)
                x = torch.cat([torch.where(first[:, None, None], reflected, x[:, :, :1]), x[:, :, 1:]], dim=2)
            # The first stage needs the most earlier frames. The others start later in the same spectrum.
            skip = (self.strides[0] - 1) - (self.strides[i] - 1)
            x = x + self.source_resblocks[i](self.source_downs[i](spectrum[:, :, skip:]), feed, rate)
            blocks = self.resblocks[i * count : (i + 1) * count]
            x = torch.stack([block(x, feed, rate) for block in blocks]).mean(dim=0)
        return feed(self.conv_post, F.leaky_relu(x), rate)


class VocoderCache:
    """The state of each stream. The caller allocates slots; slot 0 is scratch."""

    def __init__(
        self, hift: CausalHift, *, slots: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.tails = [
            torch.zeros(slots, *tail.shape, device=device, dtype=tail.dtype or dtype) for tail in hift.tail_shapes
        ]
        self.turns = torch.zeros(slots, hift.config.harmonics + 1, device=device, dtype=torch.float64)
        """Cycles of each sine so far, fp64 because errors add up over a stream."""
        self.frames = torch.zeros(slots, device=device, dtype=torch.long)
        self.pending = torch.zeros(slots, device=device, dtype=torch.long)

    def reset(self, slots: Tensor) -> None:
        """Start streams in these slots."""
        for buffer in (*self.tails, self.turns, self.frames, self.pending):
            buffer.index_fill_(0, slots, 0)


def source_noise(*, seconds: int) -> Tensor:
    """Return the fixed noise of the excitation: uniform in [0, 1), ``(samples, 9)``, counted from the start of a
    stream.

    The noise is not in the checkpoint: upstream draws it while it builds the networks after seed 0. The initial weights
    that upstream draws before it are drawn here too, and dropped. A shorter table is the beginning of a longer one.
    """
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.randn(1, MEL_CHANNELS, 15000)
        nn.Embedding(6561, 80)
        nn.Linear(192, 80)
        nn.Conv1d(80, 512, 4)
        for _ in range(4):
            nn.Conv1d(512, 512, 3)
        nn.Linear(512, 1)
        torch.rand(1, 9)
        return torch.rand(seconds * SAMPLE_RATE, 9)
