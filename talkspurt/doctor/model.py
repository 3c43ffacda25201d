"""``talkspurt doctor --model DIR`` checks that a CosyVoice model directory is complete and speaks.

Files, names and shapes are compared on the CPU, with the weights mapped from disk. Then the model speaks a sentence: on
the GPU if there is one, else on the CPU, where a published model takes a minute or two.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import time
import wave
from collections.abc import Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from gateway.recognition import moonshine
from talkspurt.doctor.finding import Finding
from tts_engine.config import CosyVoiceConfig, EmbeddedConfig, ModelConfig
from tts_engine.embedded.synthesizer import EmbeddedSynthesizer
from tts_engine.errors import EngineError
from tts_engine.synthesizer import ClauseRequest, Playhead
from voicecodecs.pcm import AUDIBLE_DBOV, dbov, to_int16
from voicecodecs.resample import resample

if TYPE_CHECKING:
    from tts_engine.cosyvoice.models.config import CheckpointConfig as Sizes
    from tts_engine.cosyvoice.synthesizer import CosyVoiceSynthesizer
    from tts_engine.cosyvoice.weights import Part

SENTENCE = "Your order left the warehouse this morning, and it will arrive on Friday."
_WORD_S = (0.15, 0.8)
"""Seconds that a spoken word takes, pauses included."""
_LEAD_S, _PAUSE_S, _TAIL_S = 0.6, 0.8, 1.0
"""Most silence before a sentence, inside it and after it, seconds."""
_TAIL_WINDOW_S = 0.1
_TAIL_BELOW_DB = 15.0
"""Least difference between the level of a sentence and of its last 0.1 s, dB, because speech fades at its end."""
_CLICK = 3.0
"""A seam is audible if the waveform bends this many times more sharply there than anywhere in the 50 ms around it."""
_LONGEST_S = 900.0
"""Time limit of the spoken test, seconds. On two cores a published model takes one to three minutes."""
_SHOWN = 5
"""Number of faults that are shown for one file."""

Pcm = NDArray[np.float32]


def findings(folder: Path, config: ModelConfig) -> Iterator[Finding]:
    """Yield the findings, in order. Checks whose inputs are missing are left out.

    Args:
        config: the spoken test uses its ``device`` and ``cosyvoice``.
    """
    try:
        from tts_engine.cosyvoice.weights import PARTS, read_layout
    except ModuleNotFoundError as exc:
        yield Finding("model", "fail", f"needs the extra [cosyvoice]: no module {exc.name!r}")
        return
    if not folder.is_dir():
        yield Finding("layout", "fail", f"{folder} is no directory")
        return
    sizes, files, faults = read_layout(folder, {part: part for part in PARTS})
    yield from _failed("layout", faults)
    if sizes is None:
        return
    name = f"CosyVoice{sizes.version}"
    if not faults:
        yield Finding("layout", "ok", f"{folder}: {name}, all files are there")
    if sizes.random_weights:
        yield Finding("weights", "none", f"random weights (cosyvoice{sizes.version}.yaml says so): no words expected")
    sound = [not faults]
    if not any("expected" in fault for fault in faults):  # without sizes the weights cannot be compared
        for part, path in files.items():
            if path is not None:
                sound.append((yield from _weights(sizes, part, path)))
        reinforced = next(
            (each for each in (folder / "llm.rl.safetensors", folder / "llm.rl.pt") if each.is_file()), None
        )
        if reinforced is not None:
            sound.append((yield from _weights(sizes, "llm", reinforced)))
    sound.append((yield from _tokenizer(folder, sizes)))
    clip = asyncio.run(_clip())
    sound.append((yield from _front_end(folder, sizes, clip)))
    if not all(sound):
        yield Finding("speech", "none", "not tried, because of what is said above")
        return
    yield from _speech(folder, config, sizes, clip)


def _failed(name: str, faults: Sequence[str]) -> Iterator[Finding]:
    for fault in faults[:_SHOWN]:
        yield Finding(name, "fail", " ".join(fault.split()))
    if len(faults) > _SHOWN:
        yield Finding(name, "fail", f"and {len(faults) - _SHOWN} more like these")


def _weights(sizes: Sizes, part: Part, path: Path) -> Generator[Finding, None, bool]:
    """Yield the faults of a file of weights. Return True if there are none."""
    from tts_engine.cosyvoice.weights import read_part

    _, state, faults = read_part(sizes, part, path, noise_seconds=1)
    if not faults:
        faults = [
            f"{path.name}: {name} holds values that are not finite"
            for name, value in state.items()
            if not bool(value.isfinite().all())
        ]
    yield from _failed("weights", faults)
    if not faults:
        values = sum(value.numel() for value in state.values())
        detail = (
            f"{path.name}: {len(state)} tensors of the expected names and shapes, {values / 1e6:.1f} million values"
        )
        yield Finding("weights", "ok", detail)
    return not faults


def _tokenizer(folder: Path, sizes: Sizes) -> Generator[Finding, None, bool]:
    """Yield the faults of the text tokenizer. Return True if there are none."""
    from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer
    from tts_engine.cosyvoice.weights import TOKENIZER_FOLDER

    where = TOKENIZER_FOLDER
    try:
        tokenizer = CosyTokenizer.load(folder / where, version=sizes.version)
    except EngineError as exc:
        yield from _failed("tokenizer", [str(exc)])
        return False
    faults = []
    rows = sizes.llm.vocab_size
    if tokenizer.size > rows:
        faults.append(f"{where}/vocab.json: {tokenizer.size} ids with the added ones, expected at most {rows} (llm.pt)")
    expected = _first_added_id(folder / where / "tokenizer_config.json")
    if expected is not None and expected != tokenizer.base_size:
        faults.append(
            f"{where}/vocab.json: {tokenizer.base_size} entries, expected {expected} (tokenizer_config.json: the id of "
            "<|endoftext|>)"
        )
    for text in (SENTENCE, "您好，请问有什么可以帮您？"):
        if (again := tokenizer.decode(tokenizer.encode(text))) != text:
            faults.append(f"{where}: {text!r} comes back as {again!r}")
    yield from _failed("tokenizer", faults)
    if not faults:
        detail = f"{where}: {tokenizer.base_size} entries, <|endofprompt|> is {tokenizer.end_of_prompt_id}"
        yield Finding("tokenizer", "ok", detail)
    return not faults


def _first_added_id(path: Path) -> int | None:
    """Return the id that ``tokenizer_config.json`` gives to the first token after the vocabulary. None: it gives
    none."""
    try:
        added = json.loads(path.read_text("utf-8"))["added_tokens_decoder"]
        return next((int(number) for number, token in added.items() if token["content"] == "<|endoftext|>"), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


async def _clip() -> bytes:
    """Return some seconds of the embedded voice as a WAV file: a recording whose words are known."""
    voice = EmbeddedSynthesizer(EmbeddedConfig(seed=0))
    await voice.start()
    try:
        pcm, _, _ = await _speak(voice, "")
    finally:
        await voice.aclose()
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(voice.sample_rate)
        out.writeframes(to_int16(np.concatenate(pcm)).tobytes())
    return file.getvalue()


def _front_end(folder: Path, sizes: Sizes, clip: bytes) -> Generator[Finding, None, bool]:
    """Yield the results of the networks that make a voice from a recording. Return True if they work."""
    from tts_engine.cosyvoice.frontend.features import FeatureExtractor, load_wav

    try:
        features = FeatureExtractor(folder, version=sizes.version).voice(clip, SENTENCE)
    except EngineError as exc:
        yield from _failed("front end", [str(exc)])
        return False
    pcm, rate = load_wav(clip)
    seconds, tokens = len(pcm) / rate, features.lm_tokens
    codes, name = sizes.llm.speech_token_size, f"speech_tokenizer_v{sizes.version}.onnx"
    faults = []
    if abs(len(tokens) - 25 * seconds) > 3:
        faults.append(f"{name}: {len(tokens)} tokens for {seconds:.2f} s of speech, expected 25 a second")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < codes:
        faults.append(f"{name}: tokens from {tokens.min()} to {tokens.max()}, expected 0 to {codes - 1}")
    yield from _failed("front end", faults)
    if not faults:
        detail = f"{name}: {len(tokens)} tokens for {seconds:.1f} s; campplus.onnx: {features.speaker.size} values"
        yield Finding("front end", "ok", f"{detail}; voices can be made from recordings")
    return not faults


def _speech(folder: Path, config: ModelConfig, sizes: Sizes, clip: bytes) -> Iterator[Finding]:
    """Let the model speak, and yield findings about the sound."""
    import torch

    device = config.device if torch.cuda.is_available() else "cpu"
    try:
        spoken = asyncio.run(asyncio.wait_for(_spoken(folder, config.cosyvoice, device, clip), _LONGEST_S))
    except TimeoutError:
        yield Finding("speech", "fail", f"{SENTENCE!r} was not spoken within {_LONGEST_S:g} s on {device}")
        return
    except EngineError as exc:
        yield from _failed("speech", [str(exc)])
        return
    yield spoken.voices
    pcm = np.concatenate(spoken.pieces)
    seconds = len(pcm) / spoken.rate
    factor = spoken.work_s / seconds
    figures = (
        f"{seconds:.1f} s of sound in {spoken.work_s:.1f} s on {spoken.device}, {factor:.2f} times its length; first "
        f"sound after {spoken.first_s * 1e3:.0f} ms"
    )
    slow = device != "cpu" and factor > 1
    yield Finding("speech", "warn" if slow else "ok", figures + (", expected less than 1" if slow else ""))
    yield _seams(spoken.pieces, spoken.rate)
    if sizes.random_weights:
        yield Finding("words", "none", "random weights: silence, rate, tail and words of noise say nothing")
        return
    yield from _sound(pcm, spoken.rate)


@dataclass(frozen=True, slots=True)
class _Spoken:
    """The sentence as the model made it."""

    pieces: Sequence[Pcm]
    rate: int
    first_s: float
    work_s: float
    device: str
    voices: Finding


_ALONE = {
    "max_clauses": 3,
    "first_hop": 22,
    "first_chunk_s": 1e6,
    "text_processes": 0,
    "language_model": "torch",
}
"""Settings of a model that speaks for the doctor alone."""


async def speaking_model(
    folder: Path, settings: CosyVoiceConfig, device: str, voices: Path
) -> tuple[CosyVoiceSynthesizer, bool]:
    """Return a model with at least one voice, which is not started, and whether its weights are random.

    Raises:
        EngineError: the model cannot be loaded.
    """
    from tts_engine.cosyvoice.loading import load_synthesizer
    from tts_engine.cosyvoice.weights import read_config

    model = load_synthesizer(folder, settings.model_copy(update=_ALONE), device=device, voices_folder=voices)
    if not model.voices():
        model.add_voice(voice_id="doctor", name="", wav=await _clip(), transcript=SENTENCE, language="en-US")
    return model, read_config(folder).random_weights


async def _spoken(folder: Path, settings: CosyVoiceConfig, device: str, clip: bytes) -> _Spoken:
    from tts_engine.cosyvoice.loading import load_synthesizer

    with tempfile.TemporaryDirectory(prefix="talkspurt-doctor-") as voices:
        model = load_synthesizer(folder, settings.model_copy(update=_ALONE), device=device, voices_folder=Path(voices))
        built_in = [info.voice_id for info in model.voices()]
        found = Finding("voices", "ok", f"spk2info.pt: {', '.join(built_in[:8])}")
        if not built_in:
            found = Finding(
                "voices", "ok", "none built in (no spk2info.pt); the test speaks with one made of a recording"
            )
            model.add_voice(voice_id="doctor", name="", wav=clip, transcript=SENTENCE, language="en-US")
        await model.start()
        try:
            if device != "cpu":  # on a CPU the first time is not slower, and a second one would take long
                await _speak(model, "")
            pieces, first_s, work_s = await _speak(model, "")
        finally:
            await model.aclose()
    return _Spoken(pieces, model.sample_rate, first_s, work_s, device, found)


async def _speak(model: CosyVoiceSynthesizer | EmbeddedSynthesizer, voice: str) -> tuple[list[Pcm], float, float]:
    """Return the sentence in the model's own pieces, the seconds to the first one, and to the last."""
    clause = ClauseRequest(text=SENTENCE, voice=voice, language="en-US", speed=1.0, instruct="", first=True)
    begun, times, pieces = time.monotonic(), [], []
    async with aclosing(model.synthesize(clause, Playhead())) as chunks:
        async for chunk in chunks:
            pieces.append(chunk.pcm)
            times.append(time.monotonic() - begun)
    return pieces, times[0], times[-1]


