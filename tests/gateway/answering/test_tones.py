"""Tones of a telephone line: beeps come at their end, other tones are no beeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gateway.answering.tones import ToneDetector
from gateway.seams.uplink import LineTone
from tests.gateway.answering.line_sounds import RATE, Pcm, cadence, on_line, silence, steps, sweep, tone
from voicecodecs.dtmf import tones as dtmf_tones

FRAME = RATE // 50
VECTORS = Path(__file__).parents[2] / "vectors" / "tones" / "call_progress.json"
COUNTRIES: dict[str, dict[str, str]] = json.loads(VECTORS.read_text())["countries"]
"""Tones of 41 networks; the file names its sources."""


def heard(sound: Pcm) -> list[tuple[float, LineTone]]:
    """Pass a sound in frames of 20 ms. Return each report with the second at which its frame had arrived."""
    detector = ToneDetector()
    found = []
    for at in range(0, len(sound) - FRAME + 1, FRAME):
        found += [((at + FRAME) / RATE, each) for each in detector.process(sound[at : at + FRAME])]
    return found


def kinds(sound: Pcm) -> list[str]:
    return [each.kind for _, each in heard(sound)]


BEEPS = {
    "short": tone(1000, seconds=0.1),
    "Asterisk's": tone(700, seconds=0.41),
    "FreeSWITCH's": tone(640, seconds=1.0),
    "low": tone(352, seconds=0.3),
    "high": tone(2190, seconds=0.3),
    "long": tone(1400, seconds=2.0),
    "faint": tone(950, seconds=0.25, dbov=-40),
    "falling": sweep(1400, 700, seconds=0.4),
    "rising": sweep(500, 1000, seconds=0.6),
    "high, then low": steps(1200, 800, seconds=0.2),
    "two at once": tone(1000, 1500, seconds=0.5),
    "slow edges": tone(880, seconds=0.5, edge_s=0.03),
}


@pytest.mark.parametrize("name", BEEPS)
@pytest.mark.parametrize("offset", [0, 53, 101])
def test_a_beep_is_reported_once_within_100_ms_of_its_end(name: str, offset: int) -> None:
    beep = BEEPS[name]
    before = silence(0.5 + offset / RATE)
    ((at, found),) = heard(on_line(np.concatenate((before, beep, silence(8)))))
    assert found.kind == "beep"
    ended = (len(before) + len(beep)) / RATE
    assert 0 < at - ended <= 0.1
    assert found.length_s == pytest.approx(len(beep) / RATE, abs=0.06)


@pytest.mark.parametrize("fade_s", [0.1, 0.2, 0.4])
def test_a_beep_that_fades_is_reported_once_it_has_fallen_by_12_db(fade_s: float) -> None:
    before, beep = silence(0.5), tone(1000, seconds=5 * fade_s)
    beep *= np.exp(-np.arange(len(beep)) / (fade_s * RATE)).astype(np.float32)
    ((at, found),) = heard(on_line(np.concatenate((before, beep, silence(8)))))
    assert (found.kind, found.hz) == ("beep", (1000,))
    assert 0 < at - 0.5 - np.log(4) * fade_s <= 0.1


@pytest.mark.parametrize(
    ("tones", "expected"),
    [
        ("440+480/2000,0/4000", "ringback"),  # North America
        ("400+450/400,0/200,400+450/400,0/2000", "ringback"),  # United Kingdom
        ("425/1000,0/4000", "ringback"),  # Germany, Italy, Brazil
        ("440/1500,0/3500", "ringback"),  # France
        ("400*15/1000,0/2000", "ringback"),  # Japan
        ("480+620/500,0/500", "busy"),  # North America
        ("425/480,0/480", "busy"),  # Germany
        ("400/375,0/375", "busy"),  # United Kingdom
        ("425/250,0/250", "congestion"),
        ("480+620/250,0/250", "congestion"),
        ("!950/330,!1400/330,!1800/330,0/1000", "information"),
        ("!950/330,!0/30,!1400/330,!0/30,!1800/330,0/1000", "information"),
        ("1100/500,0/3000", "fax"),
        ("!2100/3000,0/1000", "fax"),
        ("350+440/15000", "dial"),
        ("425/15000", "dial"),
    ],
)
def test_a_tone_of_the_network_or_of_a_fax_machine_is_no_beep(tones: str, expected: str) -> None:
    found = set(kinds(on_line(np.concatenate((silence(0.4), cadence(tones, 15), silence(8))))))
    assert found == {expected}


@pytest.mark.parametrize("country", COUNTRIES)
def test_no_tone_of_a_national_network_is_a_beep(country: str) -> None:
    for tones in COUNTRIES[country].values():
        sound = on_line(np.concatenate((silence(0.4), cadence(tones, 16), silence(8))))
        assert "beep" not in kinds(sound), tones


@pytest.mark.parametrize("country", ["us", "uk", "de", "fr", "it", "es", "au", "in", "br", "cn"])
def test_ringing_and_busy_tones_of_ten_countries_are_named(country: str) -> None:
    for kind, expected in (("ringback", {"ringback"}), ("busy", {"busy", "congestion"})):
        sound = on_line(np.concatenate((silence(0.4), cadence(COUNTRIES[country][kind], 12))))
        assert set() < set(kinds(sound)) <= expected, kind


def test_touch_tones_are_no_beeps() -> None:
    digits = dtmf_tones("0123456789*#", RATE, tone_ms=200, pause_ms=200)
    assert kinds(on_line(np.concatenate((silence(0.4), digits, silence(1))))) == []


def test_noise_is_no_tone() -> None:
    noise = np.random.default_rng(3).normal(0, 0.05, 20 * RATE).astype(np.float32)
    assert heard(noise) == []


def test_music_is_reported_while_it_plays_and_tones_and_noise_are_none() -> None:
    # Chords of half a second, each a triad that fades a little: a simple hold music.
    at = np.arange(RATE // 2) / RATE
    fade = np.linspace(1.0, 0.5, len(at))
    chords = [sum(np.sin(2 * np.pi * hz * ratio * at) for ratio in (1, 1.5)) * fade for hz in (660, 740, 784, 880)]
    music = (np.concatenate(chords * 6) * 0.05).astype(np.float32)
    found = kinds(on_line(np.concatenate((music, silence(3)))))
    assert 10 < found.count("music") <= 24
    noise = np.random.default_rng(4).normal(0, 0.05, 8 * RATE).astype(np.float32)
    for sound in (noise, cadence(COUNTRIES["us"]["ringback"], 16), tone(425, seconds=8.0)):
        assert "music" not in kinds(on_line(sound))


def spoken(seed: int, seconds: float) -> Pcm:
    """Noise with the loudness of speech: syllables and pauses."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.choice([0.0, 0.01, 0.03, 0.1], round(seconds / 0.15)), round(0.15 * RATE))
    return (rng.standard_normal(len(levels)) * levels).astype(np.float32)


def test_an_announcement_that_is_heard_again_is_reported_and_other_speech_is_not() -> None:
    announcement, pause = spoken(1, 4.5), silence(6.13)
    first = np.concatenate((silence(0.5), announcement, pause, spoken(2, 4.5), pause))
    assert "repeat" not in kinds(on_line(first))
    found = heard(on_line(np.concatenate((first, announcement * np.float32(0.7), silence(1.0)))))
    at = [at for at, each in found if each.kind == "repeat"]
    begins = len(first) / RATE
    assert at
    assert begins + 3.0 < min(at) < begins + 4.0
    assert max(at) < begins + 5.0


def test_a_ringing_tone_that_repeats_is_no_announcement() -> None:
    assert "repeat" not in kinds(on_line(cadence(COUNTRIES["us"]["ringback"], 40)))
    assert "repeat" not in kinds(on_line(cadence(COUNTRIES["uk"]["ringback"], 40)))
