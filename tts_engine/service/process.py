"""The engine's own process, seen from the gateway: start it, watch it, start it anew when it dies, end it.

Utterances that are alive when it dies raise ``Unavailable`` in their clients; calls go on, and the next utterance is
spoken by the next process at the same address.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tts_engine.config import EngineConfig
from tts_engine.errors import Unavailable
from tts_engine.service import wire
from tts_engine.service.client import channel_options

log = logging.getLogger(__name__)

_MAX_BACKOFF_FACTOR = 32
_KILL_AFTER_DRAIN_S = 5.0
_WATCH_AGAIN_S = 0.05


class EngineProcess:
    """An engine as a child process behind a unix socket in a private folder.

    Start it from the main thread: the kernel ends the child with the thread that started it.
    """

    def __init__(self, module: str, config: EngineConfig) -> None:
        """
        Args:
            module: what ``python -m`` runs in the child, with two arguments: the file that holds the configuration as
                JSON, and the process id of the parent; ends in ``tts_engine.service.runner.run_child``.
            config: the child's configuration; its ``listen`` is replaced by ``target``.
        """
        self._module = module
        self._folder = Path(tempfile.mkdtemp(prefix="talkspurt-"))  # mode 0700
        self.target = f"unix:{self._folder}/engine.sock"
        """Where ``GrpcEngine`` reaches it; stays the same over restarts."""
        self.restarts = 0
        self.ready = False
        """True while a process is warm and answers."""
        self._config = config.model_copy(update={"listen": self.target})
        self._file = self._folder / "engine.json"
        self._file.write_text(self._config.model_dump_json())
        self._health_request = health_pb2.HealthCheckRequest(service=wire.SERVICE)
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the living child, None between two."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the child and wait until it is warm.

        Raises:
            Unavailable: it ended, or was not warm within ``timeouts.start_s``; nothing is left behind.
        """
        try:
            await self._spawn()
        except BaseException:
            await self.aclose()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def aclose(self) -> None:
        """Drain and end the child; kill it if it takes longer than ``drain_s``. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        self.ready = False
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(self._config.drain_s + _KILL_AFTER_DRAIN_S):
                    await process.wait()
            except TimeoutError:
                log.error("engine did not end, killed", extra={"pid": process.pid})
            finally:
                await self._kill(process)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _spawn(self) -> None:
        # The child imports from where we did: an installed package, or a source tree that a tool put into sys.path.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        command = (sys.executable, "-m", self._module, str(self._file), str(os.getpid()))
        # A session of its own: Ctrl-C in the gateway's terminal reaches the gateway only, which then drains the child.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, env=env, start_new_session=True
        )
        self._process = process
        ended = asyncio.create_task(process.wait())
        warm = asyncio.create_task(self._warm())
        try:
            async with asyncio.timeout(self._config.timeouts.start_s):
                await asyncio.wait({ended, warm}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self._kill(process)
            raise Unavailable(
                f"engine was not warm within {self._config.timeouts.start_s:g} s (timeouts.start_s)"
            ) from None
        finally:
            ended.cancel()
            warm.cancel()
            await asyncio.wait({ended, warm})
        if process.returncode is not None:
            raise Unavailable(f"engine process ended with code {process.returncode} before it was warm")
        self.ready = True

    async def _warm(self) -> None:
        """Return when the process serves; never for another reason: one that ends breaks the watch off first."""
        async with self._health() as health:
            while True:
                try:
                    async for answer in health.Watch(self._health_request, wait_for_ready=True):
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(_WATCH_AGAIN_S)

    async def _answers(self) -> bool:
        """Whether the process answers a health check, whatever it says: one that drains is alive."""
        async with self._health() as health:
            try:
                await health.Check(self._health_request, timeout=self._config.timeouts.hang_s)
            except grpc.aio.AioRpcError:
                return False
            return True

    @asynccontextmanager
    async def _health(self) -> AsyncIterator[health_pb2_grpc.HealthStub]:
        """The health service on a connection of its own, so that it waits behind no audio."""
        options = [*channel_options(self._config), ("grpc.max_reconnect_backoff_ms", 100)]
        async with grpc.aio.insecure_channel(self.target, options=options) as channel:
            yield health_pb2_grpc.HealthStub(channel)

    async def _supervise(self) -> None:
        backoff_s = self._config.restart_backoff_s
        longest_s = backoff_s * _MAX_BACKOFF_FACTOR
        while True:
            begun = time.monotonic()
            await self._until_it_ends()
            self.ready = False
            if time.monotonic() - begun > longest_s:
                backoff_s = self._config.restart_backoff_s  # it ran well: not one more of a row
            while not self.ready:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, longest_s)
                self.restarts += 1
                try:
                    await self._spawn()
                except Unavailable as exc:
                    log.error("engine did not start", extra={"error": str(exc), "next_try_s": backoff_s})
            log.warning("engine started anew", extra={"pid": self.pid, "restarts": self.restarts})

    async def _until_it_ends(self) -> None:
        process = self._process
        assert process is not None
        ended = asyncio.create_task(process.wait())
        try:
            while True:
                await asyncio.wait({ended}, timeout=self._config.timeouts.hang_s / 4)
                if ended.done():
                    break
                if not await self._answers() and process.returncode is None:
                    log.error("engine does not answer its health check, killed", extra={"pid": process.pid})
                    await self._kill(process)
        finally:
            ended.cancel()
        log.error("engine process ended", extra={"pid": process.pid, "code": process.returncode})

    @staticmethod
    async def _kill(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:
                pass
            await process.wait()
