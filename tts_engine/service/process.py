"""The engine's own process, seen from the gateway.

If the process dies, its utterances raise ``Unavailable`` in their clients. The calls continue, and the next process
speaks the next utterance at the same address.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tts_engine.config import EngineConfig
from tts_engine.service import wire
from tts_engine.service.child import ChildProcess, ChildTimes
from tts_engine.service.client import channel_options
from tts_engine.service.security import Connecting, proof

RESTART_BACKOFF_S = 0.2
"""Pause before a crashed engine is started again, seconds. It doubles with each crash in a row, up to 32 times this."""

_KILL_AFTER_DRAIN_S = 10.0
"""Seconds from the end of the drain until the engine is killed. A model's process takes up to 8 of them."""
_WATCH_AGAIN_S = 0.05


class EngineProcess(ChildProcess):
    """An engine as a child process, behind a unix socket in a private folder unless ``listen`` names another address.
    The engine drains before it ends."""

    def __init__(self, module: str, config: EngineConfig, *, listen: str = "") -> None:
        """
        Args:
            module: see ``ChildProcess``. The module must call ``tts_engine.service.runner.run_child``.
            config: the child's configuration. ``target`` replaces its ``listen``. A unix socket needs no token, so the
                token stays with us then.
            listen: ``host:port`` for an engine that other programs use too.
        """
        times = ChildTimes(
            start_s=config.timeouts.start_s,
            hang_s=config.timeouts.hang_s,
            end_s=config.drain_s + _KILL_AFTER_DRAIN_S,
            restart_backoff_s=RESTART_BACKOFF_S,
        )
        super().__init__("engine", module, times=times)
        self.target = listen or f"unix:{self.folder}/engine.sock"
        """The address at which ``GrpcEngine`` reaches the child. Restarts do not change it."""
        update: dict[str, object] = {"listen": self.target, "targets": ()}
        self._config = config.model_copy(update=update if listen else update | {"token": None})
        self._proof = proof(self.target, self._config)
        self._health_request = health_pb2.HealthCheckRequest(service=wire.SERVICE)

    def settings(self) -> str:
        settings = self._config.model_dump(mode="json")
        if self._config.token is not None:  # the file is in our private folder; a dump would mask the token
            settings["token"] = self._config.token.get_secret_value()
        return json.dumps(settings)

    async def warm(self) -> None:
        async with self._health() as health:
            while True:
                try:
                    async for answer in health.Watch(self._health_request, wait_for_ready=True, metadata=self._proof):
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(_WATCH_AGAIN_S)

    async def answers(self) -> bool:
        """Return True if the process answers at all: a draining process is alive too."""
        async with self._health() as health:
            try:
                # A busy process may take longer to accept a connection than gRPC waits for one.
                await health.Check(
                    self._health_request,
                    timeout=self._config.timeouts.hang_s,
                    metadata=self._proof,
                    wait_for_ready=True,
                )
            except grpc.aio.AioRpcError:
                return False
            return True

    @asynccontextmanager
    async def _health(self) -> AsyncIterator[health_pb2_grpc.HealthStub]:
        """Yield the health service on a connection of its own, so that it never waits for audio."""
        options = [*channel_options(), ("grpc.max_reconnect_backoff_ms", 100)]
        async with Connecting(self.target, self._config).channel(options) as channel:
            yield health_pb2_grpc.HealthStub(channel)
