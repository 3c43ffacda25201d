"""Two trees measured in turn on one machine: is the new one as quick, as dense and as hard to cut by chance as the old?

    git worktree add --detach build/old 1d3c667
    python benchmarks/old_new.py build/old_new.jsonl --old build/old

Each row is a fresh ``talkspurt serve`` of one tree, in the order old, new, new, old, and so on. Callers, manager and
sounds are this tree's for both, over Twilio media streams. Rows that OUT already has are not taken again, so an
interrupted run goes on where it stopped; ``--table`` only prints what is there.

``call:N``      N calls in conversation, the standard load: first packet.
``burst:N``     N whole turns in one instant, again and again: first packet.
``cancel:N``    N calls of which every turn is cancelled: cut.
``gateway:N``   N calls that speak all the time, the gateway alone on one core: gaps, pacing.
``setups:N``    N clients that set up one call after another: the carrier's webhook, the stream that it names, its
                start, the greeting to its mark, the end: calls a second, and the gateway's processor time for each.
``interrupt:N`` calls that speak all the time, while their callers send what ``false_cuts.py`` describes, each scene on
                N calls: how soon sentences cut, and how often noise, echo or hums do.
``interrupt+recogniser:N``  the same on a route with the embedded recogniser.

``replay:H``    voice detection alone (``replay_cuts.py``), H hours of each scene, faster than real time and the same
                sounds to the byte for both trees: false cuts are rare, so a rate needs hours. Not among the rows that
                are taken unasked; ``--rows replay:1 --rounds 1`` takes six hours a side in about three minutes.

With ``--speech DIR``, where ``end_of_thought.py`` says how to get it, there is one more scene, ``people``: recorded
speakers of several languages, with the cuts that are right.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

NEW = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(NEW), str(NEW / "codecs"), str(NEW / "benchmarks")]

import aiohttp
import numpy as np
import uvloop
from false_cuts import ECHO_DB, HUMS, PITCHES, SENTENCES, Caller, Monologues, frames, heard, scenes

from talkspurt.bench.calls import ROUTE, CallLoad, CallLoadSettings, LoadedCall
from talkspurt.bench.load import STANDARD, TurnSupply, read_load
from talkspurt.bench.results import machine
from talkspurt.bench.server_process import ServerFailed, ServerUnderTest, overrides, serving
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.figures import summary
from talkspurt.simulator.peer_socket import PeerSocketError

Row = dict[str, Any]
ROWS = "call:1,call:50,burst:50,cancel:20,gateway:200,setups:50,interrupt:6,interrupt+recogniser:6"
SECONDS = {
    "call": 12, "burst": 6, "cancel": 6, "gateway": 8, "setups": 6, "interrupt": 26, "interrupt+recogniser": 26,
    "replay": 0,
}  # fmt: skip
"""For how long a row starts turns."""
SETUPS = "setups"
"""The route of row ``setups``."""
GREETING = NEW / "benchmarks/load/greeting.yaml"
_PACKAGES = ("gateway", "sip_bridge", "talkspurt", "tts_engine", "voicecodecs")


# --- the trees -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A checkout."""

    name: str
    root: Path
    commit: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes Python, and the processes that it starts, run this tree and no other."""
        return {"PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'codecs'}", "PYTHONSAFEPATH": "1"}


def tree(name: str, root: Path) -> Tree:
    """Return a checkout, if a server that runs from it is made of it alone."""
    root = root.resolve()
    described = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    found = Tree(name, root, subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip())
    code = (
        f"import {', '.join(_PACKAGES)}; print(*({', '.join(f'{each}.__path__[0]' for each in _PACKAGES)}), sep='\\n')"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **found.environment}, capture_output=True, text=True
    )
    if loaded.returncode:
        raise SystemExit(f"the {name} tree {root} does not run here: {loaded.stderr.strip().splitlines()[-1]}")
    for path in loaded.stdout.split():
        if not Path(path).is_relative_to(root):
            raise SystemExit(f"the {name} tree would load {path}, expected a folder below {root}")
    return found


# --- the rows --------------------------------------------------------------------------------------------------------


def bench(kind: str, calls: int, seconds: float) -> Callable[[ServerUnderTest], Any]:
    """A row of ``talkspurt bench``: of this tree, in a process of its own."""
    what, *more = {
        "call": ["call"],
        "burst": ["call", "--burst"],
        "cancel": ["call", "--cancel-share", "1"],
        "gateway": ["gateway"],
    }[kind]

    async def take(server: ServerUnderTest) -> Row:
        cores = os.sched_getaffinity(0)
        if kind == "gateway" and len(cores) > 1:  # as ``bench gateway`` does with a server of its own
            first, *others = sorted(cores)
            server.pin(gateway={first}, engine=set(others))
            os.sched_setaffinity(0, others)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "talkspurt", "bench", what, *more, "--calls", str(calls)),
                *("--seconds", str(seconds), "--server", server.address, "--json", "-"),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **Tree("new", NEW, "").environment},
            )
            told, _ = await process.communicate()
        finally:
            os.sched_setaffinity(0, cores)
        try:
            (step,) = json.loads(told)["steps"]
        except ValueError:
            raise PeerSocketError(f"talkspurt bench {what} ended with code {process.returncode}; see above") from None
        names = ("turns", "first_packet_ms", "pacing_error_ms", "gaps", "gap_free_share", "cut_ms", "errors_by_kind")
        return {name: step[name] for name in names}

    return take


def setups(clients: int, seconds: float) -> Callable[[ServerUnderTest], Any]:
    """A row of calls that begin, hear a greeting, and end."""

    async def take(server: ServerUnderTest) -> Row:
        numbers, errors = itertools.count(1), Counter[str]()
        times_ms: list[float] = []

        async def one(http: aiohttp.ClientSession) -> None:
            leg = CarrierLeg(carrier := TwilioCarrier(next(numbers), {}))
            form = {
                "CallSid": carrier.call_sid,
                "AccountSid": carrier.account_sid,
                "From": "+4930000001",
                "To": "+4930000002",
            }
            greeted = asyncio.Event()
            leg.on_change = lambda: greeted.set() if leg.marks or leg.closed_at is not None else None
            async with http.post(f"http://{server.address}/webhooks/twilio/{SETUPS}", data=form) as answer:
                told = await answer.text()
            streams = [each.get("url", "") for each in ElementTree.fromstring(told).iter("Stream")]
            if not streams:
                raise PeerSocketError(f"the webhook answered {answer.status} without a stream")
            await leg.connect(streams[0], timeout_s=10)
            try:
                await asyncio.wait_for(greeted.wait(), 10)
            finally:
                await leg.aclose()
            if not leg.marks:
                raise PeerSocketError(f"the stream closed: {leg.close_reason}")

        async def client(http: aiohttp.ClientSession, until: float) -> None:
            while (begun := time.monotonic()) < until:
                try:
                    await one(http)
                except (PeerSocketError, aiohttp.ClientError, ElementTree.ParseError, TimeoutError) as exc:
                    errors[type(exc).__name__] += 1
                else:
                    times_ms.append((time.monotonic() - begun) * 1000)

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            await one(http)  # the engine has the greeting now
            begun, (gateway_s, _) = time.monotonic(), server.cpu_s()
            await asyncio.gather(*(client(http, begun + seconds) for _ in range(clients)))
            took, used = time.monotonic() - begun, server.cpu_s()[0] - gateway_s
        done = len(times_ms)
        return {
            "setups_per_s": round(done / took, 1), "gateway_ms_a_setup": round(1000 * used / max(done, 1), 2),
            "setup_ms": summary(np.asarray(times_ms)), "errors_by_kind": dict(errors),
        }  # fmt: skip

    return take


class FewTexts(TurnSupply):
    """The same texts again and again, so that the engine has them: a voice at work would take cores from what cuts."""

    def __init__(self) -> None:
        source = read_load(STANDARD)
        super().__init__(iter(()), source.name)
        self._texts = itertools.cycle([source.long_text(300) for _ in range(12)])

    def long_text(self, characters: int) -> str:
        return next(self._texts)


class Mixed:
    """Every scene on as many calls as the others."""

    outlasts = True
    ramp_s = 0.0

    def __init__(self, of: Mapping[str, Monologues]) -> None:
        self._of = of
        self._at: dict[LoadedCall, str] = {}

    def start(self, load: CallLoad) -> None:
        self._at = dict(zip(load.calls, itertools.cycle(self._of), strict=False))
        for call, name in self._at.items():
            self._of[name].begin(load, call)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        self._of[self._at[call]].turn_ended(load, call)

    def figures(self) -> Row:
        """What each scene has shown."""
        return {name: heard([call for call, at in self._at.items() if at == name]) for name in self._of}


def interrupt(sounds: Mapping[str, Monologues], calls: int, seconds: float) -> Callable[[ServerUnderTest], Any]:
    """A row of all scenes at once, each on so many calls."""

    async def take(server: ServerUnderTest) -> Row:
        pattern = Mixed(sounds)
        settings = CallLoadSettings(calls=calls * len(sounds), seconds=seconds, tokens_per_s=0.0, record=True)
        load = CallLoad(settings, FewTexts(), pattern)
        await load.run(server.address, measured=lambda begins: None)
        return {"scenes": pattern.figures(), "errors_by_kind": load.figures()["errors_by_kind"]}

    return take


SOUNDS_S = 1200
"""Length of a replayed noise before it comes again."""


def replayed(folder: Path) -> Path:
    """Write down what ``replay_cuts.py`` plays, mu-law: of each scene one noise or many clips, and what we say."""
    caller = Caller()
    texts = FewTexts()
    turns = [caller.speech(texts.long_text(300), 1.0) for _ in range(12)]
    sounds = {
        **{f"turns:{n:02}": turn for n, turn in enumerate(turns)},
        **{f"turns' echoes:{n:02}": turn * 10 ** (ECHO_DB / 20) for n, turn in enumerate(turns)},
        "white": caller.white(SOUNDS_S), "pink": caller.pink(SOUNDS_S), "babble": caller.babble(SOUNDS_S),
        **{f"mhm:{n}": caller.speech(text) for n, text in enumerate(HUMS)},
        **{f"speech:{n:03}": caller.speech(text, pitch) for n, (text, pitch) in
           enumerate(itertools.product(SENTENCES, PITCHES))},
    }  # fmt: skip
    path = folder / "sounds.npz"
    np.savez(path, **{name: np.frombuffer(b"".join(frames(pcm)), np.uint8) for name, pcm in sounds.items()})
    return path


async def replay(row: Row, of: Tree, sounds: Path) -> Row:
    """A row of a tree's voice detection alone, in a process that is made of that tree."""
    hours = row["row"].partition(":")[2]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(NEW / "benchmarks/replay_cuts.py"), str(sounds), hours),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **of.environment},
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise PeerSocketError(f"replay_cuts.py ended with code {process.returncode}; see above")
    scenes = json.loads(told)
    for each in scenes.values():
        each["onset_to_clear_ms"] = summary(np.asarray(each.pop("reacted_ms")))
    return {**row, "machine": machine(), "scenes": scenes, "errors_by_kind": {}}


