"""Vonage's REST interface for outgoing calls. Each request carries a JWT, signed with the application's key."""

from __future__ import annotations

from urllib.parse import quote
from uuid import uuid4

import jwt

from gateway.carriers.placing import ApiRequest, CarrierOrder, Placing, json_request, text_of
from gateway.carriers.vonage.settings import VonageConfig

_TOKEN_S = 900
"""Life of a token, seconds, as in the vendor's SDK."""


def _bearer(settings: VonageConfig, now: float) -> str:
    claims = {
        "application_id": settings.application_id,
        "iat": int(now),
        "jti": str(uuid4()),
        "exp": int(now) + _TOKEN_S,
    }
    return "Bearer " + jwt.encode(claims, text_of(settings.private_key), algorithm="RS256")


def _phone(number: str) -> dict[str, str]:
    return {"type": "phone", "number": number.removeprefix("+")}


def _place(settings: VonageConfig, order: CarrierOrder) -> ApiRequest:
    return json_request(
        f"{settings.api_url.rstrip('/')}/v1/calls",
        _bearer(settings, order.now),
        {
            "to": [_phone(order.to)],
            "from": _phone(order.from_),
            "answer_url": [order.answer_url],
            "answer_method": "POST",
            "event_url": [order.status_url],
            "event_method": "POST",
        },
    )


def _hang_up(settings: VonageConfig, call_sid: str, now: float) -> ApiRequest:
    url = f"{settings.api_url.rstrip('/')}/v1/calls/{quote(call_sid, safe='')}"
    return json_request(url, _bearer(settings, now), {"action": "hangup"}, method="PUT")


PLACING = Placing(needs=("application_id", "private_key"), place=_place, hang_up=_hang_up, sid_field="uuid")
