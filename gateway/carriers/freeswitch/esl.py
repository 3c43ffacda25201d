"""A client of FreeSWITCH's event socket: it stays connected, runs commands and passes events on.

The client is our own, because the only well-maintained library (Genesis, MIT) depends on a web framework, Redis and
telemetry. Commands go as ``bgapi`` with our own job ids, so that a slow command does not delay the others. Where the
order counts (playing files, and stopping them), they go as ``sendmsg`` and ``api``, which the switch runs in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from uuid import uuid4

from gateway.carriers.freeswitch.esl_messages import EslMessage, EslReader
from gateway.carriers.freeswitch.settings import EslConfig
from gateway.errors import GatewayError, ProtocolError
from tts_engine.supervision import SUPERVISOR, SupervisedTask

log = logging.getLogger(__name__)

COMMAND_S = 10.0
"""Longest wait for a command's result, seconds, and for a connection that is down."""

RECONNECT_FIRST_S = 0.5
"""Pause before the first new attempt, seconds. It doubles after each attempt."""

RECONNECT_MAX_S = 30.0
"""Longest pause between attempts, seconds."""

SILENT_S = 60.0
"""A connection that is silent for this long counts as lost, seconds. FreeSWITCH sends a heartbeat every 20 s."""

MOST_COMMANDS = 1000
"""Most commands that wait for a result; one more fails at once."""

_CONNECT_S = 5.0
"""Longest wait for the connection and the log-in, seconds."""

_MESSAGE_BYTES = 1_000_000
"""Largest event, bytes."""

_CHUNK_BYTES = 64 * 1024


class EslError(GatewayError):
    """A command failed or could not be sent. The message has the switch's answer."""