def _seams(pieces: Sequence[Pcm], rate: int) -> Finding:
    """Compare how sharply the wave bends where two pieces meet with the 50 ms around."""
    pcm = np.concatenate(pieces)
    bend = np.abs(np.diff(pcm, 2))
    near, around = rate // 1000, rate // 20
    worst, at = 0.0, 0
    for seam in np.cumsum([len(piece) for piece in pieces])[:-1]:
        here = bend[seam - near : seam + near].max(initial=0.0)
        beside = max(
            bend[max(0, seam - around) : seam - near].max(initial=1e-6),
            bend[seam + near : seam + around].max(initial=1e-6),
        )
        if here / beside > worst:
            worst, at = float(here / beside), int(seam)
    if len(pieces) < 2:
        return Finding("seams", "none", "the sound came in one piece")
    figures = f"{len(pieces) - 1} seams; the sharpest bends {worst:.1f} times as much as the 50 ms around it"
    if worst > _CLICK:
        return Finding(
            "seams", "warn", f"{figures}, at {at / rate:.2f} s: expected less than {_CLICK:g}, a click is heard"
        )
    return Finding("seams", "ok", figures)


def _sound(pcm: Pcm, rate: int) -> Iterator[Finding]:
    """Yield findings about the sound of a sentence: rate of speech, silence, level, tail, words."""
    step = rate // 50
    levels = np.array([dbov(pcm[at : at + step]) for at in range(0, len(pcm), step)])
    loud = np.flatnonzero(levels > AUDIBLE_DBOV)
    if not len(loud):
        yield Finding(
            "silence", "fail", f"nothing is louder than {AUDIBLE_DBOV:g} dBov, the loudest 20 ms {levels.max():.0f}"
        )
        return
    lead_s, tail_s = loud[0] / 50, (len(levels) - 1 - loud[-1]) / 50
    pause_s = (np.diff(loud).max(initial=1) - 1) / 50
    words = len(SENTENCE.split())
    word_s = (loud[-1] + 1 - loud[0]) / 50 / words
    spoken = f"{words} words, {word_s:.2f} s each"
    odd = not _WORD_S[0] <= word_s <= _WORD_S[1]
    expected = f", expected {_WORD_S[0]} to {_WORD_S[1]}" if odd else ""
    yield Finding("rate", "warn" if odd else "ok", spoken + expected)
    odd = lead_s > _LEAD_S or pause_s > _PAUSE_S or tail_s > _TAIL_S
    expected = f", expected at most {_LEAD_S}, {_PAUSE_S} and {_TAIL_S:g}" if odd else ""
    silence = f"{lead_s:.2f} s in front, {pause_s:.2f} s inside at most, {tail_s:.2f} s behind"
    yield Finding("silence", "warn" if odd else "ok", silence + expected)
    clipped = float(np.mean(np.abs(pcm) > 0.985))
    whole, last = dbov(pcm), dbov(pcm[-int(_TAIL_WINDOW_S * rate) :])
    odd = last > whole - _TAIL_BELOW_DB
    expected = f", expected {_TAIL_BELOW_DB:g} dB below the whole: noise or a word cut off" if odd else ""
    yield Finding("tail", "warn" if odd else "ok", f"last 0.1 s at {last:.0f} dBov, the whole at {whole:.0f}{expected}")
    if clipped > 0.001:
        yield Finding("level", "warn", f"{clipped:.1%} of the samples are at the limit, expected none")
    yield _words(pcm, rate)


