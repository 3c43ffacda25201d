"""The embedded voice's network, computed in blocks so that sound comes before the sentence is finished.

The package hibari computes a whole sentence at once: prosody (durations, pitch) and a convolutional decoder in one
network, then the waveform. Here the network is cut in two. Prosody runs once for the sentence and gives exact word
times. The decoder and the waveform run in blocks of frames and begin where the speech begins. So the padding of
260-335 ms in front of every sentence is never computed, and the first block costs a third of a short sentence.

Blocks join without a seam: the decoder sees ``CONTEXT`` frames on both sides of a block, the inverse STFT overlaps
across blocks, and the pulse train keeps its phase. The waveform is that of ``hibari.dsp``, which has the formula,
except that the decoder's 8-bit activations are scaled per block and not per sentence.

For a narrower line, a last layer with fewer columns makes only the lower part of the spectrum, and the inverse STFT is
shorter in the same ratio. So the sound comes out at the line's rate, and nothing has to be resampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from hibari import dsp
from hibari.voices import voice_path
from numpy.typing import NDArray

from tts_engine.embedded.hibari_text import SpokenPiece
from tts_engine.embedded.onnx.attention import join_attention
from tts_engine.embedded.onnx.cut import cut
from tts_engine.embedded.onnx.depthwise import depthwise_as_images
from tts_engine.embedded.onnx.narrow import narrow
from tts_engine.embedded.onnx.unsigned import exact
from tts_engine.onnx_runtime import onnxruntime as ort
from tts_engine.synthesizer import LINE_RATES, WordSpan

SAMPLE_RATE: int = dsp.SR
"""Sample rate of the sound of the whole spectrum, Hz."""

FRAME_MS = 12.5

CONTEXT = 8
"""Frames of context on both sides of a block. The decoder reaches 27 frames. With 8 frames, blocks differ from the
whole sentence by -28 dB, with 27 frames by -29 dB (measured). The remaining difference is the scaling of the 8-bit
activations."""

LEAD = 6
"""The computation starts so many frames (75 ms) before the first phoneme. Onsets come up to 40 ms early (measured)."""

FRAMES_PER_STEP = 2
"""The network counts durations in steps of 25 ms."""

_STEPS = "/CumSum_output_0"
_FEATURES = "/Concat_43_output_0"
_SPECTRUM = ("lh", "theta", "ln", "lr", "phi")
_LAST_LAYER = ("/head/Transpose_output_0_quantized", "m.head.bias")
_HEADS = 2
"""Heads of every attention layer."""
_OVERLAP = dsp.N_FFT // dsp.HOP
_UNVOICED_HZ = 40.0
_TOP_HARMONIC_HZ = 11000.0
_TAPER = 0.9
"""Share of a narrow band above which its gain falls to 0, because harmonics that cross a hard edge would click."""

Floats = NDArray[np.float32]


Noise = Callable[[int, int], NDArray[np.complex64]]
"""Complex Gaussian noise of shape ``(bins, frames)``, unit variance in each part."""


class NoisePool:
    """Noise that is read from random places of one long row. Drawing new noise takes a tenth of the whole synthesis."""

    def __init__(self, samples: int = 1 << 19) -> None:
        draw = np.random.default_rng(0).standard_normal(2 * samples, dtype=np.float32)
        self._row: NDArray[np.complex64] = draw.view(np.complex64)

    def reader(self, seed: int | None) -> Noise:
        """Return the noise source of one clause. The same seed gives the same noise."""
        # numpy's generators are avoided: to seed one asks the kernel, and then waits until other threads release the
        # interpreter.
        draw = random.random if seed is None else random.Random(seed).random

        def noise(bins: int, frames: int) -> NDArray[np.complex64]:
            start = int(draw() * (len(self._row) - bins * frames))
            return self._row[start : start + bins * frames].reshape(bins, frames)

        return noise


class HibariVoice:
    """The network and its sessions. One instance serves all threads; each call works in the caller's thread only."""

    def __init__(self, voice: str = "heart") -> None:
        model = Path(voice_path(voice, download_missing=False)).read_bytes()
        model = depthwise_as_images(join_attention(model, heads=_HEADS))
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # These are tensor names of hibari 0.2's export. With another export this fails at start and says the name.
        prosody = cut(model, inputs={"ids": 7, "speed": 1}, outputs=[_FEATURES, _STEPS, "f0"])
        decoder = cut(model, inputs={_FEATURES: 1}, outputs=_SPECTRUM)
        decoders = {SAMPLE_RATE: decoder}
        for rate in LINE_RATES:
            decoders[rate] = narrow(decoder, tensors=_LAST_LAYER, parts=_SPECTRUM, width=band(rate).bins)

        def session(part: bytes) -> ort.InferenceSession:
            return ort.InferenceSession(exact(part), options, providers=["CPUExecutionProvider"])

        self._prosody = session(prosody)
        self._decoders = {rate: session(decoder) for rate, decoder in decoders.items()}

    def begin(
        self, piece: SpokenPiece, speed: float, noise: Noise, sample_rate: int = SAMPLE_RATE, *, pitch: float = 0.0
    ) -> HibariSpeech:
        """Run the prosody of a piece.

        Args:
            piece: phoneme ids and the words they belong to.
            speed: speaking rate from 0.5 to 2, the range of the network's training.
            noise: the source for the unvoiced part of the sound.
            sample_rate: Hz of the sound: ``SAMPLE_RATE`` or one of ``LINE_RATES``.
            pitch: semitones above the voice's own.
        """
        feed = {"ids": np.asarray([piece.ids], np.int64), "speed": np.asarray([speed], np.float32)}
        features, steps, f0 = self._prosody.run(None, feed)
        if pitch:
            f0 = f0 * np.float32(2 ** (pitch / 12))
        return HibariSpeech(self._decoders[sample_rate], piece, features, steps, f0[0], noise, band(sample_rate))


