"""A switch joins and controls a carrier's calls over the carrier's own API, besides their streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.seams.call_api import Attach, OpenCallApi


class StreamNotOpened(Exception):
    """A switch refused the socket that we wanted to open. ``status`` is that of its answer, 0 without an answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTools:
    """The gateway's functions that a switch needs to join calls."""

    media_url: Callable[[str, str, Mapping[str, str]], str]
    """Returns the address of a stream to this gateway, with its token. Arguments: our address as the switch knows it
    (empty: the configured one), route and parameters."""
    open_stream: Callable[[str, str, Mapping[str, str], float], Awaitable[None]]
    """Opens a stream to an address. Arguments: address, route, parameters, timeout in seconds. Raises
    ``StreamNotOpened``."""


def _nothing() -> None:
    """Do nothing: there is no permanent connection."""


async def _nothing_to_close() -> None:
    """Do nothing: there is nothing to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The API of one carrier or switch."""

    attach: Attach | None = None
    """Joins a call."""
    open: OpenCallApi | None = None
    """Opens the control of a call."""
    start: Callable[[], None] = _nothing
    aclose: Callable[[], Awaitable[None]] = _nothing_to_close
