"""``talkspurt voices`` lists and changes the voice registry through an engine."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from gateway.errors import Rejected
from gateway.http.speech_api.sound_decoder import sampled
from gateway.http.speech_api.voice_sample import problems
from talkspurt.cli import JobError, UsageError
from talkspurt.commands.say import opened
from talkspurt.config.settings import load
from tts_engine.api import SpeechEngine, VoiceInfo
from tts_engine.embedded import espeak_text
from tts_engine.errors import EngineError, InvalidRequest, NotFound
from tts_engine.text.verbalise.languages import primary

Action = Callable[[SpeechEngine, argparse.Namespace], Awaitable[Sequence[VoiceInfo]]]


async def _list(engine: SpeechEngine, args: argparse.Namespace) -> Sequence[VoiceInfo]:
    return await engine.list_voices()


async def _show(engine: SpeechEngine, args: argparse.Namespace) -> Sequence[VoiceInfo]:
    voices = await engine.list_voices()
    found = [voice for voice in voices if voice.voice_id == args.voice_id]
    if not found:
        raise NotFound(f"no voice {args.voice_id!r}; there are: {', '.join(voice.voice_id for voice in voices)}")
    return found


async def _add(engine: SpeechEngine, args: argparse.Namespace) -> Sequence[VoiceInfo]:
    measured, wav = await sampled(_read(args.file))
    added = await engine.add_voice(
        voice_id=args.voice_id,
        name=args.name or args.voice_id,
        wav=wav,
        transcript=args.transcript,
        language=args.language,
    )
    for problem in problems(measured, args.transcript):
        print(f"{args.file}: {problem.message}", file=sys.stderr)
    return [added]


async def _remove(engine: SpeechEngine, args: argparse.Namespace) -> Sequence[VoiceInfo]:
    await engine.remove_voice(args.voice_id)
    return []


_ACTIONS: dict[str, Action] = {"list": _list, "show": _show, "add": _add, "remove": _remove}


_COSTS = {
    "embedded": "0.01 core a talking call; Apache-2.0",
    "kokoro": "1 core a talking call; Apache-2.0",
    "espeak": "0.01 core a talking call; GPL-3.0 library",
    "cosyvoice": "GPU; model Apache-2.0",
}
"""Cost and licence of the voices of an engine."""


def _cost(voice: VoiceInfo) -> str:
    by_espeak = voice.engine == "kokoro" and primary(voice.languages[0]) in espeak_text.LANGUAGES
    return _COSTS.get(voice.engine, "") + (", phonemes by a GPL-3.0 library" if by_espeak else "")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from None


# --- command line ------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt voices``."""
    action = _ACTIONS[args.action]
    config = load(args.config).engine

    async def work() -> Sequence[VoiceInfo]:
        async with opened(config, args.engine) as engine:
            return await action(engine, args)

    try:
        voices = asyncio.run(work())
    except (InvalidRequest, NotFound, Rejected) as exc:
        raise UsageError(str(exc)) from None
    except EngineError as exc:
        raise JobError(str(exc)) from None
    if args.json:
        print(json.dumps([asdict(voice) for voice in voices]))
    else:
        for voice in voices:
            kind = "registered" if voice.registered else "built in"
            print(
                f"{voice.voice_id:<16} {kind:<10} {voice.engine:<12} {' '.join(voice.languages):<12} {voice.name:<12} "
                f"{_cost(voice)}"
            )
    return 0
