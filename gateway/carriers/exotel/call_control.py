"""Exotel's webhook: the Voicebot applet requests the stream's address. After the stream, the flow continues by
itself."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from gateway.carriers.call_control import Answer, CallControl, StreamOrder, json_answer
from gateway.carriers.exotel.settings import ExotelConfig


def _start(settings: ExotelConfig, stream: StreamOrder) -> Answer:
    return json_answer({"url": f"{stream.url}?{urlencode({'sample-rate': settings.sample_rate})}"})


CALL_CONTROL = CallControl(
    start=_start,
    after=lambda following: json_answer({}),
    own_fields=re.compile(r"[A-Z][\w.-]*|flow_id|tenant_id|digits"),
    names_call="unsure",
)
