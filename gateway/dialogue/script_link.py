"""Link that runs a script as a call's dialogue manager: it gives the script's machine a clock, a timer and the
session."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from gateway.dialogue.script import Script, ScriptMachine
from gateway.errors import ProtocolError
from gateway.seams.dialogue import DialogueSink
from gateway.seams.messages import Inbound, Outbound, Setup

log = logging.getLogger(__name__)


class ScriptLink:
    """A ``DialogueLink`` to a script. Call ``start`` once.

    Messages of the session reach the machine in the next iteration of the event loop, so neither calls back into the
    other.
    """

    def __init__(self, script: Script, setup: Setup, sink: DialogueSink) -> None:
        self._machine = ScriptMachine(script, setup, clock=datetime.now)
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._closed:
            self._sink.on_dialogue_ready()
            self._send_all(self._machine.start(self._loop.time()))

    def send(self, message: Outbound) -> None:
        self._loop.call_soon(self._on_message, message)

    def send_audio(self, pcm: bytes) -> None:
        """Do nothing: a script does not use audio."""

    async def aclose(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _on_message(self, message: Outbound) -> None:
        if not self._closed:
            self._send_all(self._machine.on_message(message, self._loop.time()))

    def _due(self) -> None:
        # A timer may fire slightly early by the loop's own clock. The machine checks, and the timer is set again.
        self._send_all(self._machine.on_timer(self._loop.time()))

    def _send_all(self, messages: list[Inbound]) -> None:
        for message in messages:
            if self._closed:
                return
            try:
                self._sink.on_message(message)
            except ProtocolError as exc:
                log.warning("script message refused", extra={"kind": type(message).__name__, "reason": str(exc)})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._machine.deadline()
        if deadline is not None and not self._closed:
            self._timer = self._loop.call_at(deadline, self._due)
