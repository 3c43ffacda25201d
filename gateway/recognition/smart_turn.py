"""Probability that a caller has finished a thought, from Smart Turn v3.2 (BSD-2, 23 languages).

The network is the encoder of Whisper tiny with a classifier over the last 8 s. It hears the melody, not the words. Its
file comes with the package ``pipecat-ai``, which is not imported. The features follow Radford et al., *Robust Speech
Recognition via Large-Scale Weak Supervision* (2022), section 2.2; Smart Turn first scales the audio to zero mean and
unit variance.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError
from gateway.seams.recogniser import SAMPLE_RATE

PACKAGE = "pipecat"
_FILE = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"

SECONDS = 8
"""Audio that the network hears, seconds. Shorter audio is padded with silence at its start."""
_SAMPLES = SECONDS * SAMPLE_RATE
_WINDOW, _HOP, _BANDS = 400, 160, 80
_FRAMES = _SAMPLES // _HOP
_LEAST_VARIANCE = 1e-7
_LEAST_POWER = 1e-10
_RANGE = 8.0  # decades below the loudest band; fainter bands are raised to this


class TurnModelError(GatewayError):
    """A turn model cannot be loaded."""


def model_file() -> Path | None:
    """Return the file of the network in the package ``pipecat-ai``. None: not installed, or another version."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder) / _FILE).is_file():
            return path
    return None


class SmartTurn:
    """The network, loaded and warmed up: a function from audio to a probability.

    Raises:
        TurnModelError: the file is not this network.
    """

    def __init__(self, file: Path) -> None:
        from tts_engine.onnx_runtime import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Without this entry, a processor without VNNI adds pairs of 8-bit products in 16 bits, which overflow: half a
        # sentence then counts as complete. Other processors ignore it.
        options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            self._network: Any = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            self(np.zeros(SAMPLE_RATE, np.float32))  # the first run allocates memory
        except Exception as exc:  # onnxruntime's exceptions have no common base class
            raise TurnModelError(f"{file} cannot be used as Smart Turn v3: {type(exc).__name__}") from exc

    def __call__(self, pcm: NDArray[np.float32]) -> float:
        """Return the probability that the thought is complete.

        Args:
            pcm: shape ``(samples,)``, 16 kHz, in [-1, 1], up to now, including the silence at its end; only the last 8
                s count.
        """
        (probability,) = self._network.run(None, {"input_features": features(pcm)[None]})
        return float(probability[0, 0])


def features(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return Whisper's log-mel features of the last 8 s, shape ``(80, 800)``.

    The silence before shorter audio is one constant after scaling, so one frame of it is computed and repeated.
    """
    pcm = pcm[-_SAMPLES:].astype(np.float32)
    missing = _SAMPLES - len(pcm)
    mean = float(pcm.sum()) / _SAMPLES
    variance = float(np.square(pcm, dtype=np.float64).sum()) / _SAMPLES - mean**2
    scale = (variance + _LEAST_VARIANCE) ** -0.5
    equal = max(0, (missing - _WINDOW // 2) // _HOP)  # number of first frames that contain only silence
    begin = equal * _HOP - _WINDOW // 2  # start of the window of the first other frame
    silence = np.full(missing, -mean * scale, np.float32)
    sound = np.concatenate((silence, (pcm - mean) * scale))
    padded = np.pad(sound[max(0, begin) :], (max(0, -begin), _WINDOW // 2), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP][: _FRAMES - equal]
    power = np.square(np.abs(np.fft.rfft(windows * _HANN, axis=1)))
    bands = np.log10(np.maximum(power @ _MEL, _LEAST_POWER))
    front = np.repeat(_silent_frame(-mean * scale)[None], equal, axis=0)
    whole = np.concatenate((front, bands)).T
    return np.asarray((np.maximum(whole, whole.max() - _RANGE) + 4) / 4, np.float32)


def _silent_frame(value: float) -> NDArray[np.float64]:
    power = np.square(np.abs(np.fft.rfft(np.full(_WINDOW, value) * _HANN)))
    return np.asarray(np.log10(np.maximum(power @ _MEL, _LEAST_POWER)))


def _mel_filters() -> NDArray[np.float64]:
    """Return the weights of the 80 bands, shape ``(201, 80)``: triangles of equal area on Slaney's mel scale."""
    per_mel, knee_hz = 200.0 / 3, 1000.0
    knee, step = knee_hz / per_mel, np.log(6.4) / 27
    top = knee + np.log(SAMPLE_RATE / 2 / knee_hz) / step
    mels = np.linspace(0, top, _BANDS + 2)
    hertz = np.where(mels < knee, mels * per_mel, knee_hz * np.exp((mels - knee) * step))
    bins = np.linspace(0, SAMPLE_RATE / 2, _WINDOW // 2 + 1)[:, None]
    width = np.diff(hertz)
    rising, falling = (bins - hertz[:-2]) / width[:-1], (hertz[2:] - bins) / width[1:]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * 2 / (hertz[2:] - hertz[:-2]))


_HANN = np.hanning(_WINDOW + 1)[:-1]
_MEL = _mel_filters()
