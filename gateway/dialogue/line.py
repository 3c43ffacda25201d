"""One WebSocket of a dialogue, whoever dialled, and a call's end of it.

``Line`` moves messages: a bounded outgoing queue, a reader that counts bad messages, and one answer to how it ended.
``CallLink`` is what the session holds: it outlives lines, and keeps the call's messages while there is none.
The queue's policy: full, the oldest caller audio goes first; without any audio left the peer is too slow and the line
counts as lost. While a call has no line, its newest messages are kept (half of ``queue_messages``), audio is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import aiohttp
from aiohttp import web

from gateway.dialogue.wire import audio_prefix, encode
from gateway.errors import ProtocolError
from gateway.seams.dialogue import DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound, Setup

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""Longest wait for what is queued to leave, and for the peer's answer to our close."""

CLOSE_REASON = b"Closing websocket session"
MALFORMED_REASON = b"Too many consecutive malformed messages."
"""Both recorded from Twilio."""

ECHO_TIMEOUT_S = 0.1
"""Longest wait while we answer the peer's close. aiohttp writes the answer at once, then waits for a second close
frame where the first had no code; so sockets come with ``autoclose=False`` and are closed here."""

NO_STATUS = 0
"""What aiohttp reports for a close frame without a code; ``ws.close()`` of many clients sends that."""

WebSocket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


@dataclass(slots=True)
class DialogueStats:
    """Counters of all dialogue lines of the process, for the metrics."""

    connected: Counter[str] = field(default_factory=Counter)
    """Lines up now, by route."""
    reconnects: int = 0
    audio_dropped: int = 0
    """Audio messages dropped because the manager did not keep up."""
    messages_dropped: int = 0
    """Other messages dropped while a call had no line."""
    bad_messages: int = 0
    late_messages: int = 0
    """Messages for calls that had just ended."""


class Ending(Enum):
    """How a line ended."""

    CLOSED = auto()
    """The peer closed on purpose: 1000, 1001, or a close frame without a code."""
    LOST = auto()
    """Anything else: TCP gone, silent, too slow, another close code, too many bad messages."""
    FINISHED = auto()
    """We closed, after ``finish``."""


