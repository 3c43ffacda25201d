"""A child process that normalises clauses, and its client in the model's process.

wetext holds the interpreter lock for 1 to 10 ms a clause. In the model's process this would delay the event loop and
the threads that feed the device. Ids and words (0.1 ms a clause) are computed in the child for the same reason.

The child first answers with the likely wording, for which wetext reads only the few words that probably need it
(``LikelyVerbaliser``). In a burst, all clauses get this answer before wetext reads any of them as a whole. A text gets
no such answer if wetext would have to read more than half of it twice.

The protocol is JSON lines on a unix socket. A request is ``[number, text, language]``, an answer ``[number, is_final,
wording]``. A wording is ``[spoken text, [block, ...], [id, ...], [word, ...]]`` with blocks ``[spoken_start,
spoken_end, start, end]`` (``normalise.Block``) and words ``[start, end, weight]`` (``words.expected_words``), or null
if the likely wording was right. Answers come in any order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

from tts_engine.cosyvoice.frontend.normalise import (
    Block,
    LikelyVerbaliser,
    Normalised,
    WetextVerbaliser,
    normalise,
)
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, Version
from tts_engine.cosyvoice.frontend.words import Wording
from tts_engine.service.child import ChildProcess, ChildTimes, die_with

log = logging.getLogger(__name__)

_TIMES = ChildTimes(start_s=60.0, hang_s=10.0, end_s=2.0, restart_backoff_s=0.5)
_POLL_S = 0.05
"""Interval of checks for the child's socket, seconds."""
_LINE_BYTES = 1 << 20
"""Longest answer, bytes. Enough for ``speech.max_chars`` characters and their blocks."""
_MAX_TWICE_SHARE = 0.5
"""Largest share of a text that wetext may read twice, for the likely and for the final wording."""
_RECEIVE_BYTES = 1 << 16
"""Most bytes that the child reads at once."""


class NormaliserProcess(ChildProcess):
    """A child process that normalises one clause after another."""

    def __init__(self, tokenizer: Path, version: Version) -> None:
        """``tokenizer``: folder for ``CosyTokenizer.load``. The published one takes 60 MB of memory."""
        super().__init__("text normaliser", __name__, times=_TIMES)
        self._settings = json.dumps([str(tokenizer), version])
        self._socket = _socket(self.folder)
        self._connection: _Connection | None = None

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return len(self._connection.asked) if self._connection is not None else 0

    def settings(self) -> str:
        return self._settings

    async def warm(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=_LINE_BYTES)
            except OSError:
                await asyncio.sleep(_POLL_S)
            else:
                self._connection = _Connection(reader, writer)
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
        asked = Asked(text)
        if self._connection is None or self._connection.has_ended:
            asked.lose()
        else:
            self._connection.ask(asked, language)
        return asked

    async def aclose(self) -> None:
        await super().aclose()
        if self._connection is not None:
            await self._connection.ended()


