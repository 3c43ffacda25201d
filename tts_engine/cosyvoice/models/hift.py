"""HiFT, the vocoder of CosyVoice2, which turns mel frames into 24 kHz audio, and the parts shared with CosyVoice3's.

A fundamental frequency per frame drives a bank of sines, the excitation. Its STFT is added to the up-sampled mel at
three rates. The result is a spectrum of 16-sample frames, which the inverse STFT turns into audio.

The network is symmetric (it sees both sides), so streaming needs overlap and cross-fade, as upstream does
(``SpliceCache``). Rows of a batch may have different lengths: before every convolution, the padding of each row is set
to zero. Convolutions here are channels-first: ``(rows, channels, n)``. Weight norm is folded at loading.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.config import FRAME_SAMPLES, MEL_CHANNELS, SAMPLE_RATE, HiftConfig

OVERLAP_FRAMES = 8
"""Frames of the previous chunk that are vocoded again."""
OVERLAP_SAMPLES = OVERLAP_FRAMES * FRAME_SAMPLES
NOISE_SECONDS = 20
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
    """A convolution with zero padding that keeps the length."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)


class SourceLinear(nn.Module):
    """Mixes the harmonics into one excitation."""

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

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        """``count`` is the number of real inputs of each row: shape ``(rows,)``, int64."""
        real = inside(x, count)
        for conv1, conv2, snake1, snake2 in zip(
            self.convs1, self.convs2, self.activations1, self.activations2, strict=True
        ):
            x = x + conv2(snake2(conv1(snake1(x) * real)) * real)
        return x


def inside(x: Tensor, count: Tensor) -> Tensor:
    """Return 1 where ``x`` ``(rows, channels, n)`` is real and 0 beyond ``count`` ``(rows,)``; shape ``(rows, 1,
    n)``."""
    return (torch.arange(x.shape[2], device=x.device) < count[:, None])[:, None].to(x.dtype)


