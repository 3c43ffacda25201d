"""Vonage's webhooks, which are answered with an NCCO."""

from __future__ import annotations

import re

from gateway.carriers.call_control import Answer, CallControl, NextAction, StreamOrder, json_answer
from gateway.carriers.vonage.settings import VonageConfig


def _start(settings: VonageConfig, stream: StreamOrder) -> Answer:
    endpoint = {
        "type": "websocket",
        "uri": stream.url,
        "content-type": f"audio/l16;rate={settings.sample_rate}",
        "headers": dict(stream.parameters),
    }
    action = {"action": "connect", "eventType": "synchronous", "eventUrl": [stream.after_url], "endpoint": [endpoint]}
    if stream.caller.get("To"):
        action["from"] = stream.caller["To"]
    return json_answer([action])


def _after(following: NextAction) -> Answer:
    if following.conference:
        return json_answer([{"action": "conversation", "name": following.conference, "endOnExit": True}])
    if not following.dial:
        return json_answer([])
    endpoint = (
        {"type": "sip", "uri": following.dial}
        if following.is_sip
        else {"type": "phone", "number": following.dial.lstrip("+")}
    )
    return json_answer([{"action": "connect", "endpoint": [endpoint]}])


CALL_CONTROL = CallControl(
    start=_start,
    after=_after,
    asks=lambda form: form.get("status") == "disconnected",
    own_fields=re.compile(
        r"from|to|uuid|conversation_uuid(_from|_to)?|from_user|region_url|endpoint_type|custom_data|sip_?header_.*"
        r"|SipHeader_.*|call_uuid|direction|status|timestamp|network|rate|price|duration|start_time|end_time|detail"
    ),
)
