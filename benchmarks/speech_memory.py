"""An hour of distinct texts for each engine that runs on a CPU: does its memory grow?

    python benchmarks/speech_memory.py                     embedded voice, tiny CosyVoice 3
    python benchmarks/speech_memory.py --voices voices     Kokoro too, with the files of ``talkspurt voices install``

Each engine has a server of its own, to which one client after another sends a text over HTTP and reads the sound to its
end. A text is two clauses of ``tests/vectors/texts`` and a number, so none comes twice. The servers run beside each
other, at low priority. A sample every ten seconds is the resident memory of all processes of a server. Exit code 1 if
the median of the last quarter is more than 3 % above that of the second, when all caches are full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from talkspurt.bench.server_process import ServerUnderTest, overrides, serving

VECTORS = Path(__file__).parent.parent / "tests/vectors/texts"
GROWTH = 1.03
LETTERS = {"es": "e", "fr": "f", "it": "i", "pt": "p", "zh": "z"}
"""The first letter of Kokoro's voices of a language."""
SAMPLE_S = 10.0
START_S = 600.0


def texts(language: str, seed: int) -> Iterator[str]:
    """Texts without end; none comes twice, since the number in each goes up."""
    rng = random.Random(seed)
    lines = (VECTORS / f"{language}.txt").read_text().splitlines()
    clauses = [line.split("~")[0] for line in lines if "~" in line and "<" not in line]
    for number in range(1_000, 10**9):
        yield f"{rng.choice(clauses)} {number}. {rng.choice(clauses)}"


async def speak(server: ServerUnderTest, voice: str, given: Iterator[str], spoken: list[str]) -> None:
    """Speak one text after another."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client:
        for text in given:
            body = {"model": "tts-1", "voice": voice, "input": text, "response_format": "pcm"}
            try:
                async with client.post(f"http://{server.address}/v1/audio/speech", json=body) as answer:
                    await answer.read()
                    spoken.append("spoken" if answer.status == 200 else f"status {answer.status}")
            except aiohttp.ClientError as exc:
                spoken.append(type(exc).__name__)


async def measured(
    voice: str, language: str, config: dict[str, object], args: argparse.Namespace, folder: Path
) -> bool:
    """Run one engine. Return whether its memory stayed."""
    name = f"{config['kind']} {voice}"
    file = folder / f"{name.replace(' ', '-')}.json"  # JSON is YAML too
    file.write_text(json.dumps({"engine": config}))
    async with serving(file, overrides(route="calls", calls=4), start_s=START_S) as server:
        spoken: list[str] = []
        speaking = asyncio.create_task(speak(server, voice, texts(language, args.seed), spoken))
        samples = []
        until = time.monotonic() + args.seconds
        while time.monotonic() < until and not speaking.done():
            await asyncio.sleep(SAMPLE_S)
            samples.append(server.rss_mb())
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
    quarter = max(1, len(samples) // 4)
    early, late = statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])
    failed = len(spoken) - spoken.count("spoken")
    row = {
        "engine": name, "seconds": args.seconds, "texts": len(spoken), "failed": failed,
        "first_mb": round(samples[0], 1), "second_quarter_mb": round(early, 1), "last_quarter_mb": round(late, 1),
        "most_mb": round(max(samples), 1),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return late <= early * GROWTH and not failed and len(spoken) > 0


async def main(args: argparse.Namespace, folder: Path) -> int:
    """Run all engines beside each other. Return the exit code."""
    cosyvoice = {
        "kind": "cosyvoice3", "model_folder": str(folder / "tiny"), "device": "cpu",
        "voices_folder": str(folder / "voices"), "cache_folder": str(folder / "cache"),
    }  # fmt: skip
    engines: list[tuple[str, str, dict[str, object]]] = [
        ("heart", "en", {"kind": "embedded"}),
        ("default", "en", {**cosyvoice}),
    ]
    for language in args.languages.split(",") if args.voices else ():
        voice = min(file.stem for file in args.voices.glob(f"{LETTERS[language]}*.bin"))
        kokoro = {"mandarin": {"voices_folder": str(args.voices.absolute())}}
        engines.append((voice, language, {"kind": "embedded", "embedded": kokoro}))
    stayed = await asyncio.gather(*(measured(*engine, args, folder) for engine in engines))
    return 0 if all(stayed) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="default 3600")
    parser.add_argument("--voices", type=Path, help="folder of Kokoro's voices")
    parser.add_argument("--languages", default="zh,es", help="of Kokoro (default zh,es)")
    parser.add_argument("--nice", type=int, default=10, help="how much priority the run gives up (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    with tempfile.TemporaryDirectory(prefix="talkspurt-memory-") as name:
        checkpoint = ["engine", "make-checkpoint", str(Path(name, "tiny")), "--version", "3", "--size", "tiny"]
        subprocess.run([sys.executable, "-m", "talkspurt", *checkpoint], check=True)
        sys.exit(asyncio.run(main(arguments, Path(name))))
