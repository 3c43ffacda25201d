"""Disturbances of the service, row by row, while callers talk, and their allowed consequences."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
from redis.asyncio import Redis

from talkspurt.simulator.peer_socket import PeerSocketError
from tests.peers.acceptance.callers import SETUP_S, TURN_S, Call, Callers, figures
from tests.peers.acceptance.service import KEY, TENANT, GatewayProgram, Service
from tests.waiting import until

NEXT_SOUND_MS = 500.0
LEASES_FREE_S = 5.0
_SOON_S = 5.0
"""For how long after a kill what callers hear is put down to it."""
_FEW = 5
"""Calls at a time, so few that they do not wait for each other."""

Act = Callable[["Acceptance"], Awaitable[dict[str, Any]]]


class Acceptance:
    """Service and callers.

    Args:
        alone: true if no one else uses the machine. Else gaps, times and refused calls may be the others' doing (a
            gateway that waits for a core answers no check in time), and only calls that break off are wrong.
    """

    def __init__(self, service: Service, callers: Callers, *, alone: bool = True) -> None:
        self.service = service
        self.callers = callers
        self.alone = alone
        self.victims: set[int] = set()
        """Calls whose process was killed, by their ``id()``."""

    async def row(self, *acts: Act) -> dict[str, Any]:
        """Do something, wait until all calls that were there meanwhile are over, and judge them.

        Returns:
            Figures; ``wrong`` lists what should not be.
        """
        since = time.monotonic()
        more: dict[str, Any] = {"wrong": []}
        for act in acts:
            done = await act(self)
            more["wrong"] += done.pop("wrong", [])
            more |= done
        acted = time.monotonic()
        there = [call for call in self.callers.calls if call.began_at <= acted and not 0 < call.over_at < since]
        async with asyncio.timeout(self.callers.seconds + SETUP_S + 2 * TURN_S):
            while not all(call.over_at for call in there):
                await asyncio.sleep(0.1)
        unharmed = [call for call in there if id(call) not in self.victims]
        judged = unharmed if self.alone else [call for call in unharmed if call.managed is not None]
        lost = Counter(f"{call.kind}: {call.lost}" for call in judged if call.lost)
        seen = figures(unharmed, since, time.monotonic())
        wrong = [*more.pop("wrong"), *(f"{count} lost, {what}" for what, count in lost.items())]
        if self.alone and seen["gaps_of_a_call"] > 1:
            wrong.append(f"{seen['gaps_of_a_call']} gaps in a call")
        kinds = Counter(call.kind for call in there)
        return {**seen, "sip": kinds["sip"], "lost": lost.total(), "acted_s": round(acted - since, 1), **more,
                "wrong": wrong}  # fmt: skip

    async def each_has_one_record(self) -> dict[str, Any]:
        """Look for the record of every call, those that were killed included; all calls are over."""
        ids = [call.id for call in self.callers.calls if call.id]
        found: list[dict[str, Any]] = []

        async def all_there() -> bool:
            nonlocal found
            found = await self._records()
            there = {record["id"] for record in found if record["outcome"] != "open"}
            return there.issuperset(ids)

        wrong = []
        try:
            await until(all_there, "records")
        except AssertionError:
            missing = set(ids) - {record["id"] for record in found if record["outcome"] != "open"}
            wrong.append(f"{len(missing)} calls without a record that has ended")
        counts = Counter(record["id"] for record in found)
        outcomes = Counter(record["outcome"] for record in found)
        killed = {call.id for call in self.callers.calls if id(call) in self.victims}
        wrong += [f"{count} records of one call" for count in counts.values() if count > 1]
        # A call whose process was killed before its manager knew of it has an id that is unknown here.
        crashed = {record["id"] for record in found if record["outcome"] == "crashed"}.intersection(ids)
        wrong += [f"{len(crashed - killed)} calls crashed that were not killed"] if crashed - killed else []
        return {"calls": len(ids), "records": len(found), "outcomes": dict(outcomes), "wrong": wrong}

    async def _records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = ""
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:
            while True:
                url = f"http://127.0.0.1:{self.service.front}/v1/records"
                async with http.get(url, params={"limit": "1000", "after": after}) as answer:
                    if answer.status != 200:
                        return []
                    page = await answer.json()
                found += page["records"]
                after = page["next"]
                if not after:
                    return found


# --- nothing, and restarts -------------------------------------------------------------------------------------------


async def quiet(run: Acceptance) -> dict[str, Any]:
    await asyncio.sleep(run.callers.seconds)
    return {}


def restart_engine(number: int) -> Act:
    async def act(run: Acceptance) -> dict[str, Any]:
        await run.service.engines[number].restart()
        await asyncio.sleep(2)  # the gateways look for it once a second
        return {}

    return act


def restart_gateway(number: int) -> Act:
    async def act(run: Acceptance) -> dict[str, Any]:
        await run.service.gateways[number].restart()
        await run.service.fronts_have_both()
        return {}

    return act


async def restart_redis(run: Acceptance) -> dict[str, Any]:
    await run.service.redis.stop()
    await asyncio.sleep(1)
    await run.service.redis.start()
    return {}


async def restart_postgres(run: Acceptance) -> dict[str, Any]:
    await asyncio.to_thread(run.service.postgres.stop)
    await asyncio.sleep(1)
    await asyncio.to_thread(run.service.postgres.start)
    return {}


async def restart_envoy(run: Acceptance) -> dict[str, Any]:
    await run.service.envoy.restart()
    return {}


async def restart_kamailio(run: Acceptance) -> dict[str, Any]:
    await run.service.kamailio.restart()
    return {}


# --- kills -----------------------------------------------------------------------------------------------------------


async def kill_engine(run: Acceptance) -> dict[str, Any]:
    engine, killed_at = run.service.engines[0], time.monotonic()
    await engine.end(signal.SIGKILL)
    await asyncio.sleep(_SOON_S)
    heard = figures(run.callers.calls, killed_at, killed_at + _SOON_S)
    await engine.start()
    silence_ms = max(heard["gap_ms"], heard["first_packet_ms_most"] or 0)
    wrong = [f"next sound after {silence_ms} ms"] if silence_ms > NEXT_SOUND_MS and run.alone else []
    return {"next_sound_ms": silence_ms, "wrong": wrong}


async def kill_worker(run: Acceptance) -> dict[str, Any]:
    gateway = run.service.gateways[0]
    victims = [call for call in run.callers.live if (call.gateway, call.worker) == (gateway.number, 1)]
    pid = gateway.worker_pid(1)
    os.kill(pid, signal.SIGKILL)
    result = await _killed(run, victims)
    await until(lambda: _has_another_worker(gateway, pid), "a new worker")
    return result


def _has_another_worker(gateway: GatewayProgram, pid: int) -> bool:
    try:
        return gateway.worker_pid(1) != pid
    except (AssertionError, OSError):
        return False


async def kill_gateway(run: Acceptance) -> dict[str, Any]:
    gateway = run.service.gateways[0]
    victims = [call for call in run.callers.live if call.gateway == gateway.number]
    await gateway.end(signal.SIGKILL)
    result = await _killed(run, victims)
    await gateway.start()
    await run.service.fronts_have_both()
    return result


async def _killed(run: Acceptance, victims: Sequence[Call]) -> dict[str, Any]:
    """See how soon after a kill its carriers know it, and what its calls held is free."""
    ids, killed_at = {call.id for call in victims}, time.monotonic()
    # Nothing is known of calls that were about to begin: they may have been there.
    opening = [call for call in run.callers.calls if call.managed is None and not call.over_at]
    run.victims |= {id(call) for call in (*victims, *opening)}
    streams = [call for call in victims if call.kind != "sip"]
    await until(lambda: all(call.leg.closed_at for call in streams), "carriers that know")
    told_s = max((call.leg.closed_at - killed_at for call in streams if call.leg.closed_at), default=0.0)
    async with Redis.from_url(run.service.redis.url) as redis:

        async def free() -> bool:
            seconds, microseconds = await redis.time()
            now_ms = seconds * 1000 + microseconds // 1000
            held = await redis.zrangebyscore(f"talkspurt:limits:{{{TENANT}}}:calls", now_ms, "+inf")
            return ids.isdisjoint(name.decode() for name in held)

        await until(free, "free leases")
        free_s = time.monotonic() - killed_at
    wrong = [f"leases were free after {free_s:.1f} s"] if free_s > LEASES_FREE_S and run.alone else []
    return {"killed_calls": len(victims), "carriers_know_s": round(told_s, 2), "leases_free_s": round(free_s, 1),
            "wrong": wrong}  # fmt: skip


# --- the rest --------------------------------------------------------------------------------------------------------


async def envoys_share(service: Service, callers: Callers, *, turns: int = 100) -> dict[str, Any]:
    """Measure what Envoy adds to a first packet: a few calls by it and as many past it, in turn."""
    direct = f"ws://127.0.0.1:{service.gateways[0].port}/media/twilio/default"
    by_envoy = f"ws://127.0.0.1:{service.front}/media/twilio/default"
    first: dict[str, list[float]] = {direct: [], by_envoy: []}

    async def later(number: int, url: str) -> Call:
        await asyncio.sleep(number * callers.seconds / _FEW)
        return await callers.call("twilio", {"twilio": url})

    while min(map(len, first.values())) < turns:
        for url, found in first.items():
            for call in await asyncio.gather(*(later(number, url) for number in range(_FEW))):
                if call.lost:
                    raise PeerSocketError(call.lost)
                found += [ms for _, ms in call.first_packets]
    past, by = (statistics.median(found) for found in first.values())
    wrong = [f"Envoy adds {by - past:.2f} ms"] if by - past > 1 else []
    return {"turns": sum(map(len, first.values())), "past_ms": round(past, 2), "by_ms": round(by, 2),
            "adds_ms": round(by - past, 2), "wrong": wrong}  # fmt: skip


ROWS: dict[str, tuple[str, tuple[Act, ...]]] = {
    "quiet": ("nothing", (quiet,)),
    "engine-1": ("an engine restarted", (restart_engine(0),)),
    "engine-2": ("the other engine restarted", (restart_engine(1),)),
    "gateway-1": ("a gateway restarted", (restart_gateway(0),)),
    "gateway-2": ("the other gateway restarted", (restart_gateway(1),)),
    "redis": ("Redis restarted", (restart_redis,)),
    "postgres": ("PostgreSQL restarted", (restart_postgres,)),
    "envoy": ("Envoy restarted (hot)", (restart_envoy,)),
    "kamailio": ("Kamailio restarted", (restart_kamailio,)),
    "kill-engine": ("`kill -9` of an engine", (kill_engine,)),
    "kill-worker": ("`kill -9` of a worker", (kill_worker,)),
    "kill-gateway": ("`kill -9` of a gateway", (kill_gateway,)),
}
"""The rows by name: the disturbance, and its function."""
