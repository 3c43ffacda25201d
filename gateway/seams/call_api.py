"""What a switch or carrier lets us do with a call beside its media stream, by an API of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from gateway.seams.media_messages import StreamStarted


class CallApi(Protocol):
    """One call, from its stream's start to its end. Nothing here waits; what fails later is logged."""

    def hang_up(self, reason: str, handoff_data: str | None) -> None:
        """End the call, or let it go on where it was before us."""
        ...

    def transfer(self, target: str, handoff_data: str | None) -> bool:
        """Send the call elsewhere. False: it cannot be done, and nothing was."""
        ...

    def carries_dtmf(self, digits: str) -> bool:
        """Whether tones can be sent by ``send_dtmf``."""
        ...

    def send_dtmf(self, digits: str) -> bool:
        """Let the switch send tones. False: it cannot."""
        ...

    def clear(self) -> None:
        """Throw away what the switch has buffered, where the stream has no message for that."""
        ...

    def close(self) -> None:
        """The stream is over."""
        ...


OpenCallApi = Callable[[StreamStarted, Callable[[str], None]], CallApi | None]
"""From a started stream, and who is told of its keys, to its call's API; None: this call has none."""

Attach = Callable[[str, str, Mapping[str, str]], Awaitable[None]]
"""Joins a call on a switch (the switch's id of it) on a route, with custom parameters. Raises ``Rejected``."""
