"""Plivo's REST interface for outgoing calls. The id of a request is also the id of its call."""

from __future__ import annotations

from urllib.parse import quote

from gateway.carriers.placing import ApiRequest, CarrierOrder, Placing, basic, json_request
from gateway.carriers.plivo.settings import PlivoConfig


def _account(settings: PlivoConfig) -> str:
    return f"{settings.api_url.rstrip('/')}/v1/Account/{quote(settings.auth_id, safe='')}"


def _place(settings: PlivoConfig, order: CarrierOrder) -> ApiRequest:
    return json_request(
        f"{_account(settings)}/Call/",
        basic(settings.auth_id, settings.auth_token),
        {
            "from": order.from_,
            "to": order.to,
            "answer_url": order.answer_url,
            "answer_method": "POST",
            "ring_url": order.status_url,
            "ring_method": "POST",
            "hangup_url": order.status_url,
            "hangup_method": "POST",
        },
    )


def _hang_up(settings: PlivoConfig, call_sid: str, now: float) -> ApiRequest:
    url = f"{_account(settings)}/Request/{quote(call_sid, safe='')}/"
    return ApiRequest(method="DELETE", url=url, authorization=basic(settings.auth_id, settings.auth_token))


PLACING = Placing(needs=("auth_id", "auth_token"), place=_place, hang_up=_hang_up, sid_field="request_uuid")
