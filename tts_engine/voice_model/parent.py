"""A voice model in a process of its own, seen from the engine's process: a ``Synthesizer``, and the child process.

If the process ends, its clauses fail and the synthesizer is no longer ready, so the engine's supervisor restarts the
whole engine.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.errors import EngineError, Unavailable
from tts_engine.service.child import ChildProcess, ChildTimes
from tts_engine.service.framing.message_connection import MessageConnection
from tts_engine.synthesizer import ClauseRequest, EditsVoiceFiles, Hearing, PcmChunk, VoiceFiles
from tts_engine.voice_model import messages
from tts_engine.voice_model.hearing import HeardPosition

SOCKET = "voice-model.sock"
"""Name of the socket, beside the file with the child's settings."""

_LOOK_S = 0.05
"""Time between two attempts to connect to the child, seconds."""
_HEAR_S = 0.02
"""Time between two checks of the clauses' urgency, seconds: one packet, which is short compared with the sound in
hand."""


class VoiceModelProcess(ChildProcess):
    """The child. It is loaded and warm when it serves."""

    def __init__(
        self, name: str, module: str, settings: str, *, times: ChildTimes, take: Callable[[Any], None]
    ) -> None:
        """
        Args:
            name: the model's name, for log and errors. module: see ``ChildProcess``. It calls
            ``tts_engine.voice_model.child.run``. settings: the child's settings, as JSON. take: gets every message of
            the child, and None when its connection has ended.
        """
        super().__init__(f"voice model {name}", module, times=times)
        self.connection: MessageConnection | None = None
        self.failure: EngineError | None = None
        """The child's error if it could not load its model."""
        self._settings, self._hang_s, self._take = settings, times.hang_s, take
        self._ready = asyncio.Event()
        self._heard_of = 0.0
        """Time at which the child's latest message came."""
        self._listening: asyncio.Task[None] | None = None

    def settings(self) -> str:
        return self._settings

    async def warm(self) -> None:
        self._ready.clear()
        loop, path = asyncio.get_running_loop(), str(self.folder / SOCKET)
        while True:
            try:
                _, connection = await loop.create_unix_connection(lambda: MessageConnection(self._took), path)
                break
            except OSError:
                await asyncio.sleep(_LOOK_S)
        self.connection = connection
        self._listening = asyncio.create_task(self._until_lost(connection), name=self.name)
        await self._ready.wait()

    async def answers(self) -> bool:
        return time.monotonic() - self._heard_of < self._hang_s

    async def aclose(self) -> None:
        await super().aclose()
        if self._listening is not None:
            await asyncio.wait([self._listening])

    def _took(self, message: object) -> None:
        self._heard_of = time.monotonic()
        if isinstance(message, messages.LoadFailed):
            self.failure = message.error
            return
        self._take(message)
        if isinstance(message, messages.Ready):
            self._ready.set()

    async def _until_lost(self, connection: MessageConnection) -> None:
        await connection.closed.wait()
        if self.connection is connection:
            self.connection = None
        self._take(None)


@dataclass(slots=True)
class _Clause:
    """A clause that is being spoken."""

    playhead: Hearing
    state: object
    """State of the playhead when it was last sent to the child."""
    told: HeardPosition
    """The urgency that the child knows."""
    placed: Callable[[], None] | None
    got: asyncio.Queue[PcmChunk | messages.Done]
    """Chunks for the generator. At most one chunk and one ``Done``."""


