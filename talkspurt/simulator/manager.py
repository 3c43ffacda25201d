"""A simulated dialogue manager. It dials in to ``/v1/dialogue``, or lets the gateway dial out to it.

It has its own implementation of the dialogue protocol and shares nothing with ``gateway.dialogue``. Every time comes
from this process's own monotonic clock. Times that the gateway reports are kept too, but not used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    ws_create_server,
)

from talkspurt.simulator.peer_socket import MAX_MESSAGE_BYTES, connect

_ENDS = ("finished", "interrupted", "failed")


@dataclass(slots=True)
class ManagerTurn:
    """One turn that was sent, and its outcome. Times are monotonic seconds."""

    turn: str
    text: str
    sent_at: float
    """Time at which the message that completes the first clause was sent."""
    ended_at: float | None = None
    outcome: str = ""
    """``finished``, ``interrupted`` or ``failed``. Empty: the turn has not ended."""
    reported: dict[str, Any] = field(default_factory=dict)
    """The gateway's own fields of all its events: ``firstPacketMs stages audioMs gaps heardMs code description``."""
    heard_text: str = ""
    """``utteranceUntilInterrupt`` of a cut turn."""
    words_followed: bool = True
    """False: the gateway reported that no words of the caller followed the cut."""


class ManagedCall:
    """One call as its dialogue manager sees it."""

    def __init__(self, setup: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self.setup = setup
        self.session_id = str(setup["sessionId"])
        self.call_sid = str(setup["callSid"])
        self.turns: dict[str, ManagerTurn] = {}
        self.errors: list[str] = []
        """Descriptions of received ``error`` messages."""
        self.ended = ""
        """Reason of the call's end. Empty: the call has not ended."""
        self.withdrawn: list[str] = []
        """Messages that the caller has withdrawn: ``end``, ``transfer``."""
        self.answered_by: list[str] = []
        """Verdicts of the gateway on who has answered an outgoing call."""
        self.silences_s: list[float] = []
        """Lengths of the silences of both sides that the gateway reported, seconds."""
        self.on_turn_end: Callable[[ManagerTurn], None] = lambda turn: None
        self.on_message: Callable[[Mapping[str, Any], float], None] = lambda message, now: None
        """Called with every message after ``setup`` and its arrival time."""
        self.on_audio: Callable[[bytes], None] = lambda pcm: None
        """Called with caller audio after ``subscribe``, s16le."""
        self._send = send

    def send(self, type_: str, **fields: Any) -> None:
        """Send any message of the protocol, e.g. ``send("sendDigits", digits="12#")``."""
        self._send({"type": type_, **fields})

    def speak(self, text: str, **fields: Any) -> ManagerTurn:
        """Send a whole turn in one message."""
        turn = self.open_turn(text)
        self.send("text", token=text, last=True, turn=turn.turn, **fields)
        return turn

    def open_turn(self, text: str) -> ManagerTurn:
        """Begin a turn whose tokens are sent with ``send``, tagged with ``turn.turn``."""
        name = f"m{len(self.turns) + 1}"
        self.turns[name] = ManagerTurn(name, text, time.monotonic())
        return self.turns[name]

    @property
    def open_turns(self) -> int:
        """Number of turns that have not ended."""
        return sum(not turn.outcome for turn in self.turns.values())

    def receive(self, message: Mapping[str, Any], now: float) -> None:
        """Take one message from the gateway."""
        match message.get("type"):
            case "turn":
                self._turn_event(message, now)
            case "interrupt":
                if (turn := self.turns.get(message.get("turn", ""))) is not None:
                    turn.heard_text = message["utteranceUntilInterrupt"]
            case "error":
                self.errors.append(str(message.get("description")))
            case "withdrawn":
                self.withdrawn.append(str(message.get("what")))
            case "answered":
                self.answered_by.append(str(message["by"]))
            case "silence":
                self.silences_s.append(float(message["seconds"]))
            case "info" if message.get("name") == "noWords":
                if (turn := self.turns.get(message.get("value", ""))) is not None:
                    turn.words_followed = False
            case "ended":
                self.ended = str(message.get("reason"))
        self.on_message(message, now)

    def _turn_event(self, message: Mapping[str, Any], now: float) -> None:
        turn = self.turns.get(message["turn"])
        if turn is None:
            return  # a greeting or another manager's turn
        event = message["event"]
        turn.reported |= {
            key: value for key, value in message.items() if key not in ("type", "turn", "event", "sessionId")
        }
        if event in _ENDS:
            if turn.outcome:
                self.errors.append(f"a turn ended twice: {turn.outcome}, then {event}")
            turn.outcome, turn.ended_at = event, now
            self.on_turn_end(turn)


class _Socket(WSListener):
    """One WebSocket of the protocol, dialled in or dialled out."""

    def __init__(self, manager: SimulatedManager, *, multiplexed: bool) -> None:
        self._manager = manager
        self._multiplexed = multiplexed
        self._transport: WSTransport | None = None
        self._calls: dict[str, ManagedCall] = {}

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now = time.monotonic()
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type == WSMsgType.TEXT:
            message = orjson.loads(frame.get_payload_as_bytes())
            if message.get("type") == "setup":
                self._set_up(message)
            elif (call := self._call(message)) is not None:
                call.receive(message, now)
        elif frame.msg_type == WSMsgType.BINARY:
            data = frame.get_payload_as_bytes()
            if self._multiplexed:  # the first 16 bytes are the session id
                call, data = self._calls.get("VX" + data[:16].hex()), data[16:]
            else:
                call = next(iter(self._calls.values()), None)
            if call is not None:
                call.on_audio(data)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._manager.sockets.discard(self)
        if self._multiplexed:
            self._manager.lost.set()

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.send_close(WSCloseCode.OK)
            self._transport.disconnect()

    def _set_up(self, message: Mapping[str, Any]) -> None:
        call = ManagedCall(message, lambda body: self._send(call.session_id, body))
        known = self._manager.calls.get(call.session_id)
        if known is not None:
            known._send = call._send  # resumed on another socket
            call = known
        self._calls[call.session_id] = call
        self._manager.calls[call.session_id] = call
        self._manager.on_setup(call)

    def _call(self, message: Mapping[str, Any]) -> ManagedCall | None:
        if self._multiplexed:
            return self._calls.get(message.get("sessionId", ""))
        return next(iter(self._calls.values()), None)

    def _send(self, session_id: str, body: dict[str, Any]) -> None:
        if self._transport is not None and not self._transport.is_disconnected:
            if self._multiplexed:
                body["sessionId"] = session_id
            self._transport.send(WSMsgType.TEXT, orjson.dumps(body))


class SimulatedManager:
    """The dialogue manager of any number of calls.

    ``on_setup`` is called for every call that is handed to it, on the running loop.
    """

    def __init__(self, on_setup: Callable[[ManagedCall], None]) -> None:
        self.on_setup = on_setup
        self.calls: dict[str, ManagedCall] = {}
        self.sockets: set[_Socket] = set()
        self.lost = asyncio.Event()
        """Set when a dialled-in socket is closed."""
        self._server: asyncio.Server | None = None

    async def dial_in(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Connect to ``/v1/dialogue?route=R`` and take that route's calls.

        Raises:
            PeerSocketError: no server listens there, or the connection was refused.
        """
        socket = _Socket(self, multiplexed=True)
        await connect(socket, url, headers=headers)
        self.sockets.add(socket)

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve gateways that dial out, one socket a call. Return the address for ``dialogue.url``."""

        def accept(request: WSUpgradeRequest) -> _Socket:
            socket = _Socket(self, multiplexed=False)
            self.sockets.add(socket)
            return socket

        self._server = await ws_create_server(accept, host, port, max_frame_size=MAX_MESSAGE_BYTES)
        name = self._server.sockets[0].getsockname()
        return f"ws://{name[0]}:{name[1]}/"

    async def aclose(self) -> None:
        """Close every socket with 1000, and the listener."""
        for socket in list(self.sockets):
            socket.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
