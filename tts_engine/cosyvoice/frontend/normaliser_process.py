"""A child process that normalises clauses, and its client in the model's process.

A Chinese clause with numbers holds the interpreter lock for 1 to 3 ms (wetext), any other for less than 1 ms. In the
model's process this would delay the event loop and the threads that feed the device. Ids and words (0.1 ms a clause)
are computed in the child for the same reason.

Requests and answers are messages of ``service/framing/message_connection.py``, answers in the order of the requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from functools import partial
from itertools import count
from pathlib import Path

from tts_engine.cosyvoice.frontend.normalise import TextVerbaliser, normalise
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, Version
from tts_engine.cosyvoice.frontend.words import Wording
from tts_engine.service.child import ChildProcess, ChildTimes, die_with
from tts_engine.service.framing.message_connection import MessageConnection

log = logging.getLogger(__name__)

_TIMES = ChildTimes(start_s=60.0, hang_s=10.0, end_s=2.0, restart_backoff_s=0.5)
_POLL_S = 0.05
"""Interval of checks for the child's socket, seconds."""

_Request = tuple[int, str, str]
"""Number, text, language."""
_Answer = tuple[int, Wording]
"""Number of the request, and the wording."""


class NormaliserProcess(ChildProcess):
    """A child process that normalises one clause after another."""

    def __init__(self, tokenizer: Path, version: Version) -> None:
        """``tokenizer``: folder for ``CosyTokenizer.load``. The published one takes 60 MB of memory."""
        super().__init__("text normaliser", __name__, times=_TIMES)
        self._settings = json.dumps([str(tokenizer), version])
        self._socket = _socket(self.folder)
        self._connection: MessageConnection | None = None
        self._asked: dict[int, asyncio.Future[Wording]] = {}
        """Requests on this connection without an answer, by number. Bounded by the open utterances: each asks once."""
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return len(self._asked)

    def settings(self) -> str:
        return self._settings

    async def warm(self) -> None:
        loop = asyncio.get_running_loop()
        asked: dict[int, asyncio.Future[Wording]] = {}
        while True:
            try:
                _, connection = await loop.create_unix_connection(
                    lambda: MessageConnection(partial(_take, asked), partial(_lose, asked)), self._socket
                )
            except OSError:
                await asyncio.sleep(_POLL_S)
            else:
                self._asked, self._connection = asked, connection
                return

    async def answers(self) -> bool:
        try:
            async with asyncio.timeout(_TIMES.hang_s):
                await asyncio.shield(self.ask("", ""))
        except (OSError, TimeoutError):
            return False
        return True

    def ask(self, text: str, language: str) -> asyncio.Future[Wording]:
        """Send a text to the child and return its wording to come. It fails with ConnectionError if the child ends."""
        made: asyncio.Future[Wording] = asyncio.get_running_loop().create_future()
        if self._connection is None or self._connection.closed.is_set():
            _fail(made)
        else:
            number = next(self._numbers)
            self._asked[number] = made
            self._connection.send((number, text, language))
        return made

    async def aclose(self) -> None:
        await super().aclose()
        if self._connection is not None:
            await self._connection.closed.wait()


def _take(asked: dict[int, asyncio.Future[Wording]], answer: _Answer) -> None:
    number, wording = answer
    asked.pop(number).set_result(wording)


def _lose(asked: dict[int, asyncio.Future[Wording]]) -> None:
    for made in asked.values():
        _fail(made)
    asked.clear()


def _fail(made: asyncio.Future[Wording]) -> None:
    made.set_exception(ConnectionError("the text normaliser has ended"))
    made.exception()  # mark it as retrieved, in case no one waits for it


# -- inside the child


class _Child:
    """Answers the requests of one connection until it closes."""

    def __init__(self, tokenizer: CosyTokenizer, verbalise: TextVerbaliser) -> None:
        self._tokenizer, self._verbalise = tokenizer, verbalise
        self._come = asyncio.Event()
        self._requests: deque[_Request] = deque()
        self.connection = MessageConnection(self._take, self._come.set)

    def _take(self, request: _Request) -> None:
        self._requests.append(request)
        self._come.set()

    async def run(self) -> None:
        while not self.connection.closed.is_set():
            self._come.clear()
            while self._requests:
                number, text, language = self._requests.popleft()
                made = normalise(text, language, verbalise=self._verbalise)
                self.connection.send((number, Wording.of(made, self._tokenizer.encode)))
            await self._come.wait()


async def _serve(path: str, tokenizer: CosyTokenizer) -> None:
    verbalise = TextVerbaliser()
    for language in ("en", "zh"):  # loads the transducers and inflect
        normalise("Room 1", language, verbalise=verbalise)
    child, connected = _Child(tokenizer, verbalise), asyncio.Event()

    def connection() -> MessageConnection:
        connected.set()
        return child.connection

    server = await asyncio.get_running_loop().create_unix_server(connection, path)
    await connected.wait()
    server.close()  # only the engine connects
    try:
        await child.run()
    except Exception as exc:
        # The engine then normalises the text itself. The message may quote the text, so only the type is logged.
        log.error("text could not be normalised", extra={"error": type(exc).__name__})


def _socket(folder: Path) -> str:
    return str(folder / "normaliser.sock")


def main(arguments: list[str]) -> None:
    """Run the child. Arguments: the file with its settings, and its parent's process id."""
    file, parent_pid = arguments
    die_with(int(parent_pid))
    folder, version = json.loads(Path(file).read_text())
    path = _socket(Path(file).parent)
    Path(path).unlink(missing_ok=True)  # left by an earlier child
    asyncio.run(_serve(path, CosyTokenizer.load(Path(folder), version=version)))


if __name__ == "__main__":
    main(sys.argv[1:])
