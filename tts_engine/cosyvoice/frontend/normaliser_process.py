"""A child process that normalises clauses, and its client in the model's process.

wetext holds the interpreter lock for 1 to 10 ms a clause. In the model's process this would delay the event loop and
the threads that feed the device. Ids and words (0.1 ms a clause) are computed in the child for the same reason.

The child first answers with the likely wording, for which wetext reads only the few words that probably need it
(``LikelyVerbaliser``). In a burst, all clauses get this answer before wetext reads any of them as a whole. A text gets
no such answer if wetext would have to read more than half of it twice.

Requests and answers are messages of ``service/framing/message_connection.py``. Answers come in any order.
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

from tts_engine.cosyvoice.frontend.normalise import (
    LikelyVerbaliser,
    Normalised,
    TextVerbaliser,
    detect_script,
    normalise,
)
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, Version
from tts_engine.cosyvoice.frontend.words import Wording
from tts_engine.service.child import ChildProcess, ChildTimes, die_with
from tts_engine.service.framing.message_connection import MessageConnection

log = logging.getLogger(__name__)

_TIMES = ChildTimes(start_s=60.0, hang_s=10.0, end_s=2.0, restart_backoff_s=0.5)
_POLL_S = 0.05
"""Interval of checks for the child's socket, seconds."""
_MAX_TWICE_SHARE = 0.5
"""Largest share of a text that wetext may read twice, for the likely and for the final wording."""


_Request = tuple[int, str, str]
"""Number, text, language."""
_Answer = tuple[int, bool, Wording | None]
"""Number of the request; True if the wording is final; the wording. No wording: the likely one was right."""


class NormaliserProcess(ChildProcess):
    """A child process that normalises one clause after another."""

    def __init__(self, tokenizer: Path, version: Version) -> None:
        """``tokenizer``: folder for ``CosyTokenizer.load``. The published one takes 60 MB of memory."""
        super().__init__("text normaliser", __name__, times=_TIMES)
        self._settings = json.dumps([str(tokenizer), version])
        self._socket = _socket(self.folder)
        self._connection: MessageConnection | None = None
        self._asked: dict[int, Asked] = {}
        """Requests on this connection without a final answer, by number. Bounded by the open utterances, which ask once
        each."""
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return len(self._asked)

    def settings(self) -> str:
        return self._settings

    async def warm(self) -> None:
        loop = asyncio.get_running_loop()
        asked: dict[int, Asked] = {}
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
                await asyncio.shield(self.ask("", "").made)
        except (OSError, TimeoutError):
            return False
        return True

    def ask(self, text: str, language: str) -> Asked:
        """Send a text to the child."""
        asked = Asked()
        if self._connection is None or self._connection.closed.is_set():
            asked.lose()
        else:
            number = next(self._numbers)
            self._asked[number] = asked
            self._connection.send((number, text, language))
        return asked

    async def aclose(self) -> None:
        await super().aclose()
        if self._connection is not None:
            await self._connection.closed.wait()


class Asked:
    """A request to a child."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.likely: asyncio.Future[Wording | None] = loop.create_future()
        """The likely wording. None: there is only the final one."""
        self.made: asyncio.Future[Wording] = loop.create_future()
        """The final wording; the same object as ``likely`` if that was right. ConnectionError: the child has ended."""

    def answer(self, wording: Wording | None, *, is_final: bool) -> None:
        """Store an answer of the child. None: the likely wording was right."""
        made = wording if wording is not None else self.likely.result()
        assert made is not None
        if not self.likely.done():
            self.likely.set_result(None if is_final else made)
        if is_final:
            self.made.set_result(made)

    def lose(self) -> None:
        """Fail the request, because the child has ended."""
        if not self.likely.done():
            self.likely.set_result(None)
        self.made.set_exception(ConnectionError("the text normaliser has ended"))
        self.made.exception()  # mark it as retrieved, in case no one waits for it


def _take(asked: dict[int, Asked], answer: _Answer) -> None:
    number, is_final, wording = answer
    one = asked.pop(number) if is_final else asked[number]
    one.answer(wording, is_final=is_final)


def _lose(asked: dict[int, Asked]) -> None:
    for one in asked.values():
        one.lose()
    asked.clear()


# -- inside the child


class _Child:
    """Answers the requests of one connection until it closes."""

    def __init__(self, tokenizer: CosyTokenizer, verbalise: TextVerbaliser) -> None:
        self._tokenizer, self._verbalise = tokenizer, verbalise
        self._verbalise_likely = LikelyVerbaliser(verbalise)
        self._come = asyncio.Event()
        self._new: deque[_Request] = deque()
        self._unanswered: deque[tuple[_Request, bool]] = deque()
        """Requests without an answer, and True if the likely wording is sent first."""
        self._likely: deque[tuple[_Request, Normalised]] = deque()
        """Requests whose likely wording has been sent, and that wording."""
        self.connection = MessageConnection(self._take, self._come.set)

    def _take(self, request: _Request) -> None:
        self._new.append(request)
        self._come.set()

    async def run(self) -> None:
        while not self.connection.closed.is_set():
            self._come.clear()
            while self._new:
                self._begin(self._new.popleft())
            if self._unanswered:
                (number, text, language), is_guessed = self._unanswered.popleft()
                if is_guessed:
                    self._send_likely((number, text, language))
                else:
                    self._send(number, normalise(text, language, verbalise=self._verbalise))
            elif self._likely:
                (number, text, language), likely = self._likely.popleft()
                made = normalise(text, language, verbalise=self._verbalise)
                self._send(number, made if made != likely else None)
            else:
                await self._come.wait()
                continue
            # The loop reads new requests in the first turn, so the next step knows all that have arrived.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _begin(self, request: _Request) -> None:
        _, text, language = request
        share = self._verbalise_likely.share(text, detect_script(text, language))
        if not share:
            self._send_likely(request)
        else:
            self._unanswered.append((request, share <= _MAX_TWICE_SHARE))

    def _send_likely(self, request: _Request) -> None:
        number, text, language = request
        likely = normalise(text, language, verbalise=self._verbalise_likely)
        self._send(number, likely, is_final=False)
        self._likely.append((request, likely))

    def _send(self, number: int, normalised: Normalised | None, *, is_final: bool = True) -> None:
        wording = None if normalised is None else Wording.of(normalised, self._tokenizer.encode)
        self.connection.send((number, is_final, wording))


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
