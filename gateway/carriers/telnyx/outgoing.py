"""Telnyx's REST interface for outgoing calls of a TeXML application. Its call id is also the ``call_control_id``, by
which Call Control ends the call."""

from __future__ import annotations

from urllib.parse import quote

from gateway.carriers.placing import ApiRequest, CarrierOrder, Placing, json_request, text_of
from gateway.carriers.telnyx.settings import TelnyxConfig


def _bearer(settings: TelnyxConfig) -> str:
    return f"Bearer {text_of(settings.api_key)}"


def _place(settings: TelnyxConfig, order: CarrierOrder) -> ApiRequest:
    return json_request(
        f"{settings.api_url.rstrip('/')}/texml/calls/{quote(settings.application_id, safe='')}",
        _bearer(settings),
        {
            "To": order.to,
            "From": order.from_,
            "Url": order.answer_url,
            "Method": "POST",
            "StatusCallback": order.status_url,
            "StatusCallbackEvent": "initiated ringing answered completed",
            "StatusCallbackMethod": "POST",
        },
    )


def _hang_up(settings: TelnyxConfig, call_sid: str, now: float) -> ApiRequest:
    url = f"{settings.api_url.rstrip('/')}/calls/{quote(call_sid, safe=':')}/actions/hangup"
    return json_request(url, _bearer(settings), {})


PLACING = Placing(needs=("application_id", "api_key"), place=_place, hang_up=_hang_up, sid_field="call_sid")
