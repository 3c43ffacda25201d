"""A spoken question and its spoken answer: how soon, how well understood, for how much CPU.

    python benchmarks/recogniser.py --calls 1 4 --rounds 3 --json recogniser.json

A real server with the embedded recogniser; each caller asks twenty questions at 8 kHz mu-law, in the embedded voice
lowered by a sixth so that it is not the bot's own, and waits for each answer to end. A dialogue manager answers every
final prompt at once. All times are of the caller's and the manager's process:

    answer_ms   from the question's last sample sent to the first audible sample of the answer
    prompt_ms   from there to the final prompt at the manager; most of it is recogniser.end_of_speech_ms

Word accuracy is 1 - (wrong, missing and additional words) / words, numbers spelt digit by digit. CPU is that of the
recogniser's process per second of speech. ``--partial`` asks for partial prompts too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from hibari import Hibari
from numpy.typing import NDArray

from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.figures import summary
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from voicecodecs import g711
from voicecodecs.pcm import dbov, to_int16, trim_silence
from voicecodecs.resample import Resampler

RATE = 8000
FRAME = 160
ROUTE = "spoken"
SPEECH_DBOV = -26.0
PITCH = 0.85
PATIENCE_S = 15.0
QUESTIONS = (
    "What are your opening hours?",
    "Where is my order?",
    "Can I speak to a human, please?",
    "I would like to change my delivery address.",
    "My order number is four seven one one.",
    "Could you repeat that, please?",
    "How much does it cost to send a parcel to Spain?",
    "I want to cancel my subscription.",
    "What time do you close on Saturday?",
    "Do you have this shirt in a larger size?",
    "My package was damaged when it arrived.",
    "Is there a number that I can call tomorrow?",
    "I forgot my password and cannot log in.",
    "Can you send the invoice to my office?",
    "How long does the repair take?",
    "I have been waiting for two weeks now.",
    "Which train goes to the airport?",
    "Please book a table for three people at seven.",
    "What is the balance of my account?",
    "Thank you very much, goodbye.",
)
_DIGITS = "zero one two three four five six seven eight nine".split()


def words(text: str) -> list[str]:
    spelt = re.sub(r"\d", lambda digit: f" {_DIGITS[int(digit[0])]} ", text.lower())
    return re.findall(r"[a-z']+", spelt)


def word_errors(said: list[str], heard: list[str]) -> int:
    """Levenshtein distance."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != other))
    return row[-1]


def recording(voice: Hibari, text: str) -> list[bytes]:
    """A question as mu-law frames, from its first sound to its last."""
    pcm: NDArray[np.float32] = voice(text).astype(np.float32)
    # Played slower, a voice is lower: the resampler is told a rate that the samples do not have.
    resampler = Resampler(int(24000 * PITCH) // 100 * 100, RATE)
    pcm = np.concatenate([resampler.process(pcm), resampler.flush()])
    start, end = trim_silence(pcm, RATE)
    pcm = pcm[start:end]
    pcm = (pcm * np.float32(10 ** ((SPEECH_DBOV - dbov(pcm)) / 20))).astype(np.float32)
    payload = g711.encode_ulaw(to_int16(np.clip(pcm, -1, 1)))
    return [payload[at : at + FRAME].ljust(FRAME, b"\xff") for at in range(0, len(payload), FRAME)]


@dataclass
class Asked:
    """What came of the questions."""

    answer_ms: list[float] = field(default_factory=list)
    prompt_ms: list[float] = field(default_factory=list)
    words: int = 0
    wrong: int = 0
    speech_s: float = 0.0
    partials: int = 0
    unanswered: int = 0


class Asker:
    """One caller and the manager of its call."""

    def __init__(self, number: int, recordings: Mapping[str, list[bytes]]) -> None:
        self.leg = CarrierLeg(TwilioCarrier(number, {}))
        self.leg.ambience = self._silence
        self.call: ManagedCall | None = None
        self._recordings = recordings
        self._asked = Asked()
        self._answers = 0
        self._ended_at: float | None = None
        self._prompt: str | None = None
        self._prompt_at = 0.0
        self._audible_at: float | None = None

    def take(self, call: ManagedCall) -> None:
        self.call = call
        call.on_message = self._on_message

    async def ask(self, texts: Sequence[str], asked: Asked) -> None:
        """One after the other, each answered before the next."""
        self._asked = asked
        while self.call is None:
            await asyncio.sleep(0.01)
        for text in texts:
            await self._ask(text)

    async def _ask(self, text: str) -> None:
        frames, asked = self._recordings[text], self._asked
        self._ended_at = self._prompt = self._audible_at = None
        self.leg.say(frames)
        asked.speech_s += len(frames) * FRAME / RATE
        deadline = time.monotonic() + PATIENCE_S
        while self._audible_at is None and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        asked.words += len(words(text))
        asked.wrong += word_errors(words(text), words(self._prompt or ""))
        if self._audible_at is None or self._ended_at is None:
            asked.unanswered += 1
            return
        asked.answer_ms.append((self._audible_at - self._ended_at) * 1000)
        asked.prompt_ms.append((self._prompt_at - self._ended_at) * 1000)
        while self.call is not None and self.call.open_turns:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)

    def _silence(self) -> bytes:
        if self._ended_at is None:
            self._ended_at = time.monotonic() - FRAME / RATE  # the frame before was the last one
        return b"\xff" * FRAME

    def _on_message(self, message: Mapping[str, Any], now: float) -> None:
        if message["type"] != "prompt":
            return
        if not message["last"]:
            self._asked.partials += 1
            return
        if self._prompt is None:
            self._prompt, self._prompt_at = message["voicePrompt"], now
            self.leg.on_audible = self._on_audible
            assert self.call is not None
            self._answers += 1
            # Always another text: the engine remembers the sound of what it has said.
            self.call.speak(f"That was question {self._answers} of caller {self.call.call_sid[-2:]}.")
        else:  # the question was cut in two
            self._prompt += f" {message['voicePrompt']}"

    def _on_audible(self, now: float) -> None:
        self._audible_at = now


