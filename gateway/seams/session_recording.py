"""Copies of calls to a session recording server (SIPREC): the seam between a call and the client that sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.seams.leg import CallInfo


class SessionRecording(Protocol):
    """The copy of one call. Its methods do not raise, and do nothing once it is over."""

    def put(self, pcm: bytes) -> None:
        """Send the next sound: s16le, the caller left, the bot right."""
        ...

    def pause(self, paused: bool) -> None:
        """Stop sending, or continue."""
        ...

    def end(self) -> None:
        """End the copy."""
        ...


class SessionRecordingClient(Protocol):
    """Makes copies of calls."""

    def record(self, call: CallInfo, recorder: str, *, rate: int, on_lost: Callable[[str], None]) -> SessionRecording:
        """Begin the copy of a call.

        Args:
            recorder: SIP address of the session recording server.
            rate: sample rate of the sound, Hz.
            on_lost: called with the reason if the copy cannot begin, or ends too early.
        """
        ...
