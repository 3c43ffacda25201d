"""The values of carriers' call-control webhooks and of our answers, and functions that several carriers share. There is
no request and no response object here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal
from xml.sax.saxutils import escape, quoteattr

import orjson

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
"""Our name of a webhook field -> the carriers' names of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a webhook's answer."""

    content_type: str
    """With its parameters, as the header says it."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream that the carrier shall open."""

    url: str
    after_url: str
    """The address to ask when the stream has ended."""
    caller: Mapping[str, str]
    """Fields under our names."""
    parameters: Mapping[str, str]
    """Parameters that the stream's start has to repeat."""
    proven: bool
    """Has the carrier proven that it asks? Otherwise the answer has no secrets."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows a stream: a transfer, another address to ask, or, without both, the end of the call."""

    dial: str = ""
    redirect: str = ""

    @property
    def is_sip(self) -> bool:
        """Is the target a SIP address and not a number?"""
        return self.dial.startswith(("sip:", "sips:"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallControl(Generic[S]):
    """One carrier's webhooks."""

    start: Callable[[S, Stream], Answer]
    after: Callable[[Next], Answer]
    after_address: Callable[[S], str] = lambda settings: ""
    """Returns ``after_url`` of the configuration, for carriers that can be sent elsewhere."""
    asks: Callable[[Mapping[str, str]], bool] = lambda form: True
    """Does a request to ``…/after`` ask what follows? Other requests only report an event."""
    caller_fields: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: CALLER_FIELDS)
    """Our name of a webhook field -> the carrier's names of it."""
    names_call: Literal["itself", "repeats", "unsure"] = "repeats"
    """How a stream's start has the same call id as the webhook: from the carrier itself, because it repeats our
    parameters, or perhaps not at all."""


def xml_answer(verbs: str) -> Answer:
    """Return an answer with verbs of TwiML or a relative of it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{verbs}</Response>'
    return Answer("text/xml; charset=utf-8", body.encode())


def json_answer(value: Any) -> Answer:
    """Return an answer with a JSON body."""
    return Answer("application/json", orjson.dumps(value))


def attributes(values: Mapping[str, str]) -> str:
    """Return the attributes of an XML element, each with a blank in front."""
    return "".join(f" {name}={quoteattr(value)}" for name, value in values.items())


def connect(stream: Stream, **given: str) -> Answer:
    """Return ``<Connect><Stream>`` with these attributes, and the redirect to what follows."""
    parameters = "".join(
        f"<Parameter name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in stream.parameters.items()
    )
    return xml_answer(
        f"<Connect><Stream{attributes({'url': stream.url, **given})}>{parameters}</Stream></Connect>"
        f'<Redirect method="POST">{escape(stream.after_url)}</Redirect>'
    )


def xml_after(following: Next, *, sip: str = "Sip") -> Answer:
    """Return what follows, in TwiML. ``sip`` is the noun for SIP addresses."""
    if following.dial:
        noun = sip if following.is_sip else "Number"
        return xml_answer(f"<Dial><{noun}>{escape(following.dial)}</{noun}></Dial>")
    if following.redirect:
        return xml_answer(f'<Redirect method="POST">{escape(following.redirect)}</Redirect>')
    return xml_answer("<Hangup/>")