class Line:
    """One WebSocket: ``run`` it once; it ends by itself, by the peer, by ``finish`` or by cancellation.

    Args:
        queue_messages: bound of the outgoing queue; the hub raises ``limit`` with the calls on the line.
        accept: takes one text message; raises ``ProtocolError`` where it is bad.
        refuse: queues the error that answers a bad message (text, or bytes of a binary one).
    """

    def __init__(
        self,
        websocket: WebSocket,
        *,
        queue_messages: int,
        errors_in_a_row: int,
        stats: DialogueStats,
        accept: Callable[[str], None],
        refuse: Callable[[str | bytes, ProtocolError], None],
    ) -> None:
        self.limit = queue_messages
        self.healthy = False
        """True once a good message has arrived."""
        self._websocket = websocket
        self._errors_in_a_row = errors_in_a_row
        self._stats = stats
        self._accept = accept
        self._refuse = refuse
        self._queue: deque[tuple[str, str | bytes]] = deque()
        self._audio = 0
        self._wake = asyncio.Event()
        self._finishing = False
        self._too_slow = asyncio.Event()

    def put(self, session_id: str, payload: str | bytes) -> None:
        """Queue a text message (str) or audio (bytes) of a call; never blocks."""
        if len(self._queue) >= self.limit and not self._make_room(isinstance(payload, bytes)):
            return
        self._audio += isinstance(payload, bytes)
        self._queue.append((session_id, payload))
        self._wake.set()

    def _make_room(self, for_audio: bool) -> bool:
        if self._audio:
            oldest = next(i for i, (_, payload) in enumerate(self._queue) if isinstance(payload, bytes))
            del self._queue[oldest]
            self._audio -= 1
        elif not for_audio:
            # Kept all the same: the line is over, and what is queued goes back to the calls.
            self._too_slow.set()
            return True
        self._stats.audio_dropped += 1
        return not for_audio or len(self._queue) < self.limit

    def leftover(self) -> list[tuple[str, str]]:
        """The text messages that did not leave, with their calls. Only after ``run``."""
        return [(session_id, payload) for session_id, payload in self._queue if isinstance(payload, str)]

    def finish(self) -> None:
        """Let what is queued leave, then close with 1000."""
        self._finishing = True
        self._wake.set()

    async def run(self) -> Ending:
        reader = asyncio.create_task(self._read(), name="dialogue-read")
        writer = asyncio.create_task(self._write(), name="dialogue-write")
        slow = asyncio.create_task(self._too_slow.wait(), name="dialogue-slow")
        try:
            await asyncio.wait({reader, writer, slow}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and writer.result() is Ending.LOST:
                # The peer closed while we wrote: how, its close frame says, and that only the reader sees.
                await asyncio.wait({reader}, timeout=CLOSE_TIMEOUT_S)
            if reader.done():
                ending = reader.result()
                if ending is None:  # too many bad messages: their errors leave first
                    self.finish()
                    await asyncio.wait({writer}, timeout=CLOSE_TIMEOUT_S)
                    await self._close(1007, MALFORMED_REASON)
                    return Ending.LOST
                await self._close(1000, b"", timeout_s=ECHO_TIMEOUT_S)
                return ending
            if writer.done() and writer.result() is Ending.FINISHED:
                await self._close(1000, CLOSE_REASON)
                return Ending.FINISHED
            if slow.done():
                log.warning("dialogue peer too slow, line dropped", extra={"queued": len(self._queue)})
            return Ending.LOST
        finally:
            for task in (reader, writer, slow):
                task.cancel()
            await asyncio.gather(reader, writer, slow, return_exceptions=True)
            self._abort()
            await self._close(1000, CLOSE_REASON)  # for aiohttp's own books; nothing leaves any more

    async def _read(self) -> Ending | None:
        """Read until the line ends. None: the peer sent too many bad messages in a row."""
        errors = 0
        while True:
            message = await self._websocket.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                errors = 0 if self._took(message.data) else errors + 1
            elif message.type is aiohttp.WSMsgType.BINARY:
                reason = ProtocolError(f"binary message of {len(message.data)} bytes, expected JSON text")
                self._stats.bad_messages += 1
                self._refuse(message.data, reason)
                errors += 1
            elif message.type is aiohttp.WSMsgType.CLOSE:
                purpose = message.data in (1000, 1001, NO_STATUS, None)
                log.debug("dialogue line closed by its peer", extra={"code": message.data})
                return Ending.CLOSED if purpose else Ending.LOST
            else:  # ERROR, CLOSED, CLOSING: gone without a close frame of the peer
                return Ending.LOST
            if errors >= self._errors_in_a_row:
                return None

    def _took(self, text: str) -> bool:
        try:
            self._accept(text)
        except ProtocolError as reason:
            self._stats.bad_messages += 1
            self._refuse(text, reason)
            return False
        except Exception:  # a bug of ours in one call: the line and its other calls go on
            log.exception("dialogue message not handled")
        self.healthy = True
        return True

    async def _write(self) -> Ending:
        """Send what is queued. ``FINISHED`` once asked to and all has left."""
        try:
            while True:
                while self._queue:
                    # Taken off before it is sent: a line lost in between loses it, rather than sending a key twice.
                    _, payload = self._queue.popleft()
                    if isinstance(payload, str):
                        await self._websocket.send_str(payload)
                    else:
                        self._audio -= 1
                        await self._websocket.send_bytes(payload)
                if self._finishing:
                    return Ending.FINISHED
                self._wake.clear()
                await self._wake.wait()
        except (ConnectionError, aiohttp.ClientError):
            return Ending.LOST

    async def _close(self, code: int, reason: bytes, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            async with asyncio.timeout(timeout_s):
                await self._websocket.close(code=code, message=reason)

    def _abort(self) -> None:
        """Cut TCP: a peer that does not read would otherwise keep our buffer until its own end."""
        peer = self._websocket.get_extra_info("socket")
        if peer is not None:
            # By number: uvloop's socket objects cannot shut down.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(peer.fileno())) as own:
                own.shutdown(socket.SHUT_RDWR)


def setup_of(call: CallInfo, *, codec: str, version: str) -> Setup:
    """What ``setup`` tells about a call. Without a carrier's id, ``callSid`` is made of ours."""
    return Setup(
        session_id=call.call_id,
        call_sid=call.call_sid or f"CA{call.call_id.removeprefix('VX')}",
        account_sid=call.account_sid,
        parent_call_sid=call.parent_call_sid,
        from_=call.from_,
        to=call.to,
        forwarded_from=call.forwarded_from,
        caller_name=call.caller_name,
        direction=call.direction,
        call_type=call.call_type,
        call_status=call.call_status,
        custom_parameters=call.custom_parameters,
        transport=call.transport,
        codec=codec,
        version=version,
    )


class CallLink:
    """A call's messages to its manager, with or without a line at the moment."""

    def __init__(
        self,
        setup: Setup,
        sink: DialogueSink,
        *,
        extensions: bool,
        multiplexed: bool,
        queue_messages: int,
        stats: DialogueStats,
    ) -> None:
        self.session_id = setup.session_id
        self.sink = sink
        self._setup = setup
        self._extensions = extensions
        self._named = setup.session_id if multiplexed else ""
        self._audio_prefix = audio_prefix(setup.session_id) if multiplexed else b""
        self._stats = stats
        self._line: Line | None = None
        # Half: on a new line what has waited must leave room for what comes.
        self._pending: deque[str] = deque(maxlen=queue_messages // 2)
        self._introduction = ""
        """The ``setup`` that was queued on the line."""
        self._lost = False
        self.closed = False

    def send(self, message: Outbound) -> None:
        if self.closed:
            return
        text = encode(message, extensions=self._extensions, session_id=self._named)
        if text is None:
            return
        if self._line is not None:
            self._line.put(self.session_id, text)
            return
        self._keep(text)

    def _keep(self, text: str) -> None:
        self._stats.messages_dropped += len(self._pending) == self._pending.maxlen
        self._pending.append(text)

    def send_audio(self, pcm: bytes) -> None:
        if self._line is not None and not self.closed:
            self._line.put(self.session_id, self._audio_prefix + pcm)

    def line_up(self, line: Line) -> None:
        """Send ``setup`` and what has waited on a new line; tell the session if it knew of a loss."""
        text = encode(self._setup, extensions=self._extensions, session_id=self._named)
        assert text is not None  # setup is no extension
        line.put(self.session_id, text)
        self._introduction = text
        for waiting in self._pending:
            line.put(self.session_id, waiting)
        self._pending.clear()
        self._line = line
        if not self._setup.resumed:
            self.sink.on_dialogue_ready()
        # A later line continues this session: the call is up by then, whatever it was at first.
        self._setup = replace(self._setup, resumed=True, call_status="IN_PROGRESS")
        if self._lost:
            self._lost = False
            self.sink.on_dialogue_resumed()

    def line_down(self, leftover: list[str]) -> None:
        """Keep what did not leave; tell the session once per loss."""
        self._line = None
        for text in leftover:
            if text != self._introduction:  # the next line begins with a setup of its own
                self._keep(text)
        if not self._lost and not self.closed:
            self._lost = True
            self.sink.on_dialogue_lost()

    def close(self) -> None:
        """The call is over for its manager: nothing is sent any more, nothing reported."""
        self.closed = True
