"""A call at the edge: what was told of it becomes a value, and what it leaves out is as with most calls."""

from gateway.carriers.caller import as_parameters, incoming_call, told_call_sid, without_fields
from gateway.seams.incoming import IncomingCall
from gateway.seams.media_messages import StreamStarted
from voicecodecs.registry import AudioFormat

TOLD = as_parameters(
    {
        "CallSid": "told", "From": "+4930000001", "To": "+4930000002", "ForwardedFrom": "+4930000003",
        "CallerName": "A", "Direction": "outbound-api", "CallStatus": "in-progress", "ParentCallSid": "parent",
    }
)  # fmt: skip


def test_what_the_webhook_was_told_is_read_back_and_is_no_custom_parameter() -> None:
    inbound = AudioFormat("L16", 16000)
    started = StreamStarted(
        stream_id="s", call_sid="c", account_sid="AC", inbound=inbound, custom_parameters={**TOLD, "bot": "billing"}
    )
    assert told_call_sid(started) == "told"
    assert incoming_call(started, route="sales", transport="telnyx") == IncomingCall(
        route="sales", transport="telnyx", inbound=inbound, call_sid="told", account_sid="AC", parent_call_sid="parent",
        from_="+4930000001", to="+4930000002", forwarded_from="+4930000003", caller_name="A", direction="outbound-api",
        call_status="in-progress", custom_parameters={"bot": "billing"},
    )  # fmt: skip
    assert without_fields(started.custom_parameters) == {"bot": "billing"}


def test_numbers_of_the_stream_itself_come_first() -> None:
    started = StreamStarted(stream_id="s", call_sid="c", from_="1", to="2", custom_parameters=TOLD)
    call = incoming_call(started, route="r", transport="telnyx")
    assert (call.from_, call.to) == ("1", "2")
    wanted = {"caller": "{from}", "called": "{to}", "sid": "{callSid}", "text": "{from} {other}"}
    told = call.accepted("VX00ff", wanted).custom_parameters
    assert told == {"caller": "1", "called": "2", "sid": "told", "text": "{from} {other}"}


def test_a_call_of_which_nothing_is_told_is_an_inbound_one_that_rings() -> None:
    started = StreamStarted(stream_id="s", custom_parameters={"lang": "de"})
    assert told_call_sid(started) == ""
    call = incoming_call(started, route="r", transport="twilio").accepted("VX00ff", {"lang": "en", "bot": "billing"})
    assert (call.call_sid, call.direction, call.call_type, call.call_status) == ("CA00ff", "inbound", "PSTN", "RINGING")
    assert call.custom_parameters == {"lang": "de", "bot": "billing"}
    named = StreamStarted(stream_id="s", call_sid="c", custom_parameters=as_parameters({"CallStatus": "in-progress"}))
    accepted = incoming_call(named, route="r", transport="twilio").accepted("VX00ff", {})
    assert (accepted.call_sid, accepted.call_status) == ("c", "IN_PROGRESS")
