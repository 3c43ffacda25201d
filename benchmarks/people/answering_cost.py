"""Processor time of the search for who has answered: ``python -m benchmarks.people.answering_cost``. See README.md.

The uplink's thread gets the packets of some outgoing calls in real time, with speech or silence. The process's time
without any search is subtracted. The recogniser has a process of its own, which is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.people.beeps import line
from benchmarks.people.clips import HALVES, Sounds
from benchmarks.people.rooms import RATE, Pcm
from gateway.config import BargeInConfig, RouteConfig
from gateway.uplink.worker import UplinkWorker
from talkspurt.bench.results import machine
from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat, encoder

FRAME = RATE // 50
SEARCHES: dict[str, dict[str, bool]] = {
    "nothing": {"vad": False},
    "tones": {"vad": False, "tones": True},
    "tones and speech": {"vad": True, "tones": True},
    "tones, speech and audio for a recogniser": {"vad": True, "tones": True, "speech": True, "lulls": True},
}


class _Events:
    """Takes every result."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None


def calls_audio(sounds: Sounds, seconds: float) -> dict[str, Pcm]:
    """Return the sound of a call by its kind: sentences with pauses of 0.3 s, and silence."""
    pause = np.zeros(round(0.3 * RATE), np.float32)
    spoken = [part for clip in sounds.clips("sentence", sounds.callers[-1]) for part in (clip.pcm, pause)]
    rng = np.random.default_rng(1)
    length = round(seconds * RATE)
    return {
        "speech": line(np.resize(np.concatenate(spoken), length), rng, -66.0),
        "silence": line(np.zeros(length, np.float32), rng, -66.0),
    }


async def used_s(pcm: Pcm, calls: int, search: dict[str, bool]) -> float:
    """Return the process's time while the packets of some calls arrive, seconds."""
    coded, events = AudioFormat(), _Events()
    coder = encoder(coded)
    packets = [coder.encode(to_int16(pcm[at : at + FRAME])) for at in range(0, len(pcm) - FRAME + 1, FRAME)]
    worker = UplinkWorker({"r": RouteConfig()}, BargeInConfig())
    streams = [worker.open(f"VX{number}", coded, coded, "r", events) for number in range(calls)]
    for stream in streams:
        stream.want(pcm_rate=0, **search)
    loop = asyncio.get_running_loop()
    begun, before = loop.time(), time.process_time()
    for number, packet in enumerate(packets):
        await asyncio.sleep(begun + number * 0.02 - loop.time())
        for stream in streams:
            stream.push(packet, now=time.monotonic())
    used = time.process_time() - before
    worker.close()
    return used


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sounds", type=Path, default=Path("build/people"), help="folder of the unpacked packages")
    parser.add_argument("--half", choices=HALVES, default="tuning")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    arguments = parser.parse_args()
    print(machine())
    for kind, pcm in calls_audio(Sounds(arguments.sounds, arguments.half), arguments.seconds).items():
        nothing = asyncio.run(used_s(pcm, arguments.calls, SEARCHES["nothing"]))
        for name, search in list(SEARCHES.items())[1:]:
            used = asyncio.run(used_s(pcm, arguments.calls, search)) - nothing
            print(
                f"| {kind} | {name} | {100 * used / arguments.seconds / arguments.calls:.2f} % of a core |", flush=True
            )


if __name__ == "__main__":
    main()
