"""``talkspurt doctor --model DIR --compare KEY=VALUE`` speaks the same sentences with two settings and measures the
difference, so that an operator can judge what a faster setting costs.

Both runs draw the same speech ids, so their sounds have the same length and differ only in flow and vocoder. The
figures say how much changed, not which sounds better: the WAV files are there to be heard.
"""

from __future__ import annotations

import asyncio
import io
import random
import tempfile
import time
import wave
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from talkspurt.doctor.finding import Finding
from talkspurt.doctor.model import letters_wrong, speaking_model
from tts_engine.config import CosyVoiceConfig, ModelConfig
from tts_engine.cosyvoice.frontend.features import mel_spectrogram
from tts_engine.errors import EngineError
from tts_engine.synthesizer import ClauseRequest, Playhead
from voicecodecs.pcm import dbov, to_int16

SENTENCES = (
    "Your order left the warehouse this morning, and it will arrive on Friday.",
    "Would you like me to change the address, or shall we keep the old one?",
    "The balance of your account is two hundred and forty dollars.",
    "Thank you for calling, goodbye.",
)
_LAST_S = 1.0
"""The last chunk of a sentence is at most about this long, seconds. ``finalize`` changes only that."""
_FRAME_S = 0.02
_F0_HZ = (70.0, 400.0)
_VOICED = 0.5
"""Least autocorrelation of a voiced frame."""

