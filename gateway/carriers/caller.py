"""Fields of a call that a webhook or dialplan knows and the stream's start does not repeat. They travel as stream
parameters whose names begin with ``talkspurt.``, and are read back here, at the edge.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.seams.incoming import IncomingCall
from gateway.seams.media_messages import StreamStarted

_PREFIX = "talkspurt."


def as_parameters(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields of a call (``CallSid``, ``From`` ...) as parameters of its stream."""
    return {_PREFIX + name: value for name, value in fields.items()}


def without_fields(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the call's own parameters. For a peer that is not a carrier, only these count."""
    return {name: value for name, value in parameters.items() if not name.startswith(_PREFIX)}


def told_call_sid(started: StreamStarted) -> str:
    """Return the call's id that our webhook got. Empty: no webhook started the stream, or its start repeats nothing."""
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
        direction=told.get("Direction", "inbound"),
        call_status=told.get("CallStatus", "ringing"),
        custom_parameters=without_fields(started.custom_parameters),
    )