class RemoteSynthesizer(EditsVoiceFiles):
    """See ``Synthesizer`` and ``VoiceEditor``. The voices are files, which both processes read."""

    line_rates: Collection[int] = ()

    def __init__(
        self,
        name: str,
        module: str,
        settings: str,
        *,
        times: ChildTimes,
        sample_rate: int,
        streams_text: bool,
        voices: Callable[[Sequence[VoiceInfo]], VoiceFiles],
        observer: object,
    ) -> None:
        """
        Args:
            name: the model's name. module, settings: see ``VoiceModelProcess``.
            sample_rate: sample rate of the model's sound, Hz.
            streams_text: True if the model can begin a clause whose text is still arriving.
            voices: makes the list of voices once the built-in ones are known.
            observer: its methods are called as the child's code calls its own observer.
        """
        self.name, self.sample_rate, self.streams_text = name, sample_rate, streams_text
        self._process = VoiceModelProcess(name, module, settings, times=times, take=self._take)
        self._make_voices, self._voices = voices, voices(())
        self._observer = observer
        self._status = EngineStatus(ready=False, engine=name, model=name, models=(name,))
        self._numbers = itertools.count()
        self._clauses: dict[int, _Clause] = {}
        self._looking: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start the process. Raises Unavailable."""
        # The codec threads share the interpreter with the loop, which would wait up to 5 ms for them by default.
        sys.setswitchinterval(0.0005)
        try:
            await self._process.start()
        except Unavailable as exc:
            raise self._process.failure or exc from None

    def status(self) -> EngineStatus:
        return replace(self._status, ready=self._status.ready and self._process.ready)

    async def aclose(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._process.aclose()

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        """See ``Synthesizer``. Closing the generator returns when the model holds nothing of the clause any more."""
        connection = self._process.connection
        if connection is None or not self._process.ready:
            raise Unavailable(f"{self._process.name} is not running")
        number, heard = next(self._numbers), HeardPosition.of(playhead, time.monotonic())
        own = self._clauses[number] = _Clause(playhead, playhead.state, heard, clause.placed, asyncio.Queue())
        more = clause.more
        connection.send(
            messages.Speak(number, replace(clause, more=None, placed=None), more is not None, heard), at_once=False
        )
        feeding = None if more is None else asyncio.create_task(_feed(connection, number, more), name="clause's text")
        if self._looking is None:
            self._look()
        ended = False
        try:
            while not isinstance(got := await own.got.get(), messages.Done):
                yield got
                own.state, own.told = playhead.state, HeardPosition.of(playhead, time.monotonic())
                connection.send(messages.NextChunk(number, own.told), at_once=False)
            ended = True
            if got.error is not None:
                raise got.error
        finally:
            if feeding is not None:
                feeding.cancel()
            if not ended:
                connection.send(messages.Close(number))
                while not isinstance(await own.got.get(), messages.Done):
                    pass

    def _look(self) -> None:
        """Send the urgency of clauses to the child where it has changed. Repeat while there are clauses."""
        self._looking = None
        connection = self._process.connection
        if not self._clauses or connection is None:
            return
        now = time.monotonic()
        for number, clause in self._clauses.items():
            # Reading everything of a hundred playheads takes milliseconds, and few of them have changed.
            if (state := clause.playhead.state) == clause.state:
                continue
            clause.state, heard = state, HeardPosition.of(clause.playhead, now)
            if heard.differs(clause.told):
                clause.told = heard
                connection.send(messages.Hear(number, heard), at_once=False)
        self._looking = asyncio.get_running_loop().call_later(_HEAR_S, self._look)

    def _take(
        self, message: messages.Placed | messages.Chunk | messages.Done | messages.Report | messages.Ready | None
    ) -> None:
        if isinstance(message, messages.Chunk):
            self._clauses[message.number].got.put_nowait(message.chunk)
        elif isinstance(message, messages.Placed):
            if (placed := self._clauses[message.number].placed) is not None:
                placed()
        elif isinstance(message, messages.Done):
            self._clauses.pop(message.number).got.put_nowait(message)
        elif isinstance(message, messages.Report):
            self._status = message.status
            for method, arguments, named in message.counted:
                getattr(self._observer, method)(*arguments, **named)
        elif isinstance(message, messages.Ready):
            self._voices = self._make_voices(message.voices)
        elif message is None:
            lost, self._clauses = self._clauses, {}
            self._status = replace(self._status, ready=False, active=0, queued=0)
            for number, clause in lost.items():
                clause.got.put_nowait(messages.Done(number, Unavailable(f"{self._process.name} has ended")))


async def _feed(connection: MessageConnection, number: int, more: AsyncIterator[str]) -> None:
    """Pass on the text of a clause that grows."""
    try:
        async for text in more:
            connection.send(messages.MoreText(number, text))
    finally:
        connection.send(messages.MoreText(number, None))
