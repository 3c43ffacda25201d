"""The embedded voice's network, run so that sound comes before the sentence is finished.

hibari computes a whole sentence at once: prosody (durations, pitch) and a convolutional decoder in one network, then
the waveform. Here the network is cut in two. Prosody runs once for the sentence and gives exact word times; the
decoder and the waveform run in blocks of frames, starting where the speech starts, so the padding of 260-335 ms that
begins every sentence is never computed, and the first block costs a third of a short sentence.

Blocks join without a seam: the decoder sees ``CONTEXT`` frames on both sides of a block, the inverse STFT overlaps
across blocks, the phase of the pulse train runs on. The waveform is that of ``hibari.dsp`` (the formula is there),
except that the decoder's 8-bit activations are scaled per block and not per sentence.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
from hibari import dsp
from hibari.voices import voice_path
from numpy.typing import NDArray

from tts_engine.hibari_text import Piece
from tts_engine.onnx_attention import join_attention
from tts_engine.onnx_cut import cut
from tts_engine.synthesizer import WordSpan

SAMPLE_RATE: int = dsp.SR
HOP: int = dsp.HOP
"""Samples per frame: 12.5 ms."""

CONTEXT = 8
"""Frames of context on both sides of a block. The decoder reaches 27 frames, but 8 already give 28 dB between blocks
and the whole sentence, where 27 give 29: what is left is the scaling of its 8-bit activations (measured)."""

LEAD = 6
"""Frames before the first phoneme at which the computation starts: 75 ms. Onsets come up to 40 ms early (measured)."""

FRAMES_PER_STEP = 2
"""The network counts durations in steps of 25 ms."""

_STEPS = "/CumSum_output_0"
_FEATURES = "/Concat_43_output_0"
_SPECTRUM = ("lh", "theta", "ln", "lr", "phi")
_HEADS = 2
"""Of every attention layer."""
_OVERLAP = dsp.N_FFT // HOP
_WINDOW = dsp.WIN_SRC * dsp.N_FFT
"""For the pulse train: the transform divides by its length, since only so numpy keeps to float32 (its default computes
in float64, six times slower)."""
_UNVOICED_HZ = 40.0
_TOP_HARMONIC_HZ = 11000.0

Floats = NDArray[np.float32]


Noise = Callable[[int, int], NDArray[np.complex64]]
"""Complex Gaussian noise of shape ``(bins, frames)``, unit variance in each part."""


class NoisePool:
    """Noise read from a random place of one long row: drawing it anew takes a tenth of the whole synthesis."""

    def __init__(self, samples: int = 1 << 19) -> None:
        draw = np.random.default_rng(0).standard_normal(2 * samples, dtype=np.float32)
        self._row: NDArray[np.complex64] = draw.view(np.complex64)

    def reader(self, seed: int | None) -> Noise:
        """A source of its own for one clause; the same seed reads the same noise."""
        # Not a generator of numpy: seeding one asks the kernel, and waits for the interpreter behind the threads.
        draw = random.random if seed is None else random.Random(seed).random

        def noise(bins: int, frames: int) -> NDArray[np.complex64]:
            start = int(draw() * (len(self._row) - bins * frames))
            return self._row[start : start + bins * frames].reshape(bins, frames)

        return noise


class HibariVoice:
    """The network and its sessions. One instance serves all threads; each call uses the caller's thread alone."""

    def __init__(self, voice: str = "heart") -> None:
        model = join_attention(Path(voice_path(voice, download_missing=False)).read_bytes(), heads=_HEADS)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Tensor names of hibari 0.2's export: another export fails here, at start, by name.
        prosody = cut(model, inputs={"ids": 7, "speed": 1}, outputs=[_FEATURES, _STEPS, "f0"])
        decoder = cut(model, inputs={_FEATURES: 1}, outputs=_SPECTRUM)
        self._prosody = ort.InferenceSession(prosody, options, providers=["CPUExecutionProvider"])
        self._decoder = ort.InferenceSession(decoder, options, providers=["CPUExecutionProvider"])

    def begin(self, piece: Piece, speed: float, noise: Noise) -> Speech:
        """Run the prosody of a piece.

        Args:
            piece: phoneme ids and the words they belong to.
            speed: speaking rate, 0.5 to 2; the network was not trained beyond.
            noise: for the unvoiced part of the sound.
        """
        feed = {"ids": np.asarray([piece.ids], np.int64), "speed": np.asarray([speed], np.float32)}
        features, steps, f0 = self._prosody.run(None, feed)
        return Speech(self._decoder, piece, features, steps, f0[0], noise)


