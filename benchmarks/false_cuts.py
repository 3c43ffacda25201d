"""Barge-in quality: how soon caller speech cuts, and how often something else does.

    python benchmarks/false_cuts.py --calls 8 --seconds 60 --json false_cuts.json

A real server speaks all the time to simulated callers; each scene gives them something else to send:

    speech          a sentence every few seconds, of 28 at four pitches; from its first audible frame to the clear
    white pink babble   noise at -35 dBov; babble is six people at once
    echo            what the caller hears, 120 ms later and 20 dB lower
    mhm             a hum of assent every few seconds

All callers speak with the embedded voice, played slower or faster so that it differs from the bot's. A cut is a turn
that ends ``interrupted``; a clear that is followed by the same turn going on is a hesitation, and is counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from hibari import Hibari
from numpy.typing import NDArray

from talkspurt.bench.calls import ROUTE, CallLoad, CallLoadSettings, LoadedCall
from talkspurt.bench.load import STANDARD, LoadTurn, TurnSupply, read_load
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import overrides, serving
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.figures import summary
from voicecodecs import g711
from voicecodecs.pcm import dbov, to_int16, trim_silence
from voicecodecs.resample import Resampler

Pcm = NDArray[np.float32]
RATE = 8000
FRAME = 160
SPEECH_DBOV = -26.0
"""Level of a talker on a telephone line (ITU-T P.56 puts active speech about here)."""
NOISE_DBOV = -35.0
NOISE_S = 1200
"""Length of a noise before it comes again: of a shorter one, an hour would repeat the same few accidents."""
ECHO_DELAY = 6 * FRAME
ECHO_DB = -20.0
SENTENCES = (
    "Wait a moment, I have a question.",
    "Sorry, can I ask you something?",
    "No, that is not what I meant.",
    "Could you repeat the last part please?",
    "Actually I want to speak to somebody.",
    "Hold on, please stop for a second.",
    "Yes.",
    "No, thank you.",
    "Agent, please.",
    "Excuse me, what did you say?",
    "I already told you my number.",
    "Stop.",
    "Okay, okay, I understand.",
    "Can you speak a little slower?",
    "That's wrong.",
    "My name is Miller.",
    "I don't want that.",
    "Hello, are you there?",
    "When does the office open?",
    "Please call me back tomorrow.",
    "Just a second.",
    "How much does it cost?",
    "Let me think about it.",
    "You have the wrong address.",
    "Thanks, that is all I need.",
    "One more thing, please.",
    "Which department is this?",
    "Is there anybody I can talk to?",
)
PITCHES = (0.8, 0.85, 0.92, 1.1)
"""Speed at which the embedded voice is played for a caller: 0.8 is lower by a fifth, 1.1 higher by a tenth."""
HUMS = ("Mhm.", "Mm-hmm.", "Mhm, mhm.", "Hmm.")


class Caller:
    """Makes what callers send."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self._voice = functools.cache(Hibari(threads=1))

    def speech(self, text: str, pitch: float = 0.85) -> Pcm:
        """A sentence at telephone rate and level, from its first sound to its last."""
        pcm = self._voice(text).astype(np.float32)
        # Played slower, a voice is lower: the resampler is told a rate that the samples do not have.
        resampler = Resampler(int(24000 * pitch) // 100 * 100, RATE)
        pcm = np.concatenate([resampler.process(pcm), resampler.flush()])
        start, end = trim_silence(pcm, RATE)
        return level(pcm[start:end], SPEECH_DBOV)

    def white(self, seconds: int) -> Pcm:
        return level(self.rng.standard_normal(seconds * RATE).astype(np.float32), NOISE_DBOV)

    def pink(self, seconds: int) -> Pcm:
        spectrum = np.fft.rfft(self.rng.standard_normal(seconds * RATE))
        spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
        return level(np.fft.irfft(spectrum).astype(np.float32), NOISE_DBOV)

    def babble(self, seconds: int) -> Pcm:
        mixed = np.zeros(seconds * RATE, np.float32)
        for pitch in (0.75, 0.8, 0.85, 0.95, 1.05, 1.15):
            said = [self.speech(text, pitch) for text in SENTENCES]
            rounds = 1 + len(mixed) // sum(map(len, said))
            order = np.concatenate([self.rng.permutation(len(said)) for _ in range(rounds)])
            mixed += np.roll(np.concatenate([said[at] for at in order])[: len(mixed)], self.rng.integers(len(mixed)))
        return level(mixed, NOISE_DBOV)


def level(pcm: Pcm, to_dbov: float) -> Pcm:
    return (pcm * np.float32(10 ** ((to_dbov - dbov(pcm)) / 20))).astype(np.float32)


def frames(pcm: Pcm) -> list[bytes]:
    """mu-law frames of 20 ms, the last one padded."""
    payload = g711.encode_ulaw(to_int16(np.clip(pcm, -1, 1)))
    return [payload[at : at + FRAME].ljust(FRAME, b"\xff") for at in range(0, len(payload), FRAME)]


def looped(clip: list[bytes], number: int) -> Callable[[], bytes]:
    """A clip without end, every caller at another place of it: however many they are, far from each other."""
    start = int(number * (math.sqrt(5) - 1) / 2 % 1 * len(clip))
    endless: Iterator[bytes] = itertools.islice(itertools.cycle(clip), start, None)
    return lambda: next(endless)


def echo(leg: CarrierLeg) -> Callable[[], bytes]:
    """What this caller hears, later and lower."""
    played = 0

    def frame() -> bytes:
        nonlocal played
        heard = leg.playout.heard[max(0, played - ECHO_DELAY) : max(0, played - ECHO_DELAY + FRAME)]
        played += FRAME
        pcm = g711.decode_ulaw(bytes(heard)) * 10 ** (ECHO_DB / 20)
        return g711.encode_ulaw(pcm.astype(np.int16)).ljust(FRAME, b"\xff")

    return frame


@dataclass
class Monologues:
    """Every call speaks all the time, a long turn after the other; ``clips`` are said over it every few seconds."""

    clips: list[list[bytes]]
    ambience: Callable[[LoadedCall], Callable[[], bytes]] | None = None
    every_s: float = 5.0
    outlasts: bool = True
    ramp_s: float = 0.0
    _left: list[list[bytes]] = field(default_factory=list)

    def start(self, load: CallLoad) -> None:
        for call in load.calls:
            self.begin(load, call)

    def begin(self, load: CallLoad, call: LoadedCall) -> None:
        if self.ambience is not None:
            call.leg.ambience = self.ambience(call)
        self._speak(load, call, load.rng.uniform(0, 2))
        if self.clips:
            self._say(load, call)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        self._speak(load, call, 0.3)

    def _speak(self, load: CallLoad, call: LoadedCall, delay_s: float) -> None:
        load.later(delay_s, call, LoadTurn((load.source.long_text(300),), 0.0))

    def _say(self, load: CallLoad, call: LoadedCall) -> None:
        def say() -> None:
            if not load.over:
                if call.leg.playout.playing(time.monotonic()):
                    call.leg.say(self._next_clip(load))
                self._say(load, call)

        asyncio.get_running_loop().call_later(self.every_s + load.rng.uniform(0, 2), say)

    def _next_clip(self, load: CallLoad) -> list[bytes]:
        """Each as often as the others: with a few dozen drawn freely, one sentence may decide the 95th percentile."""
        if not self._left:
            self._left = load.rng.sample(self.clips, len(self.clips))
        return self._left.pop()


def scenes(caller: Caller) -> dict[str, Monologues]:
    def noise(pcm: Pcm) -> Callable[[LoadedCall], Callable[[], bytes]]:
        clip = frames(pcm)
        return lambda call: looped(clip, int(call.leg.carrier.call_sid[-4:], 16))

    return {
        "speech": Monologues([frames(caller.speech(text, pitch)) for text in SENTENCES for pitch in PITCHES]),
        "white": Monologues([], noise(caller.white(NOISE_S))),
        "pink": Monologues([], noise(caller.pink(NOISE_S))),
        "babble": Monologues([], noise(caller.babble(NOISE_S))),
        "echo": Monologues([], lambda call: echo(call.leg)),
        "mhm": Monologues([frames(caller.speech(text)) for text in HUMS]),
    }


async def measure(name: str, scene: Monologues, source: TurnSupply, args: argparse.Namespace) -> dict[str, Any]:
    settings = CallLoadSettings(calls=args.calls, seconds=args.seconds, tokens_per_s=0.0, record=name == "echo")
    load = CallLoad(settings, source, scene)
    async with serving(args.config, overrides(route=ROUTE, calls=args.calls)) as server:
        await load.run(server.address, measured=lambda begins: None)
    found = heard(load.calls)
    spoken_h, said, cuts = found["spoken_hours"], found["utterances"], found["cuts"]
    return {
        "scene": name,
        "calls": args.calls,
        **found,
        # For speech a cut is right, for all else it is wrong.
        "onset_to_clear_ms": found["onset_to_clear_ms"] if name == "speech" else None,
        "missed_share": round(1 - min(1.0, cuts / said), 3) if name == "speech" and said else None,
        "false_cuts_per_hour": round(cuts / spoken_h, 2) if name != "speech" and spoken_h else None,
        "false_cut_share": round(cuts / said, 3) if name == "mhm" and said else None,
        "errors": load.figures()["errors_by_kind"],
    }


def heard(calls: Sequence[LoadedCall]) -> dict[str, Any]:
    """What was said, and what was cut, on some calls of a load."""
    legs = [call.leg for call in calls]
    turns = [turn for call in calls if call.call for turn in call.call.turns.values()]
    cuts = sum(turn.reported.get("reason") == "speech" for turn in turns)
    return {
        "spoken_hours": round(sum(sum(spurt.samples) for leg in legs for spurt in leg.spurts) / RATE / 3600, 4),
        "utterances": sum(leg.utterances for leg in legs),
        "cuts": cuts,
        "hesitations": sum(leg.clears for leg in legs) - cuts,
        "onset_to_clear_ms": summary([ms for leg in legs for ms in leg.cuts_ms]),
    }


async def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    source = read_load(STANDARD)
    caller = Caller()
    results = []
    for name, scene in scenes(caller).items():
        if name in args.scenes:
            results.append(await measure(name, scene, source, args))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    known = "speech white pink babble echo mhm".split()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--scenes", nargs="+", choices=known, default=known)
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    steps = uvloop.run(run(arguments))
    settings = {"seconds": arguments.seconds, "speech_dbov": SPEECH_DBOV, "noise_dbov": NOISE_DBOV, "echo_db": ECHO_DB}
    if arguments.json is not None:
        result = {"commit": commit(), "machine": machine(), "settings": settings, "steps": steps}
        arguments.json.write_text(json.dumps(result) + "\n")