class Asked:
    """A request to a child."""

    def __init__(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        self.text = text
        self.likely: asyncio.Future[Wording | None] = loop.create_future()
        """The likely wording. None: there is only the final one."""
        self.made: asyncio.Future[Wording] = loop.create_future()
        """The final wording; the same object as ``likely`` if that was right. ConnectionError: the child has ended."""

    def answer(self, wording: list[Any] | None, *, is_final: bool) -> None:
        """Store an answer of the child."""
        made = self._read(wording) if wording is not None else self.likely.result()
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

    def _read(self, wording: list[Any]) -> Wording:
        spoken, blocks, ids, words = wording
        normalised = Normalised(self.text, spoken, tuple(Block(*block) for block in blocks))
        return Wording(normalised, ids, [tuple(word) for word in words])


class _Connection:
    """A connection to a child."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked: dict[int, Asked] = {}
        """Requests without a final answer, by number. Bounded by the number of open utterances, which ask once each."""
        self._reader, self._writer = reader, writer
        self._numbers = count()
        self._reading = asyncio.create_task(self._read(), name="text normaliser")

    @property
    def has_ended(self) -> bool:
        return self._reading.done()

    def ask(self, asked: Asked, language: str) -> None:
        number = next(self._numbers)
        self.asked[number] = asked
        self._writer.write(json.dumps([number, asked.text, language]).encode() + b"\n")

    async def ended(self) -> None:
        """Wait until the child has closed the connection."""
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                number, is_final, wording = json.loads(line)
                asked = self.asked.pop(number) if is_final else self.asked[number]
                asked.answer(wording, is_final=is_final)
        except ConnectionError:
            pass  # the child has ended
        finally:
            self._writer.close()
            for asked in self.asked.values():
                asked.lose()
            self.asked.clear()


# -- inside the child


class _Child:
    """Answers the requests of one connection until it closes."""

    def __init__(self, connection: socket.socket, tokenizer: CosyTokenizer, verbalise: WetextVerbaliser) -> None:
        self._connection, self._tokenizer, self._verbalise = connection, tokenizer, verbalise
        self._verbalise_likely = LikelyVerbaliser(verbalise)
        self._unanswered: deque[tuple[int, str, str, bool]] = deque()
        """Requests without an answer: number, text, language, and True if the likely wording is sent first."""
        self._likely: deque[tuple[int, str, str, Normalised]] = deque()
        """Requests whose likely wording has been sent: number, text, language, that wording."""
        self._line = b""
        """An incomplete line."""

    def run(self) -> None:
        while self._receive():
            if self._unanswered:
                number, text, language, is_guessed = self._unanswered.popleft()
                if is_guessed:
                    self._send_likely(number, text, language)
                else:
                    self._send(number, normalise(text, language, verbalise=self._verbalise))
            elif self._likely:
                number, text, language, likely = self._likely.popleft()
                made = normalise(text, language, verbalise=self._verbalise)
                self._send(number, made if made != likely else None)

    def _receive(self) -> bool:
        """Read the requests that have arrived; if idle, wait for one. Return False if the connection has closed."""
        flags = socket.MSG_DONTWAIT if self._unanswered or self._likely else 0
        try:
            received = self._connection.recv(_RECEIVE_BYTES, flags)
        except BlockingIOError:
            return True
        *lines, self._line = (self._line + received).split(b"\n")
        for line in lines:
            number, text, language = json.loads(line)
            share = self._verbalise_likely.share(text)
            if not share:
                self._send_likely(number, text, language)
            else:
                self._unanswered.append((number, text, language, share <= _MAX_TWICE_SHARE))
        return bool(received)

    def _send_likely(self, number: int, text: str, language: str) -> None:
        likely = normalise(text, language, verbalise=self._verbalise_likely)
        self._send(number, likely, is_final=False)
        self._likely.append((number, text, language, likely))

    def _send(self, number: int, normalised: Normalised | None, *, is_final: bool = True) -> None:
        wording = None
        if normalised is not None:
            made = Wording.of(normalised, self._tokenizer.encode)
            blocks = [(b.spoken_start, b.spoken_end, b.start, b.end) for b in normalised.blocks]
            wording = [normalised.text, blocks, made.ids, made.words]
        self._connection.sendall(json.dumps([number, is_final, wording]).encode() + b"\n")


def _serve(path: str, tokenizer: CosyTokenizer) -> None:
    verbalise = WetextVerbaliser()
    for language in ("en", "zh"):  # loads the transducers and inflect
        normalise("Room 1", language, verbalise=verbalise)
    Path(path).unlink(missing_ok=True)  # left by an earlier child
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        connection, _ = server.accept()
    with connection:
        try:
            _Child(connection, tokenizer, verbalise).run()
        except ConnectionError:
            pass  # the engine closed the connection
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
    _serve(_socket(Path(file).parent), CosyTokenizer.load(Path(folder), version=version))


if __name__ == "__main__":
    main(sys.argv[1:])
