"""The seam between a session and its dialogue: a manager that the gateway dials, a manager that dials in, or a built-in
script."""

from __future__ import annotations

from typing import Protocol

from gateway.seams.leg import CallInfo
from gateway.seams.messages import Inbound, Outbound


class DialogueSink(Protocol):
    """Events from a dialogue manager. The session implements this; its methods are called on its loop."""

    def on_message(self, message: Inbound) -> None: ...

    def on_dialogue_ready(self) -> None:
        """The manager has received ``setup``. Called once, before any other method."""
        ...

    def on_dialogue_closed(self) -> None:
        """The manager closed on purpose (1000 or 1001), which means the same as ``end``."""
        ...

    def on_dialogue_lost(self) -> None:
        """The connection broke; the link reconnects by itself. Called once per loss."""
        ...

    def on_dialogue_resumed(self) -> None:
        """The link has reconnected and has sent ``setup`` with ``resumed``."""
        ...

    def on_dialogue_skipped(self, kind: str, number: int) -> None:
        """The manager failed twice on a message, which is not sent again.

        Args:
            kind: ``type`` of the message.
            number: place among the call's messages to the manager, counted from 1 after ``setup``.
        """
        ...

    def on_dialogue_failed(self, description: str) -> None:
        """The link has given up."""
        ...

    def on_round_trip(self, seconds: float) -> None:
        """A keepalive ping of a dialled socket was answered after that time."""
        ...


class DialogueLink(Protocol):
    """One call's connection to its manager."""

    def send(self, message: Outbound) -> None:
        """Queue one message; never blocks. Extensions are omitted if the peer does not want them."""
        ...

    def send_audio(self, pcm: bytes) -> None:
        """Queue 20 ms of s16le caller audio as a binary message; a full queue drops the oldest audio."""
        ...

    async def aclose(self) -> None:
        """Send the queued messages, close with 1000, end all tasks. May be called again."""
        ...


class Dialogues(Protocol):
    """Connects calls to the managers of their routes."""

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        """Connect a call. Returns at once; ``setup`` is sent when the connection is up."""
        ...
