"""A child process that words clauses, and how the model's process asks it.

wetext holds the interpreter's lock for 1 to 10 ms a clause. In the model's process that time would be taken from its
event loop and from the threads that feed the device. So would that for ids and words, some 0.1 ms a clause.

On a unix socket, each request is a line ``[text, language]``, and each answer a line ``[spoken text, [block, ...],
[id, ...], [word, ...]]`` with blocks ``[spoken_start, spoken_end, start, end]`` (see ``normalise.Block``) and words
``[start, end, weight]`` (see ``words.expected_words``). Both are JSON. Answers come in the order of the requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from pathlib import Path

from tts_engine.cosyvoice.frontend.normalise import Block, Normalised, WetextVerbaliser, normalise
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, Version
from tts_engine.cosyvoice.frontend.words import Wording
from tts_engine.service.child import ChildProcess, ChildTimes, die_with

log = logging.getLogger(__name__)

_TIMES = ChildTimes(start_s=60.0, hang_s=10.0, end_s=2.0, restart_backoff_s=0.5)
_LOOK_S = 0.05
"""Time between two checks whether the child listens."""
_LINE_BYTES = 1 << 20
"""Longest line. ``speech.max_chars`` characters and their blocks are shorter."""


class NormaliserProcess(ChildProcess):
    """One child. It answers one request after the other."""

    def __init__(self, tokenizer: Path, version: Version) -> None:
        """``tokenizer``: see ``CosyTokenizer.load``. At published size it takes 60 MB."""
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
                await asyncio.sleep(_LOOK_S)
            else:
                self._connection = _Connection(reader, writer)
                return

    async def answers(self) -> bool:
        try:
            async with asyncio.timeout(_TIMES.hang_s):
                await self.ask("", "")
        except (OSError, TimeoutError):
            return False
        return True

    def ask(self, text: str, language: str) -> asyncio.Future[Wording]:
        """Have a text normalised. The future's exception is a ConnectionError: the child has ended."""
        future: asyncio.Future[Wording] = asyncio.get_running_loop().create_future()
        if self._connection is None or self._connection.has_ended:
            future.set_exception(ConnectionError("the text normaliser has ended"))
        else:
            self._connection.ask(text, language, future)
        return future

    async def aclose(self) -> None:
        await super().aclose()
        if self._connection is not None:
            await self._connection.ended()


class _Connection:
    """A connection to a child, from its start to its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked: deque[tuple[str, asyncio.Future[Wording]]] = deque()
        """Requests without an answer, oldest first. The engine asks once for each open utterance, which bounds them."""
        self._reader, self._writer = reader, writer
        self._reading = asyncio.create_task(self._read(), name="text normaliser")

    @property
    def has_ended(self) -> bool:
        return self._reading.done()

    def ask(self, text: str, language: str, future: asyncio.Future[Wording]) -> None:
        self.asked.append((text, future))
        self._writer.write(json.dumps([text, language]).encode() + b"\n")

    async def ended(self) -> None:
        """Wait until the child has closed the connection."""
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                source, future = self.asked.popleft()
                spoken, blocks, ids, words = json.loads(line)
                if not future.done():
                    normalised = Normalised(source, spoken, tuple(Block(*block) for block in blocks))
                    future.set_result(Wording(normalised, ids, [tuple(word) for word in words]))
        except ConnectionError:
            pass  # the child has ended
        finally:
            self._writer.close()
            for _, future in self.asked:
                if not future.done():
                    future.set_exception(ConnectionError("the text normaliser ended"))
            self.asked.clear()


# -- inside the child


async def _serve(path: str, tokenizer: CosyTokenizer) -> None:
    verbalise = WetextVerbaliser()
    for language in ("en", "zh"):  # the transducers are loaded at their first use, and so is inflect
        normalise("Room 1", language, verbalise=verbalise)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                text, language = json.loads(line)
                made = Wording.of(normalise(text, language, verbalise=verbalise), tokenizer.encode)
                blocks = [(b.spoken_start, b.spoken_end, b.start, b.end) for b in made.normalised.blocks]
                writer.write(json.dumps([made.normalised.text, blocks, made.ids, made.words]).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # the engine has given up
        except Exception as exc:  # the engine normalises this text itself, and meets the error; ours may quote the text
            log.error("a text could not be normalised", extra={"error": type(exc).__name__})
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, path, limit=_LINE_BYTES)
    await server.serve_forever()


def _socket(folder: Path) -> str:
    return str(folder / "normaliser.sock")


def main(arguments: list[str]) -> None:
    """Run the child. Arguments: the file with its settings, and its parent's process id."""
    file, parent_pid = arguments
    die_with(int(parent_pid))
    folder, version = json.loads(Path(file).read_text())
    asyncio.run(_serve(_socket(Path(file).parent), CosyTokenizer.load(Path(folder), version=version)))


if __name__ == "__main__":
    main(sys.argv[1:])
