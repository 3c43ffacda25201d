"""What carriers' call-control webhooks say and want to hear, per dialect: TwiML to jambonz verbs.

Values in, values out: no request, no response object. ``CALL_CONTROL`` has every dialect whose carrier asks us what to
do with a call; the others start their streams by their own configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from xml.sax.saxutils import escape, quoteattr

import orjson

from gateway.carriers.signatures import (
    basic_auth,
    jambonz_signed,
    plivo_signed,
    same,
    signalwire_signed,
    telnyx_signed,
    twilio_signed,
    vonage_signed,
)
from gateway.config import CarriersConfig

CALLER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "CallSid": ("CallSid", "CallUUID", "call_sid", "uuid"),
    "From": ("From", "from", "CallFrom"),
    "To": ("To", "to", "CallTo"),
    "ForwardedFrom": ("ForwardedFrom",),
    "CallerName": ("CallerName", "caller_name"),
    "Direction": ("Direction", "direction"),
    "CallStatus": ("CallStatus", "call_status", "status"),
    "ParentCallSid": ("ParentCallSid", "parent_call_sid"),
}
"""Our name of a webhook field -> how carriers spell it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a webhook's answer."""

    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook request, as far as signatures cover it."""

    url: str
    """The public one, as configured at the carrier."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    form: Mapping[str, Sequence[str]] | None
    """Parameters of a form body; None: a GET."""
    now: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream that the carrier shall open."""

    url: str
    after_url: str
    """What to ask when it has ended."""
    caller: Mapping[str, str]
    """Fields under our names."""
    parameters: Mapping[str, str]
    """What the stream's start has to repeat."""
    proven: bool
    """The carrier has proven that it asks; secrets go to nobody else."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows a stream: a transfer, another address to ask, or (neither) the end of the call."""

    dial: str = ""
    redirect: str = ""

    @property
    def is_sip(self) -> bool:
        """The target is a SIP address, not a number."""
        return self.dial.startswith(("sip:", "sips:"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallControl:
    """One carrier's call control."""

    start: Callable[[CarriersConfig, Stream], Answer]
    after: Callable[[Next], Answer]
    signed: Callable[[CarriersConfig, Hook], bool | None] = lambda carriers, hook: None
    """None: there is nothing to check it with."""
    after_address: Callable[[CarriersConfig], str] = lambda carriers: ""
    """``after_url`` of the configuration, for carriers that can be sent elsewhere."""
    asks: Callable[[Mapping[str, str]], bool] = lambda form: True
    """Whether a request to ``…/after`` wants to know what follows; other events only want to be heard."""
    names_call: bool = True
    """The stream's start surely names the call as the webhook did: by itself, or since it repeats our parameters."""


def _xml(verbs: str) -> Answer:
    return Answer("text/xml", f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{verbs}</Response>'.encode())


def _json(value: Any) -> Answer:
    return Answer("application/json", orjson.dumps(value))


def _attributes(values: Mapping[str, str]) -> str:
    return "".join(f" {name}={quoteattr(value)}" for name, value in values.items())


# --- Twilio and its relatives ---


def _connect(stream: Stream, **attributes: str) -> Answer:
    parameters = "".join(
        f"<Parameter name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in stream.parameters.items()
    )
    return _xml(
        f"<Connect><Stream{_attributes({'url': stream.url, **attributes})}>{parameters}</Stream></Connect>"
        f'<Redirect method="POST">{escape(stream.after_url)}</Redirect>'
    )


def _xml_after(following: Next, *, sip: str = "Sip") -> Answer:
    if following.dial:
        noun = sip if following.is_sip else "Number"
        return _xml(f"<Dial><{noun}>{escape(following.dial)}</{noun}></Dial>")
    if following.redirect:
        return _xml(f'<Redirect method="POST">{escape(following.redirect)}</Redirect>')
    return _xml("<Hangup/>")


def _twilio_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    token = carriers.twilio.auth_token
    if token is None:
        return None
    given = hook.headers.get("x-twilio-signature", "")
    return twilio_signed(token.get_secret_value(), hook.url, given, hook.form, hook.body)


def _signalwire_start(carriers: CarriersConfig, stream: Stream) -> Answer:
    config = carriers.signalwire
    return _connect(stream, codec=config.codec, **({"realtime": "true"} if config.realtime else {}))


def _signalwire_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    key = carriers.signalwire.signing_key
    if key is None:
        return None
    return signalwire_signed(
        key.get_secret_value(), hook.url, hook.headers.get("x-signalwire-signature", ""), hook.form
    )


def _telnyx_start(carriers: CarriersConfig, stream: Stream) -> Answer:
    config = carriers.telnyx
    rate = {"G722": 16000, "L16": config.sample_rate}.get(config.codec, 8000)
    return _connect(
        stream, track="inbound_track", bidirectionalMode="rtp", bidirectionalCodec=config.codec,
        bidirectionalSamplingRate=str(rate),
    )  # fmt: skip


def _telnyx_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    if not carriers.telnyx.public_key:
        return None
    return telnyx_signed(
        carriers.telnyx.public_key,
        hook.headers.get("telnyx-timestamp", ""),
        hook.headers.get("telnyx-signature-ed25519", ""),
        hook.body,
        now=hook.now,
    )


# --- Plivo ---


def plivo_headers(parameters: Mapping[str, str]) -> str:
    """``extraHeaders``: letters and digits only, so other values go as ``0x`` and the hex of their UTF-8."""

    def plain(value: str) -> bool:
        return value.isascii() and value.isalnum() and not value.startswith("0x")

    return ",".join(
        "".join(filter(str.isalnum, name)) + "=" + (value if plain(value) else "0x" + value.encode().hex())
        for name, value in parameters.items()
    )


def _plivo_start(carriers: CarriersConfig, stream: Stream) -> Answer:
    attributes = {
        "bidirectional": "true",
        "keepCallAlive": "true",
        "contentType": carriers.plivo.content_type,
        "audioTrack": "inbound",
        "extraHeaders": plivo_headers(stream.parameters),
    }
    return _xml(
        f"<Stream{_attributes(attributes)}>{escape(stream.url)}</Stream>"
        f'<Redirect method="POST">{escape(stream.after_url)}</Redirect>'
    )


def _plivo_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    token = carriers.plivo.auth_token
    if token is None:
        return None
    return plivo_signed(
        token.get_secret_value(),
        hook.url,
        hook.headers.get("x-plivo-signature-v3", ""),
        hook.headers.get("x-plivo-signature-v3-nonce", ""),
        hook.form,
    )


# --- Exotel, Vonage, jambonz: JSON ---


def _exotel_start(carriers: CarriersConfig, stream: Stream) -> Answer:
    return _json({"url": f"{stream.url}?{urlencode({'sample-rate': carriers.exotel.sample_rate})}"})


def _exotel_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    key, token = carriers.exotel.api_key, carriers.exotel.api_token
    if token is None:
        return None
    expected = basic_auth(key.get_secret_value() if key else "", token.get_secret_value())
    return same(hook.headers.get("authorization", ""), expected)


def _vonage_start(carriers: CarriersConfig, stream: Stream) -> Answer:
    endpoint = {
        "type": "websocket",
        "uri": stream.url,
        "content-type": f"audio/l16;rate={carriers.vonage.sample_rate}",
        "headers": dict(stream.parameters),
    }
    action = {"action": "connect", "eventType": "synchronous", "eventUrl": [stream.after_url], "endpoint": [endpoint]}
    if stream.caller.get("To"):
        action["from"] = stream.caller["To"]
    return _json([action])


def _vonage_after(following: Next) -> Answer:
    if not following.dial:
        return _json([])
    endpoint = (
        {"type": "sip", "uri": following.dial}
        if following.is_sip
        else {"type": "phone", "number": following.dial.lstrip("+")}
    )
    return _json([{"action": "connect", "endpoint": [endpoint]}])


def _vonage_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    secret = carriers.vonage.signature_secret
    if secret is None:
        return None
    return vonage_signed(secret.get_secret_value(), hook.headers.get("authorization", ""), hook.body, now=hook.now)


def _jambonz_start(carriers: CarriersConfig, stream: Stream) -> Answer:
    rate = carriers.jambonz.sample_rate
    verb: dict[str, Any] = {
        "verb": "listen",
        "url": stream.url,
        "actionHook": stream.after_url,
        "mixType": "mono",
        "sampleRate": rate,
        "passDtmf": True,
        "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": rate},
        "metadata": dict(stream.parameters),
    }
    if carriers.jambonz.password is not None and stream.proven:
        verb["wsAuth"] = {
            "username": carriers.jambonz.username,
            "password": carriers.jambonz.password.get_secret_value(),
        }
    return _json([verb])


def _jambonz_after(following: Next) -> Answer:
    if not following.dial:
        return _json([{"verb": "hangup"}])
    target = (
        {"type": "sip", "sipUri": following.dial} if following.is_sip else {"type": "phone", "number": following.dial}
    )
    return _json([{"verb": "dial", "target": [target]}])


def _jambonz_signed(carriers: CarriersConfig, hook: Hook) -> bool | None:
    secret = carriers.jambonz.webhook_secret
    if secret is None:
        return None
    return jambonz_signed(secret.get_secret_value(), hook.headers.get("jambonz-signature", ""), hook.body, now=hook.now)


CALL_CONTROL: Mapping[str, CallControl] = {
    "twilio": CallControl(
        start=lambda carriers, stream: _connect(stream),
        after=_xml_after,
        signed=_twilio_signed,
        after_address=lambda carriers: carriers.twilio.after_url,
    ),
    "signalwire": CallControl(
        start=_signalwire_start,
        after=_xml_after,
        signed=_signalwire_signed,
        after_address=lambda carriers: carriers.signalwire.after_url,
    ),
    "telnyx": CallControl(
        start=_telnyx_start,
        after=_xml_after,
        signed=_telnyx_signed,
        after_address=lambda carriers: carriers.telnyx.after_url,
    ),
    "plivo": CallControl(
        start=_plivo_start,
        after=lambda following: _xml_after(following, sip="User"),
        signed=_plivo_signed,
        after_address=lambda carriers: carriers.plivo.after_url,
    ),
    # The applet's flow goes on by itself when the stream has ended.
    "exotel": CallControl(
        start=_exotel_start, after=lambda following: _json({}), signed=_exotel_signed, names_call=False
    ),
    "vonage": CallControl(
        start=_vonage_start,
        after=_vonage_after,
        signed=_vonage_signed,
        asks=lambda form: form.get("status") == "disconnected",
    ),
    "jambonz": CallControl(start=_jambonz_start, after=_jambonz_after, signed=_jambonz_signed),
}
"""Dialect -> its carrier's call control."""
