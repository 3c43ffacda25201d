"""The carrier's half of each wire format, for the simulated caller. Pure; shares nothing with ``gateway.carriers``.

Messages of the gateway are read strictly, as the carrier documents them. A message that the carrier would warn about or
refuse becomes a ``Violation``, so that the simulated carrier accepts no more than the real one.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from talkspurt.simulator.carriers.carrier import (
    CarrierHangsUp,
    Clear,
    Command,
    MarkRequest,
    MediaFrame,
    Message,
    Noted,
    SimulatedCarrier,
    Tones,
    Violation,
)
from talkspurt.simulator.carriers.exotel import ExotelConnectCarrier
from talkspurt.simulator.carriers.freeswitch import LateFreeSwitchCarrier
from talkspurt.simulator.carriers.jambonz import FullJambonzCarrier
from talkspurt.simulator.carriers.twilio import TwilioCarrier


def _twins() -> dict[str, type[SimulatedCarrier]]:
    modules = [import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    twins = [module.CARRIER for module in modules if hasattr(module, "CARRIER")]
    return {twin.dialect: twin for twin in twins}


CARRIERS: dict[str, type[SimulatedCarrier]] = _twins()
"""Dialect name -> the carrier that speaks it, as declared by each file here that has a ``CARRIER``."""

VARIANTS: dict[str, type[SimulatedCarrier]] = {
    "exotel by Connect": ExotelConnectCarrier,
    "freeswitch with late metadata": LateFreeSwitchCarrier,
    "jambonz with all attributes": FullJambonzCarrier,
}
"""Other ways in which real carriers of these dialects begin."""

__all__ = [
    "VARIANTS",
    "CARRIERS",
    "SimulatedCarrier",
    "Clear",
    "Command",
    "CarrierHangsUp",
    "MarkRequest",
    "MediaFrame",
    "Message",
    "Noted",
    "Tones",
    "TwilioCarrier",
    "Violation",
]