def recogniser_cpu_s(server: ServerUnderTest) -> float:
    """Of the recogniser's process alone."""
    ticks = 0
    for pid in server.engine_pids():
        if b"talkspurt.recognisers" in Path(f"/proc/{pid}/cmdline").read_bytes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


async def measure(calls: int, recordings: Mapping[str, list[bytes]], args: argparse.Namespace) -> dict[str, Any]:
    route = {f"routes__{ROUTE}__recogniser": "embedded", f"routes__{ROUTE}__partial_prompts": str(args.partial).lower()}
    environment = overrides(route=ROUTE, calls=calls, **route)
    del environment[f"TALKSPURT__ROUTES__{ROUTE.upper()}"]
    asked = Asked()
    async with serving(args.config, environment) as server:
        askers = [Asker(number, recordings) for number in range(1, calls + 1)]
        by_sid = {asker.leg.carrier.call_sid: asker for asker in askers}
        manager, uplink = SimulatedManager(lambda call: by_sid[call.call_sid].take(call)), SimulatedUplink()
        await manager.dial_in(f"ws://{server.address}/v1/dialogue?route={ROUTE}")
        for asker in askers:
            await asker.leg.connect(f"ws://{server.address}/media/twilio/{ROUTE}")
            uplink.join(asker.leg)
        # One question each before it counts: the network is loaded by then.
        await asyncio.gather(*(asker.ask(QUESTIONS[:1], Asked()) for asker in askers))
        cpu_s, begun = recogniser_cpu_s(server), time.monotonic()
        await asyncio.gather(*(asker.ask(QUESTIONS * args.rounds, asked) for asker in askers))
        cpu_s, wall_s = recogniser_cpu_s(server) - cpu_s, time.monotonic() - begun
        rss_mb = server.rss_mb()
        uplink.stop()
        for asker in askers:
            await asker.leg.aclose()
        await manager.aclose()
    return {
        "calls": calls,
        "questions": len(asked.answer_ms) + asked.unanswered,
        "unanswered": asked.unanswered,
        "answer_ms": summary(asked.answer_ms),
        "prompt_ms": summary(asked.prompt_ms),
        "word_accuracy": round(1 - asked.wrong / asked.words, 4),
        "partials": asked.partials,
        "speech_s": round(asked.speech_s, 1),
        "recogniser_cpu_s_per_speech_s": round(cpu_s / asked.speech_s, 4),
        "recogniser_core_share": round(cpu_s / wall_s, 4),
        "rss_mb": round(rss_mb),
    }


async def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    voice = Hibari(threads=1)
    recordings = {text: recording(voice, text) for text in QUESTIONS}
    steps = []
    for calls in args.calls:
        steps.append(await measure(calls, recordings, args))
        print(json.dumps(steps[-1]), file=sys.stderr, flush=True)
    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {"commit": commit(), "machine": machine(), "settings": {"rounds": arguments.rounds}}
    result["steps"] = uvloop.run(run(arguments))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result) + "\n")
