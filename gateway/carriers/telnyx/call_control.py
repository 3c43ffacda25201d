"""Telnyx's webhooks (TeXML, which is TwiML with a codec), and the switch for calls under Call Control."""

from __future__ import annotations

from gateway.carriers.call_control import Answer, CallControl, StreamOrder, connect, xml_after
from gateway.carriers.switch import Switch, SwitchTools
from gateway.carriers.telnyx.calls import TelnyxCalls
from gateway.carriers.telnyx.settings import TelnyxConfig


def _start(settings: TelnyxConfig, stream: StreamOrder) -> Answer:
    return connect(
        stream, track="inbound_track", bidirectionalMode="rtp", bidirectionalCodec=settings.codec,
        bidirectionalSamplingRate=str(settings.rate),
    )  # fmt: skip


CALL_CONTROL = CallControl(start=_start, after=xml_after, after_address=lambda settings: settings.after_url)


def switch(settings: TelnyxConfig, tools: SwitchTools) -> Switch | None:
    """Make the switch of the REST API; None if no API key is configured."""
    if settings.api_key is None:
        return None
    calls = TelnyxCalls(settings)
    return Switch(open=calls.open, aclose=calls.aclose)
