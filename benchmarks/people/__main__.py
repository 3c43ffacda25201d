"""Command line: ``fetch`` the sounds, ``run`` scenes. See README.md here."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from benchmarks.people.clips import HALVES, Sounds
from benchmarks.people.figures import delays, rate, share
from benchmarks.people.packages import fetch
from benchmarks.people.scenes import Scene, Tally, played, scenes
from gateway.recognition.moonshine import Moonshine
from gateway.recognition.smart_turn import SmartTurn, model_file
from talkspurt.bench.results import commit, machine
from tests.virtual_loop import VirtualLoop

HEADS = (
    *("scene", "false cuts a minute of speech", "pauses", "cut on time", "onset to silence p50 / p95, ms"),
    *("false prompts", "premature ends", "answer delay p50 / p95, ms", "without an answer"),
)


def scene_named(name: str) -> Scene:
    """Return the scene of a name."""
    return next(scene for scene in scenes() if scene.name == name)


@cache
def embedded() -> Moonshine:
    """Return the embedded recogniser's network."""
    return Moonshine()


def one(folder: Path, half: str, name: str, number: int, model: Path | None, words: str, reduced: bool) -> Tally:
    """Play one call on a loop of its own; for a process of the pool."""
    loop = VirtualLoop()
    try:
        turn_model = None if model is None else SmartTurn(model)
        transcribe = embedded() if words == "embedded" else None
        scene, sounds = scene_named(name), Sounds(folder, half)
        return loop.run_until_complete(
            played(scene, sounds, number, turn_model, transcribe, reduced=True if reduced else None)
        )
    finally:
        loop.close()


def row(name: str, tally: Tally) -> list[str]:
    """Return the line of the table."""
    return [
        name,
        rate(tally.false_cuts, tally.spoken_min),
        str(tally.pauses),
        share(tally.interruptions - len(tally.missed), tally.interruptions),
        delays(tally.onset_to_silence_s),
        f"{tally.false_prompts} in {tally.minutes:.1f} min",
        share(len(tally.premature), tally.answers),
        delays(tally.answer_delay_s),
        f"{len(tally.unanswered)} of {tally.answers}" if tally.answers else "-",
    ]


def run(arguments: argparse.Namespace) -> None:
    """Play the scenes and print the table."""
    model = None if arguments.no_turn_model else model_file()
    chosen = [scene for scene in scenes() if any(fnmatch.fnmatch(scene.name, each) for each in arguments.scenes)]
    results: dict[str, Tally] = {}
    begun = time.monotonic()
    with ProcessPoolExecutor(arguments.processes) as pool:
        playing = [
            (scene, [
                pool.submit(
                    one, arguments.sounds, arguments.half, scene.name, number, model, arguments.words, arguments.reduced
                )
                for number in range(max(1, round(scene.calls * arguments.calls)))
            ])
            for scene in chosen
        ]  # fmt: skip
        print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
        for scene, calls in playing:
            total = results[scene.name] = Tally()
            for call in calls:
                total.add(call.result())
            print("| " + " | ".join(row(scene.name, total)) + " |", flush=True)
            if arguments.verbose:
                print({"missed": total.missed, "premature": total.premature, "unanswered": total.unanswered})
    seconds = sum(tally.minutes for tally in results.values()) * 60
    print(f"{seconds / 60:.1f} min of calls in {(time.monotonic() - begun) / 60:.1f} min", file=sys.stderr)
    if arguments.json is not None:
        head = {
            "commit": commit(),
            "machine": machine(),
            "half": arguments.half,
            "words": arguments.words,
            "reduced": arguments.reduced,
        }
        head["turn_model"] = model is not None
        arguments.json.write_text(json.dumps({**head, "scenes": {k: vars(v) for k, v in results.items()}}) + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.people", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download the packages with apt-get and unpack them")
    playing = commands.add_parser("run", help="play scenes and print the table")
    for each in (fetching, playing):
        each.add_argument("--sounds", type=Path, default=Path("build/people"), help="folder of the unpacked packages")
    playing.add_argument("--half", choices=HALVES, default="tuning")
    playing.add_argument("--scenes", nargs="+", default=["*"], metavar="PATTERN", help="names, with * and ?")
    playing.add_argument("--calls", type=float, default=1.0, metavar="TIMES", help="this many times each scene's calls")
    playing.add_argument("--processes", type=int, default=1)
    playing.add_argument("--no-turn-model", action="store_true")
    playing.add_argument("--reduced", action="store_true", help="routes with background_noise_reduction")
    playing.add_argument("--words", choices=("ideal", "embedded"), default="ideal", help="embedded: English callers")
    playing.add_argument("--verbose", action="store_true", help="name what was missed, premature or unanswered")
    playing.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "fetch":
        fetch(arguments.sounds)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
