"""``doctor --compare``: the measures on sounds that are known, and two settings of a tiny model."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from talkspurt.doctor.compare import SENTENCES, changed, difference, findings
from tts_engine.config import CosyVoiceConfig, ModelConfig
from tts_engine.cosyvoice import checkpoint

RATE = 24000


def hum(pitch_hz: float, *, seconds: float = 1.0, level: float = 0.1) -> NDArray[np.float32]:
    """A sound with three harmonics."""
    at = np.arange(int(seconds * RATE)) / RATE
    return sum(level / n * np.sin(2 * np.pi * pitch_hz * n * at) for n in (1, 2, 3)).astype(np.float32)


def test_a_sound_does_not_differ_from_itself() -> None:
    same = difference(hum(120), hum(120), RATE)
    assert (same.mel, same.f0_semitones, same.energy_db) == (0, 0, 0)


@pytest.mark.parametrize("pitch_hz", [90.0, 180.0, 250.0])
def test_pitch_is_measured_in_semitones(pitch_hz: float) -> None:
    found = difference(hum(pitch_hz), hum(pitch_hz * 2 ** (2 / 12)), RATE)
    assert found.f0_semitones == pytest.approx(2, abs=0.3)
    assert found.energy_db < 1 and found.mel > 0.1


def test_level_is_measured_in_decibels_and_noise_has_no_pitch() -> None:
    louder = difference(hum(120), hum(120, level=0.2), RATE)
    assert louder.energy_db == pytest.approx(6, abs=0.1) and louder.f0_semitones == 0
    noise = np.random.default_rng(0).normal(0, 0.05, RATE).astype(np.float32)
    assert difference(noise, noise, RATE).f0_semitones is None


def test_settings_are_read_and_checked() -> None:
    assert changed(CosyVoiceConfig(), ["finalize=causal", "euler_steps=5"]).euler_steps == 5
    for wrong in ("finalize", "=causal"):
        with pytest.raises(ValueError, match="KEY=VALUE"):
            changed(CosyVoiceConfig(), [wrong])
    for wrong in ("finalize=never", "no_such_key=1", "euler_steps=1"):
        with pytest.raises(ValueError, match=wrong.partition("=")[0]):
            changed(CosyVoiceConfig(), [wrong])


def test_the_same_sentences_are_spoken_with_both_settings(tmp_path: Path) -> None:
    folder, wavs = tmp_path / "m", tmp_path / "sounds"
    checkpoint.make(folder, 3, "tiny", 7)
    config = ModelConfig(kind="cosyvoice3", device="cpu", cosyvoice=CosyVoiceConfig(euler_steps=4))
    found = list(findings(folder, config, ["euler_steps=2"], wavs))
    assert [one.name for one in found] == [*(f"sentence {n}" for n in range(1, len(SENTENCES) + 1)), "time", "files"]
    assert all(one.state == "ok" for one in found)
    assert not any(" against " in one.detail for one in found), "both draw the same speech ids"
    for number in range(1, len(SENTENCES) + 1):
        pair = []
        for name in ("euler_steps=4", "euler_steps=2"):
            with wave.open(str(wavs / f"{number} {name}.wav")) as file:
                assert file.getframerate() == RATE
                pair.append(np.frombuffer(file.readframes(file.getnframes()), "<i2"))
        assert len(pair[0]) == len(pair[1]) > 0
        assert not np.array_equal(pair[0], pair[1])


def test_a_setting_that_does_not_exist_fails_before_anything_is_loaded(tmp_path: Path) -> None:
    (found,) = findings(tmp_path / "nothing", ModelConfig(kind="cosyvoice3"), ["finalise=causal"], tmp_path)
    assert found.state == "fail" and "finalise" in found.detail
