"""What a switch or carrier lets us do with a call by an API of its own, outside the call's media stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted


class CallApi(Protocol):
    """One call, from the start of its stream to the end. No method waits; what fails later is logged."""

    def hang_up(self, reason: str, handoff_data: str | None) -> None:
        """End the call, or let it go on with whatever follows our stream (a dialplan, a webhook)."""
        ...

    def transfer(self, target: str, handoff_data: str | None, reason: str) -> bool:
        """Send the call elsewhere, with the reason where the API can carry it. False: that is not possible, and nothing
        was done."""
        ...

    def carries_dtmf(self, digits: str) -> bool:
        """Whether ``send_dtmf`` can send these tones."""
        ...

    def send_dtmf(self, digits: str) -> bool:
        """Let the switch send tones. False: the switch cannot."""
        ...

    def clear(self) -> None:
        """Throw away what the switch has buffered, if the stream itself has no message for that."""
        ...

    def close(self) -> None:
        """The stream is over."""
        ...


OpenCallApi = Callable[[StreamStarted, CallEvents], CallApi | None]
"""Opens the API of the call behind a started stream. The second argument is told keys, and what was played where the
stream does not tell it; None: the call has no API."""

Attach = Callable[[str, str, Mapping[str, str]], Awaitable[None]]
"""Joins a call that is on a switch. Arguments: the switch's id of the call, the route, the custom parameters. Raises
``Rejected``."""
