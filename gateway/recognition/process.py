"""The embedded recogniser's own process, seen from the gateway: start it, watch it, start it anew, end it.

Calls never wait for it: their streams connect when it listens, and bring what was said meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from gateway.config import RecogniserConfig
from gateway.recognition import listen
from gateway.recognition.client import ListenRecogniser
from gateway.seams.recogniser import RecognitionError, RecognitionEvents, RecognitionStream

log = logging.getLogger(__name__)

_MAX_BACKOFF_FACTOR = 32
_START_S = 60.0  # to load the network, on a machine that does much else
_END_S = 5.0
_RECONNECT_S = 0.5  # a socket of this machine costs next to nothing to try


class EmbeddedRecogniser:
    """A recogniser in a child process, behind a unix socket in a private folder; see ``Recogniser``.

    Start it from the main thread: the kernel ends the child with the thread that started it.

    Args:
        module: what ``python -m`` runs in the child, with three arguments: the file that holds the configuration as
            JSON, the path of the socket, and the process id of the parent.
    """

    def __init__(self, module: str, config: RecogniserConfig) -> None:
        self._module = module
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="talkspurt-"))  # mode 0700
        self._socket = self._folder / "recogniser.sock"
        self._file = self._folder / "recogniser.json"
        self._file.write_text(config.embedded.model_dump_json())
        local = config.model_copy(update={"headers": {}, "parameters": {}, "reconnect_max_s": _RECONNECT_S})
        self._recogniser = ListenRecogniser(
            f"ws://localhost{listen.PATH}", local, connector=aiohttp.UnixConnector(str(self._socket), limit=0)
        )
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the living child, None between two."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Start the child, without waiting for it."""
        self._supervisor = asyncio.create_task(self._supervise(), name="recogniser supervisor")

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> RecognitionStream:
        if not knows(language):
            raise RecognitionError(f"the embedded recogniser knows English only, not {language!r}")
        return self._recogniser.open(events, language=language, hints=(), partials=partials)

    async def aclose(self) -> None:
        """End the child; kill it if that takes long. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._recogniser.aclose()
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                await _kill(process)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- the process -------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        backoff_s = self._config.embedded.restart_backoff_s
        longest_s = backoff_s * _MAX_BACKOFF_FACTOR
        while True:
            begun = time.monotonic()
            process = self._process = await self._spawn()
            await self._until_it_ends(process)
            if time.monotonic() - begun > longest_s:
                backoff_s = self._config.embedded.restart_backoff_s  # it ran well: not one more of a row
            log.error("recogniser process ended", extra={"code": process.returncode, "next_try_s": backoff_s})
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, longest_s)
            self.restarts += 1

    async def _spawn(self) -> asyncio.subprocess.Process:
        # The child imports from where we did: an installed package, or a source tree that a tool put into sys.path.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        arguments = (str(self._file), str(self._socket), str(os.getpid()))
        # A session of its own: Ctrl-C in the gateway's terminal reaches the gateway only.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )

    async def _until_it_ends(self, process: asyncio.subprocess.Process) -> None:
        hang_s = self._config.embedded.hang_s
        ended = asyncio.create_task(process.wait())
        answered = time.monotonic() + _START_S
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=hang_s / 4)
                if await self._answers(hang_s / 4):
                    answered = time.monotonic()
                elif time.monotonic() - answered > hang_s and process.returncode is None:
                    log.error("recogniser does not answer, killed", extra={"pid": process.pid})
                    await _kill(process)
        finally:
            ended.cancel()

    async def _answers(self, within_s: float) -> bool:
        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket))) as http,
                http.get("http://localhost/healthz", timeout=timeout) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


def knows(language: str) -> bool:
    """Whether the embedded recogniser understands a language, by its BCP 47 tag."""
    return language.lower().split("-")[0] == "en"


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:
            pass
        await process.wait()
