"""The API with which a switch or carrier controls a call outside its media stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted


class CallApi(Protocol):
    """Control of one call, from the start of its stream to the end. No method waits; later failures are logged."""

    def hang_up(self, reason: str, handoff_data: str | None) -> None:
        """End the call, or release it to the next step of the switch (a dialplan, a webhook)."""
        ...

    def transfer(self, target: str, handoff_data: str | None, reason: str) -> bool:
        """Send the call to ``target``, with the reason if the API can carry it. False: not possible, and nothing was
        done."""
        ...

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if ``send_dtmf`` can send these tones."""
        ...

    def send_dtmf(self, digits: str) -> bool:
        """Let the switch send tones. False: the switch cannot."""
        ...

    def clear(self) -> None:
        """Clear the switch's buffer, if the stream itself has no message for that."""
        ...

    def close(self) -> None:
        """The stream has ended."""
        ...


OpenCallApi = Callable[[StreamStarted, CallEvents], CallApi | None]
"""Opens the API of the call of a started stream. The second argument receives keys and, if the stream does not report
it, playback. None: the call has no API."""

Attach = Callable[[str, str, Mapping[str, str]], Awaitable[None]]
"""Joins a call that is on a switch. Arguments: the switch's id of the call, the route, the custom parameters. Raises
``Rejected``."""