@dataclass(frozen=True)
class Band:
    """The part of the spectrum (601 bins, 20 Hz apart) that a sample rate needs, and how this part becomes sound."""

    sample_rate: int
    hop: int
    """Samples per frame."""
    n_fft: int
    bins: int
    window: Floats
    """Hann window, shape ``(n_fft,)``."""
    top_harmonic_hz: float
    taper: Floats | None
    """Gain of each bin, shape ``(bins, 1)``; None: all 1."""


@cache
def band(sample_rate: int) -> Band:
    """At ``SAMPLE_RATE``, return the whole spectrum. At a rate that divides it, return the bins up to half that
    rate."""
    n_fft = dsp.N_FFT * sample_rate // SAMPLE_RATE
    bins = n_fft // 2 + 1
    taper, top_hz = None, _TOP_HARMONIC_HZ
    if sample_rate < SAMPLE_RATE:
        edge = np.clip((np.arange(bins) / (bins - 1) - _TAPER) / (1 - _TAPER), 0, 1)
        taper = (0.5 + 0.5 * np.cos(np.pi * edge)).astype(np.float32)[:, None]
        top_hz = min(top_hz, sample_rate / 2)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype(np.float32)
    return Band(sample_rate, n_fft // _OVERLAP, n_fft, bins, window, top_hz, taper)


class HibariSpeech:
    """One piece that is being spoken, block by block. Not thread-safe."""

    def __init__(
        self,
        decoder: ort.InferenceSession,
        piece: SpokenPiece,
        features: Floats,
        steps: NDArray[np.int64],
        f0: Floats,
        noise: Noise,
        band: Band,
    ) -> None:
        """
        Args:
            decoder: the network's second half, for ``band``.
            features: shape ``(1, channels, frames)``.
            steps: shape ``(ids,)``: the step at which each id ends.
            f0: shape ``(frames,)``, Hz.
        """
        self._decoder = decoder
        self._features = features
        self._next = max(0, int(steps[0]) * FRAMES_PER_STEP - LEAD)
        # The sound ends with the last word, whose own last 250 ms are silence already (measured).
        self._end = int(steps[piece.words[-1].end_id - 1]) * FRAMES_PER_STEP
        self._wave = Waveform(f0[: self._end], self._next, noise, band)
        begin = self._next * band.hop
        step = FRAMES_PER_STEP * band.hop
        self.words = [
            WordSpan(
                word.start_char,
                word.end_char,
                max(0, int(steps[word.first_id - 1]) * step - begin),
                max(0, int(steps[word.end_id - 1]) * step - begin),
            )
            for word in piece.words
        ]
        """Sample positions count from the first sample that ``block`` returns."""

    @property
    def finished(self) -> bool:
        """True when ``block`` has returned everything."""
        return self._next == self._end

    def block(self, frames: int) -> Floats:
        """Return the sound of the next ``frames`` frames, or of those that are left.

        The first block is 2 frames shorter and the last one 2 frames longer, because a sample is final only when all
        frames that overlap it have been computed.
        """
        first, end = self._next, min(self._next + frames, self._end)
        total = self._features.shape[2]
        left, right = max(0, first - CONTEXT), min(total, end + CONTEXT)
        window = np.ascontiguousarray(self._features[:, :, left:right])
        spectrum = self._decoder.run(None, {_FEATURES: window})
        own = slice(first - left, end - left)
        self._next = end
        return self._wave.block(*(part[0, :, own] for part in spectrum))


class Waveform:
    """``hibari.dsp.synth`` in blocks: a pulse train shaped by the harmonic branch, plus noise, plus a branch of free
    phase, then one inverse STFT."""

    def __init__(self, f0: Floats, first: int, noise: Noise, band: Band) -> None:
        """
        Args:
            f0: pitch of the whole piece, shape ``(frames,)``, Hz.
            first: frame at which the sound begins.
            noise: the source for the noise branch.
            band: the band of the parts that ``block`` takes.
        """
        self._band = band
        self._f0 = np.pad(np.asarray(f0, np.float32), 1, mode="edge")
        self._frames = len(f0)
        self._noise = noise
        self._next = first
        # A window reaches two frames back. The pulse train starts there, mirrored at its start as in the library.
        self._made = max(0, first - _OVERLAP // 2)
        self._cycles = 0.0
        self._source = np.zeros(0, np.float32)
        self._mirror = first == 0
        if not self._mirror and first < _OVERLAP // 2:
            raise ValueError(f"first frame is {first}, expected 0 or at least {_OVERLAP // 2}")
        self._sum = np.zeros((_OVERLAP - 1, band.hop), np.float32)
        self._weight = np.zeros((_OVERLAP - 1, band.hop), np.float32)
        self._skip = _OVERLAP // 2
        """Rows of the sum that lie before the first sample, because the first window is centred on it."""

    def block(self, lh: Floats, theta: Floats, ln: Floats, lr: Floats, phi: Floats) -> Floats:
        """Return the samples that are final after these frames. Each part has shape ``(bins, frames)``."""
        frames = lh.shape[1]
        n_fft, window, taper = self._band.n_fft, self._band.window, self._band.taper
        # A unit cosine peaks at 1. The transform divides by its length, because numpy then stays in float32; its
        # default computes in float64, six times slower.
        spectrum = np.ascontiguousarray(np.fft.rfft(self._windows(frames) * (4 * window), axis=1, norm="forward").T)
        turn = np.empty(lh.shape, np.complex64)
        angle = np.tanh(theta)
        angle *= np.pi
        np.cos(angle, out=turn.real)
        np.sin(angle, out=turn.imag)
        turn *= dsp.ex(lh)
        spectrum *= turn
        noise = dsp.ex(ln) * self._noise(lh.shape[0], frames)
        spectrum += noise
        np.cos(phi, out=turn.real)
        np.sin(phi, out=turn.imag)
        turn *= dsp.ex(lr)
        spectrum += turn
        if taper is not None:
            spectrum *= taper
        self._next += frames
        sound = np.fft.irfft(spectrum.T, n_fft, axis=1).astype(np.float32, copy=False)
        sound *= window * np.float32(n_fft / dsp.N_FFT)  # bins are scaled for the whole spectrum's transform
        return self._overlap_add(sound, last=self._next == self._frames)

    def _overlap_add(self, frames: Floats, *, last: bool) -> Floats:
        count, hop, window = len(frames), self._band.hop, self._band.window
        rows = frames.reshape(count, _OVERLAP, hop)
        total = np.zeros((count + _OVERLAP - 1, hop), np.float32)
        weight = np.zeros_like(total)
        total[: _OVERLAP - 1] = self._sum
        weight[: _OVERLAP - 1] = self._weight
        squares = (window * window).reshape(_OVERLAP, hop)
        for k in range(_OVERLAP):
            total[k : k + count] += rows[:, k]
            weight[k : k + count] += squares[k]
        self._sum, self._weight = total[count:].copy(), weight[count:].copy()
        end = count + _OVERLAP // 2 if last else count
        final = total[:end]
        final /= np.maximum(weight[:end], np.float32(1e-11))
        skip = min(self._skip, end)
        self._skip -= skip
        return final[skip:].reshape(-1)

    def _windows(self, frames: int) -> Floats:
        """Return the pulse train around each of the next frames, shape ``(frames, n_fft)``."""
        hop, n_fft = self._band.hop, self._band.n_fft
        half = n_fft // 2
        end = min(self._frames, self._next + frames + _OVERLAP // 2 - 1)
        source = np.concatenate((self._source, self._pulses(end)))
        if self._mirror:
            source = np.concatenate((source[half:0:-1], source))
            self._mirror = False
        kept = source
        missing = (frames - 1) * hop + n_fft - len(source)
        if missing > 0:  # the end of the piece
            source = np.concatenate((source, source[-2 : -2 - missing : -1]))
        self._source = kept[frames * hop :]
        return np.lib.stride_tricks.sliding_window_view(source, n_fft)[::hop][:frames]

    def _pulses(self, end: int) -> Floats:
        """Return the pulse train from the last frame made up to frame ``end``; see ``hibari.dsp.pulses``."""
        hop, rate = self._band.hop, self._band.sample_rate
        half = hop // 2
        rise, fall = _between_frames(hop)
        before, here, after = (self._f0[self._made + k : end + k, None] for k in range(3))
        pitch = np.empty((end - self._made, hop), np.float32)
        pitch[:, :half] = before * fall[:half] + here * rise[:half]
        pitch[:, half:] = here * fall[half:] + after * rise[half:]
        pitch = pitch.reshape(-1)
        self._made = end
        voiced = pitch > _UNVOICED_HZ
        np.maximum(pitch, _UNVOICED_HZ, out=pitch)
        cycles = np.cumsum(pitch, dtype=np.float64)
        cycles /= rate
        cycles += self._cycles
        cycles -= np.floor(cycles)
        if len(cycles):
            self._cycles = float(cycles[-1])
        if rate != SAMPLE_RATE:  # with longer steps the same pulses would come up to 83 us earlier
            cycles -= pitch * (1 / rate - 1 / SAMPLE_RATE)
        angle = (cycles * (2 * np.pi)).astype(np.float32)
        harmonics = np.floor(self._band.top_harmonic_hz / pitch) + np.float32(0.5)
        below = np.sin(angle * np.float32(0.5)) * 2
        train: Floats = np.sin(harmonics * angle)
        pole = np.abs(below) <= 2e-3
        np.copyto(below, 1, where=pole)
        train /= below
        np.copyto(train, harmonics, where=pole)
        train -= np.float32(0.5)
        train *= voiced
        return train


@cache
def _between_frames(hop: int) -> tuple[Floats, Floats]:
    """Return, for each sample of a frame, the weights of the later and the earlier frame (``hibari.dsp._interp_w``)."""
    later = (((np.arange(hop) + 0.5) / hop - 0.5) % 1.0).astype(np.float32)
    return later, 1 - later
