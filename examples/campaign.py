"""Call a list of people, at a pace, and write what became of each call.

    python campaign.py people.csv results.csv --carrier twilio --per-minute 10 --at-once 2

The list is a CSV file with the column `to`; the other columns reach the bot as custom parameters. Each row of the
results is the row of the list and `callId result sipStatus code answeredBy seconds`. `result` is the last event of the
call: `completed busy noAnswer failed canceled`, or `refused` if the order was not taken. `answeredBy` is what the
answer detection of the route (or of the carrier) says; it is empty without one. Numbers that are in the results
already are not called again, so a campaign that was stopped can go on.

Needs: pip install aiohttp. The server's address and key: TALKSPURT_URL (http://127.0.0.1:8080) and TALKSPURT_API_KEY.
Call only people who have agreed to it, at hours that the law allows.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

FOUND = ("callId", "result", "sipStatus", "code", "answeredBy", "seconds")
LAST = {"completed", "busy", "noAnswer", "failed", "canceled"}


class Campaign:
    """One list of calls. `followed` gets the messages of all calls; `call` places one call and waits for its end."""

    def __init__(self, http: aiohttp.ClientSession, order: Mapping[str, Any]) -> None:
        self._http = http
        self._order = order
        self._messages: dict[str, asyncio.Queue[dict[str, Any]]] = {}

    async def follow(self, ready: asyncio.Event) -> None:
        """Read the messages of all calls, as long as the server sends them."""
        async with self._http.get("/v1/events", timeout=aiohttp.ClientTimeout(total=None)) as events:
            events.raise_for_status()
            ready.set()
            async for line in events.content:
                if line.startswith(b"data: "):
                    message = json.loads(line[6:])
                    self._of(str(message.get("sessionId"))).put_nowait(message)
        raise ConnectionError("the server has ended the stream of events")

    def _of(self, call_id: str) -> asyncio.Queue[dict[str, Any]]:
        return self._messages.setdefault(call_id, asyncio.Queue())

    async def call(self, person: Mapping[str, str]) -> dict[str, Any]:
        """Call one person. Return what became of the call."""
        parameters = {name: value for name, value in person.items() if name != "to" and value}
        body = {**self._order, "to": person["to"], "customParameters": parameters}
        while True:
            async with self._http.post("/v1/calls", json=body) as answer:
                placed = await answer.json()
                if answer.status == 201:
                    break
                if answer.status not in (429, 503) or "Retry-After" not in answer.headers:
                    return {"result": "refused", "code": placed["error"]["code"]}
                await asyncio.sleep(float(answer.headers["Retry-After"]))
        found = await self._until_over(placed["callId"])
        return {"callId": placed["callId"], **found}

    async def _until_over(self, call_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        queue = self._of(call_id)
        while True:
            message = await queue.get()
            kind, event = message["type"], message.get("event")
            if kind == "call" and event == "answered":
                found.setdefault("answeredBy", message.get("code", ""))
            elif kind == "call" and event in LAST:
                found |= {"result": event, "sipStatus": message.get("sipStatus", ""), "code": message.get("code", "")}
                if event != "completed":
                    break
            elif kind == "answered":
                found["answeredBy"] = message["by"]
            elif kind == "ended":
                found["seconds"] = round(message["durationMs"] / 1000, 1)
                break
        self._messages.pop(call_id, None)
        return found


def remaining(people: Sequence[Mapping[str, str]], results: Path) -> list[Mapping[str, str]]:
    """Return the people who are not in the results yet."""
    done: set[str] = set()
    if results.exists():
        with results.open(newline="", encoding="utf-8") as file:
            done = {row["to"] for row in csv.DictReader(file)}
    return [person for person in people if person["to"] not in done]


async def run(
    http: aiohttp.ClientSession,
    people: Sequence[Mapping[str, str]],
    results: Path,
    order: Mapping[str, Any],
    *,
    per_minute: float,
    at_once: int,
) -> None:
    """Call all people and write a row for each as soon as its call is over."""
    campaign, places, ready = Campaign(http, order), asyncio.Semaphore(at_once), asyncio.Event()
    columns = [*dict.fromkeys(name for person in people for name in person), *FOUND]
    following = asyncio.create_task(campaign.follow(ready))
    with results.open("a", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, columns, restval="")
        if file.tell() == 0:
            rows.writeheader()

        async def one(person: Mapping[str, str]) -> None:
            try:
                rows.writerow({**person, **await campaign.call(person)})
                file.flush()
            finally:
                places.release()

        async def all_of_them() -> None:
            await ready.wait()
            async with asyncio.TaskGroup() as calls:
                for person in remaining(people, results):
                    await places.acquire()
                    calls.create_task(one(person))
                    await asyncio.sleep(60 / per_minute)

        calling = asyncio.create_task(all_of_them())
        try:
            await asyncio.wait({calling, following}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                await following  # raises: without events no call's end is known
            await calling
        finally:
            calling.cancel()
            following.cancel()
            await asyncio.gather(calling, following, return_exceptions=True)


async def main() -> None:
    """Read the arguments, and run the campaign."""
    parser = argparse.ArgumentParser(description="Call a list of people.")
    parser.add_argument("people", type=Path, help="CSV file with the column to")
    parser.add_argument("results", type=Path, help="CSV file to write, or to continue")
    parser.add_argument("--route", default="default")
    parser.add_argument("--carrier", default="", help="twilio, telnyx, plivo, vonage or signalwire; without it: SIP")
    parser.add_argument("--from", dest="from_", default="", help="number that the people see")
    parser.add_argument("--per-minute", type=float, default=10)
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    with args.people.open(newline="", encoding="utf-8") as file:
        people = list(csv.DictReader(file))
    order = {"route": args.route, "carrier": args.carrier, "from": args.from_}
    key = os.environ.get("TALKSPURT_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = os.environ.get("TALKSPURT_URL", "http://127.0.0.1:8080")
    async with aiohttp.ClientSession(url, headers=headers) as http:
        await run(http, people, args.results, order, per_minute=args.per_minute, at_once=args.at_once)


if __name__ == "__main__":
    asyncio.run(main())
