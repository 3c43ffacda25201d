"""Values of carriers' call-control webhooks and their answers, and functions shared by several carriers. HTTP requests
and responses are handled elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal
from xml.sax.saxutils import escape, quoteattr

import orjson
from pydantic import SecretStr

from gateway.carriers.settings import S

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
"""Our name of a webhook field -> the carriers' names for it."""

TWILIO_FIELDS = re.compile(r"[A-Z][\w.-]*")
"""Fields of Twilio and its relatives, which begin with a capital letter: CallSid, FromCity, StirVerstat, CallToken,
SipHeader_X. These carriers add new ones without notice."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of the answer to a webhook."""

    content_type: str
    """The value of the header, including parameters."""
    body: bytes

    def to_bytes(self) -> bytes:
        """Return the answer as bytes that ``from_bytes`` reads."""
        return self.content_type.encode() + b"\n" + self.body

    @classmethod
    def from_bytes(cls, stored: bytes) -> Answer:
        """Return the answer that was stored."""
        content_type, _, body = stored.partition(b"\n")
        return cls(content_type.decode(), body)


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """The stream that the carrier must open."""

    url: str
    after_url: str
    """The address of the webhook to call after the stream."""
    caller: Mapping[str, str]
    """Fields of the call under our names."""
    parameters: Mapping[str, str]
    """Parameters that the start of the stream must repeat."""
    proven: bool
    """True if the carrier has proven its identity. If False, the answer must not have secrets."""


@dataclass(frozen=True, slots=True)
class NextAction:
    """The action after a stream: a transfer, a conference, or, without both, the end of the call."""

    dial: str = ""
    conference: str = ""
    """Name of a conference of the carrier, which ends when one of its callers leaves."""

    @property
    def is_sip(self) -> bool:
        """True if the target is a SIP address, False if it is a number."""
        return self.dial.startswith(("sip:", "sips:"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallControl(Generic[S]):
    """One carrier's webhooks."""

    start: Callable[[S, StreamOrder], Answer]
    after: Callable[[NextAction], Answer]
    after_address: Callable[[S], str] = lambda settings: ""
    """Returns the configured ``after_url``, for carriers that support one."""
    secret: Callable[[S], SecretStr | None] = lambda settings: None
    """Returns the secret that signs our requests to ``after_url``. None: they are not signed."""
    own_fields: re.Pattern[str] = re.compile(r"")
    """Names of fields that the carrier adds to the address of a GET webhook. Other parameters belong to the configured
    address."""
    mistaken: Callable[[Mapping[str, Any]], str] = lambda body: ""
    """Returns why the JSON body of a webhook is of another product of the carrier, in a sentence that says what to set.
    Empty: it is not."""
    asks: Callable[[Mapping[str, str]], bool] = lambda form: True
    """Returns True if a request to ``…/after`` asks for the next action. Other requests only report an event."""
    caller_fields: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: CALLER_FIELDS)
    """Our name of a webhook field -> the carrier's names for it."""
    names_call: Literal["itself", "repeats", "unsure"] = "repeats"
    """The source of the webhook's call id in the start of a stream: ``itself``: the carrier names it; ``repeats``: the
    carrier repeats our parameters; ``unsure``: it may be missing."""


def xml_answer(verbs: str) -> Answer:
    """Return an answer with verbs of TwiML or a similar language."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{verbs}</Response>'
    return Answer("text/xml; charset=utf-8", body.encode())


def json_answer(value: Any) -> Answer:
    """Return an answer with a JSON body."""
    return Answer("application/json", orjson.dumps(value))


def attributes(values: Mapping[str, str]) -> str:
    """Return the attributes of an XML element, each after a space."""
    return "".join(f" {name}={quoteattr(value)}" for name, value in values.items())


def connect(stream: StreamOrder, **given: str) -> Answer:
    """Return ``<Connect><Stream>`` with these attributes, and a redirect for the time after the stream."""
    parameters = "".join(
        f"<Parameter name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in stream.parameters.items()
    )
    return xml_answer(
        f"<Connect><Stream{attributes({'url': stream.url, **given})}>{parameters}</Stream></Connect>"
        f'<Redirect method="POST">{escape(stream.after_url)}</Redirect>'
    )


def xml_after(following: NextAction, *, sip: str = "Sip") -> Answer:
    """Return the next action in TwiML. ``sip`` is the noun for SIP addresses."""
    if following.conference:
        given = attributes({"beep": "false", "endConferenceOnExit": "true"})
        return xml_answer(f"<Dial><Conference{given}>{escape(following.conference)}</Conference></Dial>")
    if following.dial:
        noun = sip if following.is_sip else "Number"
        return xml_answer(f"<Dial><{noun}>{escape(following.dial)}</{noun}></Dial>")
    return xml_answer("<Hangup/>")
