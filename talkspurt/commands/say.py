"""``talkspurt say`` writes one utterance to a file, and reports how fast it came."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import time
import wave
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.call.turn_taking.speakable import Speakable
from talkspurt.cli import JobError, UsageError
from talkspurt.config.settings import load
from talkspurt.engines import engine_for_gateway, local_engine
from talkspurt.progress import progress
from tts_engine.api import SpeechEngine, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import EngineError, InvalidRequest, NotFound, Unavailable
from voicecodecs.registry import AudioFormat, decoder

_DEFAULT_RATES = {"pcmu": 8000, "pcma": 8000, "g722": 16000, "opus": 48000, "l16": 24000}


@dataclass
class TimedUtterance:
    """One utterance, with the times at which its sound came."""

    format: AudioFormat
    frames: list[bytes] = field(default_factory=list)
    first_chunk_s: float = 0.0
    """Time from the text to its first sound."""
    total_s: float = 0.0
    """Time from the text to its last sound."""

    @property
    def audio_s(self) -> float:
        """Seconds of sound, padding of the last frame included."""
        return len(self.frames) * self.format.ptime_ms / 1000

    def figures(self) -> dict[str, object]:
        """Return the figures that ``--json`` prints."""
        return {
            "first_chunk_ms": round(self.first_chunk_s * 1000, 1),
            "audio_ms": round(self.audio_s * 1000),
            "realtime_factor": round(self.total_s / self.audio_s, 4),
            "encoding": self.format.encoding,
            "sample_rate": self.format.sample_rate,
        }

    def pcm(self) -> NDArray[np.int16]:
        """Return the sound that a listener hears: shape ``(samples,)``, int16, mono, at the format's
        ``sample_rate``."""
        hear = decoder(self.format)
        return np.concatenate([hear.decode(frame) for frame in self.frames])

    def wav(self) -> bytes:
        """Return ``pcm`` as a 16-bit WAV file."""
        data = io.BytesIO()
        with wave.open(data, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(self.format.sample_rate)
            out.writeframes(self.pcm().astype("<i2").tobytes())
        return data.getvalue()


def opened(config: EngineConfig, target: str | None) -> AbstractAsyncContextManager[SpeechEngine]:
    """Open the engine at a gRPC target, or at the configured targets, or else make a warm one in this process."""
    if target:
        config = config.model_copy(update={"targets": (target,)})
    return engine_for_gateway(config) if config.elsewhere else local_engine(config)


async def speak(engine: SpeechEngine, request: UtteranceRequest, text: str) -> TimedUtterance:
    """Speak one text that is given as a whole.

    Raises:
        EngineError: the text cannot be spoken.
    """
    speech = TimedUtterance(request.format)
    begun = time.monotonic()
    with progress("speaking", 0, unit="s of sound") as report:
        async with engine.open(request) as utterance:
            utterance.feed(text)
            utterance.end_text()
            async for chunk in utterance:
                if not speech.frames:
                    speech.first_chunk_s = time.monotonic() - begun
                speech.frames.extend(chunk.frames)
                report(speech.audio_s)
    speech.total_s = time.monotonic() - begun
    return speech


# --- command line ------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt say``."""
    try:
        audio = AudioFormat(args.codec.upper(), args.rate or _DEFAULT_RATES[args.codec])
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    if args.raw and args.codec == "opus":
        raise UsageError("--raw with --codec opus would lose where packets begin; leave --raw out for a WAV")
    markup = Speakable()
    text = markup.feed(sys.stdin.read() if args.text == "-" else args.text) + markup.close()
    request = UtteranceRequest(
        utterance_id="say", format=audio, voice=args.voice, language=args.language, speed=args.speed
    )
    config = load(args.config).engine

    async def work() -> TimedUtterance:
        async with opened(config, args.engine) as engine:
            return await speak(engine, request, text)

    try:
        speech = asyncio.run(work())
    except (InvalidRequest, NotFound) as exc:
        raise UsageError(str(exc)) from None
    except Unavailable as exc:
        if args.engine is None:
            raise JobError(str(exc)) from None
        raise JobError(f"no engine answers at {args.engine}: {str(exc).rpartition(': ')[2]}") from None
    except EngineError as exc:
        raise JobError(str(exc)) from None
    if not speech.frames:
        raise UsageError("TEXT holds nothing that can be spoken")
    data = b"".join(speech.frames) if args.raw else speech.wav()
    _write(args.output, data)
    figures = speech.figures() | {"file": args.output}
    line = json.dumps(figures) if args.json else _readable(figures)
    print(line, file=sys.stderr if args.output == "-" else sys.stdout)
    return 0


def _write(output: str, data: bytes) -> None:
    if output == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        Path(output).write_bytes(data)
    except OSError as exc:
        raise JobError(f"{output} cannot be written: {exc.strerror}") from None


def _readable(figures: dict[str, object]) -> str:
    return (
        f"{figures['file']}: {figures['audio_ms']} ms of {figures['encoding']} at {figures['sample_rate']} Hz, "
        f"first chunk after {figures['first_chunk_ms']} ms, real-time factor {figures['realtime_factor']}"
    )
