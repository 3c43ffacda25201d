"""An engine in a process of its own: started, watched, restarted after a crash, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tts_engine.config import EngineClientConfig
from tts_engine.errors import Unavailable

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def die_with_parent(*, nice: int) -> None:
    """Called in the child: the kernel kills it when its parent dies, and it yields the CPU to the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if nice:
        os.nice(nice)


class EngineProcess:
    """``async with`` it: inside, an engine serves (or is being restarted) on ``target``; leaving ends it.

    Args:
        command: the child's command line; it gets ``--listen unix:…`` appended.
        stdin: what the child reads on its standard input (its configuration, which may hold secrets).
    """

    def __init__(self, command: Sequence[str], stdin: bytes, config: EngineClientConfig) -> None:
        self._command = command
        self._stdin = stdin
        self._config = config
        self._folder = tempfile.TemporaryDirectory(prefix="talkspurt-")
        self.target = f"unix:{self._folder.name}/engine.sock"
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._kill()
            self._folder.cleanup()
            raise
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        await self._kill()
        self._folder.cleanup()

    async def _start(self) -> None:
        """Start the child and wait until its health says SERVING. Raises ``Unavailable``."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.target.removeprefix("unix:"))
        self.process = await asyncio.create_subprocess_exec(
            *self._command, "--listen", self.target,
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # a Ctrl-C at the terminal goes to the gateway, which ends its child in order
        )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(self._stdin)
        with contextlib.suppress(ConnectionError):
            await self.process.stdin.drain()
        self.process.stdin.close()
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                while not await self._healthy():
                    if self.process.returncode is not None:
                        raise Unavailable(f"the speech engine ended with code {self.process.returncode} while starting")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise Unavailable(
                f"the speech engine was not ready within {self._config.start_timeout_s:g} s "
                "(engine.client.start_timeout_s)"
            ) from None

    async def _healthy(self) -> bool:
        async with grpc.aio.insecure_channel(self.target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1.0)
            except grpc.aio.AioRpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _watch(self) -> None:
        pause_s = self._config.restart_first_s
        while True:
            assert self.process is not None
            code = await self.process.wait()
            self.restarts += 1
            log.error("speech engine ended, starting it again", extra={"code": code, "restarts": self.restarts})
            await asyncio.sleep(pause_s)
            try:
                await self._start()
                pause_s = self._config.restart_first_s
            except Unavailable as exc:
                log.error("speech engine did not start", extra={"why": str(exc)})
                await self._kill()
                pause_s = min(pause_s * 2, self._config.restart_max_s)

    async def _kill(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 3.0)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
