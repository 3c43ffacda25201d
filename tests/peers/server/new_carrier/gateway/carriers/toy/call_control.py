"""The toy's webhooks."""

from __future__ import annotations

from gateway.carriers.call_control import CallControl, json_answer
from gateway.carriers.toy.settings import ToyConfig

CALL_CONTROL: CallControl[ToyConfig] = CallControl(
    start=lambda settings, stream: json_answer({"stream": stream.url}),
    after=lambda following: json_answer({"dial": following.dial}),
    caller_fields={"CallSid": ("ring",), "From": ("who",)},
)
