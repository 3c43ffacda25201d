"""One table over all dialects: how soon a cancelled turn falls silent, whether marks are right, and whether the text
that the gateway calls heard is what the caller has in its ear.

    python benchmarks/dialects.py --turns 20 --json benchmarks/results/dialects.json

A real gateway with the tone voice, one call per dialect, one after the other, played by the simulated carriers, which
share no code with the gateway's dialects. Half of the turns are cancelled after 0.5 to 2.5 s of sound, the others are
spoken to their end. Every time is the caller's own clock:

    cut         from sending `cancel` to the last old frame, or to the flush message where there is one and it came
                later; 0 where nothing came after the cancel
    own cut     by the gateway's own reckoning, from receipt of the cancel to the flush on the wire
    marks       one behind each turn; right is `cleared: true` for a cancelled turn, else `cleared: false` within a
                tenth of a second (a quarter where messages are that large) of when the caller's buffer ran dry
    mark error  between the arrival of a mark and that time
    heard       words that `interrupt` reports, against words in the caller's own playout buffer: the tone voice hums
                each letter for 50 ms, so the length tells the word
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvloop

from talkspurt.bench.ports import free_port
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import ServerUnderTest, overrides, serving
from talkspurt.simulator.audiosocket_leg import SimulatedAudioSocketLeg
from talkspurt.simulator.carrier_leg import CarrierLeg, Leg, SimulatedUplink
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.carriers.audiosocket import AudioSocketCarrier
from talkspurt.simulator.carriers.sip import SipCarrier
from talkspurt.simulator.figures import summary
from talkspurt.simulator.manager import ManagedCall, ManagerTurn, SimulatedManager
from talkspurt.simulator.sip_leg import SipLeg
from voicecodecs import registry
from voicecodecs.pcm import to_float32

ROUTE = "bench"
SENTENCE = "the train to the north leaves from platform seven at a quarter past nine every working day of the week"
LETTER_S = 0.05
"""What the tone voice takes for a letter."""
PATIENCE_S = 20.0
_WINDOW_S = 0.005
_SILENT = 10 ** (-50 / 20)


@dataclass
class Figures:
    """What one dialect's turns came to."""

    dialect: str
    cut_ms: list[float] = field(default_factory=list)
    own_cut_ms: list[float] = field(default_factory=list)
    marks: int = 0
    marks_right: int = 0
    mark_error_ms: list[float] = field(default_factory=list)
    word_errors: list[int] = field(default_factory=list)
    heard_error_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """One line of the table."""
        return {
            "dialect": self.dialect,
            "turns_cut": len(self.cut_ms),
            "cut_ms": summary(self.cut_ms),
            "own_cut_ms": summary(self.own_cut_ms),
            "marks": self.marks,
            "marks_right": self.marks_right,
            "mark_error_ms": summary(self.mark_error_ms),
            "heard_error_ms": summary(self.heard_error_ms),
            "words_off": max(map(abs, self.word_errors), default=None),
            "within_one_word": sum(abs(error) <= 1 for error in self.word_errors),
            "failures": self.failures,
        }


def words_after(seconds: float) -> int:
    """Words of the sentence that have begun when so much of it was heard; the one under way counts."""
    letters = seconds / LETTER_S
    at, count = 0, 0
    for match in re.finditer(r"\S+", SENTENCE):
        if at >= letters:
            break
        at += len(match.group())
        count += 1
    return count


