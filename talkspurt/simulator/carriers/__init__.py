"""The carrier's half of each wire format, for the simulated caller. Pure; shares nothing with ``gateway.carriers``.

Messages of the gateway are read strictly, as the carrier documents them. A message that the carrier would warn about or
refuse becomes a ``Violation``, so that the simulated carrier accepts no more than the real one.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from talkspurt.simulator.carriers.carrier import (
    Carrier,
    Clear,
    Command,
    HangUp,
    Mark,
    Media,
    Message,
    Noted,
    Tones,
    Violation,
)
from talkspurt.simulator.carriers.twilio import TwilioCarrier


def _twins() -> dict[str, type[Carrier]]:
    modules = [import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    twins = [module.CARRIER for module in modules if hasattr(module, "CARRIER")]
    return {twin.dialect: twin for twin in twins}


CARRIERS: dict[str, type[Carrier]] = _twins()
"""Dialect name -> the carrier that speaks it, as declared by each file here that has a ``CARRIER``."""

__all__ = [
    "CARRIERS",
    "Carrier",
    "Clear",
    "Command",
    "HangUp",
    "Mark",
    "Media",
    "Message",
    "Noted",
    "Tones",
    "TwilioCarrier",
    "Violation",
]
