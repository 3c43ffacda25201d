"""A voice model's process, from inside: it listens, loads the model, speaks clauses on request, and ends on SIGTERM or
with its parent."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from tts_engine.errors import EngineError, SynthesisFailed, Unavailable
from tts_engine.service.child import die_with, yield_cpu
from tts_engine.service.framing.message_connection import MessageConnection
from tts_engine.service.garbage import collect_between_calls, keep_what_exists
from tts_engine.supervision import SUPERVISOR, SupervisedTask
from tts_engine.synthesizer import ClauseRequest, Synthesizer
from tts_engine.voice_model import messages
from tts_engine.voice_model.hearing import RemoteHearing
from tts_engine.voice_model.parent import SOCKET

log = logging.getLogger(__name__)

_REPORT_S = 0.1
_COUNTED = 10_000
"""Most calls of the observer in one report. The oldest are not counted."""


def run(settings: Path, make: Callable[[Any], Synthesizer], *, parent_pid: int) -> int:
    """Serve a model until SIGTERM, or until the parent has closed its connection.

    Args:
        settings: the file with the child's settings.
        make: loads the model, in a thread. Its argument takes the place of the observer.

    Returns:
        The exit code: 0, or 1 if the model could not be loaded.
    """
    die_with(parent_pid)
    yield_cpu(0)
    path = settings.with_name(SOCKET)
    path.unlink(missing_ok=True)  # left by a process that we replace
    return uvloop.run(_serve(path, make))


class _Observer:
    """Records each call of any observer method for the next report. Called in any thread."""

    def __init__(self) -> None:
        self._calls: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque(maxlen=_COUNTED)

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            self._calls.append((method, arguments, named))

        return call

    def take(self) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
        return [self._calls.popleft() for _ in range(len(self._calls))]


async def _serve(path: Path, make: Callable[[Any], Synthesizer]) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    parent: asyncio.Future[MessageConnection] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clauses: dict[int, _Clause] = {}
    observer = _Observer()
    synthesizer: Synthesizer | None = None

    def take(message: Any) -> None:
        if isinstance(message, messages.Speak):
            assert synthesizer is not None
            clauses[message.number] = _Clause(message, synthesizer, connection, clauses)
        elif (clause := clauses.get(message.number)) is not None:  # else its ``Done`` has been sent
            clause.take(message)

    def connected() -> MessageConnection:
        made = MessageConnection(take)
        if not parent.done():
            parent.set_result(made)
        return made

    server = await loop.create_unix_server(connected, str(path))
    stopping = asyncio.create_task(stop.wait())
    connection = await parent
    server.close()  # only the parent connects
    lost = asyncio.create_task(connection.closed.wait())
    collecting: SupervisedTask | None = None
    code = 0
    try:
        loading = asyncio.create_task(_load(make, observer))
        await asyncio.wait({loading, stopping, lost}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            synthesizer = await loading
            collecting = SUPERVISOR.task("garbage", partial(collect_between_calls, lambda: len(clauses)))
            # The status comes first, so that the parent knows it when it hears that the model is ready.
            connection.send(messages.Report(synthesizer.status(), observer.take()))
            connection.send(messages.Ready(synthesizer.voices()))
            while not (stopping.done() or lost.done()):
                await asyncio.wait({stopping, lost}, timeout=_REPORT_S, return_when=asyncio.FIRST_COMPLETED)
                connection.send(messages.Report(synthesizer.status(), observer.take()))
    except EngineError as exc:
        connection.send(messages.LoadFailed(exc))
        code = 1
    finally:
        if collecting is not None:
            collecting.cancel()
        tasks = [clause.task for clause in clauses.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if synthesizer is not None:
            await synthesizer.aclose()
        connection.close()
        await connection.closed.wait()
    return code


async def _load(make: Callable[[Any], Synthesizer], observer: _Observer) -> Synthesizer:
    synthesizer = await asyncio.to_thread(make, observer)
    await synthesizer.start()
    keep_what_exists()
    return synthesizer


class _Clause:
    """A clause that is being spoken."""

    def __init__(
        self,
        speak: messages.Speak,
        synthesizer: Synthesizer,
        connection: MessageConnection,
        clauses: dict[int, _Clause],
    ) -> None:
        self._number, self._connection, self._clauses = speak.number, connection, clauses
        self._hearing = RemoteHearing(speak.heard)
        self._text: asyncio.Queue[str | None] = asyncio.Queue()
        """Bounded by ``speech.max_chars`` in the engine's process."""
        self._wanted = asyncio.Event()
        clause = replace(speak.clause, more=self._more() if speak.grows else None, placed=self._placed)
        self._error: EngineError | None = Unavailable("the voice model is shut down")
        """The value if the task is cancelled. It is not read if the parent asked for the cancellation."""
        self.task = asyncio.create_task(self._run(clause, synthesizer), name="clause")
        self.task.add_done_callback(self._done)  # a task that is cancelled before its start runs no line

    def take(self, message: messages.MoreText | messages.NextChunk | messages.Hear | messages.Close) -> None:
        if isinstance(message, messages.Close):
            self.task.cancel()
        elif isinstance(message, messages.MoreText):
            self._text.put_nowait(message.text)
        else:
            self._hearing.heard = message.heard
            if isinstance(message, messages.NextChunk):
                self._wanted.set()

    def _placed(self) -> None:
        self._connection.send(messages.Placed(self._number), at_once=False)

    async def _run(self, clause: ClauseRequest, synthesizer: Synthesizer) -> None:
        try:
            async with aclosing(synthesizer.synthesize(clause, self._hearing)) as chunks:
                async for chunk in chunks:
                    self._wanted.clear()
                    self._connection.send(messages.Chunk(self._number, chunk))
                    await self._wanted.wait()
            self._error = None
        except EngineError as exc:
            self._error = exc
        except Exception as exc:  # the model is another's code, and the other clauses continue
            log.exception("a clause failed")
            self._error = SynthesisFailed(f"the voice model failed: {type(exc).__name__}")

    def _done(self, _task: asyncio.Task[None]) -> None:
        del self._clauses[self._number], self.task  # else a cycle outlives the clause (tts_engine.service.garbage)
        self._connection.send(messages.Done(self._number, self._error), at_once=False)

    async def _more(self) -> AsyncIterator[str]:
        while (text := await self._text.get()) is not None:
            yield text
