"""Start and supervision of the embedded recogniser's process.

Calls never wait for this process. Their streams connect once it listens, then send the audio of the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import orjson

from gateway.config import RecogniserConfig
from gateway.recognition import listen, whisper
from gateway.recognition.client import ListenRecogniser
from gateway.recognition.words import ANY_LANGUAGE, is_english
from gateway.seams.recogniser import RecognitionError, RecognitionEvents, RecognitionStream
from tts_engine.service.child import ChildProcess, ChildTimes

HANG_S = 10.0
"""A process that has not answered for this long is killed and started again, seconds."""

RESTART_BACKOFF_S = 0.5
"""Pause before a dead process is started again, seconds. It doubles with each failure, up to 32 times this."""

_START_S = 300.0  # longest time to load the network; a busy machine that is cut off would begin anew for ever
_END_S = 5.0
_CHECK_INTERVAL_S = 0.1  # interval of checks whether the process listens
_RECONNECT_S = 0.5  # trying a local socket costs almost nothing


def socket_beside(settings: Path) -> Path:
    """Return the child's socket, in the folder of its settings file."""
    return settings.with_name("recogniser.sock")


class EmbeddedRecogniser(ChildProcess):
    """A ``Recogniser`` in a child process, on a unix socket in a private folder. Call ``begin`` to start it."""

    def __init__(self, module: str, config: RecogniserConfig, *, of_whisper: bool = False) -> None:
        """``module`` is that of ``ChildProcess``. It listens at ``socket_beside`` its settings once it has loaded.

        Args:
            of_whisper: True: the model is that of ``recogniser.whisper``.
        """
        self._whisper = config.whisper if of_whisper else None
        times = ChildTimes(start_s=_START_S, hang_s=HANG_S, end_s=_END_S, restart_backoff_s=RESTART_BACKOFF_S)
        super().__init__("whisper" if of_whisper else "recogniser", module, times=times)
        self._socket = str(socket_beside(self.folder / "settings.json"))
        local = config.model_copy(update={"headers": {}, "parameters": {}})
        self._recogniser = ListenRecogniser(
            f"ws://localhost{listen.PATH}",
            local,
            unix_path=self._socket,
            reconnect_max_s=_RECONNECT_S,
            can_wait=True,
        )

    def knows(self, language: str) -> bool:
        return whisper.knows(language) if self._whisper is not None else knows(language)

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> RecognitionStream:
        if not self.knows(language):
            known = "the languages of Whisper" if self._whisper is not None else "English only"
            raise RecognitionError(f"the recogniser of this route supports {known}, not {language!r}")
        if self._whisper is not None and self._whisper.detect_language:
            language = ANY_LANGUAGE
        return self._recogniser.open(events, language=language, hints=(), partials=partials)

    @property
    def dropped(self) -> int:
        return self._recogniser.dropped

    async def aclose(self) -> None:
        await self._recogniser.aclose()
        await super().aclose()

    def settings(self) -> str:
        return orjson.dumps({"whisper": self._whisper.folder if self._whisper is not None else ""}).decode()

    async def warm(self) -> None:
        while not await self.answers():  # noqa: ASYNC110  # another process changes it
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def answers(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=HANG_S)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._socket)) as http,
                http.get("http://localhost/healthz", timeout=timeout) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


def knows(language: str) -> bool:
    """Return True if the embedded recogniser understands the language of a BCP 47 tag."""
    return is_english(language)
