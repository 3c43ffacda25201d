"""Sounds of a telephone line, made for tests and benchmarks."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from voicecodecs.g711 import decode_ulaw, encode_ulaw
from voicecodecs.pcm import to_float32

RATE = 8000
Pcm = NDArray[np.float32]


def silence(seconds: float) -> Pcm:
    return np.zeros(round(seconds * RATE), np.float32)


def tone(*hz: float, seconds: float, dbov: float = -20.0, edge_s: float = 0.002) -> Pcm:
    """Components of equal level; ``dbov`` is the level of them together."""
    at = np.arange(round(seconds * RATE)) / RATE
    sound = np.sum([np.sin(2 * np.pi * each * at) for each in hz], axis=0)
    return _at_level(sound, dbov, edge_s)


def sweep(first_hz: float, last_hz: float, *, seconds: float, dbov: float = -20.0) -> Pcm:
    hz = np.linspace(first_hz, last_hz, round(seconds * RATE))
    return _at_level(np.sin(2 * np.pi * np.cumsum(hz) / RATE), dbov, 0.002)


def steps(*hz: float, seconds: float, dbov: float = -20.0) -> Pcm:
    """Tones in turn, ``seconds`` each, without a pause and without a jump of the phase."""
    frequencies = np.repeat(hz, round(seconds * RATE))
    return _at_level(np.sin(2 * np.pi * np.cumsum(frequencies) / RATE), dbov, 0.002)


def cadence(tones: str, seconds: float, dbov: float = -20.0) -> Pcm:
    """The sound of a list of tones as in Asterisk's ``indications.conf``, from its beginning.

    ``425/1000,0/4000``: a second of 425 Hz, four of silence, again and again. ``440+480``: both. ``400*25``: 400 Hz,
    modulated with 25 Hz by 90 %. ``!``: only once.
    """
    once: list[Pcm] = []
    again: list[Pcm] = []
    for element in tones.split(","):
        found = re.fullmatch(r"(!?)([0-9.]+)(?:([+*])([0-9.]+))?(?:/([0-9]+))?", element.strip())
        assert found is not None, element
        hz, second = float(found[2]), float(found[4] or 0)
        length_s = int(found[5]) / 1000 if found[5] else seconds
        at = np.arange(round(length_s * RATE)) / RATE
        sound = np.sin(2 * np.pi * hz * at)
        if found[3] == "+":
            sound += np.sin(2 * np.pi * second * at)
        elif found[3] == "*":
            sound *= 1 + 0.9 * np.sin(2 * np.pi * second * at)
        (once if found[1] else again).append(_at_level(sound, dbov, 0.002) if hz else silence(length_s))
    cycle = np.concatenate(again) if again else silence(seconds)
    rest = np.tile(cycle, int(np.ceil(seconds * RATE / len(cycle)))) if len(cycle) else cycle
    return np.concatenate((*once, rest))[: round(seconds * RATE)].astype(np.float32)


def on_line(sound: Pcm, *, noise_dbov: float = -66.0, seed: int = 1) -> Pcm:
    """The sound with white noise, through mu-law."""
    noise = np.random.default_rng(seed).normal(0.0, 10 ** (noise_dbov / 20), len(sound))
    coded = decode_ulaw(encode_ulaw((np.clip(sound + noise, -1, 1) * 32767).astype(np.int16)))
    return to_float32(coded)


def _at_level(sound: NDArray[np.float64], dbov: float, edge_s: float) -> Pcm:
    edge = round(edge_s * RATE)
    level = float(np.sqrt(np.mean(np.square(sound)))) if len(sound) else 0.0
    if level == 0.0:
        return sound.astype(np.float32)
    sound = sound * (10 ** (dbov / 20) / level)
    if edge:
        sound[:edge] *= np.linspace(0, 1, edge)
        sound[-edge:] *= np.linspace(1, 0, edge)
    return sound.astype(np.float32)