def people(folder: Path) -> Monologues:
    """Sentences of recorded speakers, a few of each."""
    from end_of_thought import SENTENCES, sentence

    voices = sorted(folder.glob("usr/share/asterisk/sounds/*_*"))
    paths = [path for voice in voices for name in SENTENCES[::6] if (path := voice / f"{name}.wav").exists()]
    clips = [frames(pcm) for path in paths if (pcm := sentence(path)) is not None]
    if not clips:
        raise SystemExit(f"{folder} has no recorded speech below usr/share/asterisk/sounds")
    return Monologues(clips)


# --- the run ---------------------------------------------------------------------------------------------------------


def key(row: Row) -> tuple[str, int, str, str]:
    """What tells a row from all others."""
    return row["row"], row["round"], row["tree"], row["commit"]


def plan(rows: Sequence[str], rounds: int, old: Tree, new: Tree) -> Iterator[Row]:
    """Every row to take, in order: a drift of the machine's speed falls on both trees alike."""
    turn = itertools.cycle([(old, new), (new, old)])
    for number in range(1, rounds + 1):
        for row in rows:
            for each in next(turn):
                yield {"row": row, "round": number, "tree": each.name, "commit": each.commit}


async def take(row: Row, of: Tree, sounds: Mapping[str, Monologues], scale: float) -> Row:
    """Take one row from a server of its own."""
    kind, _, number = row["row"].partition(":")
    calls = int(number)
    seconds = SECONDS[kind] * scale
    more = {f"routes__{ROUTE}": '{"recogniser": "embedded"}'} if kind.endswith("+recogniser") else {}
    if kind.startswith("interrupt"):
        measure, calls = interrupt(sounds, calls, seconds), calls * len(sounds)
    elif kind == "setups":
        measure = setups(calls, seconds)
        more = {f"routes__{SETUPS}": json.dumps({"dialogue": {"script": str(GREETING)}})}
    else:
        measure = bench(kind, calls, seconds)
    environment = {**overrides(route=ROUTE, calls=calls, **more), **of.environment}
    async with serving(None, environment) as server:
        return {**row, "machine": machine(), "seconds": seconds, **await measure(server)}


