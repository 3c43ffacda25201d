"""Suppression of other voices and of noise. Only the level of what is left counts: it tells the detector which windows
are not the caller's. The suppressed sound goes nowhere: with it, Silero heard 11 words of 14.

The network is Hush: a DeepFilterNet 3 that was trained to keep the nearest voice. Its three files come with the package
``livekit-plugins-hush`` (Apache-2.0), which is not imported. Features and filters follow Schröter et al.,
*DeepFilterNet: Perceptually Motivated Real-Time Speech Enhancement* (2023), section 2, and ``libDF`` 0.5.6.

The network knows spectra of 16 kHz. A transform of half the size gives the lower half of such a spectrum from a line of
8 kHz, and the upper half is empty, as it is on a telephone.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError
from gateway.uplink.pieces import Pcm
from gateway.uplink.vad import SAMPLE_RATE

PACKAGE = "livekit-plugins-hush==0.3.3"
_FOLDER = "plugins/hush/models"
_FILES = ("enc.onnx", "erb_dec.onnx", "df_dec.onnx")

_HOP = SAMPLE_RATE // 100
"""Samples of one step of the network: 10 ms."""
DELAY_S = _HOP / SAMPLE_RATE
"""Delay of the suppressed sound: a spectrum is of two steps."""

_BINS, _HEARD_BINS = 161, _HOP + 1  # of a spectrum at 16 kHz; of one at 8 kHz
_BIN_HZ, _TOP_HZ = 50.0, 8000.0
_BANDS = 32
_LEAST_BINS = 2  # of a band
_FILTERED_BINS, _TAPS = 64, 5  # of the filter over the last spectra
_HIDDEN = 256
_FORGET = math.exp(-0.01)  # of the running means, for each step: a time constant of 1 s
_FLOOR = 1e-10
_BANDS_DB = (-60.0, -90.0)  # means of the lowest and the highest band before the first sound
_BANDS_SCALE_DB = 40.0
_MAGNITUDES = (0.001, 0.0001)  # means of the lowest and the highest filtered bin


class SuppressorError(GatewayError):
    """The suppressor cannot be loaded."""


def models_folder() -> Path | None:
    """Return the folder of the network's files. None: the package is not installed, or another version."""
    spec = importlib.util.find_spec("livekit")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / _FOLDER
        if all((path / name).is_file() for name in _FILES):
            return path
    return None


class HushNetwork:
    """The network, loaded once for all calls.

    Raises:
        SuppressorError: the files are not this network.
    """

    def __init__(self, folder: Path) -> None:
        from tts_engine.onnx_runtime import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.encoder, self.gains, self.filters = (
                onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
                for name in _FILES
            )
            Suppressor(self).process(np.zeros(_HOP, np.float32))  # the first run allocates memory
        except Exception as exc:  # onnxruntime's exceptions have no common base class
            raise SuppressorError(f"{folder} cannot be used as Hush: {type(exc).__name__}") from exc


