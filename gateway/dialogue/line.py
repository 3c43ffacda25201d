"""One WebSocket of a dialogue (``Line``), dialled by either side, and a call's end of it (``CallLink``).

``Line`` has a bounded outgoing queue and a reader that counts bad messages, and reports how it ended. The session holds
a ``CallLink``, which outlives lines and keeps the call's messages while there is no line. When the queue is full, the
oldest caller audio is dropped first. A full queue without audio means that the peer is too slow, and the line counts as
lost. While a call has no line, its newest ``REPLAY_MESSAGES`` are kept, and audio is dropped.

Messages that a lost peer had not received are sent again to the next one. TCP does not show what a peer has received,
so a WebSocket ping (RFC 6455 section 5.5.2) follows each batch of messages: its pong means that all messages before the
ping were read. The next line begins with ``setup``, followed by the messages that no pong covers, in order, once.

A message may be what makes its reader fail. After a line was lost within ``BLAME_S`` of a message, the messages are
sent again one by one, each after the pong of the one before. If the line is lost so again, the message is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial

import aiohttp
import orjson
from aiohttp import web

from gateway.dialogue.dialled_socket import NO_STATUS, DialledSocket
from gateway.dialogue.wire import audio_prefix, encode
from gateway.errors import ProtocolError
from gateway.seams.dialogue import DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound, Setup

log = logging.getLogger(__name__)

QUEUE_MESSAGES = 256
"""Messages kept for a slow manager. When the queue is full, the oldest caller audio is dropped; without any, the line
counts as lost."""

REPLAY_MESSAGES = 500
"""Messages of a call kept while its manager is away. The oldest are dropped first."""

CLOSE_TIMEOUT_S = 2.0
"""Longest wait for queued messages to be sent, and for the peer's answer to a close frame."""

CLOSE_REASON = b"Closing websocket session"
MALFORMED_REASON = b"Too many consecutive malformed messages."
"""Reasons in sent close frames, both recorded from Twilio."""

ECHO_TIMEOUT_S = 0.1
"""Longest wait while the peer's close is answered, seconds. aiohttp writes the answer at once, but then waits for a
second close frame if the first had no code. Sockets are therefore made with ``autoclose=False`` and are closed here."""

MESSAGES_AT_ONCE = 8
"""Most messages of a line that are taken in one turn of the event loop. One line may serve all calls, and a message
that begins a turn costs 0.1 ms and more, which would delay every due frame."""

BLAME_S = 1.0
"""A line that its peer closes abnormally within this time of a message may have been lost because of it, seconds."""

WebSocket = DialledSocket | web.WebSocketResponse


@dataclass(slots=True)
class DialogueStats:
    """Counters of all dialogue lines of the process, for the metrics."""

    connected: Counter[str] = field(default_factory=Counter)
    """Lines that are up now, by route."""
    reconnects: int = 0
    """Lines established after a loss. Failed attempts do not count."""
    audio_dropped: int = 0
    """Audio messages dropped because the manager was too slow."""
    messages_dropped: int = 0
    """Other messages dropped while a call had no line, or because its manager failed twice on them."""
    replayed: int = 0
    """Messages sent on a later line, because no line was up or the earlier peer had not read them."""
    bad_messages: int = 0
    """Messages that could not be read."""
    late_messages: int = 0
    """Messages for calls that had just ended."""


PING_MARK = b"read:"
"""Prefix of the payloads of the pings sent here; those of aiohttp's heartbeat are empty."""


class Ending(Enum):
    """The way in which a line ended."""

    CLOSED = auto()
    """The peer closed on purpose: 1000, 1001, or a close frame without a code."""
    LOST = auto()
    """Any other end: TCP is gone, or the peer was silent, too slow, or closed with another code."""
    MALFORMED = auto()
    """Closed with 1007 here, because the peer sent too many bad messages in a row."""
    FINISHED = auto()
    """Closed here, after ``finish``."""


def _refuse_binary(message: bytes) -> None:
    raise ProtocolError(f"binary message of {len(message)} bytes, expected JSON text")


