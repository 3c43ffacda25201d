"""Calls in real time over sockets, against a real server: what is cut and answered, how soon, and for how much
processor time.

    python -m benchmarks.people.live --half table --calls 4 --seconds 120
    python -m benchmarks.people.live --half table --calls 4 --off    # no VAD, no recogniser: what the rest costs

Each caller has a carrier's media socket, a telephone on a table (its microphone returns the bot's voice from a room),
and the manager's socket is shared. The bot asks questions, which the caller answers, and holds monologues over which
the caller says a word or a sentence, coughs, or says nothing. The bot's voice is recorded too, played as clips, so no
processor time goes to a voice. The callers speak the half's English if it has any: the embedded recogniser knows no
other language.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
import wave
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.people.clips import HALVES, Sounds
from benchmarks.people.figures import delays, share
from benchmarks.people.rooms import RATE, Pcm, at_level, impulse_response
from benchmarks.people.scenes import BOT_DBOV, CALLER_DBOV, bot_voice
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.manager import ManagedCall, ManagerTurn, SimulatedManager
from voicecodecs import g711
from voicecodecs.pcm import to_int16

ROUTE = "people"
FRAME = RATE // 50
_ECHO_DELAY_S = 0.12
_ECHO_DB = -20.0
_NOISE_DBOV = -66.0
_OVER = ("word", "sentence", "cough", "")
"""The sounds at the telephone during the monologues, in their order."""
_ANSWER_WAIT_S = 4.0


@dataclass
class Tally:
    """The counts of all calls."""

    answers: int = 0
    early: int = 0
    answer_delay_s: list[float] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OVER, 0))
    cut: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OVER, 0))
    onset_to_clear_s: list[float] = field(default_factory=list)
    caller_s: float = 0.0
    bot_s: float = 0.0


class LiveCaller:
    """One caller and the manager's part of the call."""

    def __init__(self, number: int, voices: Sequence[str], sounds: Sounds, speaker: str, tally: Tally) -> None:
        self.leg = CarrierLeg(TwilioCarrier(number, {}), record=True)
        self.leg.ambience = self._frame
        self.call: ManagedCall | None = None
        self._voices, self._sounds, self._speaker, self._tally = voices, sounds, speaker, tally
        self._rng = random.Random(number)
        self._number = number
        self._response = impulse_response(0.3, distance_m=0.6, seed=number) * np.float32(10 ** (_ECHO_DB / 20))
        self._noise = np.random.default_rng(number)
        self._begin: int | None = None
        self._frames = 0
        self._pieces: deque[Pcm] = deque()
        self._onset = self._end = 0.0
        self._prompts: list[float] = []

    def take(self, call: ManagedCall) -> None:
        self.call = call
        call.on_message = self._on_message

    def _on_message(self, message: Mapping[str, Any], now: float) -> None:
        if message["type"] == "prompt" and message["last"]:
            self._prompts.append(now)

    async def run(self, seconds: float) -> None:
        """Questions and monologues in turn."""
        await _until(lambda: self.call is not None, 10.0)
        until = time.monotonic() + seconds
        over = deque(_OVER)
        over.rotate(self._number)
        while time.monotonic() < until:
            await self._question()
            await self._monologue(over[0])
            over.rotate(1)

    async def _question(self) -> None:
        tally, turn = self._tally, self._speak("Question")
        await _until(lambda: turn.outcome != "", 15.0)
        await asyncio.sleep(self._rng.uniform(0.3, 1.0))
        begun = time.monotonic()
        await self._utter("sentence", CALLER_DBOV)
        end = self._end
        await _until(lambda: bool(self._prompts) and self._prompts[-1] > end - 0.02, _ANSWER_WAIT_S)
        tally.answers += 1
        early = any(begun < at < end - 0.02 for at in self._prompts)
        tally.early += early
        tally.answer_delay_s += [at - end for at in self._prompts if at > end - 0.02][:1] if not early else []
        await asyncio.sleep(0.5)

    async def _monologue(self, over: str) -> None:
        tally, turn = self._tally, self._speak("Long")
        await _until(lambda: turn.outcome != "", self._rng.uniform(1.5, 6.0))
        before = self.leg.clears
        if not turn.outcome:
            tally.said[over] += 1
            if over:
                await self._utter(over, CALLER_DBOV + (-2.0 if over == "cough" else 0.0))
                await _until(lambda: turn.outcome != "", 1.5)
            else:
                await _until(lambda: turn.outcome != "", 4.0)
            was_cut = _is_cut(turn)
            tally.cut[over] += was_cut
            if was_cut and over in ("word", "sentence") and self.leg.clears > before:
                tally.onset_to_clear_s.append(max(0.0, self._first_clear - self._onset))
        await _until(lambda: turn.outcome != "", 20.0)
        await asyncio.sleep(0.5)

    def _speak(self, kind: str) -> ManagerTurn:
        assert self.call is not None
        source = self._rng.choice([each for each in self._voices if each.startswith(kind)])
        turn = self.call.open_turn(source)
        self.call.send("play", source=source, turn=turn.turn)
        return turn

    # --- the telephone -----------------------------------------------------------------------------------------------

    async def _utter(self, kind: str, dbov: float) -> None:
        """Say a clip, and return when it has been sent."""
        clip = self._rng.choice(self._sounds.clips(kind, "" if kind == "cough" else self._speaker))
        pcm = at_level(clip.pcm, dbov + self._rng.gauss(0.0, 1.5))
        whole = -(-len(pcm) // FRAME) * FRAME
        self._tally.caller_s += len(pcm) / RATE if kind != "cough" else 0.0
        self._onset = self._first_clear = self._end = 0.0
        self._pieces.extend(np.split(np.concatenate((pcm, np.zeros(whole - len(pcm), np.float32))), whole // FRAME))
        await _until(lambda: self._end > 0, 30.0)

    def _frame(self) -> bytes:
        now = time.monotonic()
        if self._onset and not self._first_clear and self.leg.cleared_at > self._onset:
            self._first_clear = self.leg.cleared_at
        pcm = self._noise.standard_normal(FRAME).astype(np.float32) * np.float32(10 ** (_NOISE_DBOV / 20))
        if self._pieces:
            self._onset = self._onset or now
            pcm += self._pieces.popleft()
        elif self._onset and not self._end:
            self._end = now - FRAME / RATE
        pcm += self._echo(now)
        return g711.encode_ulaw(to_int16(np.clip(pcm, -1, 1).astype(np.float32)))

    def _echo(self, now: float) -> Pcm:
        if self._begin is None:
            self._begin = self.leg.playout.position(now)
        end = self._begin + FRAME * (self._frames + 1) - round(_ECHO_DELAY_S * RATE)
        self._frames += 1
        length = FRAME + len(self._response) - 1
        heard = bytes(self.leg.playout.heard[max(0, end - length) : max(0, end)])
        if not heard.strip(b"\xff"):
            return np.zeros(FRAME, np.float32)
        past = g711.decode_ulaw(heard).astype(np.float32) / 32768
        past = np.concatenate((np.zeros(length - len(past), np.float32), past))
        return np.convolve(past, self._response, "valid").astype(np.float32)

    @property
    def bot_s(self) -> float:
        """Seconds of the bot's sound."""
        return sum(sum(spurt.samples) for spurt in self.leg.spurts) / RATE


def _is_cut(turn: ManagerTurn) -> bool:
    return turn.outcome == "interrupted"


async def _until(happened: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return happened()


def processor_s(server: ServerUnderTest) -> dict[str, float]:
    """Return the processor time so far of the gateway, the recogniser and the engine."""
    used = {"gateway": 0.0, "recogniser": 0.0, "engine": 0.0}
    for pid in (*server.gateway_pids(), *server.engine_pids()):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = "gateway" if pid == server.pid else "recogniser" if b"talkspurt.recognisers" in line else "engine"
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] += (int(fields[11]) + int(fields[12])) / 100
    return used


def write_voice(folder: Path, sounds: Sounds, speaker: str) -> list[str]:
    """Write what the bot says as files. Return their names."""
    names = []
    for text, pcm in bot_voice(sounds, random.Random(1), speaker).items():
        names.append(f"{' '.join(text.split()[:2]).rstrip(',')}.wav")
        with wave.open(str(folder / names[-1]), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(to_int16(np.clip(at_level(pcm, BOT_DBOV), -1, 1).astype(np.float32)).tobytes())
    return names


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the calls. Return the figures."""
    sounds = Sounds(arguments.sounds, arguments.half)
    speaker = next((each for each in sounds.callers if each.startswith("en")), sounds.callers[0])
    route = {"recogniser": "" if arguments.off or arguments.no_recogniser else "embedded"}
    if arguments.off:
        route |= {"interruptible": "none", "end_of_thought": "false"}
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        voices = write_voice(Path(folder), sounds, speaker)
        keys = {f"routes__{ROUTE}__{key}": value for key, value in route.items()}
        environment = overrides(
            route=ROUTE, calls=arguments.calls, engine__kind="tone", clips__folder=folder,
            **keys,
        )  # fmt: skip
        del environment[f"TALKSPURT__ROUTES__{ROUTE.upper()}"]
        async with serving(None, environment) as server:
            callers = [LiveCaller(n, voices, sounds, speaker, tally) for n in range(1, arguments.calls + 1)]
            by_sid = {each.leg.carrier.call_sid: each for each in callers}
            manager, uplink = SimulatedManager(lambda call: by_sid[call.call_sid].take(call)), SimulatedUplink()
            await manager.dial_in(f"ws://{server.address}/v1/dialogue?route={ROUTE}")
            for each in callers:
                await each.leg.connect(f"ws://{server.address}/media/twilio/{ROUTE}")
                uplink.join(each.leg)
            await asyncio.gather(*(each.run(10.0) for each in callers))  # the networks are loaded by then
            vars(tally).update(vars(Tally()))
            before, begun, spoke = processor_s(server), time.monotonic(), sum(each.bot_s for each in callers)
            await asyncio.gather(*(each.run(arguments.seconds) for each in callers))
            wall_s = time.monotonic() - begun
            used = {name: round(value - before[name], 2) for name, value in processor_s(server).items()}
            tally.bot_s = sum(each.bot_s for each in callers) - spoke
            uplink.stop()
            for each in callers:
                await each.leg.aclose()
            await manager.aclose()
    whole = used["gateway"] + used["recogniser"]
    return {
        "calls": arguments.calls,
        "off": arguments.off,
        "wall_s": round(wall_s, 1),
        "processor_s": used,
        "calls_a_core": round(arguments.calls * wall_s / whole, 1),
        "recogniser_s_per_second_of_speech": round(used["recogniser"] / max(tally.caller_s, 1e-9), 3),
        **vars(tally),
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sounds", type=Path, default=Path("build/people"))
    parser.add_argument("--half", choices=HALVES, default="tuning")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--off", action="store_true", help="no recogniser, no turn model, no interruptions")
    parser.add_argument("--no-recogniser", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = uvloop.run(measure(arguments))
    said, cut = result["said"], result["cut"]
    for over in _OVER:
        print(f"{over or 'nothing'} over the voice, turns cut: {share(cut[over], said[over])}")
    print(f"onset to clear p50 / p95: {delays(result['onset_to_clear_s'])}")
    print(f"answers ended early: {share(result['early'], result['answers'])}")
    print(f"answer delay p50 / p95: {delays(result['answer_delay_s'])}")
    print({key: value for key, value in result.items() if not isinstance(value, list | dict)}, result["processor_s"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"commit": commit(), "machine": machine(), **result}) + "\n")


if __name__ == "__main__":
    main()
