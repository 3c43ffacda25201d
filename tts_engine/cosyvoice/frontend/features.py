"""Turns reference audio into prompt features: mel, Whisper log-mel and Kaldi filter banks in numpy, and two ONNX
networks.

Definitions are those of the checkpoints' training: librosa's Slaney mel scale (mel, Whisper), Kaldi's mel scale
(speaker), torchaudio's windowed-sinc resampler. All arrays are float32 and mono.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tts_engine.api import REFERENCE_HZ, REFERENCE_S
from tts_engine.errors import InvalidRequest, SynthesisFailed

Floats = NDArray[np.float32]

SAMPLE_RATE = 24_000
"""Sample rate of the model's mel and output, Hz."""
CHUNK_TOKENS = 25
"""Tokens in a chunk of the flow's attention mask."""
LOOK_AHEAD_TOKENS = 3
"""Tokens after a chunk that the chunk's mel depends on."""
MEL_BINS = 80
SPEAKER_DIM = 192

MIN_REFERENCE_S, MAX_REFERENCE_S = REFERENCE_S
"""Bounds of a recording, seconds. The longest is a limit of the speech tokenizer."""
END_PAUSE_S = 0.2
"""Silence that follows the speech of a recording, seconds, as in upstream's own preparation. Without it the new speech
would begin inside the last sound."""
_PAUSE_FRAME_S = 0.01
_PAUSE_DB = 40.0
"""Sound this far below the recording's peak is a pause."""


# -- loading -----------------------------------------------------------------------------------------------------------


def load_wav(data: bytes) -> tuple[Floats, int]:
    """Decode a WAV file to mono.

    Args:
        data: a RIFF/WAVE file of any PCM or float sample format and any number of channels.

    Returns:
        Samples of shape ``(samples,)`` in [-1, 1], the mean over channels, and their rate in Hz.

    Raises:
        InvalidRequest: not a WAV file, rate not in ``REFERENCE_HZ``, shorter than 1 s, longer than 30 s, or silent.
    """
    import av

    try:
        # The format is fixed: a probing demuxer would open files and URLs that an uploaded playlist names.
        with av.open(io.BytesIO(data), "r", format="wav", metadata_errors="replace") as container:
            stream = container.streams.audio[0]
            rate = stream.rate
            if rate not in REFERENCE_HZ:
                expected = ", ".join(map(str, REFERENCE_HZ))
                raise InvalidRequest(f"reference audio is {rate} Hz, expected {expected}", field="wav")
            # Packed, because with more than eight planar channels PyAV reads beyond the end of its table of planes.
            packed = av.AudioResampler(format="flt", layout=stream.layout, rate=rate)
            pieces: list[Floats] = []
            samples = 0
            for decoded in itertools.chain(container.decode(stream), (None,)):
                for frame in packed.resample(decoded):
                    channels = frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
                    samples += len(channels)
                    if samples <= MAX_REFERENCE_S * rate:
                        pieces.append(channels.mean(axis=1, dtype=np.float32))
    except (av.FFmpegError, AttributeError, IndexError, ValueError) as exc:  # a stream without a decoder has no rate
        raise InvalidRequest(f"reference audio of {len(data)} bytes is not a readable WAV file", field="wav") from exc
    pcm = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if not MIN_REFERENCE_S <= samples / rate <= MAX_REFERENCE_S:
        raise InvalidRequest(
            f"reference audio is {samples / rate:.2f} s, expected {MIN_REFERENCE_S:g} to {MAX_REFERENCE_S:g} s",
            field="wav",
        )
    if not np.isfinite(pcm).all() or float(np.abs(pcm).max()) < 1e-3:
        raise InvalidRequest("reference audio is silent: peak below -60 dBFS", field="wav")
    return np.clip(pcm, -1.0, 1.0), rate


