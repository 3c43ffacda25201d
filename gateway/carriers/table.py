"""All dialects by name, and how the configuration makes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.carriers.asterisk.dialect import Asterisk
from gateway.carriers.dialect import Dialect
from gateway.carriers.exotel.dialect import Exotel
from gateway.carriers.freeswitch.dialect import FreeSwitch
from gateway.carriers.freeswitch_fork.dialect import FreeSwitchFork
from gateway.carriers.genesys.dialect import Genesys
from gateway.carriers.jambonz.dialect import Jambonz
from gateway.carriers.plivo.dialect import Plivo
from gateway.carriers.signalwire.dialect import SignalWire
from gateway.carriers.telnyx.dialect import Telnyx
from gateway.carriers.twilio.dialect import Twilio
from gateway.carriers.vonage.dialect import Vonage
from gateway.config import CarriersConfig
from voicecodecs.registry import AudioFormat

Query = Mapping[str, str]
"""Parameters of the stream's address, without our token."""


def _telnyx(carriers: CarriersConfig, query: Query) -> Dialect:
    config = carriers.telnyx
    rate = {"G722": 16000, "L16": config.sample_rate}.get(config.codec, 8000)
    return Telnyx(AudioFormat(config.codec, rate), config.l16_byte_order)


def _jambonz(carriers: CarriersConfig, query: Query) -> Dialect:
    return Jambonz(outbound_rate=carriers.jambonz.outbound_rate, streaming=carriers.jambonz.streaming)


def _freeswitch(carriers: CarriersConfig, query: Query) -> Dialect:
    config = carriers.freeswitch
    return FreeSwitch(
        sample_rate=config.sample_rate, playback=config.playback, clear_message=config.clear_message, query=query
    )


def _freeswitch_fork(carriers: CarriersConfig, query: Query) -> Dialect:
    config = carriers.freeswitch_fork
    return FreeSwitchFork(sample_rate=config.sample_rate, streaming=config.streaming, query=query)


DIALECTS: Mapping[str, Callable[[CarriersConfig, Query], Dialect]] = {
    "twilio": lambda carriers, query: Twilio(),
    "signalwire": lambda carriers, query: SignalWire(carriers.signalwire.l16_byte_order),
    "telnyx": _telnyx,
    "plivo": lambda carriers, query: Plivo(),
    "exotel": lambda carriers, query: Exotel(carriers.exotel.message_ms),
    "vonage": lambda carriers, query: Vonage(),
    "genesys": lambda carriers, query: Genesys(carriers.genesys.message_ms),
    "jambonz": _jambonz,
    "freeswitch": _freeswitch,
    "freeswitch-fork": _freeswitch_fork,
    "asterisk": lambda carriers, query: Asterisk(answer=carriers.asterisk.answer, query=query),
}