class Speech:
    """One piece being spoken, block by block. Not thread-safe."""

    def __init__(
        self,
        decoder: ort.InferenceSession,
        piece: Piece,
        features: Floats,
        steps: NDArray[np.int64],
        f0: Floats,
        noise: Noise,
    ) -> None:
        """
        Args:
            features: shape ``(1, channels, frames)``.
            steps: shape ``(ids,)``: the step at which each id ends.
            f0: shape ``(frames,)``, Hz.
        """
        self._decoder = decoder
        self._features = features
        self._next = max(0, int(steps[0]) * FRAMES_PER_STEP - LEAD)
        # What follows the last word is silence: its own last 250 ms already are (measured).
        self._end = int(steps[piece.words[-1].end_id - 1]) * FRAMES_PER_STEP
        self._wave = Waveform(f0[: self._end], self._next, noise)
        begin = self._next * HOP
        step = FRAMES_PER_STEP * HOP
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
        """The next ``frames`` frames of ``HOP`` samples, or what is left.

        The first block is 2 frames short and the last one makes up for it: a sample is final when all frames that
        overlap it are there.
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
    """``hibari.dsp.synth`` in blocks: pulse train shaped by the harmonic branch, plus noise, plus a free-phase branch,
    then one inverse STFT."""

    def __init__(self, f0: Floats, first: int, noise: Noise) -> None:
        """
        Args:
            f0: shape ``(frames,)``, Hz, of the whole piece.
            first: frame at which the sound begins.
            noise: for the noise branch.
        """
        self._f0 = np.pad(np.asarray(f0, np.float32), 1, mode="edge")
        self._frames = len(f0)
        self._noise = noise
        self._next = first
        # A window reaches two frames back: the pulse train starts there, and mirrors at its start as the library's.
        self._made = max(0, first - _OVERLAP // 2)
        self._cycles = 0.0
        self._source = np.zeros(0, np.float32)
        self._mirror = first == 0
        if not self._mirror and first < _OVERLAP // 2:
            raise ValueError(f"first frame is {first}, expected 0 or at least {_OVERLAP // 2}")
        self._sum = np.zeros((_OVERLAP - 1, HOP), np.float32)
        self._weight = np.zeros((_OVERLAP - 1, HOP), np.float32)
        self._skip = _OVERLAP // 2
        """Rows of the sum before the first sample (the first window is centred on it)."""

    def block(self, lh: Floats, theta: Floats, ln: Floats, lr: Floats, phi: Floats) -> Floats:
        """Samples that are final after these frames; each part has shape ``(bins, frames)``."""
        frames = lh.shape[1]
        windows = self._windows(frames)
        spectrum = np.ascontiguousarray(np.fft.rfft(windows * _WINDOW, axis=1, norm="forward").T)
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
        self._next += frames
        sound = np.fft.irfft(spectrum.T, dsp.N_FFT, axis=1).astype(np.float32, copy=False)
        return self._overlap_add(sound, last=self._next == self._frames)

    def _overlap_add(self, frames: Floats, *, last: bool) -> Floats:
        count = len(frames)
        rows = (frames * dsp.WIN).reshape(count, _OVERLAP, HOP)
        total = np.zeros((count + _OVERLAP - 1, HOP), np.float32)
        weight = np.zeros_like(total)
        total[: _OVERLAP - 1] = self._sum
        weight[: _OVERLAP - 1] = self._weight
        squares = (dsp.WIN * dsp.WIN).reshape(_OVERLAP, HOP)
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
        """Shape ``(frames, N_FFT)``: the pulse train around each of the next frames."""
        half = dsp.N_FFT // 2
        end = min(self._frames, self._next + frames + _OVERLAP // 2 - 1)
        source = np.concatenate((self._source, self._pulses(end)))
        if self._mirror:
            source = np.concatenate((source[half:0:-1], source))
            self._mirror = False
        kept = source
        missing = (frames - 1) * HOP + dsp.N_FFT - len(source)
        if missing > 0:  # the end of the piece
            source = np.concatenate((source, source[-2 : -2 - missing : -1]))
        self._source = kept[frames * HOP :]
        return np.lib.stride_tricks.sliding_window_view(source, dsp.N_FFT)[::HOP][:frames]

    def _pulses(self, end: int) -> Floats:
        """The pulse train from the last frame made up to frame ``end``; see ``hibari.dsp.pulses``."""
        half = HOP // 2
        rise, fall = dsp._interp_w()
        before, here, after = (self._f0[self._made + k : end + k, None] for k in range(3))
        pitch = np.empty((end - self._made, HOP), np.float32)
        pitch[:, :half] = before * fall[:half] + here * rise[:half]
        pitch[:, half:] = here * fall[half:] + after * rise[half:]
        pitch = pitch.reshape(-1)
        self._made = end
        voiced = pitch > _UNVOICED_HZ
        np.maximum(pitch, _UNVOICED_HZ, out=pitch)
        cycles = np.cumsum(pitch, dtype=np.float64)
        cycles /= SAMPLE_RATE
        cycles += self._cycles
        cycles -= np.floor(cycles)
        if len(cycles):
            self._cycles = float(cycles[-1])
        angle = (cycles * (2 * np.pi)).astype(np.float32)
        harmonics = np.floor(_TOP_HARMONIC_HZ / pitch) + np.float32(0.5)
        below = np.sin(angle * np.float32(0.5)) * 2
        train: Floats = np.sin(harmonics * angle)
        pole = np.abs(below) <= 2e-3
        np.copyto(below, 1, where=pole)
        train /= below
        np.copyto(train, harmonics, where=pole)
        train -= np.float32(0.5)
        train *= voiced
        return train
