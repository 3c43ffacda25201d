"""SignalWire's REST interface for outgoing calls, which is Twilio's on the host of the space."""

from __future__ import annotations

from urllib.parse import quote

from gateway.carriers.placing import ApiRequest, CarrierOrder, Placing, basic, form_request, twilio_order
from gateway.carriers.signalwire.settings import SignalWireConfig


def _calls(settings: SignalWireConfig) -> str:
    project = quote(settings.project_id, safe="")
    return f"{settings.api_url.rstrip('/')}/api/laml/2010-04-01/Accounts/{project}/Calls"


def _place(settings: SignalWireConfig, order: CarrierOrder) -> ApiRequest:
    return twilio_order(f"{_calls(settings)}.json", basic(settings.project_id, settings.api_token), order)


def _hang_up(settings: SignalWireConfig, call_sid: str, now: float) -> ApiRequest:
    url = f"{_calls(settings)}/{quote(call_sid, safe='')}.json"
    return form_request(url, basic(settings.project_id, settings.api_token), [("Status", "completed")])


PLACING = Placing(needs=("api_url", "project_id", "api_token"), place=_place, hang_up=_hang_up, sid_field="sid")
