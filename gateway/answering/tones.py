"""Finds the tones of a telephone line: recording beeps, and the tones that are no beep. Pure.

Sound is judged in two stages. Every 20 ms, a window of 32 ms is checked for one or two narrow spectral peaks. When such
a sound has ended, its samples are judged at once: components, steadiness, edges. A tone that may belong to a
call-progress tone waits until its cadence has gone by before it counts as a beep.

A frame of 20 ms costs 4 us of processor time in silence, and about 75 us in speech (``benchmarks/RESULTS.md``).
The state is bounded: the samples of one sound (77 kB, only while a tone sounds), the last ``_KEPT`` sounds and the
loudness of 90 s (36 kB).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.answering.progress_tones import (
    BUSY_PAIR_HZ,
    DIAL_PAIRS_HZ,
    EXACT_HZ,
    RING_FROM_S,
    is_answer_tone,
    is_calling_tone,
    is_dtmf,
    is_part_of_information,
    is_progress,
)
from gateway.answering.repeats import Repeats
from gateway.answering.tonal_sound import (
    FIRST_BIN,
    HANN,
    LAST_BIN,
    LONGEST_S,
    QUIET,
    REACH,
    SAMPLE_RATE,
    WINDOW,
    TonalSound,
    judge,
)
from gateway.seams.uplink import LineTone, ToneKind
from voicecodecs.resample import Resampler

Pcm = NDArray[np.float32]

_HOP = 160
_HOP_S = _HOP / SAMPLE_RATE
_LOWEST_PEAK = 3  # bins above FIRST_BIN, 281 Hz
_TONAL = 0.85  # share of the energy that one or two peaks hold
_DROP = 10 ** (-12 / 10)  # energy after a tone, as a share of its own
_QUIET_HOPS = 2  # a pause of 30 ms within special information tones does not separate them
_MISSED_HOPS = 3  # without a tone, but not quiet
_LEAST_HOPS = 3
_BEFORE_HOPS = 5
_LONGEST_HOPS = round(LONGEST_S / _HOP_S) + 2 * _MISSED_HOPS
_SPEECH_S = 4.0  # a greeting ends at most this long before its beep
_SPEECH_HOPS = 8  # sound of a greeting: loud and not a tone
_CADENCE_S = 7.0  # longest time between two bursts of one cadence
_KEPT = 12
_MUSIC_S, _MUSIC_HOPS = 3.0, 65  # speech has fewer in 99 % of its time
_PLAYS_HOPS = 85  # tonal ones of these 3 s in music; 12 min of recorded sentences never had as many
_PLAYS_ON_S, _PLAYS_ON_HOPS = 1.0, 30  # the same, once music was heard
_MUSIC_GAP_S = 60.0  # longest announcement within music
_LOOK_HOPS = 25  # between two looks for music
_LOUD_SHARE = 0.9  # of these hops that are as loud as a person; speech has pauses
_LOUD = 10 ** (-38 / 10)
_ALONE_S = 2.5  # a second tone within this time does not count


@dataclass(slots=True)
class _Held:
    """A tone that waits for its cadence."""

    sound: TonalSound
    until_s: float
    beep: bool
    """True if it counts as a beep when nothing follows."""


class ToneDetector:
    """The tones in one stream of audio at 8 kHz, chunk by chunk. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting = np.zeros(0, np.float32)
        self._window = np.zeros(WINDOW, np.float32)
        self._hops: deque[Pcm] = deque(maxlen=_BEFORE_HOPS)
        self._count = 0  # hops that were judged
        self._sound: list[Pcm] | None = None  # of the current tonal sound, with what came before it
        self._begun = 0
        self._level = 0.0  # mean square of the loudest hop of it
        self._tonal_hops = 0
        self._misses = 0
        self._quiet = 0
        self._endless = False
        self._is_steady = False
        """True if the present sound is endless, and one tone or pair."""
        self._speech: deque[int] = deque(maxlen=_SPEECH_HOPS)
        self._past: deque[TonalSound] = deque(maxlen=_KEPT)
        self._held: list[_Held] = []
        self._last_beep_s = -_ALONE_S
        self._information_s = -_CADENCE_S
        self._tonal: deque[bool] = deque(maxlen=round(_MUSIC_S / _HOP_S))
        self._own_hops = 0  # of the sound that has just ended
        self._loud: deque[bool] = deque(maxlen=round(_MUSIC_S / _HOP_S))
        self._tones_at = -math.inf  # hop of the latest tone of the line
        self._music_at = -math.inf  # hop of the latest report of music
        self._repeats = Repeats()

    @property
    def sounding(self) -> bool:
        """True while a tone is on the line, from 60 ms after its beginning."""
        return self._tonal_hops >= 3

    def process(self, pcm: Pcm) -> list[LineTone]:
        """Take the next chunk, of any length; return the tones that became certain, usually none.

        Args:
            pcm: shape ``(samples,)``, float32, [-1, 1], at 8 kHz.
        """
        found: list[LineTone] = []
        taken = np.concatenate((self._waiting, pcm)) if len(self._waiting) else pcm
        for at in range(0, len(taken) - _HOP + 1, _HOP):
            hop = taken[at : at + _HOP]
            energy = float(np.dot(hop, hop)) / _HOP
            self._window = np.concatenate((self._window[_HOP:], hop))
            heard = self._sound is not None or energy > QUIET
            found += self._step(hop, energy, heard and _is_tonal(self._window))
        self._waiting = taken[len(taken) - len(taken) % _HOP :]
        return found

    def _step(self, hop: Pcm, energy: float, tonal: bool) -> Iterator[LineTone]:
        self._count += 1
        self._tonal.append(tonal)
        self._loud.append(energy > _LOUD)
        self._repeats.take(energy)
        if self._sound is None:
            self._hops.append(hop)
            if tonal and energy > QUIET:
                self._sound, self._begun = list(self._hops), self._count - len(self._hops)
                self._level, self._tonal_hops, self._misses, self._quiet = energy, 1, 0, 0
                self._endless = False
            elif energy > QUIET:
                self._speech.append(self._count)
        else:
            self._level = max(self._level, energy)
            self._quiet = self._quiet + 1 if energy < self._level * _DROP else 0
            self._misses = 0 if tonal and not self._quiet else self._misses + 1
            self._tonal_hops += tonal
            if not self._endless:
                self._sound.append(hop)
            if self._quiet >= _QUIET_HOPS or self._misses >= _MISSED_HOPS:
                yield from self._ended()
            elif len(self._sound) >= _LONGEST_HOPS + _BEFORE_HOPS and not self._endless:
                self._endless = True
                yield from self._lasting()
        if self._held:
            yield from self._waited()
        if self._count % _LOOK_HOPS == 0 and not self._is_steady and (kind := self._look()):
            yield LineTone(kind=kind, length_s=_LOOK_HOPS * _HOP_S, ago_s=0.0, hz=())

    def _look(self) -> ToneKind | None:
        """Look for music and for an announcement that is played again."""
        if self._music_plays():
            self._music_at = self._count
            return "music"
        is_speech = len(self._tonal) == self._tonal.maxlen and sum(self._tonal) < _MUSIC_HOPS
        return "repeat" if is_speech and self._repeats.heard_again else None

    def _music_plays(self) -> bool:
        """Return True if sound without pauses is tonal more often than speech, and no tone of the line is heard."""
        played = self._count - self._music_at < _MUSIC_GAP_S / _HOP_S
        hops, least = (round(_PLAYS_ON_S / _HOP_S), _PLAYS_ON_HOPS) if played else (self._loud.maxlen or 0, _PLAYS_HOPS)
        first = len(self._loud) - hops
        if first < 0 or self._count - self._tones_at < hops or sum(self._loud) < _LOUD_SHARE * hops:
            return False
        loud, tonal = (sum(itertools.islice(flags, first, None)) for flags in (self._loud, self._tonal))
        return loud >= _LOUD_SHARE * hops and tonal >= least

    # --- a sound has ended -------------------------------------------------------------------------------------------

    def _ended(self) -> Iterator[LineTone]:
        pcm = np.concatenate(self._sound or [])
        begins, endless, tonal_hops = self._begun, self._endless, self._tonal_hops
        self._hops.clear()
        self._hops.extend((self._sound or [])[-_QUIET_HOPS:])
        self._sound, self._own_hops, self._tonal_hops = None, self._tonal_hops, 0
        if self._is_steady:
            self._is_steady, self._tones_at = False, self._count
        if endless or tonal_hops < _LEAST_HOPS:
            return
        judged = judge(pcm, begins * _HOP_S)
        if judged is not None:
            yield from self._classified(judged)
        else:
            self._speech.extend(range(self._count - tonal_hops, self._count))

    def _lasting(self) -> Iterator[LineTone]:
        """A sound is longer than any beep."""
        sound = judge(np.concatenate(self._sound or []), self._begun * _HOP_S, lasting=True)
        if sound is None or not sound.steady:
            return
        self._is_steady = True
        if (
            len(sound.hz) == 1
            and is_answer_tone(sound.hz[0])
            or sound.pair
            and all(is_answer_tone(each) for each in sound.hz)
        ):
            yield self._tone("fax", sound)
        elif not sound.beep or is_progress(sound.hz[0], 0.0, cut=True):
            yield self._tone("dial", sound)

    def _classified(self, sound: TonalSound) -> Iterator[LineTone]:
        past = [each for each in self._past if sound.begins_s - each.ends_s < _CADENCE_S and _same(each, sound)]
        self._past.append(sound)
        now = self._count * _HOP_S
        if not sound.beep:
            self._tonal.clear()  # the hops of a ringing tone are no music
            self._loud.clear()
            if not sound.pair:
                self._information_s = now
                self._held.clear()
            if kind := _pair_kind(sound) if sound.pair else "information":
                yield self._tone(kind, sound)
            return
        if sound.pair and is_dtmf(sound.hz[0], sound.hz[-1]):
            return
        if len(sound.hz) == 1 and sound.steady:
            hz, length_s = sound.hz[0], sound.length_s
            if now - self._information_s < _CADENCE_S and is_part_of_information(hz):
                return
            spoken = len(self._speech) == _SPEECH_HOPS and now - self._speech[0] * _HOP_S < _SPEECH_S
            if is_calling_tone(hz, length_s):
                if past:
                    self._forget(sound)
                    yield self._tone("fax", sound)
                else:
                    self._held.append(_Held(sound, sound.ends_s + 3.7, True))
                return
            if is_progress(hz, length_s, cut=bool(past) or sound.begins_s < 0.3):
                if past:
                    self._forget(sound)
                    yield self._tone(_cadence_kind(past[-1], sound), sound)
                elif length_s >= RING_FROM_S:
                    if not spoken:
                        yield self._tone("ringback", sound)
                    self._held.append(_Held(sound, sound.ends_s + 6.0, spoken))
                else:
                    self._held.append(_Held(sound, sound.ends_s + max(1.1, 1.2 * length_s), spoken))
                return
        yield from self._beep(sound)

    def _beep(self, sound: TonalSound) -> Iterator[LineTone]:
        """Report a beep unless music is heard: many tones before it, or several that could be beeps."""
        alone = sound.begins_s - self._last_beep_s > _ALONE_S
        self._last_beep_s = sound.ends_s
        if alone and sum(self._tonal) - self._own_hops < _MUSIC_HOPS:
            yield self._tone("beep", sound)

    def _waited(self) -> Iterator[LineTone]:
        """Decide about the tones whose cadence did not follow."""
        now = self._count * _HOP_S
        for held in [each for each in self._held if each.until_s <= now]:
            self._held.remove(held)
            if held.beep:
                yield self._tone("beep", held.sound)

    def _forget(self, sound: TonalSound) -> None:
        self._held = [each for each in self._held if not _same(each.sound, sound)]

    def _tone(self, kind: ToneKind, sound: TonalSound) -> LineTone:
        self._tones_at = self._count
        return LineTone(
            kind=kind,
            length_s=round(sound.length_s, 3),
            ago_s=round(self._count * _HOP_S - sound.ends_s, 3),
            hz=tuple(round(each) for each in sound.hz),
        )


