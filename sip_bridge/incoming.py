"""Converts a SIP call to the gateway's description of a call."""

from __future__ import annotations

from gateway.seams.incoming import IncomingCall
from sip_bridge.call import SipCall


def incoming_call(call: SipCall) -> IncomingCall:
    """Return the gateway's description of an inbound or outbound call."""
    caller = call.caller
    return IncomingCall(
        route=call.route,
        transport="sip",
        inbound=call.inbound,
        call_id=call.session_id,
        call_sid=call.call_sid,
        account_sid=call.trunk_name,
        parent_call_sid=call.parent_call_sid,
        from_=caller.from_,
        to=caller.to,
        forwarded_from=caller.forwarded_from,
        caller_name=caller.name,
        direction=call.direction,
        call_type="SIP",
        call_status="in-progress" if call.direction == "outbound" else "ringing",
        custom_parameters=caller.parameters,
        domain=call.domain,
        greets=not (call.parent_call_sid or call.joined_to),
        joined_to=call.joined_to,
    )
