"""FreeSWITCH with mod_audio_fork."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.freeswitch_fork.call_control import switch
from gateway.carriers.freeswitch_fork.dialect import FreeSwitchFork
from gateway.carriers.freeswitch_fork.proof import PROOF
from gateway.carriers.freeswitch_fork.settings import FreeSwitchForkConfig

CARRIER = Carrier(
    name=FreeSwitchFork.name,
    about="FreeSWITCH with mod_audio_fork.",
    settings=FreeSwitchForkConfig,
    dialect=lambda settings, query: FreeSwitchFork(
        sample_rate=settings.sample_rate, streaming=settings.streaming, query=query
    ),
    proof=PROOF,
    switch=switch,
)
