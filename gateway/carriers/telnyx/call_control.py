"""Telnyx's webhooks (TeXML, which is TwiML with a codec), and the switch for calls under Call Control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.carriers.call_control import TWILIO_FIELDS, Answer, CallControl, StreamOrder, connect, xml_after
from gateway.carriers.switch import Switch, SwitchTools
from gateway.carriers.telnyx.calls import TelnyxCalls
from gateway.carriers.telnyx.settings import TelnyxConfig


def _start(settings: TelnyxConfig, stream: StreamOrder) -> Answer:
    return connect(
        stream, track="inbound_track", codec=settings.inbound_codec, bidirectionalMode="rtp",
        bidirectionalCodec=settings.codec, bidirectionalSamplingRate=str(settings.rate),
    )  # fmt: skip


def _mistaken(body: Mapping[str, Any]) -> str:
    data = body.get("data")
    event = data.get("event_type") if isinstance(data, Mapping) else None
    if not isinstance(event, str):
        return ""
    return (
        f"this is the event {event[:40]!r} of a Call Control application, which takes no TeXML. Create a TeXML "
        "application for the number, or let your own program answer the call with stream_url"
    )


CALL_CONTROL = CallControl(
    start=_start,
    after=xml_after,
    after_address=lambda settings: settings.after_url,
    own_fields=TWILIO_FIELDS,
    mistaken=_mistaken,
)


def switch(settings: TelnyxConfig, tools: SwitchTools) -> Switch | None:
    """Make the switch of the REST API; None if no API key is configured."""
    if settings.api_key is None:
        return None
    calls = TelnyxCalls(settings)
    return Switch(open=calls.open, aclose=calls.aclose)
