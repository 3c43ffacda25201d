"""jambonz's `listen` verb."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.jambonz.call_control import CALL_CONTROL
from gateway.carriers.jambonz.dialect import Jambonz
from gateway.carriers.jambonz.proof import PROOF
from gateway.carriers.jambonz.settings import JambonzConfig

CARRIER = Carrier(
    name=Jambonz.name,
    about="jambonz `listen`.",
    settings=JambonzConfig,
    dialect=lambda settings, query: Jambonz(outbound_rate=settings.outbound_sample_rate, streaming=settings.streaming),
    proof=PROOF,
    call_control=CALL_CONTROL,
)
