"""Engines that Ray Serve places, scales and restarts (extra ``[cluster]``); ``configs/cluster.yaml`` is a sample.

Each replica of ``Engine`` runs one engine process on its node and reports its address to ``Directory``. A gateway asks
the directory over HTTP for the engines (``engine.directory_url``) and streams to them directly over gRPC: no audio and
no cancel passes through Ray. Ray imports this module; the gateway does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from pathlib import Path
from typing import Any

import ray.util
from ray import serve

from talkspurt.config.settings import load
from talkspurt.engines import engine_process
from tts_engine.errors import EngineError, Unavailable
from tts_engine.service.client import GrpcEngine

BEAT_S = 0.5
"""Time between two messages of a replica to the directory, seconds."""
FORGET_S = 3.0
"""Time without a message after which the directory drops an engine, seconds."""
TARGET_WAIT_S = 0.05
"""Mean wait of new utterances above which there are too few engines, seconds. Below a quarter there are too many."""
SHRINK_EVERY_S = 300.0
"""Time between two reductions, seconds. A new engine needs minutes to get warm."""


class Directory:
    """Keeps the engines' addresses. Answers HTTP with ``{"engines": ["host:port", ...]}``."""

    def __init__(self, engines: Any) -> None:
        """``engines`` binds the replicas to the application; nothing is asked of them here."""
        self._seen: dict[str, float] = {}
        self._begun = time.monotonic()

    async def beat(self, target: str) -> None:
        """Note that the engine at ``target`` takes utterances."""
        self._seen[target] = time.monotonic()

    async def leave(self, target: str) -> None:
        """Note that the engine takes no more utterances."""
        self._seen.pop(target, None)

    async def __call__(self, _request: Any) -> Any:
        from starlette.responses import JSONResponse

        now = time.monotonic()
        self._seen = {target: at for target, at in self._seen.items() if now - at < FORGET_S}
        if now - self._begun < FORGET_S and not self._seen:
            # A restarted directory knows no engine yet, and an empty list would remove all engines.
            return JSONResponse({"error": "starting"}, status_code=503)
        return JSONResponse({"engines": sorted(self._seen)})


class Engine:
    """A replica: one engine process, which lives as long as the replica."""

    def __init__(self, config: str) -> None:
        """``config``: file with the section ``engine``, on the replica's node. The host of its ``listen`` counts,
        ``0.0.0.0`` for the node's own address; the port is a free one."""
        engine = load(Path(config)).engine
        host = engine.listen.rpartition(":")[0]
        if host in ("0.0.0.0", "[::]"):
            host = ray.util.get_node_ip_address()
        self._target = f"{host}:{_free_port(host)}"
        self._process = engine_process(engine, listen=self._target)
        self._client: GrpcEngine | None = None
        self._config = engine
        self._queue_s = 0.0
        self._starting: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        await self._process.start()
        self._client = GrpcEngine(self._target, self._config)
        directory = serve.get_deployment_handle("Directory", serve.get_replica_context().app_name)
        while True:
            with contextlib.suppress(EngineError):
                status = await self._client.status()
                self._queue_s = status.queue_s
                if status.ready:
                    directory.beat.remote(self._target)
            await asyncio.sleep(BEAT_S)

    async def check_health(self) -> None:
        """Raise if the engine has failed. Ray calls this, and replaces a replica that raises."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="engine")
        if self._starting.done():
            raise Unavailable(f"the engine at {self._target} did not start: {self._starting.exception()}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load for ``by_wait``. Called by Ray."""
        return {"queue_seconds": self._queue_s}

    async def address(self) -> tuple[str, int | None]:
        """Return the engine's target and its process id."""
        return self._target, self._process.pid

    async def __del__(self) -> None:
        """Tell the directory, and let utterances finish. Ray calls this at the end of a replica."""
        if self._starting is not None:
            self._starting.cancel()
        directory = serve.get_deployment_handle("Directory", serve.get_replica_context().app_name)
        with contextlib.suppress(Exception):  # the application may be going down, the directory first
            await directory.leave.remote(self._target)
        if self._client is not None:
            await self._client.aclose()
        await self._process.aclose()


def by_wait(context: Any) -> tuple[int, dict[str, Any]]:
    """Scaling policy for Ray: the number of engines at which new utterances wait ``TARGET_WAIT_S``, at most doubled at
    once."""
    waits = list((context.aggregated_metrics or {}).get("queue_seconds", {}).values())
    state = dict(context.policy_state or {})
    now = context.current_time or time.time()
    wanted = wanted_engines(waits, context.target_num_replicas, now - state.get("shrunk_at", 0.0))
    if wanted < context.target_num_replicas:
        state["shrunk_at"] = now
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return max(least, min(most, wanted)), state


def wanted_engines(waits_s: list[float], engines: int, since_shrunk_s: float) -> int:
    """Return the wanted number of engines, from the waits in the present ones."""
    mean_s = sum(waits_s) / len(waits_s) if waits_s else 0.0
    if mean_s > TARGET_WAIT_S:
        return min(2 * engines, math.ceil(engines * mean_s / TARGET_WAIT_S))
    if waits_s and mean_s < TARGET_WAIT_S / 4 and since_shrunk_s > SHRINK_EVERY_S:
        return engines - 1
    return engines


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def application(args: dict[str, str]) -> Any:
    """Return the application for Ray Serve. ``args``: ``config``, the path of the engines' configuration. The file for
    ``serve deploy`` sets the resources and the number of replicas."""
    engines = serve.deployment(name="Engine", ray_actor_options={"num_gpus": 1})(Engine)
    directory = serve.deployment(name="Directory", num_replicas=1, ray_actor_options={"num_cpus": 0})(Directory)
    return directory.bind(engines.bind(args["config"]))
