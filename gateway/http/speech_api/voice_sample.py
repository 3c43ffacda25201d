"""Measures the recording of a voice, and says what is wrong with it. Pure.

A poor recording makes a poor voice, and no error shows that. The bounds were chosen by recordings of people and of
noise that others made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FRAME_S = 0.02
_SILENT = 10 ** (-60 / 20)
_BAND_HZ = 250.0
_FFT_S = 0.032

_SHORT_S = 3.0
_QUIET_DBFS = -38.0
_NOISY_DB = 18.0
"""The measured distance is up to 3 dB more than the true one. Clean speech of people had 22 dB or more."""
_CLIPPED = 0.001
"""Share of samples within 3 % of the peak. In undamaged speech of people it was 0.00013 or less; cut 6 dB below its
peak, 0.0036 or more."""
_NARROW_HZ = 5500.0
_BAND_DB = 55.0
"""A band with less than this below the loudest band holds no sound of the speaker."""
_ALIKE = 0.5
_DIFFERENT_WORDS = 0.5
_LETTERS_A_SECOND = (4.0, 30.0)
_HAN_LETTERS = 3.0
"""Letters for which a Chinese character, a kana or a digit counts."""

_WIDE_LETTER = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+(?:['’][^\W_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of a recording. ``SampleView`` explains the fields."""

    seconds: float
    sample_rate: int
    channels: int
    alike: float
    """Correlation of the first two channels, -1 to 1; 1 for a single channel."""
    missing_s: float
    """Seconds that the file's head announces beyond its sound."""
    speech_s: float = 0.0
    level_dbfs: float = -100.0
    noise_db: float = 0.0
    clipped: float = 0.0
    bandwidth_hz: int = 0


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """The figures of ``Measured`` that the samples alone give."""

    speech_s: float
    level_dbfs: float
    noise_db: float
    clipped: float
    bandwidth_hz: int


@dataclass(frozen=True, slots=True)
class SampleProblem:
    """Something that makes the voice worse than it could be."""

    code: str
    message: str


def measure(pcm: NDArray[np.int16], rate: int) -> SampleFigures:
    """Measure mono samples at ``rate`` Hz."""
    size = max(1, round(rate * _FRAME_S))
    sound = pcm.astype(np.float32) / np.float32(32768)
    frames = sound[: len(sound) // size * size].reshape(-1, size)
    peak = float(np.abs(sound).max(initial=0.0))
    if not len(frames) or peak < _SILENT:
        return SampleFigures(0.0, -100.0, 0.0, 0.0, 0)
    power = np.mean(frames**2, axis=1)
    level = 10 * np.log10(power + 1e-10)
    low, high = np.percentile(level, (5, 95))
    spoken = level > max(high - 25, (low + high) / 2)
    speech_db = 10 * float(np.log10(power[spoken].mean()))
    quiet_db = 10 * float(np.log10(np.sort(power)[: max(1, len(power) // 10)].mean() + 1e-10))
    return SampleFigures(
        round(float(np.count_nonzero(spoken)) * _FRAME_S, 2),
        round(speech_db, 1),
        round(speech_db - quiet_db, 1),
        round(float(np.mean(np.abs(sound) > 0.97 * peak)), 5),
        _bandwidth_hz(sound, rate),
    )


def _bandwidth_hz(sound: NDArray[np.float32], rate: int) -> int:
    """Return the upper edge of the highest band with sound, hertz."""
    size = 1 << round(np.log2(rate * _FFT_S))
    if len(sound) < size:
        return 0
    frames = np.lib.stride_tricks.sliding_window_view(sound, size)[:: size // 2]
    power = np.abs(np.fft.rfft(frames * np.hanning(size).astype(np.float32), axis=1)) ** 2
    per_band = max(1, round(_BAND_HZ * size / rate))
    bands = power[:, 1 : 1 + (power.shape[1] - 1) // per_band * per_band].reshape(len(power), -1, per_band).sum(axis=2)
    level = 10 * np.log10(np.percentile(bands, 98, axis=0) + 1e-12)
    heard = np.flatnonzero(level > level.max() - _BAND_DB)
    return int((int(heard[-1]) + 1) * per_band * rate / size)


def problems(measured: Measured, transcript: str, heard: str = "") -> list[SampleProblem]:
    """Return what is wrong with a recording, the worst first.

    Args:
        transcript: its words, as its owner wrote them.
        heard: its words, as a recogniser understood them. Empty: no recogniser listened.
    """
    found: list[SampleProblem] = []

    def note(code: str, message: str) -> None:
        found.append(SampleProblem(code, message))

    if measured.missing_s:
        note("incomplete", f"the file is cut off: its head announces {measured.missing_s:.1f} s more")
    if measured.alike < _ALIKE:
        note(
            "two_channels", "the channels hold different sounds, perhaps two speakers: send the channel of one speaker"
        )
    if measured.speech_s < _SHORT_S:
        note("short", f"there are {measured.speech_s:.1f} s of speech; 5 to 15 s are best")
    elif measured.speech_s < measured.seconds / 3 and measured.noise_db >= _NOISY_DB:
        note("pauses", f"only {measured.speech_s:.1f} of {measured.seconds:.1f} s are speech: cut the pauses")
    if measured.level_dbfs < _QUIET_DBFS:
        note("quiet", f"the speech has {measured.level_dbfs:.0f} dBFS; -30 to -15 dBFS are usual")
    if measured.clipped > _CLIPPED:
        note("clipped", f"the speech is clipped: {100 * measured.clipped:.1f} % of the samples are at the limit")
    if measured.noise_db < _NOISY_DB:
        note("noisy", f"the noise is only {measured.noise_db:.0f} dB below the speech; 30 dB or more are good")
    if measured.bandwidth_hz < _NARROW_HZ:
        note("narrow", f"there is no sound above {measured.bandwidth_hz / 1000:.1f} kHz, as on a telephone")
    if wrong := _wrong_transcript(measured, transcript, heard):
        note("transcript", wrong)
    return found


def _wrong_transcript(measured: Measured, transcript: str, heard: str) -> str:
    if not transcript.strip():
        return "there is no transcript; with one, the voice is more like the speaker"
    if heard:
        written = words_of(transcript)
        share = difference(written, words_of(heard))
        if share > _DIFFERENT_WORDS:
            return f"{100 * share:.0f} % of the words are others than a recogniser heard"
    letters = sum(_HAN_LETTERS if _WIDE_LETTER.match(char) or char.isdecimal() else 1.0
                  for char in transcript if char.isalnum())  # fmt: skip
    rate = letters / max(measured.speech_s, 0.1)
    if not _LETTERS_A_SECOND[0] <= rate <= _LETTERS_A_SECOND[1]:
        much = "little" if rate < _LETTERS_A_SECOND[0] else "much"
        return f"the transcript is too {much} for {measured.speech_s:.1f} s of speech"
    return ""


def words_of(text: str) -> list[str]:
    """Return the words of a text without case and marks; a Chinese or Japanese character is a word."""
    return [word.casefold().replace("’", "'") for word in _WORD.findall(text)]


def difference(written: list[str], heard: list[str]) -> float:
    """Return the share of ``written`` that must change to become ``heard``, 0 to 1 (word errors; more count as 1)."""
    row = list(range(len(heard) + 1))
    for at, word in enumerate(written, 1):
        before, row[0] = row[0], at
        for to, other in enumerate(heard, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (word != other))
    return min(1.0, row[-1] / max(1, len(written)))