class LineTones:
    """The tones in one stream of audio at any rate. Not thread-safe.

    Args:
        sample_rate: Hz.
    """

    def __init__(self, sample_rate: int) -> None:
        self._resampler = Resampler(sample_rate, SAMPLE_RATE)
        self._detector = ToneDetector()

    def process(self, pcm: Pcm) -> list[LineTone]:
        """Take the next chunk, of any length; return the tones that became certain, usually none."""
        return self._detector.process(self._resampler.process(pcm))


def _is_tonal(window: Pcm) -> bool:
    """Return True if one or two narrow peaks hold most of the energy of telephone sound."""
    spectrum = np.fft.rfft(window * HANN)[FIRST_BIN:LAST_BIN]
    power = spectrum.real**2 + spectrum.imag**2
    total = float(power.sum())
    left = total
    for first in (True, False):
        peak = int(power.argmax())
        if first and peak < _LOWEST_PEAK:
            return False  # most vowels
        near = power[max(0, peak - REACH) : peak + REACH + 1]
        left -= float(near.sum())
        near[:] = 0
        if left > 0.6 * total:
            return False
    return left < (1 - _TONAL) * total


def _same(one: TonalSound, other: TonalSound) -> bool:
    return (
        one.steady
        and other.steady
        and len(one.hz) == len(other.hz)
        and all(abs(a - b) <= EXACT_HZ for a, b in zip(one.hz, other.hz, strict=True))
    )


def _pair_kind(sound: TonalSound) -> ToneKind | None:
    low, high = sound.hz[0], sound.hz[-1]

    def near(pair: tuple[float, float]) -> bool:
        return abs(low - pair[0]) < 12 and abs(high - pair[1]) < 12

    if near(BUSY_PAIR_HZ):
        return "busy" if sound.length_s > 0.37 else "congestion"
    if any(near(pair) for pair in DIAL_PAIRS_HZ):
        return "dial"
    return "ringback" if sound.length_s >= 0.3 else None


def _cadence_kind(before: TonalSound, sound: TonalSound) -> ToneKind:
    pause_s, length_s = sound.begins_s - before.ends_s, sound.length_s
    if pause_s > 1.4 or max(length_s, before.length_s) >= RING_FROM_S or (pause_s < 0.25 and length_s > 0.35):
        return "ringback"
    return "busy" if length_s > 0.28 else "congestion"