def with_end_pause(pcm: Floats, rate: int) -> Floats:
    """Return a recording that ends with ``END_PAUSE_S`` of silence, as far as ``MAX_REFERENCE_S`` allows. The shortest
    recording becomes long enough for a chunk of tokens and its look-ahead."""
    size = max(1, round(rate * _PAUSE_FRAME_S))
    peaks = np.abs(pcm[pcm.size % size :]).reshape(-1, size).max(axis=1)
    loud = np.flatnonzero(peaks > peaks.max() * 10 ** (-_PAUSE_DB / 20))
    pause_s = (len(peaks) - 1 - int(loud[-1])) * _PAUSE_FRAME_S
    seconds = pcm.size / rate
    wanted_s = max(END_PAUSE_S - pause_s, MIN_REFERENCE_S + END_PAUSE_S - seconds)
    missing_s = min(wanted_s, MAX_REFERENCE_S - seconds)
    return np.pad(pcm, (0, max(0, int(missing_s * rate))))


# -- resampling --------------------------------------------------------------------------------------------------------


@cache
def _sinc_kernel(source: int, target: int) -> tuple[Floats, int]:
    """Return torchaudio's polyphase kernel ``(target, taps)`` for coprime rates, and its width to the left in
    samples."""
    lowpass_width, rolloff = 6, 0.99
    base = min(source, target) * rolloff
    width = math.ceil(lowpass_width * source / base)
    times = np.arange(0, -target, -1)[:, None] / target + np.arange(-width, width + source)[None, :] / source
    times = np.clip(times * base, -lowpass_width, lowpass_width)
    window = np.cos(times * math.pi / lowpass_width / 2) ** 2
    return (np.sinc(times) * window * (base / source)).astype(np.float32), width


def resample(pcm: Floats, source_hz: int, target_hz: int) -> Floats:
    """Resample ``(samples,)`` by a windowed sinc, as ``torchaudio.functional.resample`` does by default."""
    if source_hz == target_hz:
        return pcm
    divisor = math.gcd(source_hz, target_hz)
    source, target = source_hz // divisor, target_hz // divisor
    kernel, width = _sinc_kernel(source, target)
    padded = np.pad(pcm, (width, width + source))
    windows = sliding_window_view(padded, kernel.shape[1])[::source]
    length = math.ceil(target * pcm.size / source)
    return np.ascontiguousarray((windows @ kernel.T).reshape(-1)[:length])


# -- spectra -----------------------------------------------------------------------------------------------------------


def _hz_to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert to Slaney's mel scale, which is linear below 1 kHz and logarithmic above."""
    log_part = 15.0 + np.log(np.maximum(hz, 1000.0) / 1000.0) / (math.log(6.4) / 27.0)
    return np.where(hz < 1000.0, hz * 3.0 / 200.0, log_part)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) * (math.log(6.4) / 27.0)))


