"""The carrier's half of each wire format, for the simulated caller. Pure; shares nothing with ``gateway.wire``.

What the gateway sends is read strictly, as the carrier documents it: whatever a carrier would warn about or
refuse becomes a ``Violation``, so that our own peer is not kinder to us than the real one.
"""

from __future__ import annotations

from talkspurt.carriers.asterisk import AsteriskCarrier
from talkspurt.carriers.carrier import Carrier, Clear, Command, HangUp, Mark, Media, Message, Noted, Tones, Violation
from talkspurt.carriers.exotel import ExotelCarrier
from talkspurt.carriers.freeswitch import FreeSwitchCarrier
from talkspurt.carriers.freeswitch_fork import FreeSwitchForkCarrier
from talkspurt.carriers.genesys import GenesysCarrier
from talkspurt.carriers.jambonz import JambonzCarrier
from talkspurt.carriers.plivo import PlivoCarrier
from talkspurt.carriers.signalwire import SignalWireCarrier
from talkspurt.carriers.telnyx import TelnyxCarrier
from talkspurt.carriers.twilio import TwilioCarrier
from talkspurt.carriers.vonage import VonageCarrier

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