async def run(args: argparse.Namespace, written: list[Row]) -> int:
    """Take what is not written yet. Return how many rows failed."""
    trees = {"old": tree("old", args.old), "new": tree("new", NEW)}
    done = {key(row) for row in written}
    wanted = [
        row for row in plan(args.rows.split(","), args.rounds, trees["old"], trees["new"]) if key(row) not in done
    ]
    sounds: dict[str, Monologues] = {}
    if any(row["row"].startswith("interrupt") for row in wanted):
        sounds = scenes(Caller()) | ({"people": people(args.speech)} if args.speech else {})
    failed = 0
    recorded = replayed(args.out.parent) if any(row["row"].startswith("replay") for row in wanted) else None
    for row in wanted:
        begun = time.monotonic()
        try:
            if recorded is not None and row["row"].startswith("replay"):
                row = await replay(row, trees[row["tree"]], recorded)
            else:
                row = await take(row, trees[row["tree"]], sounds, args.scale)
        except (ServerFailed, PeerSocketError) as exc:
            failed += 1
            print(f"{row['row']} of {row['commit']}: {exc}", file=sys.stderr, flush=True)
            continue
        written.append(row)
        print(f"{row['row']} of {row['commit']}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return failed


# --- the table -------------------------------------------------------------------------------------------------------


def _each(rows: Sequence[Row], figure: Callable[[Row], Any]) -> str:
    """The figure of each round."""
    return ", ".join("-" if (value := figure(row)) is None else f"{value:g}" for row in rows) or "-"


def _of(figure: str, name: str) -> Callable[[Row], Any]:
    return lambda row: (row.get(figure) or {}).get(name)


def _errors(row: Row) -> int:
    return sum(row["errors_by_kind"].values())


def _right(rows: Sequence[Row], scene: str) -> str:
    """How soon the sentences of each round cut, and how many did in all. A sentence may cut the next turn too."""
    found = [row["scenes"][scene] for row in rows]
    said = sum(each["utterances"] for each in found)
    cuts = sum(each["onset_to_clear_ms"]["n"] for each in found if each["onset_to_clear_ms"])
    middle = _each(found, _of("onset_to_clear_ms", "p50"))
    return f"{middle} / {_each(found, _of('onset_to_clear_ms', 'p95'))}; {cuts} of {said}"


@dataclass(frozen=True)
class FalseCuts:
    """How often scenes cut that should not."""

    scenes: tuple[str, ...]

    def counted(self, rows: Sequence[Row]) -> tuple[int, float]:
        """Cuts of all rounds, and in how many hours of our speech."""
        found = [row["scenes"][name] for row in rows for name in self.scenes]
        return sum(each["cuts"] for each in found), sum(each["spoken_hours"] for each in found)

    def __call__(self, rows: Sequence[Row]) -> str:
        cuts, hours = self.counted(rows)
        least, most = poisson_bounds(cuts)
        return f"{cuts} in {hours:.2f} h: {cuts / hours:.1f} ({least / hours:.1f}-{most / hours:.1f})"

    def difference(self, old: Sequence[Row], new: Sequence[Row]) -> str:
        """How often chance alone brings as many cuts to the new tree, or more, if both have the same rate."""
        (before, before_h), (after, after_h) = self.counted(old), self.counted(new)
        return f"as many or more by chance: {100 * tail(after, before + after, after_h / (before_h + after_h)):.0f} %"


def poisson_bounds(events: int, share: float = 0.025) -> tuple[float, float]:
    """The exact bounds of a Poisson mean from its count, 95 % together (Garwood, Biometrika 28, 1936)."""

    def at_most(count: int, mean: float) -> float:
        return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))

    def solve(count: int, wanted: float) -> float:
        low, high = 1e-9, 10.0 + 3 * events
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(count, middle) > wanted else (low, middle)
        return low

    return solve(events - 1, 1 - share) if events else 0.0, solve(events, share)