def _words(pcm: Pcm, rate: int) -> Finding:
    if not moonshine.installed():
        return Finding("words", "none", "not heard: the extra [recogniser] is not installed")
    heard = moonshine.Moonshine()(resample(pcm, rate, 16000))
    wanted, got = _letters(SENTENCE), _letters(heard)
    wrong = _edits(wanted, got) / len(wanted)
    state: Literal["ok", "warn", "fail"] = "ok" if wrong < 0.15 else "warn" if wrong < 0.4 else "fail"
    detail = f"the recogniser heard {heard!r}, {wrong:.0%} of the letters wrong"
    return Finding("words", state, detail if state == "ok" else f"{detail}, expected {SENTENCE!r}")


def letters_wrong(pcm: Pcm, rate: int, text: str) -> float | None:
    """Return the share of the letters of ``text`` that a recogniser hears wrong. None: there is no recogniser."""
    if not moonshine.installed():
        return None
    wanted = _letters(text)
    return _edits(wanted, _letters(moonshine.Moonshine()(resample(pcm, rate, 16000)))) / len(wanted)


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalpha())


def _edits(wanted: str, got: str) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(got) + 1))
    for count, letter in enumerate(wanted, 1):
        above, row = row, [count]
        for at, other in enumerate(got):
            row.append(min(above[at] + (letter != other), above[at + 1] + 1, row[at] + 1))
    return row[-1]
