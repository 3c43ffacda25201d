"""Judges the samples of one sound: a steady tone, several tones at once, steps, a sweep, or none of them. Pure.

A recording tone comes from a generator. Its level and frequency are constant or change evenly, it ends at once or fades
evenly, and what is left beside it is the noise of the line. Vowels and notes fail at one of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.answering.progress_tones import PAIR_HZ, is_information

Pcm = NDArray[np.float32]

SAMPLE_RATE = 8000
SHORTEST_S, LONGEST_S = 0.085, 2.15
"""Length of a beep as measured, seconds."""
BEEP_HZ = (335.0, 2260.0)
"""Lowest and highest frequency of a beep."""
QUIET = 10 ** (-50 / 10)
"""Mean square below which nothing is judged."""
WINDOW = 256
HANN = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
FIRST_BIN, LAST_BIN = 6, 112
"""Telephone sound: 188 to 3,500 Hz."""
REACH = 4
"""Bins on each side of a peak that belong to it: 125 Hz, which a fast sweep needs."""

_BIN_HZ = SAMPLE_RATE / WINDOW
_STEP = 80  # samples between windows
_BLOCK = 40  # samples of one value of the envelope, 5 ms
_PAUSE_BLOCKS = 8
_REACHES = np.arange(-REACH, REACH + 1)
_CUT_OFF_DB = -14.0  # level after a tone, against its own
_REST_DB = -17.0  # most energy beside a tone on a silent line, against its own
_SHORT_S, _SHORT_REST_DB = 0.13, -20.0  # a short sound has more chances to look like a tone
_REST_OVER_NOISE_DB = 1.0
_UNSTEADY = 0.006  # share of the energy that a generated tone may lose from its narrow peak
_PROGRESS_REST = 0.1  # share of the energy beside the components of a call-progress tone
_LEAST_SHARE = 0.04  # of the weaker component of a pair, 14 dB below the other
_SLOPE_DB_S = 40.0
_LOW_HZ, _LOW_S = 450.0, 0.2  # a vowel may be this low and this short
_PAIR_APART_HZ, _PAIR_S = 30.0, 0.12
_STEP_RATIO, _SWEEP_RATIO = 1.04, 1.01
_STEP_WINDOWS = 4
_FADE_S, _FADE_IN_S, _FADED_DB = 0.09, 0.06, -9.0  # least length until the level has fallen, and longest rise
_SWELL_DB, _STEP_DB, _FADE_HZ = 0.8, 5.0, 20.0  # a fading tone never swells, falls by no step, and keeps its frequency


@dataclass(frozen=True, slots=True)
class TonalSound:
    """A tonal sound. Times are seconds since the first sample of the stream."""

    begins_s: float
    ends_s: float
    hz: tuple[float, ...]
    """Its components by frequency, or the frequencies in turn."""
    pair: bool
    """True for several components at once."""
    steady: bool
    beep: bool = True
    """False: only a call-progress tone may look like this."""

    @property
    def length_s(self) -> float:
        return self.ends_s - self.begins_s


@dataclass(frozen=True, slots=True)
class _Components:
    hz: tuple[float, ...]
    rest: float
    """Share of the energy beside them."""
    narrow: float
    """Share of the energy in the narrow peak of the loudest one."""


@dataclass(frozen=True, slots=True)
class _Track:
    """The loudest frequency in windows of 32 ms."""

    hz: NDArray[np.float64]
    share: float
    """Median share of the energy near it."""


def judge(pcm: Pcm, begins_s: float, *, lasting: bool = False) -> TonalSound | None:
    """Return what a sound is. None: neither a beep nor a call-progress tone.

    Args:
        pcm: shape ``(samples,)``, at ``SAMPLE_RATE``, with a little of the sound before and after it.
        begins_s: time of its first sample.
        lasting: the sound has not ended.
    """
    blocks = len(pcm) // _BLOCK
    envelope = np.sqrt(np.square(pcm[: blocks * _BLOCK].reshape(blocks, _BLOCK)).mean(axis=1))
    level, first, last = _last_run(envelope)
    if level * level < QUIET:
        return None
    length_s = (last - first) * _BLOCK / SAMPLE_RATE
    if length_s < SHORTEST_S or (length_s > LONGEST_S and not lasting):
        return None
    body = pcm[first * _BLOCK : last * _BLOCK]
    begins_s += first * _BLOCK / SAMPLE_RATE
    ends_s = begins_s + length_s
    found = _components(body)
    if len(found.hz) > 1 and _within(found.hz, PAIR_HZ) and found.rest < _PROGRESS_REST:
        return TonalSound(begins_s, ends_s, found.hz, pair=True, steady=True, beep=False)
    if not lasting and (hz := _fading(pcm[first * _BLOCK :], envelope[first:])):
        return TonalSound(begins_s, ends_s, (hz,), pair=False, steady=True)
    after = envelope[last + 1 :]
    noise_db = 20 * math.log10(float(np.median(after)) / level + 1e-6) if len(after) else 0.0
    if lasting:
        noise_db = -30.0
    rest_db = _REST_DB if length_s > _SHORT_S else _SHORT_REST_DB
    rest = 10 ** (max(rest_db, noise_db + _REST_OVER_NOISE_DB) / 10)
    if noise_db > _CUT_OFF_DB:
        return None
    track = _track(body)
    steps = _steps(track.hz)
    if is_information(steps) and 1 - track.share < _PROGRESS_REST:
        return TonalSound(begins_s, ends_s, steps, pair=False, steady=False, beep=False)
    if not _even(envelope[first + 2 : last - 2], noise_db, beats=len(found.hz) > 1 or bool(steps)):
        return None
    if len(found.hz) == 2 and found.rest < rest:
        low, high = found.hz
        if _within(found.hz, BEEP_HZ) and high - low > _PAIR_APART_HZ and length_s > _PAIR_S:
            return TonalSound(begins_s, ends_s, found.hz, pair=True, steady=True)
        return None
    if len(found.hz) == 1 and found.narrow > track.share - _UNSTEADY and _within(found.hz, BEEP_HZ):
        if found.hz[0] < _LOW_HZ and length_s < _LOW_S:
            rest = min(rest, 10 ** (_REST_DB / 10))
        return TonalSound(begins_s, ends_s, found.hz, pair=False, steady=True) if found.rest < rest else None
    if 1 - track.share > rest or not _within((float(track.hz.min()), float(track.hz.max())), BEEP_HZ):
        return None
    if steps:
        return TonalSound(begins_s, ends_s, steps, pair=False, steady=False)
    if ends := _sweep(track.hz):
        return TonalSound(begins_s, ends_s, ends, pair=False, steady=False)
    return None


def _last_run(envelope: Pcm) -> tuple[float, int, int]:
    """Return level, first and last block of the last sound that no pause of more than 35 ms divides.

    Speech may end just before a tone.
    """
    first, last, level = 0, len(envelope), 0.0
    for _ in range(2):
        level = float(np.percentile(envelope[first:last], 75))
        loud = np.flatnonzero(envelope[first:] > 0.4 * level) + first
        if not len(loud):
            return 0.0, 0, 0
        pauses = np.flatnonzero(np.diff(loud) > _PAUSE_BLOCKS)
        first, last = int(loud[pauses[-1] + 1] if len(pauses) else loud[0]), int(loud[-1]) + 1
    return level, first, last


def _within(values: tuple[float, ...], limits: tuple[float, float]) -> bool:
    return limits[0] <= min(values) and max(values) <= limits[1]


def _even(envelope: Pcm, noise_db: float, *, beats: bool) -> bool:
    """Return True if the level of a tone is constant, or changes evenly, but for the noise of the line.

    Args:
        beats: it has several components, so that its level in 5 ms is not constant.
    """
    if beats:
        envelope = np.convolve(envelope, np.full(6, 1 / 6), "valid")
    if len(envelope) < 4:
        return True
    level_db = 20 * np.log10(envelope + 1e-6)
    at = np.arange(len(level_db))
    slope, offset = np.polyfit(at, level_db, 1)
    rough_db = float(np.std(level_db - slope * at - offset))
    return rough_db < 0.7 + 5 * 10 ** (noise_db / 20) and abs(slope) * SAMPLE_RATE / _BLOCK < _SLOPE_DB_S


def _fading(sound: Pcm, envelope: Pcm) -> float:
    """Return the frequency of a tone that begins at once and then fades like a struck bell; 0 for any other sound.

    Args:
        sound: from its beginning on.
        envelope: of the same.
    """
    level_db = 20 * np.log10(np.convolve(envelope, np.full(4, 0.25), "valid") + 1e-6)
    peak = int(level_db.argmax())
    falls = level_db[peak:] - level_db[peak]
    low = np.flatnonzero(falls < _FADED_DB)
    if peak * _BLOCK / SAMPLE_RATE > _FADE_IN_S or not len(low):
        return 0.0
    falls = falls[: low[0] + 1]
    blocks = peak + len(falls)
    is_short = blocks * _BLOCK / SAMPLE_RATE < _FADE_S
    swells = float((falls - np.minimum.accumulate(falls)).max()) > _SWELL_DB
    steps = len(falls) > 4 and float(-np.diff(falls[::4]).min()) > _STEP_DB
    if is_short or swells or steps:
        return 0.0
    track = _track(sound[: blocks * _BLOCK])
    is_pure = 1 - track.share < 10 ** (_REST_DB / 10) and float(np.ptp(track.hz)) < _FADE_HZ
    hz = float(np.median(track.hz))
    return hz if is_pure and _LOW_HZ <= hz <= BEEP_HZ[1] else 0.0


def _components(body: Pcm) -> _Components:
    """Return up to three components of a steady sound. Harmonics of the loudest one are not named."""
    size = 1 << max(11, (len(body) * 2 - 1).bit_length())
    spectrum = np.fft.rfft(body * np.hanning(len(body)), size)
    power = spectrum.real**2 + spectrum.imag**2
    bin_hz = SAMPLE_RATE / size
    power[: int(188 / bin_hz)] = 0
    power[int(3500 / bin_hz) :] = 0
    total = float(power.sum()) or 1.0
    lobe = math.ceil(2.2 * size / len(body))
    found: list[tuple[float, float]] = []
    for _ in range(3):
        peak = int(power.argmax())
        low, high = max(0, peak - lobe), peak + lobe + 1
        share = float(power[low:high].sum()) / total
        if found and share < _LEAST_SHARE:
            break
        below, at, above = (math.log(float(power[peak + each]) + 1e-20) for each in (-1, 0, 1))
        curve = below - 2 * at + above
        shift = 0.5 * (below - above) / curve if curve < 0 else 0.0
        found.append(((peak + shift) * bin_hz, share))
        power[low:high] = 0
    loudest, narrow = found[0]
    hz = sorted(each for each, _ in found if each == loudest or abs(each / loudest - round(each / loudest)) > 0.01)
    return _Components(tuple(hz), 1 - sum(share for _, share in found), narrow)


def _track(body: Pcm) -> _Track:
    windows = np.lib.stride_tricks.sliding_window_view(body, WINDOW)[::_STEP]
    spectrum = np.fft.rfft(windows * HANN)
    power = spectrum.real**2 + spectrum.imag**2
    power[:, :FIRST_BIN] = 0
    power[:, LAST_BIN:] = 0
    rows = np.arange(len(windows))[:, None]
    peak = np.clip(power.argmax(axis=1), 1, WINDOW // 2 - 1)[:, None]
    near = np.clip(peak + _REACHES, 0, WINDOW // 2)
    share = power[rows, near].sum(axis=1) / (power.sum(axis=1) + 1e-20)
    logs = np.log(power[rows, peak + np.arange(-1, 2)] + 1e-20)
    curve = np.minimum(logs[:, 0] - 2 * logs[:, 1] + logs[:, 2], -1e-6)
    hz = (peak[:, 0] + 0.5 * (logs[:, 0] - logs[:, 2]) / curve) * _BIN_HZ
    return _Track(hz, float(np.median(share)))


def _steps(hz: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the frequencies between which a sound steps: two or three, each for 60 ms or more. Else empty."""
    runs: list[list[float]] = []
    for each in hz:
        if runs and abs(each - np.median(runs[-1])) < 0.015 * each:
            runs[-1].append(float(each))
        else:
            runs.append([float(each)])
    steps = [run for run in runs if len(run) >= _STEP_WINDOWS]
    found = [float(np.median(run)) for run in steps]
    apart = all(max(a, b) / min(a, b) > _STEP_RATIO for a, b in zip(found, found[1:], strict=False))
    whole = sum(map(len, steps)) >= len(hz) - 5 * (len(steps) - 1)
    return tuple(found) if 2 <= len(found) <= 3 and apart and whole else ()


def _sweep(hz: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the first and the last frequency of a sound that sweeps evenly; else empty."""
    change = np.diff(hz)
    if len(change) < 4:
        return ()
    one_way = max(float((change > -2).mean()), float((change < 2).mean()))
    even = float((np.abs(np.diff(change)) < 12).mean())
    ratio = max(hz[0], hz[-1]) / min(hz[0], hz[-1])
    return (float(hz[0]), float(hz[-1])) if one_way > 0.95 and even > 0.9 and ratio > _SWEEP_RATIO else ()
