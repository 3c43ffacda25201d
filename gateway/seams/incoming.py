"""An incoming call as a value: every edge (carrier, browser, SIP, AudioSocket) makes one, and hands it to where
sessions
are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.seams.leg import CallInfo
from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingCall:
    """What an edge knows of a call. A field that the edge was not told is empty, or has the value of most calls."""

    route: str
    transport: str
    inbound: AudioFormat
    """Format of the caller's audio."""
    call_id: str = ""
    """Our id of the call, if the peer was told one before; empty: the call gets a new one."""
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
    """``CLIENT``, ``SIP`` or ``PSTN``, the words of ConversationRelay."""
    call_status: str = "ringing"
    """State of the call in the carrier's spelling."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    domain: str = ""
    """Host of a SIP call, with its port where there is one, at which numbers are users."""

    def accepted(self, call_id: str, parameters: Mapping[str, str]) -> CallInfo:
        """Return the call under its id. The route's ``parameters`` are added, except names that the call itself
        brings."""
        return CallInfo(
            call_id=call_id,
            route=self.route,
            transport=self.transport,
            call_sid=self.call_sid or f"CA{call_id[2:]}",
            account_sid=self.account_sid,
            parent_call_sid=self.parent_call_sid,
            from_=self.from_,
            to=self.to,
            forwarded_from=self.forwarded_from,
            caller_name=self.caller_name,
            direction=self.direction,
            call_type=self.call_type,
            call_status=self.call_status.upper().replace("-", "_"),
            custom_parameters={**parameters, **self.custom_parameters},
            domain=self.domain,
        )
