"""Keys that every carrier's section of the configuration has."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from gateway.config import NUMBER, Section


class CarrierSection(Section):
    """Keys of every carrier's section."""

    verify: bool = True
    """Ask for the carrier's signature or a stream token. Off only for tests and demos on loopback; webhooks that
    can be reached from outside are refused all the same."""


class BufferingCarrierSection(CarrierSection):
    """The section of a carrier that takes audio ahead of time, in messages of any length."""

    message_ms: Annotated[Literal[20, 40, 60], NUMBER] = 20
    """Audio per message, milliseconds. 40 saves a third of the CPU time, and the heard text is exact to 40 ms."""


S = TypeVar("S", bound=CarrierSection)
"""A carrier's own section."""