class F0Predictor(nn.Module):
    """Predicts the fundamental frequency per frame, Hz: ``(rows, 80, n)`` to ``(rows, n)``. ``real`` is from
    ``inside``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convs = [SymmetricConv1d(MEL_CHANNELS if i == 0 else channels, channels, 3) for i in range(5)]
        self.condnet = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ELU())))
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, real: Tensor) -> Tensor:
        x = mel * real
        for conv in list(self.condnet)[::2]:
            x = F.elu(conv(x)) * real
        out: Tensor = self.classifier(x.transpose(1, 2))
        return out[..., 0].abs()


def phase_steps(f0: Tensor, harmonics: int) -> Tensor:
    """Return the cycles per sample, modulo 1, of each sine: f0 ``(rows, n)`` to ``(rows, harmonics + 1, n)``."""
    order = torch.arange(1, harmonics + 2, device=f0.device, dtype=f0.dtype)
    return (f0[:, None] * order[:, None] / SAMPLE_RATE) % 1


def sine_source(config: HiftConfig, f0: Tensor, phase: Tensor, noise: Tensor) -> Tensor:
    """Return sines where the frame is voiced, plus noise everywhere: ``(rows, samples, harmonics + 1)``.

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
    """The STFT of 16 samples every 4 under a periodic Hann window, and its inverse, as matrix products.

    Matrix products work in batches, with any dtype and in CUDA graphs; ``torch.stft`` does not.
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
            # In a real inverse DFT all bins but the first and last count twice; those two have no imaginary part.
            twice = torch.full((bins, 1), 2.0, dtype=torch.float64)
            twice[0] = twice[-1] = 1
            synthesis = torch.cat([twice * angle.T.cos(), -twice * angle.T.sin()]) / n_fft * window
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("analysis", analysis.float(), persistent=False)
        self.register_buffer("synthesis", synthesis.float(), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Turn padded samples ``(rows, samples)`` into real and imaginary parts ``(rows, 2 * bins, frames)``."""
        return (samples.unfold(1, self.n_fft, self.hop) @ self.analysis).transpose(1, 2)

    def frames(self, magnitude: Tensor, angle: Tensor) -> Tensor:
        """Turn a spectrum ``(rows, bins, frames)`` into windowed sample frames ``(rows, frames, n_fft)``."""
        parts = torch.cat([magnitude * angle.cos(), magnitude * angle.sin()], dim=1)
        return parts.transpose(1, 2) @ self.synthesis

    def overlap_add(self, frames: Tensor, present: Tensor) -> Tensor:
        """Add windowed frames and divide by the sum of the windows that are present at each sample.

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
    """Turn the output of the last convolution into magnitude and angle."""
    return x[:, :bins].exp().clamp(max=_MAX_MAGNITUDE), x[:, bins:].sin()


class Hift(nn.Module):
    """CosyVoice2's vocoder."""

    noise: Tensor

    def __init__(self, config: HiftConfig, *, noise_seconds: int = NOISE_SECONDS) -> None:
        """``noise_seconds``: length of the excitation's noise table; longer streams repeat it.

        Upstream draws new noise in every call. With a table, a stream sounds the same in any batch.
        """
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
        with torch.device("cpu"):  # real also where the parameters are made without values
            generator = torch.Generator().manual_seed(0)
            noise = torch.randn(noise_seconds * SAMPLE_RATE, config.harmonics + 1, generator=generator)
            window = torch.hamming_window(2 * OVERLAP_SAMPLES, periodic=False)
        self.register_buffer("noise", noise, persistent=False)
        self.register_buffer("fade", window, persistent=False)

    fade: Tensor

    def source(self, mel: Tensor, length: Tensor, noise: Tensor) -> Tensor:
        """Return the excitation ``(rows, 480 n)`` of mel ``(rows, n, 80)``. The phase begins at 0 in every call.

        Args:
            length: shape ``(rows,)``, int64: number of real frames.
            noise: standard normal, shape ``(rows, 480 n, harmonics + 1)``.
        """
        x = mel.transpose(1, 2)
        real = inside(x, length)
        f0 = self.f0_predictor(x, real)
        # The phase stops at the end: the last half frame keeps the phase of the last frame's centre.
        turns = (phase_steps(f0, self.config.harmonics) * real).cumsum(dim=-1)
        phase = F.interpolate(turns * 2 * math.pi * FRAME_SAMPLES, scale_factor=float(FRAME_SAMPLES), mode="linear")
        out: Tensor = self.m_source(sine_source(self.config, f0, phase, noise))
        return out[..., 0]

    def decode(self, mel: Tensor, length: Tensor, source: Tensor) -> Tensor:
        """Turn mel ``(rows, n, 80)`` and excitation ``(rows, 480 n)`` into samples ``(rows, 480 n)``."""
        config = self.config
        half = config.n_fft // 2
        x = self._upsample(mel, length, self._source_spectrum(source, length))
        real = inside(x, length * (FRAME_SAMPLES // config.hop) + 1)
        frames = self.spectrum.frames(*spectrum_of(x, half + 1))
        samples = self.spectrum.overlap_add(frames, real[:, 0].expand(frames.shape[:2]))
        return samples[:, half:-half].clamp(-config.audio_limit, config.audio_limit)

    def _upsample(self, mel: Tensor, length: Tensor, spectrum: Tensor) -> Tensor:
        """Turn mel and the excitation's STFT ``(rows, 18, 120 n + 1)`` into raw values of the output spectrum.

        The result has the shape of ``spectrum``.
        """
        config = self.config
        x = mel.transpose(1, 2)
        x = self.conv_pre(x * inside(x, length))
        blocks = len(config.resblock_kernels)
        count = length
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, config.leaky_slope) * inside(x, count))
            count = count * config.upsample_rates[i]
            if i == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")
                count = count + 1
            x = x + self.source_resblocks[i](self.source_downs[i](spectrum), count)
            x = torch.stack([block(x, count) for block in self.resblocks[i * blocks : (i + 1) * blocks]]).mean(dim=0)
        out: Tensor = self.conv_post(F.leaky_relu(x) * inside(x, count))
        return out

    def _source_spectrum(self, source: Tensor, length: Tensor) -> Tensor:
        """Return the STFT of the excitation, reflected at both ends of each row, and zeros after a row's end."""
        half = self.config.n_fft // 2
        index = torch.arange(-half, source.shape[1] + half, device=source.device).abs()
        end = length[:, None] * FRAME_SAMPLES
        index = torch.where(index < end, index, 2 * end - 2 - index).clamp(0, source.shape[1] - 1)
        spectrum: Tensor = self.spectrum(source.gather(1, index))
        return spectrum * inside(spectrum, length * (FRAME_SAMPLES // self.config.hop) + 1)

    @torch.inference_mode()
    def forward(self, mel: Tensor, length: Tensor, slots: Tensor, cache: SpliceCache, final: Tensor) -> Tensor:
        """Vocode the next frames of each row, as upstream splices them.

        The last 8 frames of the previous chunk are vocoded again with their old excitation, and cross-faded with their
        kept samples. The two halves of the Hamming window sum to 1.08, as in upstream.

        Args:
            mel: shape ``(rows, n, 80)``; padding on the right.
            length: shape ``(rows,)``, int64: number of real frames, at least 8 if more follow.
            slots: shape ``(rows,)``, int64; 0 for rows of padding.
            final: unused; only ``valid`` depends on it.

        Returns:
            samples, shape ``(rows, 480 (n + 8))``; ``valid`` says which of them are to be heard now.
        """
        fed = cache.frames.index_select(0, slots)
        begun = fed > 0
        lead = torch.where(begun, OVERLAP_FRAMES, 0)
        count = lead + length
        frame = torch.arange(mel.shape[1] + OVERLAP_FRAMES, device=mel.device)
        window = torch.cat([cache.mel.index_select(0, slots), mel.float()], dim=1)
        window = _take(window, frame + (OVERLAP_FRAMES - lead)[:, None])

        position = torch.arange(len(frame) * FRAME_SAMPLES, device=mel.device)
        noise = self.noise[(position + ((fed - lead) * FRAME_SAMPLES)[:, None]) % len(self.noise)]
        source = self.source(window, count, noise)
        kept = F.pad(cache.source.index_select(0, slots), (0, source.shape[1] - OVERLAP_SAMPLES))
        source = torch.where(begun[:, None] & (position < OVERLAP_SAMPLES), kept, source)
        samples = self.decode(window, count, source)
        rising, falling = self.fade[:OVERLAP_SAMPLES], self.fade[OVERLAP_SAMPLES:]
        head = samples[:, :OVERLAP_SAMPLES]
        faded = head * rising + cache.samples.index_select(0, slots) * falling
        samples = torch.cat([torch.where(begun[:, None], faded, head), samples[:, OVERLAP_SAMPLES:]], dim=1)

        end = (count - OVERLAP_FRAMES).clamp(min=0)[:, None]
        cache.mel.index_copy_(0, slots, _take(window, end + frame[:OVERLAP_FRAMES]))
        index = end * FRAME_SAMPLES + position[:OVERLAP_SAMPLES]
        cache.source.index_copy_(0, slots, source.gather(1, index))
        cache.samples.index_copy_(0, slots, samples.gather(1, index))
        cache.frames.index_copy_(0, slots, fed + length)
        return samples.clamp(-1, 1)  # the windows sum to 1.08

    @staticmethod
    def valid(*, before: int, frames: int, final: bool) -> tuple[int, int]:
        """Return the range of playable samples of a row that got ``frames`` frames after ``before`` earlier ones.

        The last 160 ms are held back until the end.
        """
        held = (OVERLAP_FRAMES if before else 0) + frames
        return 0, max(held - (0 if final else OVERLAP_FRAMES), 0) * FRAME_SAMPLES

    def new_cache(self, *, slots: int, device: torch.device | str = "cpu") -> SpliceCache:
        """Return a cache for ``slots - 1`` streams; slot 0 is scratch."""
        return SpliceCache(slots=slots, device=device)


def _take(x: Tensor, frames: Tensor) -> Tensor:
    """Return the frames with indices ``(rows, n)`` of ``x`` ``(rows, m, channels)``. An index beyond the end gives the
    last frame."""
    return x.gather(1, frames.clamp(max=x.shape[1] - 1)[:, :, None].expand(-1, -1, x.shape[2]))


def source_strides(config: HiftConfig) -> list[int]:
    """Return the number of STFT frames per position of each stage: 15, 3, 1."""
    strides = [1]
    for rate in reversed(config.upsample_rates[1:]):
        strides.insert(0, strides[0] * rate)
    return strides


class SpliceCache:
    """The state of each stream of ``Hift``: mel, excitation and samples of the last 160 ms."""

    def __init__(self, *, slots: int, device: torch.device | str = "cpu") -> None:
        self.mel = torch.zeros(slots, OVERLAP_FRAMES, MEL_CHANNELS, device=device)
        self.source = torch.zeros(slots, OVERLAP_SAMPLES, device=device)
        self.samples = torch.zeros(slots, OVERLAP_SAMPLES, device=device)
        """Samples that were held back, to be cross-faded with the next chunk."""
        self.frames = torch.zeros(slots, device=device, dtype=torch.long)

    def reset(self, slots: Tensor) -> None:
        """Start streams in these slots."""
        self.frames.index_fill_(0, slots, 0)
