"""The carrier's half of each wire format, for the simulated caller. Pure; shares nothing with ``gateway.carriers``.

What the gateway sends is read strictly, as the carrier documents it: whatever a carrier would warn about or
refuse becomes a ``Violation``, so that our own peer is not kinder to us than the real one.
"""

from __future__ import annotations

from talkspurt.simulator.carriers.asterisk import AsteriskCarrier
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
from talkspurt.simulator.carriers.exotel import ExotelCarrier
from talkspurt.simulator.carriers.freeswitch import FreeSwitchCarrier
from talkspurt.simulator.carriers.freeswitch_fork import FreeSwitchForkCarrier
from talkspurt.simulator.carriers.genesys import GenesysCarrier
from talkspurt.simulator.carriers.jambonz import JambonzCarrier
from talkspurt.simulator.carriers.plivo import PlivoCarrier
from talkspurt.simulator.carriers.signalwire import SignalWireCarrier
from talkspurt.simulator.carriers.telnyx import TelnyxCarrier
from talkspurt.simulator.carriers.twilio import TwilioCarrier
from talkspurt.simulator.carriers.vonage import VonageCarrier

CARRIERS: dict[str, type[Carrier]] = {
    carrier.dialect: carrier
    for carrier in (
        AsteriskCarrier,
        ExotelCarrier,
        FreeSwitchCarrier,
        FreeSwitchForkCarrier,
        GenesysCarrier,
        JambonzCarrier,
        PlivoCarrier,
        SignalWireCarrier,
        TelnyxCarrier,
        TwilioCarrier,
        VonageCarrier,
    )
}
"""Dialect name -> the carrier that speaks it."""

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