class EslClient:
    """The event socket of one switch. Call ``start`` first and ``aclose`` at the end.

    Args:
        events: event names for the ``event`` command, with ``CUSTOM`` and its subclasses last.
        on_event: called with the fields of each event.
        on_up: work after each log-in.
    """

    def __init__(
        self,
        config: EslConfig,
        events: Sequence[str],
        on_event: Callable[[Mapping[str, str]], None],
        on_up: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self.config = config
        self._on_up = on_up
        self._events = " ".join(("HEARTBEAT", "BACKGROUND_JOB", *events))
        self._on_event = on_event
        self._jobs: dict[str, asyncio.Future[str]] = {}
        self._replies: deque[asyncio.Future[EslMessage]] = deque()
        self._under_way = 0
        self._up = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._connection: SupervisedTask | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """True if commands can be sent now."""
        return self._up.is_set()

    def start(self) -> None:
        """Connect, and stay connected."""
        self._connection = SUPERVISOR.task(f"event socket {self.config.host}", self._keep_connected)

    async def aclose(self) -> None:
        """Disconnect, after running commands had time to finish."""
        if self._running:
            await asyncio.wait(self._running, timeout=COMMAND_S)
        if self._connection is not None:
            await self._connection.aclose()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def run(self, *commands: str) -> None:
        """Run commands one after another in the background. A failure is logged and does not stop the others."""
        self._own(self._run(commands))

    def _own(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="event socket commands")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def play(self, uuid: str, file: str) -> None:
        """Queue a file on a channel, after those queued before.

        ``uuid_broadcast`` would do the same, but lets five frames pass before each file. If the switch is not
        connected, the file is dropped, because late audio is useless.
        """
        execute = "call-command: execute\nexecute-app-name: playback\nevent-lock: true"
        self._in_order(f"sendmsg {uuid}\n{execute}\nexecute-app-arg: {file}")

    def stop_playing(self, uuid: str) -> None:
        """Stop the playing file of a channel, and drop the queued ones; files queued later are played."""
        self._in_order(f"api uuid_break {uuid} all")

    def _in_order(self, command: str) -> None:
        if not self.connected or self._writer is None or len(self._replies) >= MOST_COMMANDS:
            log.warning("audio dropped: the switch is not connected or does not answer")
            return
        name = command.partition(" ")[0]
        answer: asyncio.Future[EslMessage] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: _note(done, name))
        self._replies.append(answer)
        self._writer.write(f"{command}\n\n".encode())

    async def command(self, command: str) -> str:
        """Run one command (``uuid_kill …``), and wait through a short loss of the connection. Return its answer.

        Raises:
            EslError: the connection or the answer did not come in time, or the answer was ``-ERR``.
        """
        if "\n" in command or "\r" in command:
            raise EslError(f"command of {len(command)} characters has a line break")
        name = command.partition(" ")[0]
        if self._under_way >= MOST_COMMANDS:
            raise EslError(f"{name}: {self._under_way} commands are waiting already")
        self._under_way += 1
        try:
            async with asyncio.timeout(COMMAND_S):
                await self._up.wait()
                answer = await self._job(command)
        except TimeoutError:
            raise EslError(f"{name}: no answer within {COMMAND_S:g} s") from None
        finally:
            self._under_way -= 1
        if answer.startswith(("-ERR", "-USAGE")):
            raise EslError(f"{name}: {answer.strip()[:120]}")
        return answer

    async def _job(self, command: str) -> str:
        job = str(uuid4())
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._jobs[job] = result
        try:
            await self._ask(f"bgapi {command}\nJob-UUID: {job}")
            return await result
        finally:
            del self._jobs[job]

    async def _run(self, commands: Sequence[str]) -> None:
        for command in commands:
            try:
                await self.command(command)
            except EslError as exc:
                log.warning("switch command failed", extra={"why": str(exc)})

    # --- the connection --------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause_s = RECONNECT_FIRST_S
        while True:
            try:
                await self._run_connection()
            except (OSError, EslError, ProtocolError, TimeoutError) as exc:
                log.warning("event socket disconnected", extra={"why": str(exc) or type(exc).__name__})
            finally:
                was_up = self._up.is_set()
                self._down()
            pause_s = RECONNECT_FIRST_S if was_up else min(2 * pause_s, RECONNECT_MAX_S)
            await asyncio.sleep(pause_s)

    def _down(self) -> None:
        self._up.clear()
        lost = EslError("the connection was lost")
        unanswered: list[asyncio.Future[EslMessage] | asyncio.Future[str]] = [*self._replies, *self._jobs.values()]
        for waiting in unanswered:
            if not waiting.done():
                waiting.set_exception(lost)
                waiting.exception()  # marks the exception as retrieved, in case no one awaits the future
        self._replies.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _run_connection(self) -> None:
        config = self.config
        async with asyncio.timeout(_CONNECT_S):
            reader, self._writer = await asyncio.open_connection(config.host, config.port)
            messages = self._messages(reader)
            hello = await anext(messages)
            if hello.kind != "auth/request":
                raise EslError(f"the switch began with {hello.kind[:40]!r}, expected auth/request")
            for command in (f"auth {config.password.get_secret_value()}", f"event json {self._events}"):
                self._writer.write(f"{command}\n\n".encode())
                while (answer := await anext(messages)).kind != "command/reply":
                    continue
                _check(answer, command.partition(" ")[0])
        self._up.set()
        log.info("event socket connected")
        if self._on_up is not None:
            self._own(self._on_up())
        async for message in messages:
            self._received(message)

    async def _messages(self, reader: asyncio.StreamReader) -> AsyncIterator[EslMessage]:
        whole = EslReader(max_bytes=_MESSAGE_BYTES)
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    data = await reader.read(_CHUNK_BYTES)
            except TimeoutError:
                raise EslError(f"silent for {SILENT_S:g} s") from None
            if not data:
                raise EslError("the switch closed the connection")
            for message in whole.feed(data):
                yield message

    def _received(self, message: EslMessage) -> None:
        if message.kind in ("command/reply", "api/response"):
            if self._replies and not (asked := self._replies.popleft()).done():
                asked.set_result(message)
        elif message.kind == "text/event-json":
            try:
                event = message.event
            except ProtocolError as exc:  # it is one call's, and the others need the connection
                log.warning("event of the switch skipped", extra={"why": str(exc)})
                return
            if event.get("Event-Name") == "BACKGROUND_JOB":
                job = self._jobs.get(event.get("Job-UUID", ""))
                if job is not None and not job.done():
                    job.set_result(event.get("_body", ""))
            elif event.get("Event-Name") != "HEARTBEAT":
                self._on_event(event)

    async def _ask(self, command: str) -> None:
        assert self._writer is not None
        answer: asyncio.Future[EslMessage] = asyncio.get_running_loop().create_future()
        self._replies.append(answer)
        self._writer.write(f"{command}\n\n".encode())
        _check(await answer, command.partition(" ")[0])


def _note(done: asyncio.Future[EslMessage], command: str) -> None:
    try:
        _check(done.result(), command)
    except EslError as exc:
        log.warning("switch command failed", extra={"why": str(exc)})


def _check(answer: EslMessage, command: str) -> None:
    text = answer.headers.get("Reply-Text", "") or answer.body.decode(errors="replace")
    if not text.startswith("+OK"):
        raise EslError(f"{command}: {text[:120]}")
