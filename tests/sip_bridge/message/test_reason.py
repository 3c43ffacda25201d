"""Reason headers (RFC 3326), by a table."""

import pytest

from gateway.seams.end_cause import EndCause
from sip_bridge.message.reason import cause_of_answer, cause_of_request, read_reasons
from tests.sip_bridge.sip_messages import answer, request


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ([], EndCause()),
        (["Q.850;cause=16"], EndCause(q850=16)),
        (['q.850 ; Cause = 16 ; Text = "Terminated"'], EndCause(q850=16, text="Terminated")),
        (['SIP ;cause=200 ;text="Completed elsewhere"'], EndCause(sip_status=200, text="Completed elsewhere")),
        (['SIP;cause=580, Q.850;cause=47;text="a, b; c"'], EndCause(sip_status=580, q850=47, text="a, b; c")),
        (["Q.850;cause=17", "SIP;cause=486;text=Busy"], EndCause(sip_status=486, q850=17, text="Busy")),
        (["Q.850;cause=17, Q.850;cause=34"], EndCause(q850=17)),
        (["Q.850;cause=oops, Q.850;cause=34"], EndCause(q850=34)),
        ([r'Q.850;cause=41;text="say \"no\""'], EndCause(q850=41, text='say "no"')),
        (['Q.850;text="Normal";cause=16;location=LN'], EndCause(q850=16, text="Normal")),
        (["Q850;cause=19"], EndCause(q850=19)),
        (["Q.850;cause=0"], EndCause()),
        (["Q.850;cause=128"], EndCause()),
        (["Q.850;cause=-1"], EndCause()),
        (["Q.850;cause=\u0663"], EndCause()),
        (["SIP;cause=99"], EndCause()),
        (["SIP;cause=700"], EndCause()),
        (["Preemption;cause=1;text=UA"], EndCause()),
        (["Q.850"], EndCause()),
        ([";cause=16", ",,", ";", ""], EndCause()),
        (["Q.850;cause=16;text=" + "x" * 500], EndCause(q850=16, text="x" * 128)),
    ],
)
def test_reasons_are_read(values: list[str], cause: EndCause) -> None:
    assert read_reasons(values) == cause


@pytest.mark.parametrize(
    ("reason", "by"),
    [
        ("Q.850;cause=16", "caller"),
        ("Q.850;cause=31", "caller"),
        ("Q.850;cause=34", "carrier"),
        ("Q.850;cause=127", "caller"),
        ("SIP;cause=200", "caller"),
        ("SIP;cause=408", "carrier"),
        ("SIP;cause=503", "carrier"),
        ("SIP;cause=603", "caller"),
        ("SIP;cause=503, Q.850;cause=16", "caller"),
    ],
)
def test_a_network_fault_in_a_bye_names_the_carrier(reason: str, by: str) -> None:
    assert cause_of_request(request("BYE", headers=(("Reason", reason),))).by == by


@pytest.mark.parametrize(
    ("status", "by"),
    [(404, "carrier"), (480, "carrier"), (486, "caller"), (503, "carrier"), (600, "caller"), (603, "caller")],
)
def test_an_answer_says_who_refused(status: int, by: str) -> None:
    refused = answer(request("INVITE"), status, headers=(("Reason", "Q.850;cause=21"),))
    cause = cause_of_answer(refused)
    assert (cause.by, cause.sip_status, cause.q850, cause.text) == (by, status, 21, refused.reason)
