"""What every carrier's section of the configuration has."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from gateway.config import NUMBER, Section


class CarrierSection(Section):
    """What every carrier's section has."""

    verify: bool = True
    """Off: neither signature nor stream token is asked for. Only for tests and demos on loopback; webhooks that can be
    reached from outside are refused without proof all the same."""


class BufferingCarrierSection(CarrierSection):
    """The section of a carrier that takes audio ahead of time, in messages of any length."""

    message_ms: Annotated[Literal[20, 40, 60], NUMBER] = 20
    """Audio per message, milliseconds. With 40 a talking call costs the gateway a third less, and what the caller has
    heard is known to 40 milliseconds."""


S = TypeVar("S", bound=CarrierSection)
"""A carrier's own section."""
