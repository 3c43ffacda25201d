"""The messages of a call to its dialogue manager. The parts of a call share it and need no reference to the call."""

from __future__ import annotations

from collections.abc import Callable

from gateway.call.ending import CallEnd
from gateway.call.journal import Journal
from gateway.seams.dialogue import DialogueLink
from gateway.seams.messages import Error, Outbound


class Outbox:
    """Sends to the manager of one call, in order. Messages wait until there is a link, and go nowhere after ``aclose``.

    Args:
        ending: the end of the call.
        journal: records each message for the call log. None: there is no log.
        clock: the ticker's ``now``.
    """

    def __init__(self, ending: CallEnd, journal: Journal | None, *, clock: Callable[[], float]) -> None:
        self._ending = ending
        self._journal = journal
        self._now = clock
        self._link: DialogueLink | None = None
        self._unsent: list[Outbound] = []
        self._closed = False

    def connect(self, link: DialogueLink) -> None:
        """Send through this link from now on, first the messages that waited for it."""
        self._link = link
        for message in self._unsent:
            link.send(message)
        self._unsent.clear()

    def note(self, message: Outbound) -> None:
        """Record a message in the call log without sending it."""
        if self._journal is not None:
            self._journal.told(message, self._now())

    def caller_stopped(self, at: float) -> None:
        """Record in the call log that the caller has said something, and was silent from ``at`` on."""
        if self._journal is not None:
            self._journal.caller_stopped(at)

    def tell(self, message: Outbound) -> None:
        """Send a message."""
        if self._closed:
            return
        self.note(message)
        if self._link is None:
            self._unsent.append(message)
        else:
            self._link.send(message)

    def send_audio(self, pcm: bytes) -> None:
        """Send 20 ms of the caller's audio."""
        if self._link is not None:
            self._link.send_audio(pcm)

    def recording_lost(self, reason: str) -> None:
        """The call is no longer recorded, because its file could not be written."""
        if not self._ending.decided:
            self.tell(Error(description=f"the recording was given up: {reason}", code="recording_lost"))

    async def aclose(self) -> None:
        """Close the link and drop it, since it refers to the call."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()
