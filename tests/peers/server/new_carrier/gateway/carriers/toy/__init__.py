"""A carrier that exists in a test only."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.toy.call_control import CALL_CONTROL
from gateway.carriers.toy.dialect import Toy
from gateway.carriers.toy.proof import PROOF
from gateway.carriers.toy.settings import ToyConfig

CARRIER = Carrier(
    name=Toy.name,
    about="The toy telephone network.",
    settings=ToyConfig,
    dialect=lambda settings, query: Toy(),
    proof=PROOF,
    call_control=CALL_CONTROL,
)
