"""The cause of a call's end."""

import pytest

from gateway.call.ending import CallEnd
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.leg import CallInfo


@pytest.mark.parametrize(
    ("reason", "known", "by"),
    [
        ("hangup", UNKNOWN, "caller"),
        ("hangup", EndCause(by="carrier", q850=38), "carrier"),
        ("end", UNKNOWN, "manager"),
        ("transferred", EndCause(q850=16), "manager"),
        ("hangup_by_api", UNKNOWN, "manager"),
        ("drained", UNKNOWN, "gateway"),
        ("media timeout", UNKNOWN, "gateway"),
        ("dialogue_failed", UNKNOWN, "gateway"),
    ],
)
def test_the_leg_knows_who_ended_a_call_else_the_reason_tells(reason: str, known: EndCause, by: str) -> None:
    ending = CallEnd(CallInfo(call_id="VX1", call_sid="c", route="default", transport="sip"))
    ending.end(reason, hang_up=False, cause=known)
    ending.end("end", hang_up=True)
    assert (ending.cause.by, ending.cause.q850) == (by, known.q850)