Pcm = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two sounds of the same speech ids."""

    mel: float
    """Mean absolute difference of the log-mel, nepers."""
    f0_semitones: float | None
    """Median absolute difference of the pitch where both are voiced. None: they are nowhere."""
    energy_db: float
    """Mean absolute difference of the level of 20 ms frames."""

    def __str__(self) -> str:
        pitch = "no pitch" if self.f0_semitones is None else f"pitch {self.f0_semitones:.2f} semitones"
        return f"mel {self.mel:.3f}, {pitch}, level {self.energy_db:.1f} dB"


def difference(one: Pcm, other: Pcm, rate: int) -> Difference:
    """Compare two sounds of 24 kHz from their beginnings on, up to the end of the shorter one."""
    length = min(len(one), len(other))
    one, other = one[:length], other[:length]
    mels = [mel_spectrogram(pcm, fmax=8000.0) for pcm in (one, other)]
    frame = round(_FRAME_S * rate)
    levels = [
        np.array([max(dbov(pcm[at : at + frame]), -70.0) for at in range(0, length - frame + 1, frame)])
        for pcm in (one, other)
    ]
    pitches = [_pitch(pcm, rate) for pcm in (one, other)]
    voiced = (pitches[0] > 0) & (pitches[1] > 0)
    semitones = None
    if voiced.any():
        semitones = float(np.median(np.abs(12 * np.log2(pitches[0][voiced] / pitches[1][voiced]))))
    return Difference(
        mel=float(np.abs(mels[0] - mels[1]).mean()),
        f0_semitones=semitones,
        energy_db=float(np.abs(levels[0] - levels[1]).mean()) if len(levels[0]) else 0.0,
    )


def _pitch(pcm: Pcm, rate: int) -> NDArray[np.float64]:
    """Return the pitch of each 20 ms in Hz, by autocorrelation over 40 ms. 0: not voiced."""
    hop, window = round(_FRAME_S * rate), round(2 * _FRAME_S * rate)
    shortest, longest = round(rate / _F0_HZ[1]), round(rate / _F0_HZ[0])
    found = []
    for at in range(0, len(pcm) - window + 1, hop):
        part = pcm[at : at + window].astype(np.float64)
        part = part - part.mean()
        spectrum = np.abs(np.fft.rfft(part, 2 * window)) ** 2
        alike = np.fft.irfft(spectrum)[:window]
        if alike[0] < 1e-6 * window:
            found.append(0.0)
            continue
        lag = shortest + int(np.argmax(alike[shortest:longest]))
        # Fewer samples overlap at a longer lag.
        share = alike[lag] / alike[0] * window / (window - lag)
        found.append(rate / lag if share >= _VOICED else 0.0)
    return np.array(found)


def findings(folder: Path, config: ModelConfig, settings: Sequence[str], wavs: Path) -> Iterator[Finding]:
    """Yield a finding for each sentence, and one for the time that each setting took.

    Args:
        settings: ``KEY=VALUE`` of ``engine.cosyvoice``, which the second run has.
        wavs: folder for the sounds, made if it is not there.
    """
    before = config.cosyvoice
    try:
        after = changed(before, settings)
    except (ValidationError, ValueError) as exc:
        yield Finding("compare", "fail", f"--compare {' '.join(settings)}: {exc}")
        return
    names = [_named(before, settings), " ".join(settings)]
    try:
        spoken = [asyncio.run(_speak_all(folder, config, one)) for one in (before, after)]
    except EngineError as exc:
        yield Finding("compare", "fail", str(exc))
        return
    (sounds, rate, first_s, random_weights), (others, _, second_s, _) = spoken
    wavs.mkdir(parents=True, exist_ok=True)
    for number, (one, other) in enumerate(zip(sounds, others, strict=True), 1):
        for name, pcm in zip(names, (one, other), strict=True):
            (wavs / f"{number} {name}.wav").write_bytes(_wav(pcm, rate))
        last = round(_LAST_S * rate)
        detail = f"{difference(one, other, rate)}; last second: {difference(one[-last:], other[-last:], rate)}"
        if len(one) != len(other):
            detail += f"; {len(one) / rate:.2f} s against {len(other) / rate:.2f} s"
        if not random_weights and (wrong := [letters_wrong(pcm, rate, SENTENCES[number - 1]) for pcm in (one, other)]):
            heard = [share for share in wrong if share is not None]
            detail += "".join(f"; {share:.0%} of the letters wrong" for share in heard)
        yield Finding(f"sentence {number}", "ok", detail)
    total_s = sum(map(len, sounds)) / rate
    yield Finding(
        "time", "ok", f"{total_s:.1f} s of sound in {first_s:.2f} s with {names[0]}, {second_s:.2f} s with {names[1]}"
    )
    yield Finding("files", "ok", f"{2 * len(sounds)} WAV files in {wavs}: listen to them side by side")


def changed(config: CosyVoiceConfig, settings: Sequence[str]) -> CosyVoiceConfig:
    """Return the configuration with these ``KEY=VALUE``.

    Raises:
        ValueError: a setting has another form, or no such key or value exists.
    """
    fields: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ValueError(f"got {setting!r}, expected KEY=VALUE, such as finalize=causal")
        fields[key] = yaml.safe_load(value)
    return CosyVoiceConfig.model_validate({**config.model_dump(), **fields})


def _named(config: CosyVoiceConfig, settings: Sequence[str]) -> str:
    keys = [setting.partition("=")[0] for setting in settings]
    return " ".join(f"{key}={getattr(config, key)}" for key in keys)


async def _speak_all(
    folder: Path, config: ModelConfig, settings: CosyVoiceConfig
) -> tuple[Sequence[Pcm], int, float, bool]:
    """Return the sounds of the sentences, their sample rate, the seconds that they took, and whether weights are
    random."""
    import torch

    device = config.device if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="talkspurt-doctor-") as voices:
        model, random_weights = await speaking_model(folder, settings, device, Path(voices))
        await model.start()
        try:
            if device != "cpu":
                await _speak(model, SENTENCES[0], 0)  # the first time takes longer
            begun = time.monotonic()
            sounds = [await _speak(model, text, number) for number, text in enumerate(SENTENCES)]
            return sounds, model.sample_rate, time.monotonic() - begun, random_weights
        finally:
            await model.aclose()


async def _speak(model: Any, text: str, seed: int) -> Pcm:
    clause = ClauseRequest(text=text, voice="", language="en-US", speed=1.0, instruct="", first=True)
    random.seed(seed)  # the model draws its seed of the speech ids from here
    async with aclosing(model.synthesize(clause, Playhead())) as chunks:
        return np.concatenate([chunk.pcm async for chunk in chunks])


def _wav(pcm: Pcm, rate: int) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(to_int16(pcm).tobytes())
    return data.getvalue()
