"""What joins and leads a carrier's calls beside their streams, over an API of the carrier or switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.seams.call_api import Attach, OpenCallApi


class StreamNotOpened(Exception):
    """A switch did not take the socket that we wanted to open; ``status`` of its answer, 0 where it gave none."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTools:
    """What a switch gets of the gateway to join calls."""

    media_url: Callable[[str, str, Mapping[str, str]], str]
    """Address of a stream that the switch shall open, with its token: from what the switch calls us (empty: as the
    configuration says), route and parameters."""
    open_stream: Callable[[str, str, Mapping[str, str], float], Awaitable[None]]
    """Opens a stream ourselves: at an address, on a route, with parameters, within so many seconds. Raises
    ``StreamNotOpened``."""


def _nothing() -> None:
    """Nothing has to be connected all the time."""


async def _nothing_to_close() -> None:
    """Nothing was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A carrier's or switch's own API, beside its streams."""

    attach: Attach | None = None
    """Joins a call."""
    open: OpenCallApi | None = None
    """Leads a call."""
    start: Callable[[], None] = _nothing
    aclose: Callable[[], Awaitable[None]] = _nothing_to_close
