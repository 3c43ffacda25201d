"""Is a call lost when a process is restarted at noon, and who is harmed when one is killed?

    python -m tests.peers.acceptance --calls 60 --json build/acceptance.jsonl      (`make acceptance`)
    python -m tests.peers.acceptance --only quiet,engine-1,gateway-1 --seconds 10

Two gateways with two workers each, two engines, Redis, PostgreSQL, Envoy and Kamailio run on this machine, and so many
calls talk all the time, each for ``--seconds``, half of them by WebSocket and half by SIP. Each row restarts or kills
one process and waits until the calls that were there are over. Further rows: ``records`` (each call of all rows has one
record), ``envoy-adds`` (first packets by Envoy and past it), ``crashes`` (500 calls over 50 kills of a gateway).

Each row is a line of ``--json``. A row that is there already, for as many calls of that length, is not taken again.
At the end come a table, and exit code 1 with what was wrong: a call that ended before its caller hung up or had a turn
that failed, more than one gap in a call, no sound within 500 ms of an engine's death, leases that the dead hold for
more than 5 s, records that are missing or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from talkspurt.bench.results import commit, machine
from tests.peers.acceptance.callers import SETUP_S, Callers
from tests.peers.acceptance.rows import ROWS, Acceptance, envoys_share
from tests.peers.acceptance.service import ROOT, Service
from tests.peers.postgres_server import PostgresServer

ALONE = {
    "records": "a record of each call",
    "envoy-adds": "first packets by Envoy and past it, one call at a time",
    "crashes": "500 calls over 50 kills of a gateway",
}


class Rows:
    """The file of results."""

    def __init__(self, path: Path, calls: int, seconds: float) -> None:
        self._path = path
        self._settings = {"places": calls, "seconds": seconds}
        self.taken: list[dict[str, Any]] = []
        if path.exists():
            rows = map(json.loads, path.read_text().splitlines())
            self.taken = [row for row in rows if self._settings.items() <= row.items()]

    def has(self, name: str) -> bool:
        return any(row["row"] == name for row in self.taken)

    def add(self, name: str, figures: dict[str, Any]) -> None:
        row = {"row": name, **self._settings, "commit": commit(), "machine": machine(), **figures}
        self.taken.append(row)
        with self._path.open("a") as out:
            out.write(json.dumps(row) + "\n")
        shown = {key: value for key, value in figures.items() if key != "wrong"}
        print(f"{name:<13} {json.dumps(shown)}", *figures["wrong"], sep="\n    wrong: ", flush=True)


async def _rows(names: Sequence[str], rows: Rows, args: argparse.Namespace, folder: Path) -> None:
    """Take the rows that need the service."""
    callers = Callers(args.calls, args.seconds)
    try:
        manager = await callers.manager.listen()
        async with Service(folder, manager, longest_call_s=args.seconds + SETUP_S) as service:
            run = Acceptance(service, callers)
            if "envoy-adds" in names:
                rows.add("envoy-adds", await envoys_share(service, callers))
            restarts = [name for name in names if name in ROWS]
            if restarts:
                callers.start(service.front, service.sip_front)
                await asyncio.sleep(args.seconds)  # until all places have a call
                for name in restarts:
                    rows.add(name, await run.row(*ROWS[name][1]))
                await callers.stop()
            if "records" in names:
                rows.add("records", await run.each_has_one_record())
    finally:
        await callers.aclose()


async def _crashes(args: argparse.Namespace) -> dict[str, Any]:
    """Run ``record_crashes.py`` on a PostgreSQL of its own."""
    server = PostgresServer()
    try:
        await asyncio.to_thread(server.start)
        url = server.url(await asyncio.to_thread(server.make_database, "crashes"))
        program = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "benchmarks/record_crashes.py"), "--postgres", url, "--json", "-",
            "--kills", str(args.kills), "--calls", str(10 * args.kills),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await program.communicate()
    finally:
        await asyncio.to_thread(server.close)
    figures: dict[str, Any] = json.loads(said)
    return {**figures, "wrong": ["see the figures"] if program.returncode else []}


def _table(taken: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| what happened | calls | lost | most gaps of a call | longest gap, ms | also |",
        "|---|---|---|---|---|---|",
    ]
    columns = ("calls", "lost", "gaps_of_a_call", "gap_ms")
    further = ("killed_calls", "next_sound_ms", "carriers_know_s", "leases_free_s")
    for row in taken:
        if row["row"] in ROWS:
            also = ", ".join(f"{name} {row[name]}" for name in further if name in row)
            lines.append(f"| {' | '.join([ROWS[row['row']][0], *(str(row[name]) for name in columns), also])} |")
    return "\n".join(lines)


async def main(args: argparse.Namespace) -> int:
    """Take the rows that are asked for. Return the exit code."""
    args.json.parent.mkdir(parents=True, exist_ok=True)
    rows = Rows(args.json, args.calls, args.seconds)
    names = [name for name in args.only.split(",") if not rows.has(name)]
    with tempfile.TemporaryDirectory(prefix="talkspurt-acceptance-") as folder:
        if set(names) - {"crashes"}:
            await _rows(names, rows, args, Path(folder))
    if "crashes" in names:
        rows.add("crashes", await _crashes(args))
    print(_table(rows.taken))
    wrong = [f"{row['row']}: {what}" for row in rows.taken for what in row["wrong"]]
    for each in wrong:
        print(f"wrong: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = [*ROWS, *ALONE]
    parser.add_argument("--calls", type=int, default=60, help="at a time (default 60)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a call (default 20)")
    parser.add_argument("--kills", type=int, default=50, help="of the row crashes, with ten times as many calls")
    parser.add_argument("--only", default=",".join(everything), help=f"rows, of {', '.join(everything)}")
    parser.add_argument("--json", type=Path, default=Path("build/acceptance.jsonl"))
    given = parser.parse_args()
    if unknown := set(given.only.split(",")) - set(everything):
        parser.error(f"--only names {', '.join(sorted(unknown))}, expected some of {', '.join(everything)}")
    sys.exit(uvloop.run(main(given)))
