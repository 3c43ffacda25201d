"""Asterisk's two media interfaces: chan_websocket and AudioSocket."""

from __future__ import annotations

from gateway.carriers.asterisk.call_control import switch
from gateway.carriers.asterisk.dialect import Asterisk
from gateway.carriers.asterisk.proof import PROOF
from gateway.carriers.asterisk.settings import AsteriskConfig
from gateway.carriers.carrier import Carrier

CARRIER = Carrier(
    name=Asterisk.name,
    about="Asterisk chan_websocket.",
    settings=AsteriskConfig,
    dialect=lambda settings, query: Asterisk(answer=settings.answer, query=query),
    proof=PROOF,
    switch=switch,
)