class Line:
    """One WebSocket. Call ``run`` once; it returns when the line fails, the peer closes, ``finish`` is called or it is
    cancelled.

    Args:
        queue_messages: bound of the outgoing queue; the hub raises ``limit`` with the calls on the line.
        accept: takes one text message; raises ``ProtocolError`` if the message is bad.
        refuse: queues the error that answers a bad message (a text, or the bytes of a binary message).
        hear: takes one binary message; raises ``ProtocolError`` if it is bad. None: binary messages are bad.
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
        hear: Callable[[bytes], None] | None = None,
    ) -> None:
        self._hear = hear or _refuse_binary
        self.limit = queue_messages
        self._websocket = websocket
        self._errors_in_a_row = errors_in_a_row
        self._stats = stats
        self._accept = accept
        self._refuse = refuse
        self._queue: deque[tuple[str, str | bytes]] = deque()
        self._unread: deque[tuple[str, str, float]] = deque()
        """Text messages that were sent, with the time, and that no pong covers yet, oldest first."""
        self._one_by_one = 0
        """Number of queued messages that are each sent after the pong of the one before."""
        self.blamed: dict[str, list[str]] = {}
        """Call's id -> unread messages that were sent less than ``BLAME_S`` before the peer ended the line abnormally.
        ``run`` sets it. They are the objects of ``leftover``, since two messages may have the same text."""
        self._awaits_pong_for = 0
        """Number of ``_unread`` messages that the awaited pong will cover. 0: no pong is awaited."""
        self._pings = 0
        self._replaying = 0
        """Queued messages that came by ``replay``; they have room beyond ``limit``."""
        self._replayed = 0
        """Total number of messages that came by ``replay``."""
        self._audio = 0
        self._wake = asyncio.Event()
        self._finishing = False
        self._too_slow = asyncio.Event()

    def put(self, session_id: str, payload: str | bytes) -> None:
        """Queue a text message (str) or audio (bytes) of a call; never blocks."""
        if len(self._queue) >= self.limit + self._replaying and not self._make_room(isinstance(payload, bytes)):
            return
        self._audio += isinstance(payload, bytes)
        self._queue.append((session_id, payload))
        self._wake.set()

    def replay(self, session_id: str, texts: list[str], *, one_by_one: bool = False) -> None:
        """Queue messages that an earlier line of the call did not deliver, beyond the bound of the queue.

        Args:
            one_by_one: send each message of the queue after the pong of the one before, or after ``BLAME_S``.
        """
        if one_by_one:
            self._one_by_one = len(self._queue) + len(texts)
        self._replaying += len(texts)
        self._replayed += len(texts)
        self._queue.extend((session_id, text) for text in texts)
        self._wake.set()

    def _make_room(self, for_audio: bool) -> bool:
        if self._audio:
            oldest = next(i for i, (_, payload) in enumerate(self._queue) if isinstance(payload, bytes))
            del self._queue[oldest]
            self._audio -= 1
        elif not for_audio:
            # The message is still queued: the line is over, and queued messages go back to the calls.
            self._too_slow.set()
            return True
        self._stats.audio_dropped += 1
        return not for_audio or len(self._queue) < self.limit + self._replaying

    def leftover(self) -> list[tuple[str, str]]:
        """Return the text messages that the peer has not read, each with its call's id. Call this only after
        ``run``."""
        queued = [(session_id, payload) for session_id, payload in self._queue if isinstance(payload, str)]
        return [*((session_id, text) for session_id, text, _ in self._unread), *queued]

    def finish(self) -> None:
        """Send the queued messages, then close with 1000."""
        self._finishing = True
        self._wake.set()

    async def run(self) -> Ending:
        reader = asyncio.create_task(self._read(), name="dialogue-read")
        writer = asyncio.create_task(self._write(), name="dialogue-write")
        slow = asyncio.create_task(self._too_slow.wait(), name="dialogue-slow")
        try:
            await asyncio.wait({reader, writer, slow}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and writer.result() is Ending.LOST:
                # The peer closed during a write. Its close frame says how, and only the reader sees that frame.
                await asyncio.wait({reader}, timeout=CLOSE_TIMEOUT_S)
            if reader.done():
                ending = reader.result()
                if ending is None:  # too many bad messages; their error answers are sent first
                    self.finish()
                    await asyncio.wait({writer}, timeout=CLOSE_TIMEOUT_S)
                    await self._close(1007, MALFORMED_REASON)
                    return Ending.MALFORMED
                if ending is Ending.LOST:
                    since = asyncio.get_running_loop().time() - BLAME_S
                    for session_id, text, sent in self._unread:
                        if sent > since:
                            self.blamed.setdefault(session_id, []).append(text)
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
            await self._close(1000, CLOSE_REASON)  # tells aiohttp of the close; nothing is sent any more

    async def _read(self) -> Ending | None:
        """Read until the line ends. None: the peer sent too many bad messages in a row."""
        errors = row = 0
        while True:
            if row == MESSAGES_AT_ONCE:  # receive() returns without a pause while messages are buffered
                row = 0
                await asyncio.sleep(0)
            row += 1
            message = await self._websocket.receive()
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                errors = 0 if self._takes(message.data) else errors + 1
            elif message.type is aiohttp.WSMsgType.PING:
                await self._websocket.pong(message.data)
                continue
            elif message.type is aiohttp.WSMsgType.PONG:
                self._on_pong(bytes(message.data))
                continue
            elif message.type is aiohttp.WSMsgType.CLOSE:
                purpose = message.data in (1000, 1001, NO_STATUS, None)
                log.debug("dialogue line closed by its peer", extra={"code": message.data})
                return Ending.CLOSED if purpose else Ending.LOST
            else:  # ERROR, CLOSED, CLOSING: the socket is gone without a close frame of the peer
                return Ending.LOST
            if errors >= self._errors_in_a_row:
                return None

    def _on_pong(self, pong: bytes) -> None:
        """The peer answered a ping: it has read all messages before that ping."""
        if self._awaits_pong_for and pong == PING_MARK + str(self._pings).encode():
            for _ in range(min(self._awaits_pong_for, len(self._unread))):
                self._unread.popleft()
            self._awaits_pong_for = 0
            self._wake.set()  # messages sent meanwhile need another ping

    def _on_answered(self, mark: bytes, answered: asyncio.Future[float]) -> None:
        if not answered.cancelled() and answered.exception() is None:
            self._on_pong(mark)

    def _takes(self, message: str | bytes) -> bool:
        try:
            if isinstance(message, str):
                self._accept(message)
            else:
                self._hear(message)
        except ProtocolError as reason:
            self._stats.bad_messages += 1
            self._refuse(message, reason)
            return False
        except Exception:  # an internal error in one call must not end the line of the others
            log.exception("dialogue message failed")
        return True

    async def _write(self) -> Ending:
        """Send the queued messages. Return ``FINISHED`` when ``finish`` was called and the queue is empty."""
        try:
            while True:
                while self._queue:
                    session_id, payload = self._queue.popleft()
                    self._replaying = max(0, self._replaying - 1)
                    if isinstance(payload, str):
                        self._remember(session_id, payload)
                        await self._websocket.send_str(payload)
                        if self._one_by_one and not self._finishing:
                            self._one_by_one -= 1
                            await self._until_read()
                    else:
                        self._audio -= 1
                        await self._websocket.send_bytes(payload)
                if self._finishing:
                    self._unread.clear()  # the call is over; unread messages are not replayed
                    return Ending.FINISHED
                if self._unread and not self._awaits_pong_for:
                    await self._ping()
                self._wake.clear()
                await self._wake.wait()
        except (ConnectionError, aiohttp.ClientError):
            return Ending.LOST

    async def _ping(self) -> None:
        self._awaits_pong_for = len(self._unread)
        self._pings += 1
        mark = PING_MARK + str(self._pings).encode()
        answered = await self._websocket.ping(mark)
        if answered is not None:  # a dialled socket; others give the pong to `receive`
            answered.add_done_callback(partial(self._on_answered, mark))

    async def _until_read(self) -> None:
        """Wait for the pong of all that was sent, for ``BLAME_S`` at most."""
        await self._ping()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BLAME_S):
                while self._awaits_pong_for and not self._finishing:
                    self._wake.clear()
                    await self._wake.wait()

    def _remember(self, session_id: str, text: str) -> None:
        """Keep a message until a pong covers it. Beyond the bound, the oldest counts as read."""
        self._unread.append((session_id, text, asyncio.get_running_loop().time()))
        if len(self._unread) > self.limit + self._replayed:
            self._unread.popleft()
            self._awaits_pong_for = max(0, self._awaits_pong_for - 1)

    async def _close(self, code: int, reason: bytes, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            async with asyncio.timeout(timeout_s):
                await self._websocket.close(code=code, message=reason)

    def _abort(self) -> None:
        """Cut the TCP connection: a peer that does not read would otherwise keep the send buffer alive."""
        peer = self._websocket.get_extra_info("socket")
        if peer is not None:
            # Uses the file descriptor, because uvloop's socket objects have no shutdown.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(peer.fileno())) as own:
                own.shutdown(socket.SHUT_RDWR)


async def serve_socket(
    request: web.Request, serve: Callable[[web.WebSocketResponse], Awaitable[None]], *, ping_s: float, max_bytes: int
) -> web.WebSocketResponse:
    """Answer a WebSocket request, and serve the socket to its end.

    Args:
        serve: runs the socket's line.
        ping_s: WebSocket ping interval, seconds.
        max_bytes: longest message.
    """
    websocket = web.WebSocketResponse(
        timeout=CLOSE_TIMEOUT_S, heartbeat=ping_s, compress=False, autoclose=False, autoping=False,
        max_msg_size=max_bytes,
    )  # fmt: skip
    await websocket.prepare(request)

    async def to_the_end() -> None:
        await serve(websocket)

    # aiohttp cancels a handler as soon as TCP is gone. A close on purpose that arrived before must still count, so a
    # separate task reads it.
    serving = asyncio.create_task(to_the_end(), name="dialogue-socket")
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        await serving
        raise
    return websocket


def setup_of(call: CallInfo, *, codec: str, version: str, audio: bool = False) -> Setup:
    """Return the ``setup`` of a call. Without a carrier's id, ``callSid`` is derived from the call id.

    Args:
        audio: the call's audio can be had at the path that ``setup`` names.
    """
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
        audio=f"/v1/audio/{call.call_id}" if audio else "",
    )


class CallLink:
    """A call's messages to its manager, with or without a line."""

    def __init__(
        self,
        setup: Setup,
        sink: DialogueSink,
        *,
        extensions: bool,
        multiplexed: bool,
        replay_messages: int,
        stats: DialogueStats,
    ) -> None:
        self.session_id = setup.session_id
        self.sink = sink
        self._setup = setup
        self._extensions = extensions
        self._session_id_sent = setup.session_id if multiplexed else ""
        self._audio_prefix = audio_prefix(setup.session_id) if multiplexed else b""
        self._stats = stats
        self._line: Line | None = None
        self._pending: deque[str] = deque(maxlen=replay_messages)
        self._setup_text = ""
        """Text of the ``setup`` queued on the current line."""
        self._numbered = 0
        """Number of messages since the first ``setup``, those that wait included."""
        self._suspects: list[str] = []
        """Messages that may have ended the last line."""
        self._lost = False
        self.closed = False

    def send(self, message: Outbound) -> None:
        if self.closed:
            return
        text = encode(message, extensions=self._extensions, session_id=self._session_id_sent)
        if text is None:
            return
        self._numbered += 1
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
        """Send ``setup`` and the waiting messages on a new line; report the recovery if the loss was reported."""
        text = encode(self._setup, extensions=self._extensions, session_id=self._session_id_sent)
        assert text is not None  # setup is not an extension
        line.put(self.session_id, text)
        self._setup_text = text
        self._stats.replayed += len(self._pending) if self._setup.resumed else 0
        line.replay(self.session_id, list(self._pending), one_by_one=bool(self._suspects))
        self._pending.clear()
        self._line = line
        if not self._setup.resumed:
            self.sink.on_dialogue_ready()
        # A later line resumes this session, and the call has been answered by then.
        self._setup = replace(self._setup, resumed=True, call_status="IN_PROGRESS")
        if self._lost:
            self._lost = False
            self.sink.on_dialogue_resumed()

    def line_down(self, leftover: list[str], blamed: list[str] | None = None) -> None:
        """Keep the messages that were not delivered, without one that ended two lines, and report each loss once.

        Args:
            leftover: messages that the lost line did not deliver.
            blamed: those of them that may have ended the line. None: there was no line.
        """
        self._line = None
        # Messages that are sent one by one are blamed alone, so no other message is skipped beside the one that fails.
        twice = {id(text) for text in blamed or ()} & {id(text) for text in self._suspects}
        poison = next((text for text in leftover if id(text) in twice), None)
        later, self._pending = self._pending, deque(maxlen=self._pending.maxlen)  # empty, unless this is called twice
        # The next line begins with its own setup.
        kept = [text for text in (*leftover, *later) if text != self._setup_text]
        if poison is not None:
            place = next(place for place, text in enumerate(kept) if text is poison)
            self._skip(kept.pop(place), self._numbered - len(kept) + place)
            self._suspects = blamed = []  # it explains both losses
        for text in kept:
            self._keep(text)
        if blamed is not None:
            suspects = {id(text) for text in (*blamed, *self._suspects)}
            self._suspects = [text for text in kept if id(text) in suspects]
        if not self._lost and not self.closed:
            self._lost = True
            self.sink.on_dialogue_lost()

    def _skip(self, text: str, number: int) -> None:
        kind = str(orjson.loads(text).get("type", ""))
        log.warning(
            "dialogue message skipped: its manager failed twice on it",
            extra={"call": self.session_id, "kind": kind, "number": number},
        )
        self._stats.messages_dropped += 1
        if not self.closed:
            self.sink.on_dialogue_skipped(kind, number)

    def close(self) -> None:
        """The call is over for its manager: from now on nothing is sent and nothing is reported."""
        self.closed = True
