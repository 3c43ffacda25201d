"""Dial-in: dialogue managers open sockets on ``/v1/dialogue?route=R``, and each socket serves many calls.

New calls go to the sockets of their route in turn. The calls of a lost socket move to the next socket at once, or wait
at most ``give_up_s`` for one. A socket on ``/v1/dialogue?route=R&callSid=S`` takes only the call with that id;
``talkspurt call`` uses this for its own manager. If the manager closes a socket on purpose (1000, 1001), the socket's
calls end, as with every link.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from aiohttp import web

from gateway.config import DialogueConfig, LimitsConfig, RouteConfig
from gateway.dialogue.line import (
    CLOSE_TIMEOUT_S,
    QUEUE_MESSAGES,
    REPLAY_MESSAGES,
    CallLink,
    DialogueStats,
    Ending,
    Line,
    serve_socket,
    setup_of,
)
from gateway.dialogue.wire import BadMessage, decode, encode, refusal
from gateway.errors import ProtocolError, Rejected
from gateway.principal import Principal
from gateway.seams.dialogue import DialogueLink, DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound

log = logging.getLogger(__name__)

ENDED_REMEMBERED = 4096
"""Number of ended calls remembered per route. Late messages for them are dropped without an error, since the manager
could not know of the end yet."""


class _Call:
    """A call of a route, on a socket or waiting for one. Implements ``DialogueLink``."""

    def __init__(self, room: _Room, link: CallLink, call_sid: str) -> None:
        self.room = room
        self.link = link
        self.call_sid = call_sid
        self.socket: _Socket | None = None
        self.give_up: asyncio.TimerHandle | None = None

    def send(self, message: Outbound) -> None:
        self.link.send(message)

    def send_audio(self, pcm: bytes) -> None:
        self.link.send_audio(pcm)

    async def aclose(self) -> None:
        """End the link. Queued messages are still sent; the socket stays open for its other calls."""
        self.room.forget(self)


class _Socket:
    """One connected manager and its calls."""

    def __init__(
        self, room: _Room, websocket: web.WebSocketResponse, call_sid: str, is_allowed: Callable[[], bool]
    ) -> None:
        self.room = room
        self.is_allowed = is_allowed
        """Returns False if the manager's key was revoked. Then the socket keeps its calls and gets no other."""
        self.call_sid = call_sid
        """The carrier's id of the only call that this socket takes. Empty: it takes all."""
        self.calls: dict[str, _Call] = {}
        self.over = asyncio.Event()
        self.line = Line(
            websocket,
            queue_messages=QUEUE_MESSAGES,
            errors_in_a_row=room.limits.errors_in_a_row,
            stats=room.stats,
            accept=self._accept,
            refuse=self._refuse,
        )

    def _accept(self, text: str) -> None:
        session_id, message = decode(text, limits=self.room.limits, multiplexed=True)
        call = self.calls.get(session_id)
        if call is None:
            if session_id in self.room.ended:
                self.room.stats.late_messages += 1
                return
            raise BadMessage(
                f"sessionId {session_id} is not a call of this socket, expected the sessionId of a setup sent on it",
                field="sessionId",
                session_id=session_id,
            )
        try:
            call.link.sink.on_message(message)
        except ProtocolError as exc:
            turn = getattr(message, "turn", "")
            raise BadMessage(str(exc), field=exc.field, session_id=session_id, turn=turn) from exc

    def _refuse(self, frame: str | bytes, reason: ProtocolError) -> None:
        session_id = reason.session_id if isinstance(reason, BadMessage) else ""
        text = encode(refusal(frame, reason), extensions=self.room.extensions, session_id=session_id)
        if text is not None:
            self.line.put(session_id, text)