class Suppressor:
    """The suppressor of one call. Only the uplink's thread uses it."""

    def __init__(self, network: HushNetwork) -> None:
        self._network = network
        self._waiting: Pcm = np.zeros(0, np.float32)
        self._before: Pcm = np.zeros(_HOP, np.float32)
        self._tail: Pcm = np.zeros(_HOP, np.float32)
        self._bands_db = np.linspace(*_BANDS_DB, _BANDS, dtype=np.float32)
        self._magnitudes = np.linspace(*_MAGNITUDES, _FILTERED_BINS, dtype=np.float32)
        self._spectra = np.zeros((_TAPS, _FILTERED_BINS), np.complex64)
        self._states = [np.zeros((layers, 1, _HIDDEN), np.float32) for layers in (1, 1, 3)]

    @property
    def held_s(self) -> float:
        """Seconds of sound that were taken and not yet returned, with the delay."""
        return len(self._waiting) / SAMPLE_RATE + DELAY_S

    def process(self, pcm: Pcm) -> tuple[Pcm, Pcm]:
        """Take the next sound, shape ``(samples,)`` at 8 kHz. Return the sound of complete steps, delayed by
        ``DELAY_S``, and what is left of it, both of one shape."""
        waiting = np.concatenate((self._waiting, pcm))
        steps = len(waiting) // _HOP
        self._waiting = waiting[steps * _HOP :]
        sound = np.concatenate((self._before, waiting[: steps * _HOP]))[: steps * _HOP]
        left = [self._step(waiting[at * _HOP : (at + 1) * _HOP]) for at in range(steps)]
        return sound, np.concatenate(left) if left else sound

    def _step(self, pcm: Pcm) -> Pcm:
        both = np.concatenate((self._before, pcm))
        self._before = pcm
        spectrum = np.zeros(_BINS, np.complex64)
        spectrum[:_HEARD_BINS] = np.fft.rfft(both * _WINDOW) / _HOP / 2
        clean = self._cleaned(spectrum)[:_HEARD_BINS]
        sound = np.fft.irfft(clean, 2 * _HOP).astype(np.float32) * _WINDOW * (2 * _HOP)
        out: Pcm = sound[:_HOP] + self._tail
        self._tail = sound[_HOP:]
        return out

    def _cleaned(self, spectrum: NDArray[np.complex64]) -> NDArray[np.complex64]:
        """Return the spectrum without what the network suppresses, shape ``(_BINS,)``."""
        network, states = self._network, self._states
        *levels, emb, c0, _, states[0] = network.encoder.run(None, {**self._features(spectrum), "h_enc_in": states[0]})
        e0, e1, e2, e3 = levels
        gains, states[1] = network.gains.run(
            None, {"emb": emb, "e3": e3, "e2": e2, "e1": e1, "e0": e0, "h_erb_dec_in": states[1]}
        )
        taps, states[2] = network.filters.run(None, {"emb": emb, "c0": c0, "h_df_dec_in": states[2]})
        clean: NDArray[np.complex64] = spectrum * np.repeat(gains.reshape(_BANDS), _WIDTHS)
        pairs = taps.reshape(_FILTERED_BINS, _TAPS, 2)
        clean[:_FILTERED_BINS] = ((pairs[..., 0] + 1j * pairs[..., 1]).T * self._spectra).sum(axis=0)
        return clean

    def _features(self, spectrum: NDArray[np.complex64]) -> dict[str, Any]:
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        bands_db = 10 * np.log10(np.add.reduceat(power, _STARTS) / _WIDTHS + _FLOOR).astype(np.float32)
        self._bands_db += (bands_db - self._bands_db) * np.float32(1 - _FORGET)
        low = spectrum[:_FILTERED_BINS]
        self._magnitudes += (np.abs(low) - self._magnitudes) * np.float32(1 - _FORGET)
        self._spectra = np.concatenate((self._spectra[1:], low[None]))
        unit = low / np.sqrt(self._magnitudes)
        return {
            "feat_erb": ((bands_db - self._bands_db) / _BANDS_SCALE_DB).reshape(1, 1, 1, _BANDS),
            "feat_spec": np.stack((unit.real, unit.imag)).reshape(1, 2, 1, _FILTERED_BINS),
        }


def _band_widths() -> list[int]:
    """Return the number of bins of each band: equal steps of the ERB scale (Glasberg and Moore, 1990), but at least
    ``_LEAST_BINS``."""
    scale = 24.7 * 9.265
    step = math.log(1 + _TOP_HZ / scale) / _BANDS
    widths: list[int] = []
    before = borrowed = 0
    for band in range(1, _BANDS + 1):
        end = int(scale * (math.exp(band * step) - 1) / _BIN_HZ + 0.5)
        width = end - before - borrowed
        widths.append(max(width, _LEAST_BINS))
        borrowed = widths[-1] - width
        before = end
    widths[-1] += _BINS - sum(widths)
    return widths


_WIDTHS = np.array(_band_widths())
_STARTS = np.cumsum(_WIDTHS) - _WIDTHS
_WINDOW = np.sin(np.pi / 2 * np.sin(np.pi * (np.arange(2 * _HOP) + 0.5) / (2 * _HOP)) ** 2).astype(np.float32)
"""The window of Vorbis I, section 4.3.1; its square and that of the next window add up to one."""
