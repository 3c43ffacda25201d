"""What every carrier's section of the configuration has."""

from __future__ import annotations

from typing import TypeVar

from gateway.config import Section


class CarrierSection(Section):
    """What every carrier's section has."""

    verify: bool = True
    """Off: neither signature nor stream token is asked for. Only for tests and demos on loopback; webhooks that can be
    reached from outside are refused without proof all the same."""


S = TypeVar("S", bound=CarrierSection)
"""A carrier's own section."""