def sounding_s(leg: Leg, first: int) -> float:
    """Seconds of sound in the caller's playout buffer from a sample on; silence between two clauses does not count."""
    decoder = registry.decoder(leg.carrier.format)
    rate = leg.playout.sample_rate
    pcm = to_float32(decoder.decode(bytes(leg.playout.heard[first * leg.sample_bytes :])))
    window = round(_WINDOW_S * rate)
    whole = pcm[: len(pcm) // window * window].reshape(-1, window)
    return float((np.abs(whole).max(axis=1) > _SILENT).sum()) * _WINDOW_S if len(whole) else 0.0


class DialectCall:
    """One call, turn after turn."""

    def __init__(self, dialect: str, server: ServerUnderTest, ports: Sequence[int]) -> None:
        self.figures = Figures(dialect)
        self._server = server
        self._ports = ports
        self.leg: Leg
        if dialect == AudioSocketCarrier.dialect:
            self.leg = SimulatedAudioSocketLeg(AudioSocketCarrier(1, {}), record=True)
        elif dialect == SipCarrier.dialect:
            self.leg = SipLeg(SipCarrier(1, {}), record=True)
        else:
            self.leg = CarrierLeg(CARRIERS[dialect](1, {}), record=True)
        self._manager = SimulatedManager(self._on_setup)
        self._call: ManagedCall | None = None
        self._marks: dict[str, tuple[float, bool]] = {}
        self._uplink = SimulatedUplink(self.leg.carrier.format.ptime_ms)

    def _on_setup(self, call: ManagedCall) -> None:
        self._call = call
        call.on_message = self._on_message

    def _on_message(self, message: Any, now: float) -> None:
        if message.get("type") == "mark":
            self._marks[message["name"]] = (now, bool(message.get("cleared")))

    async def run(self, turns: int, seed: int) -> None:
        """All turns, every second one cancelled."""
        rng = random.Random(seed)
        address, dialect = self._server.address, self.figures.dialect
        await self._manager.dial_in(f"ws://{address}/v1/dialogue?route={ROUTE}")
        url = f"ws://{address}/media/{dialect}/{ROUTE}"
        if dialect == AudioSocketCarrier.dialect:
            url = f"audiosocket://127.0.0.1:{self._ports[0]}/{ROUTE}?http={address.rpartition(':')[2]}"
        elif dialect == SipCarrier.dialect:
            url = f"sip:100@127.0.0.1:{self._ports[1]}"
        try:
            await self.leg.connect(url)
            self._uplink.join(self.leg)
            await _until(lambda: self._call is not None)
            async with aiohttp.ClientSession(f"http://{address}") as http:
                for number in range(turns):
                    try:
                        await self._turn(http, f"mark{number}", rng.uniform(0.5, 2.5) if number % 2 else 0.0)
                    except TimeoutError:
                        self.figures.failures.append(f"turn {number} did not end within {PATIENCE_S:g} s")
                    await asyncio.sleep(0.3)
        finally:
            self._uplink.stop()
            self.figures.failures += [f"violation: {what}" for what in self.leg.violations]
            await self.leg.aclose()
            await self._manager.aclose()

    async def _turn(self, http: aiohttp.ClientSession, mark: str, cut_after_s: float) -> None:
        call, leg = self._call, self.leg
        assert call is not None
        started: list[int] = []
        leg.on_audible = lambda now: started.append(leg.playout.end - leg.spurts[-1].samples[-1])
        turn = call.speak(SENTENCE)
        call.send("mark", name=mark)
        await _until(lambda: bool(started) or bool(turn.outcome))
        if not cut_after_s:
            await _until(lambda: bool(turn.outcome) and mark in self._marks)
            self._mark(mark, cleared=False)
            return
        await asyncio.sleep(cut_after_s)
        clears, cancelled_at = leg.clears, time.monotonic()
        call.send("cancel")
        await _until(lambda: bool(turn.outcome and turn.heard_text))
        await asyncio.sleep(0.2)  # whatever may still be on its way
        self._cut(turn, clears, cancelled_at, started[0])
        self._mark(mark, cleared=True)
        async with http.get(f"/v1/calls/{call.session_id}") as answer:
            last_cut_ms = (await answer.json())["lastCutMs"]
        if last_cut_ms is not None:  # a cancel that meets a gap has nothing to silence
            self.figures.own_cut_ms.append(last_cut_ms)

    def _cut(self, turn: ManagerTurn, clears: int, cancelled_at: float, first: int) -> None:
        leg, figures = self.leg, self.figures
        if turn.outcome != "interrupted":
            figures.failures.append(f"a cancelled turn ended {turn.outcome}")
            return
        silent_at = max(leg.cleared_at if leg.clears > clears else 0.0, leg.spurts[-1].arrivals[-1])
        figures.cut_ms.append(max(0.0, silent_at - cancelled_at) * 1000)
        heard_s = sounding_s(leg, first)
        figures.word_errors.append(len(turn.heard_text.split()) - words_after(heard_s))
        figures.heard_error_ms.append(abs(turn.reported["heardMs"] - heard_s * 1000))

    def _mark(self, mark: str, *, cleared: bool) -> None:
        figures = self.figures
        figures.marks += 1
        if mark not in self._marks:
            figures.failures.append("a mark never came")
            return
        came_at, was_cleared = self._marks[mark]
        error_ms = (came_at - self.leg.playout.runs_dry_at()) * 1000
        if not cleared:
            figures.mark_error_ms.append(abs(error_ms))
        figures.marks_right += was_cleared == cleared and (cleared or abs(error_ms) <= self._tolerance_ms)

    @property
    def _tolerance_ms(self) -> float:
        """Of a mark: the dialect's own message, or a tenth of a second."""
        return 250.0 if self.figures.dialect in ("genesys", "exotel") else 100.0


async def _until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""

    def figure(row: dict[str, Any], name: str) -> str:
        values = row[name]
        return "-" if values is None else f"{values['p50']:g} / {values['max']:g}"

    lines = [
        "| dialect | cut, ms p50 / max | own cut, ms p50 / max | marks right | mark error, ms p50 / max "
        "| heard within a word | heard error, ms p50 / max |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['dialect']} | {figure(row, 'cut_ms')} | {figure(row, 'own_cut_ms')} "
            f"| {row['marks_right']} of {row['marks']} | {figure(row, 'mark_error_ms')} "
            f"| {row['within_one_word']} of {row['turns_cut']} | {figure(row, 'heard_error_ms')} |"
        )
    return "\n".join(lines)


def environment(ports: Sequence[int]) -> dict[str, str]:
    """Of a gateway that takes every dialect unsigned; ports of AudioSocket and SIP."""
    unsigned = {f"carriers__{name.replace('-', '_')}__verify": "false" for name in CARRIERS}
    more = {"engine__kind": "tone", "audiosocket__port": str(ports[0]), **unsigned}
    more |= {"sip__port": str(ports[1]), "sip__rtp_ports": f"{ports[2]}-{ports[2] + 20}"}
    more["sip__trunks"] = f"{{bench: {{addresses: [127.0.0.1], route: {ROUTE}}}}}"
    return overrides(route=ROUTE, calls=4, **more)


def dialects() -> Iterator[str]:
    """All of them, in the order of the table."""
    yield from sorted(CARRIERS)
    yield AudioSocketCarrier.dialect
    yield SipCarrier.dialect


async def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All dialects, one after the other; returns the rows."""
    ports = [free_port(), free_port(), free_port(22)]
    rows = []
    async with serving(None, environment(ports)) as server:
        for dialect in args.dialects:
            call = DialectCall(dialect, server, ports)
            await call.run(args.turns, args.seed)
            rows.append(call.figures.row())
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    known = list(dialects())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="per dialect, every second one is cancelled")
    parser.add_argument("--dialects", nargs="+", choices=known, default=known)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = uvloop.run(run(args))
    if args.json is not None:
        settings = {"turns": args.turns, "seed": args.seed, "voice": "tone", "sentence": SENTENCE}
        result = {"commit": commit(), "machine": machine(), "settings": settings, "steps": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
