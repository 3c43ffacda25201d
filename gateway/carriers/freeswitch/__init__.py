"""FreeSWITCH with mod_audio_stream, and the event socket that controls its calls."""

from __future__ import annotations

from gateway.carriers.carrier import Carrier
from gateway.carriers.freeswitch.call_control import switch
from gateway.carriers.freeswitch.dialect import FreeSwitch
from gateway.carriers.freeswitch.proof import PROOF
from gateway.carriers.freeswitch.settings import FreeSwitchConfig

CARRIER = Carrier(
    name=FreeSwitch.name,
    about="FreeSWITCH with mod_audio_stream.",
    settings=FreeSwitchConfig,
    dialect=lambda settings, query: FreeSwitch(
        sample_rate=settings.sample_rate,
        playback=settings.playback,
        plays=settings.esl is not None,
        query=query,
    ),
    proof=PROOF,
    switch=switch,
)
