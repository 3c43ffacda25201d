"""Exotel's webhooks: the Voicebot applet asks where to stream. Its flow goes on by itself when the stream has ended."""

from __future__ import annotations

from urllib.parse import urlencode

from gateway.carriers.call_control import Answer, CallControl, Stream, json_answer
from gateway.carriers.exotel.settings import ExotelConfig


def _start(settings: ExotelConfig, stream: Stream) -> Answer:
    return json_answer({"url": f"{stream.url}?{urlencode({'sample-rate': settings.sample_rate})}"})


CALL_CONTROL = CallControl(start=_start, after=lambda following: json_answer({}), names_call="unsure")
