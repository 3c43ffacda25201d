"""Carries call fields from a webhook or dialplan through the stream's start, which does not repeat them itself. They
are stream parameters with names that begin with ``talkspurt.``."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.seams.incoming import IncomingCall
from gateway.seams.media_messages import StreamStarted

_PREFIX = "talkspurt."


def as_parameters(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields of a call (``CallSid``, ``From`` ...) as parameters of its stream."""
    return {_PREFIX + name: value for name, value in fields.items()}


def without_fields(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters without our own fields. From a peer that is not a carrier, our fields are ignored."""
    return {name: value for name, value in parameters.items() if not name.startswith(_PREFIX)}


def told_call_sid(started: StreamStarted) -> str:
    """Return the call id from our webhook. Empty: no webhook started the stream, or its start repeats nothing."""
    return started.custom_parameters.get(f"{_PREFIX}CallSid", "")


def incoming_call(started: StreamStarted, *, route: str, transport: str) -> IncomingCall:
    """Return the call whose stream has started."""
    told = {
        name.removeprefix(_PREFIX): value
        for name, value in started.custom_parameters.items()
        if name.startswith(_PREFIX)
    }
    return IncomingCall(
        route=route,
        transport=transport,
        inbound=started.inbound,
        call_sid=told.get("CallSid") or started.call_sid,
        account_sid=started.account_sid,
        parent_call_sid=told.get("ParentCallSid", ""),
        from_=started.from_ or told.get("From", ""),
        to=started.to or told.get("To", ""),
        forwarded_from=told.get("ForwardedFrom", ""),
        caller_name=told.get("CallerName", ""),
        direction=told.get("Direction") or started.direction or "inbound",
        call_status=told.get("CallStatus") or started.call_status or "ringing",
        custom_parameters=without_fields(started.custom_parameters),
    )