def tail(events: int, of: int, share: float) -> float:
    """The probability that at least so many of ``of`` independent events fall on a side that has that share."""
    return math.fsum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(events, of + 1))


_FIGURES: dict[str, tuple[tuple[str, Callable[[Sequence[Row]], str]], ...]] = {
    "call": (
        ("first packet p50, ms", lambda rows: _each(rows, _of("first_packet_ms", "p50"))),
        ("first packet p95, ms", lambda rows: _each(rows, _of("first_packet_ms", "p95"))),
        ("gaps", lambda rows: _each(rows, lambda row: row["gaps"])),
    ),
    "cancel": (
        ("cut p50, ms", lambda rows: _each(rows, _of("cut_ms", "p50"))),
        ("cut p99, ms", lambda rows: _each(rows, _of("cut_ms", "p99"))),
    ),
    "gateway": (
        ("pacing error p99, ms", lambda rows: _each(rows, _of("pacing_error_ms", "p99"))),
        ("gaps", lambda rows: _each(rows, lambda row: row["gaps"])),
    ),
    "setups": (
        ("calls set up a second", lambda rows: _each(rows, lambda row: row["setups_per_s"])),
        ("the gateway's processor time for each, ms", lambda rows: _each(rows, lambda row: row["gateway_ms_a_setup"])),
        ("webhook to the end of the call p95, ms", lambda rows: _each(rows, _of("setup_ms", "p95"))),
    ),
    "interrupt": (
        ("caller's sound to the flush p50 / p95, ms; sentences that cut", lambda rows: _right(rows, "speech")),
        ("noise: false cuts an hour", FalseCuts(("white", "pink"))),
        ("babble: false cuts an hour", FalseCuts(("babble",))),
        ("echo: false cuts an hour", FalseCuts(("echo",))),
        ("hums: false cuts an hour", FalseCuts(("mhm",))),
        ("all of these: false cuts an hour", FalseCuts(("white", "pink", "babble", "echo", "mhm"))),
    ),
}
_PEOPLE = ("people: sound to the flush p50 / p95, ms; sentences that cut", lambda rows: _right(rows, "people"))


