"""Plivo's webhooks, which are answered with Plivo's own XML."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from gateway.carriers.call_control import (
    TWILIO_FIELDS,
    Answer,
    CallControl,
    NextAction,
    StreamOrder,
    attributes,
    xml_after,
    xml_answer,
)
from gateway.carriers.plivo.settings import PlivoConfig


def plivo_headers(parameters: Mapping[str, str]) -> str:
    """Write ``extraHeaders``. Plivo allows only letters and digits, so other values become ``0x`` and their UTF-8 in
    hex."""

    def plain(value: str) -> bool:
        return value.isascii() and value.isalnum() and not value.startswith("0x")

    return ",".join(
        "".join(filter(str.isalnum, name)) + "=" + (value if plain(value) else "0x" + value.encode().hex())
        for name, value in parameters.items()
    )


def _start(settings: PlivoConfig, stream: StreamOrder) -> Answer:
    given = {
        "bidirectional": "true",
        "keepCallAlive": "true",
        "contentType": settings.content_type,
        "audioTrack": "inbound",
        "extraHeaders": plivo_headers(stream.parameters),
    }
    return xml_answer(
        f"<Stream{attributes(given)}>{escape(stream.url)}</Stream>"
        f'<Redirect method="POST">{escape(stream.after_url)}</Redirect>'
    )


def _after(following: NextAction) -> Answer:
    if following.conference:
        given = attributes({"endConferenceOnExit": "true"})
        return xml_answer(f"<Conference{given}>{escape(following.conference)}</Conference>")
    return xml_after(following, sip="User")


CALL_CONTROL = CallControl(
    start=_start,
    after=_after,
    after_address=lambda settings: settings.after_url,
    secret=lambda settings: settings.auth_token,
    own_fields=TWILIO_FIELDS,
)
