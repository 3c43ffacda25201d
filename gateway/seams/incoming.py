"""An incoming call as a value. Every edge (carrier, browser, SIP, AudioSocket) makes one, and a session is created from
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from gateway.seams.leg import CallInfo
from gateway.seams.plain_text import plain, plain_fields
from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingCall:
    """An edge's description of a call. A field that the edge does not know is empty or has its usual value.

    All text is plain, whatever the edge read (``gateway.seams.plain_text``).
    """

    route: str
    transport: str
    inbound: AudioFormat
    """Format of the caller's audio."""
    call_id: str = ""
    """The gateway's id of the call, if the peer already has it; empty: the call gets a new one."""
    call_sid: str = ""
    """The carrier's id of the call."""
    account_sid: str = ""
    parent_call_sid: str = ""
    from_: str = ""
    to: str = ""
    forwarded_from: str = ""
    caller_name: str = ""
    direction: str = "inbound"
    call_type: str = "PSTN"
    """``CLIENT``, ``SIP`` or ``PSTN``, as in ConversationRelay."""
    call_status: str = "ringing"
    """State of the call in the carrier's spelling."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    joined_to: str = ""
    """Id of the call for whose caller this one was placed. Empty: this is no second leg."""
    domain: str = ""
    """Host at which numbers are users, for a SIP call; with its port if it has one."""
    greets: bool = True
    """False: the call continues another one, in which the route's greeting was spoken."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                object.__setattr__(self, each.name, plain(value))
        object.__setattr__(self, "custom_parameters", plain_fields(self.custom_parameters))

    def accepted(self, call_id: str, parameters: Mapping[str, str]) -> CallInfo:
        """Return the call under its id. The route's ``parameters`` are added unless the call has the same names; those
        with the value ``{from}``, ``{to}`` or ``{callSid}`` get the call's."""
        call_sid = self.call_sid or f"CA{call_id[2:]}"
        filled = {"{from}": self.from_, "{to}": self.to, "{callSid}": call_sid}
        return CallInfo(
            call_id=call_id,
            route=self.route,
            transport=self.transport,
            call_sid=call_sid,
            account_sid=self.account_sid,
            parent_call_sid=self.parent_call_sid,
            from_=self.from_,
            to=self.to,
            forwarded_from=self.forwarded_from,
            caller_name=self.caller_name,
            direction=self.direction,
            call_type=self.call_type,
            call_status=self.call_status.upper().replace("-", "_"),
            custom_parameters={n: filled.get(v, v) for n, v in parameters.items()} | dict(self.custom_parameters),
            domain=self.domain,
            greets=self.greets,
            joined_to=self.joined_to,
        )