class _Room:
    """The sockets and calls of one route."""

    def __init__(self, name: str, config: DialogueConfig, limits: LimitsConfig, stats: DialogueStats) -> None:
        self.name = name
        self.config = config
        self.limits = limits
        self.stats = stats
        self.extensions = config.sends_extensions
        self.sockets: deque[_Socket] = deque()
        self.calls: dict[str, _Call] = {}
        self.ended: OrderedDict[str, None] = OrderedDict()

    def place(self, call: _Call) -> None:
        """Assign a call to the next socket in turn, or let it wait for one. An error ends that call only: the socket
        and its other calls stay."""
        try:
            self._place(call)
        except Exception:  # an internal error ends this call, not the socket of the others
            log.exception("call could not be given to a manager", extra={"call": call.link.session_id})
            self.forget(call)
            call.link.sink.on_dialogue_failed("internal error")

    def _place(self, call: _Call) -> None:
        if call.link.closed or call.socket is not None:
            return
        socket = self._socket_for(call.call_sid)
        if socket is None:
            if call.give_up is None:
                loop = asyncio.get_running_loop()
                call.give_up = loop.call_later(self.config.give_up_s, self._fail, call)
            call.link.line_down([])
            return
        if call.give_up is not None:
            call.give_up.cancel()
            call.give_up = None
        call.socket = socket
        socket.calls[call.link.session_id] = call
        self._share(socket)
        call.link.line_up(socket.line)

    def _socket_for(self, call_sid: str) -> _Socket | None:
        """Return the socket that asked for this call, else the next one that takes all calls."""
        for socket in self.sockets:
            if call_sid and socket.call_sid == call_sid and socket.is_allowed():
                return socket
        for _ in range(len(self.sockets)):
            socket = self.sockets[0]
            self.sockets.rotate(-1)
            if not socket.call_sid and socket.is_allowed():
                return socket
        return None

    def forget(self, call: _Call) -> None:
        """The call is over for any reason. May be called again."""
        call.link.close()
        if call.give_up is not None:
            call.give_up.cancel()
        if call.socket is not None:
            call.socket.calls.pop(call.link.session_id, None)
            self._share(call.socket)
            call.socket = None
        if self.calls.pop(call.link.session_id, None) is not None:
            self.ended[call.link.session_id] = None
            while len(self.ended) > ENDED_REMEMBERED:
                self.ended.popitem(last=False)

    def _share(self, socket: _Socket) -> None:
        """Set the bound of a socket's queue to the sum of its calls' bounds."""
        socket.line.limit = QUEUE_MESSAGES * max(1, len(socket.calls))

    def _fail(self, call: _Call) -> None:
        self.forget(call)
        call.link.sink.on_dialogue_failed(
            f"no dialogue manager on route {self.name} within {self.config.give_up_s:g} s"
        )

    async def serve(self, websocket: web.WebSocketResponse, call_sid: str, is_allowed: Callable[[], bool]) -> None:
        socket = _Socket(self, websocket, call_sid, is_allowed)
        self.sockets.append(socket)
        self.stats.connected[self.name] += 1
        ending = Ending.LOST
        try:
            for call in list(self.calls.values()):  # waiting calls, oldest first
                self.place(call)
            ending = await socket.line.run()
        finally:
            self.sockets.remove(socket)
            self.stats.connected[self.name] -= 1
            socket.over.set()
            self._release(socket, ending)

    def _release(self, socket: _Socket, ending: Ending) -> None:
        """Move or end the calls of a closed socket."""
        leftover: dict[str, list[str]] = {}
        for session_id, text in socket.line.leftover():
            leftover.setdefault(session_id, []).append(text)
        calls = list(socket.calls.items())
        socket.calls.clear()
        if calls:
            log.info("dialogue socket ended", extra={"route": self.name, "ending": ending.name, "calls": len(calls)})
        for session_id, call in calls:
            call.socket = None
            if ending is Ending.CLOSED:
                self.forget(call)
                call.link.sink.on_dialogue_closed()
            else:
                call.link.line_down(leftover.get(session_id, []), socket.line.blamed.get(session_id, []))
                self.place(call)


class DialogueHub:
    """The rooms of all routes, and the handler of ``/v1/dialogue``."""

    def __init__(
        self, routes: Mapping[str, RouteConfig], *, limits: LimitsConfig, stats: DialogueStats, version: str
    ) -> None:
        self._version = version
        self._limits = limits
        self._stats = stats
        self._closing = False
        self._rooms = {
            name: _Room(name, route.dialogue, limits, stats)
            for name, route in routes.items()
            if not route.dialogue.url and not route.dialogue.script
        }

    def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        """Offer a call to its route's sockets; ``setup`` is sent when one takes it.

        Raises:
            KeyError: managers cannot dial in to the route.
        """
        room = self._rooms[call.route]
        link = CallLink(
            setup_of(call, codec=codec, version=self._version, audio=room.config.audio),
            sink,
            extensions=room.extensions,
            multiplexed=True,
            replay_messages=REPLAY_MESSAGES,
            stats=self._stats,
        )
        held = _Call(room, link, call.call_sid)
        room.calls[call.call_id] = held
        # The call is placed later, so that the session has its link before its sink receives an event.
        asyncio.get_running_loop().call_soon(room.place, held)
        return held

    async def handle(
        self, request: web.Request, who: Principal, is_allowed: Callable[[], bool] = lambda: True
    ) -> web.WebSocketResponse:
        """Handle ``GET /v1/dialogue`` for the authenticated client ``who``.

        Args:
            is_allowed: returns False if the client's key was revoked meanwhile: it gets no further call.

        Raises:
            Rejected: 404 if there is no such route or managers cannot dial in to it; 503 if the process shuts down.
        """
        name = request.query.get("route", "")
        rooms = {name: room for name, room in self._rooms.items() if who.sees(name)}
        room = rooms.get(name)
        if self._closing:
            raise Rejected("the gateway is shutting down", status=503, code="unavailable", retry_after_s=1.0)
        if room is None:
            known = ", ".join(rooms) or "none"
            raise Rejected(
                f"route {name!r} does not accept managers that dial in; routes that do: {known}",
                status=404,
                code="not_found",
                param="route",
            )
        return await serve_socket(
            request, lambda websocket: room.serve(websocket, request.query.get("callSid", ""), is_allowed),
            ping_s=room.config.ping_s, max_bytes=self._limits.message_bytes,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Send the queued messages of every socket, then close the sockets."""
        self._closing = True
        sockets = [socket for room in self._rooms.values() for socket in room.sockets]
        for socket in sockets:
            socket.line.finish()
        if sockets:
            waits = [asyncio.create_task(socket.over.wait()) for socket in sockets]
            await asyncio.wait(waits, timeout=2 * CLOSE_TIMEOUT_S)
            for wait in waits:
                wait.cancel()
