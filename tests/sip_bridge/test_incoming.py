"""A SIP call at the gateway's edge."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.seams.incoming import IncomingCall
from sip_bridge.incoming import incoming_call
from sip_bridge.message.parameters import SipCaller
from voicecodecs.registry import AudioFormat


@pytest.mark.parametrize(("direction", "status"), [("inbound", "ringing"), ("outbound", "in-progress")])
def test_who_calls_whom_goes_over_as_it_is_whatever_a_header_says(direction: str, status: str) -> None:
    # A header of that name is the caller's own word: it says nothing of the call.
    headers = {"bot": "billing", "talkspurt.From": "+4930000009"}
    call: Any = SimpleNamespace(
        route="sales", inbound=AudioFormat("PCMA"), session_id="VX1", call_sid="sid", trunk_name="pbx",
        direction=direction, domain="pbx.example", parent_call_sid="parent", joined_to="",
        caller=SipCaller("1", "2", forwarded_from="3", name="A", parameters=headers),
    )  # fmt: skip
    assert incoming_call(call) == IncomingCall(
        route="sales", transport="sip", inbound=AudioFormat("PCMA"), call_id="VX1", call_sid="sid", account_sid="pbx",
        parent_call_sid="parent", greets=False,
        from_="1", to="2", forwarded_from="3", caller_name="A", direction=direction, call_type="SIP",
        call_status=status, custom_parameters=headers, domain="pbx.example",
    )  # fmt: skip
