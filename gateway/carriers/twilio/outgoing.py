"""Twilio's REST interface for outgoing calls."""

from __future__ import annotations

from urllib.parse import quote

from gateway.carriers.placing import ApiRequest, CarrierOrder, Placing, basic, form_request, twilio_order
from gateway.carriers.twilio.settings import TwilioConfig


def _calls(settings: TwilioConfig) -> str:
    return f"{settings.api_url.rstrip('/')}/2010-04-01/Accounts/{quote(settings.account_sid, safe='')}/Calls"


def _place(settings: TwilioConfig, order: CarrierOrder) -> ApiRequest:
    return twilio_order(f"{_calls(settings)}.json", basic(settings.account_sid, settings.auth_token), order)


def _hang_up(settings: TwilioConfig, call_sid: str, now: float) -> ApiRequest:
    url = f"{_calls(settings)}/{quote(call_sid, safe='')}.json"
    return form_request(url, basic(settings.account_sid, settings.auth_token), [("Status", "completed")])


PLACING = Placing(needs=("account_sid", "auth_token"), place=_place, hang_up=_hang_up, sid_field="sid")