@cache
def slaney_filters(sample_rate: int, n_fft: int, bins: int, fmax: float) -> Floats:
    """Return area-normalised triangular filters ``(bins, n_fft // 2 + 1)``, as ``librosa.filters.mel`` does."""
    frequencies = np.linspace(0.0, sample_rate / 2, n_fft // 2 + 1)
    edge_mels = np.linspace(0.0, float(_hz_to_mel(np.array(fmax))), bins + 2)
    edges = _mel_to_hz(edge_mels)
    distance = edges[:, None] - frequencies[None, :]
    widths = np.diff(edges)
    rising = -distance[:-2] / widths[:-1, None]
    falling = distance[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def _hann(size: int) -> NDArray[np.float64]:
    return 0.5 - 0.5 * np.cos(2.0 * math.pi * np.arange(size) / size)


def mel_spectrogram(pcm: Floats, *, fmax: float | None) -> Floats:
    """Return the flow's log-mel of 24 kHz audio, shape ``(frames, 80)``, 50 frames a second.

    Args:
        pcm: shape ``(samples,)``, 24 kHz.
        fmax: upper edge in Hz: 8000 for version 2; None, the Nyquist frequency, for version 3.
    """
    n_fft, hop = 1920, 480
    padded = np.pad(pcm.astype(np.float64), (n_fft - hop) // 2, mode="reflect")
    spectrum = np.fft.rfft(sliding_window_view(padded, n_fft)[::hop] * _hann(n_fft))
    magnitude = np.sqrt(np.abs(spectrum) ** 2 + 1e-9)
    filters = slaney_filters(SAMPLE_RATE, n_fft, MEL_BINS, fmax or SAMPLE_RATE / 2)
    mel: Floats = np.log(np.maximum(magnitude @ filters.T, 1e-5)).astype(np.float32)
    return mel


def whisper_log_mel(pcm: Floats) -> Floats:
    """Return Whisper's log-mel of 16 kHz audio, shape ``(128, frames)``, 100 frames a second, not padded to 30 s."""
    n_fft, hop = 400, 160
    padded = np.pad(pcm.astype(np.float64), n_fft // 2, mode="reflect")
    spectrum = np.fft.rfft(sliding_window_view(padded, n_fft)[::hop] * _hann(n_fft))[:-1]
    power = slaney_filters(16_000, n_fft, 128, 8000.0) @ (np.abs(spectrum) ** 2).T
    log_power = np.log10(np.maximum(power, 1e-10))
    scaled: Floats = ((np.maximum(log_power, log_power.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
    return scaled


@cache
def _kaldi_filters() -> Floats:
    """Return 80 unnormalised triangles on Kaldi's mel scale from 20 Hz to 8 kHz, ``(80, 257)``; the Nyquist bin is 0.

    All arithmetic is float32, as in the reference: otherwise the logarithm of a quiet bin differs visibly (1.6e-4
    instead of 5e-5).
    """
    one = np.float32(1.0)
    low, high = (1127.0 * math.log1p(hz / 700.0) for hz in (20.0, 8000.0))
    step, band = np.float32((high - low) / (MEL_BINS + 1)), np.arange(MEL_BINS, dtype=np.float32)[:, None]
    left, centre, right = (np.float32(low) + (band + np.float32(edge)) * step for edge in range(3))
    bins = np.float32(1127.0) * np.log(one + np.arange(256, dtype=np.float32) * np.float32(31.25) / np.float32(700.0))
    triangles = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre))
    return np.pad(np.maximum(triangles, np.float32(0.0)), ((0, 0), (0, 1)))


def kaldi_fbank(pcm: Floats) -> Floats:
    """Return Kaldi's log filter-bank energies of 16 kHz audio, shape ``(frames, 80)``. The mean over time is not
    removed.

    Settings: 25 ms frames every 10 ms, no dither, DC removed, pre-emphasis 0.97, povey window, only whole frames.
    """
    frames = sliding_window_view(pcm.astype(np.float64), 400)[::160]
    frames = frames - frames.mean(axis=1, keepdims=True)
    frames = frames - 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    povey = (0.5 - 0.5 * np.cos(2.0 * math.pi * np.arange(400) / 399)) ** 0.85
    power = np.abs(np.fft.rfft(frames * povey, 512)) ** 2
    return np.log(np.maximum(power @ _kaldi_filters().T, np.finfo(np.float32).eps)).astype(np.float32)


# -- the two networks --------------------------------------------------------------------------------------------------


class _OnnxNetwork:
    """An ONNX file on one CPU thread. It takes inputs by position and returns its first output."""

    def __init__(self, path: Path) -> None:
        from tts_engine.onnx_runtime import onnxruntime

        options = onnxruntime.SessionOptions()
        # Registrations run beside live calls, so they use one thread, which does not spin while it waits.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if not path.is_file():
            raise SynthesisFailed(f"{path} is missing: voices cannot be registered without it")
        try:
            self._session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # onnxruntime's errors share no base class
            raise SynthesisFailed(f"{path} cannot be loaded as an ONNX model: {exc}") from exc
        self._names = [value.name for value in self._session.get_inputs()]
        self.path = path

    def run(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        try:
            output: NDArray[Any] = self._session.run(None, dict(zip(self._names, inputs, strict=False)))[0]
        except Exception as exc:  # no common base class
            raise SynthesisFailed(f"{self.path.name} failed on {[i.shape for i in inputs]}: {exc}") from exc
        return output


class SpeechTokenizer(_OnnxNetwork):
    """``speech_tokenizer_v*.onnx``: turns 16 kHz audio into speech tokens, 25 a second."""

    def tokens(self, pcm: Floats) -> NDArray[np.int32]:
        """Return the tokens ``(tokens,)`` of ``pcm``, shape ``(samples,)``, 16 kHz, at most 30 s."""
        features = whisper_log_mel(pcm)
        length = np.array([features.shape[1]], np.int32)
        return self.run(features[None], length).reshape(-1).astype(np.int32)


class SpeakerEncoder(_OnnxNetwork):
    """``campplus.onnx``: turns 16 kHz audio into a speaker vector of 192 values, not normalised."""

    def embed(self, pcm: Floats) -> Floats:
        fbank = kaldi_fbank(pcm)
        vector = self.run((fbank - fbank.mean(axis=0, keepdims=True))[None]).reshape(-1).astype(np.float32)
        if vector.shape != (SPEAKER_DIM,) or not np.isfinite(vector).all():
            raise SynthesisFailed(
                f"{self.path.name} returned shape {vector.shape}, expected {SPEAKER_DIM} finite values"
            )
        return vector


# -- a voice -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceFeatures:
    """The features of a reference recording that requests need.

    The language model gets every token of the recording, because the transcript covers all of it. The flow gets a whole
    number of chunks and three tokens of look-ahead after them. The excess is cut from the beginning, so that the new
    speech follows the end of the recording.
    """

    transcript: str
    """Transcript of the recording. Empty: none."""
    lm_tokens: NDArray[np.int32]
    """Speech tokens for the language model, shape ``(n,)``."""
    flow_tokens: NDArray[np.int32]
    """Speech tokens for the flow, shape ``(25 k + 3,)``. Empty: the voice has only a speaker vector."""
    flow_mel: Floats
    """Mel for the flow, shape ``(2 * (25 k + 3), 80)``."""
    speaker: Floats
    """Speaker vector, shape ``(192,)``."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the features as named arrays, for the registry."""
        return {
            "lm_tokens": self.lm_tokens,
            "flow_tokens": self.flow_tokens,
            "flow_mel": self.flow_mel,
            "speaker": self.speaker,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]], transcript: str) -> VoiceFeatures:
        return VoiceFeatures(
            transcript=transcript,
            lm_tokens=arrays["lm_tokens"],
            flow_tokens=arrays["flow_tokens"],
            flow_mel=arrays["flow_mel"],
            speaker=arrays["speaker"],
        )


def align_prompt(transcript: str, tokens: NDArray[np.int32], mel: Floats, speaker: Floats) -> VoiceFeatures:
    """Cut tokens and mel to the same length (two frames per token), and the flow's share to ``25 k + 3`` tokens.

    Raises:
        InvalidRequest: the recording is shorter than one chunk and its look-ahead (1.12 s).
    """
    n = min(mel.shape[0] // 2, tokens.size)
    least = CHUNK_TOKENS + LOOK_AHEAD_TOKENS
    if n < least:
        raise InvalidRequest(f"reference audio gives {n} speech tokens, expected {least} or more", field="wav")
    excess = (n - LOOK_AHEAD_TOKENS) % CHUNK_TOKENS
    return VoiceFeatures(
        transcript=transcript,
        lm_tokens=tokens[:n],
        flow_tokens=tokens[excess:n],
        flow_mel=mel[2 * excess : 2 * n],
        speaker=speaker,
    )


class FeatureExtractor:
    """Turns reference audio into ``VoiceFeatures``. It implements ``voices.VoiceExtractor``.

    The networks are loaded on first use. Calls block for seconds.
    """

    def __init__(self, folder: Path, *, version: int) -> None:
        self._folder = folder
        self._version = version
        self.engine = f"cosyvoice{version}"
        self._networks: tuple[SpeechTokenizer, SpeakerEncoder] | None = None

    def extract(self, wav: bytes, transcript: str) -> dict[str, NDArray[Any]]:
        """Return the result of ``voice`` as named arrays."""
        return self.voice(wav, transcript).to_arrays()

    def voice(self, wav: bytes, transcript: str) -> VoiceFeatures:
        """Return the features of a recording.

        Raises:
            InvalidRequest: the audio cannot be used.
            SynthesisFailed: a network is missing or fails.
        """
        pcm, rate = load_wav(wav)
        pcm = with_end_pause(pcm, rate)
        if self._networks is None:
            self._networks = (
                SpeechTokenizer(self._folder / f"speech_tokenizer_v{self._version}.onnx"),
                SpeakerEncoder(self._folder / "campplus.onnx"),
            )
        tokenizer, speaker = self._networks
        pcm16 = resample(pcm, rate, 16_000)
        mel = mel_spectrogram(resample(pcm, rate, SAMPLE_RATE), fmax=8000.0 if self._version == 2 else None)
        return align_prompt(transcript, tokenizer.tokens(pcm16), mel, speaker.embed(pcm16))
