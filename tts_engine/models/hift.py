"""HiFT, the vocoder of CosyVoice2: mel frames to 24 kHz. And the parts that CosyVoice3's causal one shares with it.

A fundamental frequency per frame drives a bank of sines (the excitation); its short-time spectrum joins the up-sampled
mel at three rates; the result is a spectrum of 16-sample frames, turned into sound by the inverse STFT.

The symmetric network sees both sides, so streaming needs an overlap and a splice, exactly as upstream does it
(``SpliceState``). Convolutions here are channels-first: ``(rows, channels, n)``. Weight norm is folded at loading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.models.config import FRAME_SAMPLES, MEL_CHANNELS, SAMPLE_RATE, HiftConfig

OVERLAP_FRAMES = 8
"""Frames of the chunk before that are vocoded again."""
OVERLAP_SAMPLES = OVERLAP_FRAMES * FRAME_SAMPLES
_MAX_MAGNITUDE = 100.0


class Snake(nn.Module):
    """``x + sin(alpha x)^2 / alpha``, alpha per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[:, None]
        return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


class SymmetricConv1d(nn.Conv1d):
    """Keeps the length; zeros on both sides."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)


class SourceLinear(nn.Module):
    """Mixes the harmonics to one excitation."""

    def __init__(self, harmonics: int) -> None:
        super().__init__()
        self.l_linear = nn.Linear(harmonics + 1, 1)

    def forward(self, sines: Tensor) -> Tensor:
        return torch.tanh(self.l_linear(sines))


class ResBlock(nn.Module):
    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(SymmetricConv1d(channels, channels, kernel, dilation=d) for d in dilations)
        self.convs2 = nn.ModuleList(SymmetricConv1d(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        for conv1, conv2, snake1, snake2 in zip(
            self.convs1, self.convs2, self.activations1, self.activations2, strict=True
        ):
            x = x + conv2(snake2(conv1(snake1(x))))
        return x


class F0Predictor(nn.Module):
    """Fundamental frequency per frame, Hz: ``(rows, 80, n)`` to ``(rows, n)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convs = [SymmetricConv1d(MEL_CHANNELS if i == 0 else channels, channels, 3) for i in range(5)]
        self.condnet = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ELU())))
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.condnet(mel).transpose(1, 2))
        return out[..., 0].abs()


def phase_steps(f0: Tensor, harmonics: int) -> Tensor:
    """Cycles per sample, modulo 1, of each sine: f0 ``(rows, n)`` to ``(rows, harmonics + 1, n)``."""
    order = torch.arange(1, harmonics + 2, device=f0.device, dtype=f0.dtype)
    return (f0[:, None] * order[:, None] / SAMPLE_RATE) % 1