def table(rows: Sequence[Row]) -> str:
    """The rows for people, a line for each figure with the values of all rounds. False cuts are added up, with the
    bounds between which their rate lies (95 %)."""
    lines = ["| row | figure | old | new |", "|---|---|---|---|"]
    for name in dict.fromkeys(row["row"] for row in rows):
        kind = name.partition(":")[0].partition("+")[0]
        sides = [[row for row in rows if (row["row"], row["tree"]) == (name, side)] for side in ("old", "new")]
        figures = [*_FIGURES[{"burst": "call", "replay": "interrupt"}.get(kind, kind)]]
        if all("people" in row.get("scenes", ()) for side in sides for row in side):
            figures.append(_PEOPLE)
        if any(map(_errors, (*sides[0], *sides[1]))):
            figures.append(("errors", lambda rows: _each(rows, _errors)))
        for label, figure in figures:
            told = [figure(side) if side else "-" for side in sides]
            if isinstance(figure, FalseCuts) and all(sides):
                told[1] += f"; {figure.difference(*sides)}"
            lines.append(f"| {name} | {label} | {' | '.join(told)} |")
    commits = {side: sorted({row["commit"] for row in rows if row["tree"] == side}) for side in ("old", "new")}
    ends = "; ".join(f"{side} is {', '.join(found)}" for side, found in commits.items())
    return "\n".join([*lines, "", f"{ends}; {sum(map(_errors, rows))} errors in {len(rows)} rows."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--old", type=Path, metavar="DIR", help="a checkout of the older commit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", default=ROWS, help=f"with commas between (default {ROWS})")
    parser.add_argument("--speech", type=Path, metavar="DIR", help="recorded people, for one more scene")
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of every row (default 1)")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    rows = [row.partition(":") for row in args.rows.split(",")]
    if unknown := ["".join(row) for row in rows if row[0] not in SECONDS or not row[2]]:
        parser.error(f"--rows has {', '.join(unknown)}, expected some of {ROWS}")
    if args.old is None and not args.table:
        parser.error("--old DIR is needed: a checkout of the older commit")
    written: list[Row] = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    failed = 0 if args.table else uvloop.run(run(args, written))
    print(table(written))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
