"""A call that has come, from whatever edge (carrier, browser, SIP, AudioSocket) to where calls are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.seams.leg import CallInfo
from voicecodecs.registry import AudioFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingCall:
    """What an edge knows of a call. What it was not told is empty, or as it is with most calls."""

    route: str
    transport: str
    inbound: AudioFormat
    """What the caller's audio comes in."""
    call_id: str = ""
    """Ours, where the peer was told one before."""
    call_sid: str = ""
    """The carrier's."""
    account_sid: str = ""
    parent_call_sid: str = ""
    from_: str = ""
    to: str = ""
    forwarded_from: str = ""
    caller_name: str = ""
    direction: str = "inbound"
    call_type: str = "PSTN"
    """``CLIENT``, ``SIP`` or ``PSTN``, as ConversationRelay has it."""
    call_status: str = "ringing"
    """In the carrier's spelling."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)

    def accepted(self, call_id: str, parameters: Mapping[str, str]) -> CallInfo:
        """The call under its id; ``parameters`` of its route count where it brings none of these names."""
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
        )