def sine_source(config: HiftConfig, f0: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
    """Sines where voiced, noise everywhere: ``(rows, samples, harmonics + 1)``.

    Args:
        f0: shape ``(rows, frames)``, Hz.
        phase: radians, shape ``(rows, harmonics + 1, samples)``.
        noise: shape ``(rows, samples, harmonics + 1)``, unit scale.
    """
    sines = config.sine_amplitude * torch.sin(phase).transpose(1, 2)
    voiced = (f0 > config.voiced_threshold_hz).to(f0.dtype).repeat_interleave(FRAME_SAMPLES, dim=1)[:, :, None]
    loudness = voiced * config.noise_std + (1 - voiced) * config.sine_amplitude / 3
    return sines * voiced + loudness * noise


class Spectrum(nn.Module):
    """STFT of 16 samples every 4 under a periodic Hann window, and its inverse, as matrix products.

    Products rather than ``torch.stft``: they batch, they take any dtype and a CUDA graph can hold them.
    """

    window: Tensor
    analysis: Tensor
    synthesis: Tensor

    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        with torch.device("cpu"):  # real also where the parameters are made without values
            window = torch.hann_window(n_fft, dtype=torch.float64)
            bins = n_fft // 2 + 1
            angle = 2 * math.pi / n_fft * torch.outer(torch.arange(n_fft), torch.arange(bins)).double()
            analysis = torch.cat([angle.cos(), -angle.sin()], dim=1) * window[:, None]
            # Real inverse: the bins between the first and the last count twice, and these two have no imaginary part.
            twice = torch.full((bins, 1), 2.0, dtype=torch.float64)
            twice[0] = twice[-1] = 1
            synthesis = torch.cat([twice * angle.T.cos(), -twice * angle.T.sin()]) / n_fft * window
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("analysis", analysis.float(), persistent=False)
        self.register_buffer("synthesis", synthesis.float(), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """``(rows, samples)``, already padded, to real and imaginary parts ``(rows, 2 * bins, frames)``."""
        return (samples.unfold(1, self.n_fft, self.hop) @ self.analysis).transpose(1, 2)

    def frames(self, magnitude: Tensor, angle: Tensor) -> Tensor:
        """Spectrum ``(rows, bins, frames)`` to windowed sample frames ``(rows, frames, n_fft)``."""
        parts = torch.cat([magnitude * angle.cos(), magnitude * angle.sin()], dim=1)
        return parts.transpose(1, 2) @ self.synthesis

    def overlap_add(self, frames: Tensor, present: Tensor) -> Tensor:
        """Add windowed frames and divide by the windows that really lie there.

        Args:
            frames: shape ``(rows, n, n_fft)``; present: shape ``(rows, n)``, 1 or 0.

        Returns:
            shape ``(rows, (n - 1) * hop + n_fft)``, from the first sample of the first frame.
        """
        rows, n, _ = frames.shape
        length = (n - 1) * self.hop + self.n_fft
        envelope = self.window.square() * present[:, :, None]
        both = torch.cat([frames * present[:, :, None], envelope]).transpose(1, 2)
        both = F.fold(both, (1, length), (1, self.n_fft), stride=(1, self.hop))[:, 0, 0]
        return both[:rows] / both[rows:].clamp(min=1e-11)


def spectrum_of(x: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Output of the last convolution to magnitude and angle."""
    return x[:, :bins].exp().clamp(max=_MAX_MAGNITUDE), x[:, bins:].sin()


class Hift(nn.Module):
    """CosyVoice2's vocoder. Every call stands for itself; rows of a batch have the same length."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        self.config = config
        base = config.base_channels
        self.m_source = SourceLinear(config.harmonics)
        self.f0_predictor = F0Predictor(config.f0_channels)
        self.conv_pre = SymmetricConv1d(MEL_CHANNELS, base, 7)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(base >> i, base >> (i + 1), kernel, rate, padding=(kernel - rate) // 2)
            for i, (rate, kernel) in enumerate(zip(config.upsample_rates, config.upsample_kernels, strict=True))
        )
        bins = config.n_fft + 2
        rates = source_strides(config)
        self.source_downs = nn.ModuleList(
            nn.Conv1d(bins, base >> (i + 1), 2 * rate if rate > 1 else 1, rate, padding=rate // 2)
            for i, rate in enumerate(rates)
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
        self.conv_post = SymmetricConv1d(base >> len(config.upsample_rates), bins, 7)
        self.spectrum = Spectrum(config.n_fft, config.hop)

    def source(self, mel: Tensor, noise: Tensor) -> Tensor:
        """Excitation ``(rows, samples)`` of mel ``(rows, n, 80)``; the phase starts anew in every call.

        ``noise``: standard normal, shape ``(rows, 480 n, harmonics + 1)``.
        """
        f0 = self.f0_predictor(mel.transpose(1, 2))
        turns = phase_steps(f0, self.config.harmonics).cumsum(dim=-1)
        phase = F.interpolate(turns * 2 * math.pi * FRAME_SAMPLES, scale_factor=float(FRAME_SAMPLES), mode="linear")
        out: Tensor = self.m_source(sine_source(self.config, f0, phase, noise))
        return out[..., 0]

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Mel ``(rows, n, 80)`` and excitation ``(rows, 480 n)`` to samples ``(rows, 480 n)``."""
        half = self.config.n_fft // 2
        spectrum = self.spectrum(F.pad(source[:, None], (half, half), mode="reflect")[:, 0])
        x = self.conv_pre(mel.transpose(1, 2))
        count = len(self.config.resblock_kernels)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, self.config.leaky_slope))
            if i == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + self.source_resblocks[i](self.source_downs[i](spectrum))
            blocks = self.resblocks[i * count : (i + 1) * count]
            x = torch.stack([block(x) for block in blocks]).mean(dim=0)
        x = self.conv_post(F.leaky_relu(x))
        frames = self.spectrum.frames(*spectrum_of(x, half + 1))
        samples = self.spectrum.overlap_add(frames, frames.new_ones(frames.shape[:2]))
        return samples[:, half:-half].clamp(-self.config.audio_limit, self.config.audio_limit)

    @torch.inference_mode()
    def forward(self, mel: Tensor, noise: Tensor, cached_source: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mel ``(rows, n, 80)`` to samples and excitation, each ``(rows, 480 n)``.

        ``cached_source``, shape ``(rows, m)``, replaces the first ``m`` samples of the excitation.
        """
        source = self.source(mel, noise)
        if cached_source is not None:
            source = torch.cat([cached_source, source[:, cached_source.shape[1] :]], dim=1)
        return self.decode(mel, source), source


def source_strides(config: HiftConfig) -> list[int]:
    """How much slower than the STFT each stage runs: 15, 3, 1."""
    strides = [1]
    for rate in reversed(config.upsample_rates[1:]):
        strides.insert(0, strides[0] * rate)
    return strides


@dataclass(frozen=True, slots=True)
class SpliceState:
    """What ``Hift`` keeps between two chunks of a call: all of the last 160 ms."""

    mel: Tensor
    """Shape ``(rows, 8, 80)`` (fewer frames if there were fewer)."""
    source: Tensor
    samples: Tensor
    """Held back; cross-faded with the next chunk."""

    @staticmethod
    def join(states: list[SpliceState]) -> SpliceState:
        """Rows of several calls as one batch."""
        return SpliceState(*(torch.cat([getattr(s, name) for s in states]) for name in ("mel", "source", "samples")))

    def split(self) -> list[SpliceState]:
        """The rows of a batch, one state each."""
        rows = range(len(self.mel))
        return [SpliceState(self.mel[r : r + 1], self.source[r : r + 1], self.samples[r : r + 1]) for r in rows]


@torch.inference_mode()
def vocode_chunk(
    hift: Hift, mel: Tensor, noise: Tensor, state: SpliceState | None, *, final: bool
) -> tuple[Tensor, SpliceState]:
    """One chunk of a stream, as upstream splices it.

    The first chunk of ``n`` frames gives ``480 (n - 8)`` samples, later ones ``480 n``, the final one ``480 (n + 8)``.
    The two halves of the Hamming window sum to 1.08, a slight bump that is upstream's.

    Args:
        mel: new frames, shape ``(rows, n, 80)``; all rows at the same kind of chunk.
        noise: standard normal, shape ``(rows, 480 * (n + 8), 9)``; 8 frames fewer at the start of a stream.
    """
    if state is not None:
        mel = torch.cat([state.mel, mel], dim=1)
    samples, source = hift(mel, noise, None if state is None else state.source)
    if state is not None:
        m = state.samples.shape[1]
        window = torch.hamming_window(2 * m, periodic=False, dtype=samples.dtype, device=samples.device)
        samples = torch.cat([samples[:, :m] * window[:m] + state.samples * window[m:], samples[:, m:]], dim=1)
    kept = SpliceState(mel[:, -OVERLAP_FRAMES:], source[:, -OVERLAP_SAMPLES:], samples[:, -OVERLAP_SAMPLES:])
    return (samples if final else samples[:, :-OVERLAP_SAMPLES]), kept


def change_speed(mel: Tensor, speed: float) -> Tensor:
    """Stretch mel ``(rows, n, 80)`` in time by linear interpolation to ``int(n / speed)`` frames (whole utterances)."""
    return F.interpolate(mel.transpose(1, 2), size=int(mel.shape[1] / speed), mode="linear").transpose(1, 2)
