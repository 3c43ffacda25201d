"""Reliable provisional responses on a virtual clock, against RFC 3262 and RFC 3311."""

from __future__ import annotations

import pytest

from sip_bridge.dialog.effects import Acknowledge, Ask, MediaAgreed, Outcome, Post, Respond
from sip_bridge.message.sip import Response
from tests.sip_bridge.dialog.test_invite import Call, called, calling, started
from tests.sip_bridge.virtual_bridge import description

REQUIRED = ("Require", "100rel")


def answers(call: Call, *statuses: int) -> list[tuple[float, Response]]:
    """Our responses to the INVITE with these statuses, each with its time."""
    return [(at, each) for at, each in call.heard(Respond, "INVITE") if each.status in statuses]


def rack(response: Response, **other: str) -> tuple[str, str]:
    return ("RAck", f"{other.get('number', response.headers.get('RSeq'))} {response.cseq}")


def test_a_caller_that_requires_it_gets_a_ringing_that_is_repeated_until_its_prack() -> None:
    """RFC 3262 section 3: the pause doubles from T1."""
    call = started(REQUIRED, trunk={"answer_at_once": False})
    (_, ringing), *_ = answers(call, 180)
    assert ringing.headers.all("Require") == ("100rel",) and ringing.headers.get("RSeq")
    call.run(until=4)
    assert [at for at, _ in answers(call, 180)] == [0, 0.5, 1.5, 3.5]
    prack = call.send("PRACK", rack(ringing))
    assert prack and prack.status == 200
    call.run(until=7.9)
    assert len(answers(call, 180)) == 4
    call.tell(call.protocol.on_ready)
    ((_, ok),) = answers(call, 200)
    assert b"m=audio" in ok.body


def test_a_ringing_without_prack_ends_with_the_answer_or_is_refused() -> None:
    call = started(REQUIRED, trunk={"answer_at_once": False}, ready_s=100)
    call.run()
    assert [(at, each.status) for at, each in answers(call, 503)] == [(32, 503)]
    call.is_over("no PRACK")
    call = started(REQUIRED)
    assert len(answers(call, 180)) == len(answers(call, 200)) == 1, "a 180 without a description holds no answer up"


@pytest.mark.parametrize("wrong", ["1 1 INVITE", "", "x y z", "{} 2 INVITE", "{} 1 BYE"])
def test_a_prack_for_something_else_is_refused(wrong: str) -> None:
    call = started(REQUIRED, trunk={"answer_at_once": False})
    (_, ringing), *_ = answers(call, 180)
    refused = call.send("PRACK", ("RAck", wrong.format(ringing.headers.get("RSeq"))))
    assert refused and refused.status in (400, 481)
    again = call.send("PRACK", rack(ringing))
    twice = call.send("PRACK", rack(ringing))
    assert again and twice and (again.status, twice.status) == (200, 481)


def test_the_answer_waits_for_the_prack_of_early_media_and_does_not_describe_it_again() -> None:
    """RFC 3262 section 3: no 2xx while a description waits."""
    call = started(REQUIRED, trunk={"early_media": True})
    (_, progress), *_ = answers(call, 183)
    assert b"m=audio" in progress.body
    call.tell(call.protocol.on_greeted)
    assert not answers(call, 200)
    call.send("PRACK", rack(progress))
    ((_, ok),) = answers(call, 200)
    assert not ok.body and "Content-Type" not in ok.headers
    call.send("ACK", cseq=1)


def test_an_update_changes_the_early_session_after_the_prack() -> None:
    """RFC 3311 section 5.2: before, an offer is still open."""
    call = started(REQUIRED, trunk={"early_media": True})
    (_, progress), *_ = answers(call, 183)
    early = call.send("UPDATE", body=description(codecs="8", port=40010))
    assert early and early.status == 500 and "Retry-After" in early.headers
    call.send("PRACK", rack(progress))
    before = len(call.heard(MediaAgreed))
    changed = call.send("UPDATE", body=description(port=40010))
    assert changed and changed.status == 200 and b"m=audio" in changed.body
    assert [each.agreed.port for _, each in call.heard(MediaAgreed)[before:]] == [40010]


def test_a_prack_may_carry_an_offer() -> None:
    call = started(REQUIRED, trunk={"early_media": True})
    (_, progress), *_ = answers(call, 183)
    changed = call.send("PRACK", rack(progress), body=description(port=40010))
    assert changed and changed.status == 200 and b"m=audio" in changed.body


def test_a_caller_that_only_supports_it_gets_plain_responses() -> None:
    call = started(("Supported", "100rel"), trunk={"answer_at_once": False})
    ((_, ringing),) = answers(call, 180)
    assert "RSeq" not in ringing.headers


def test_a_late_offer_needs_no_reliable_response() -> None:
    call, _ = called(REQUIRED, body=b"")
    assert call.tell(call.protocol.start) is None
    assert [each.status for _, each in call.heard(Respond, "INVITE")] == [200]


def test_reliable_responses_of_the_callee_are_acknowledged_once_and_in_order() -> None:
    """RFC 3262 section 4."""
    call = calling()
    invite = call.asked("INVITE")
    assert "100rel" in invite.headers.tokens("Supported")
    for tag, number in [("a", 7), ("a", 7), ("a", 9), ("a", 8), ("b", 100), ("a", 9), ("a", 9)]:
        call.answer(invite, 180, REQUIRED, ("RSeq", str(number)), tag=tag)
    pracks = [each for _, each in call.heard(Ask, "PRACK")]
    assert [(each.to.tag, each.headers.get("RAck"), each.cseq.number) for each in pracks] == [
        ("a", "7 1 INVITE", 2),
        ("a", "8 1 INVITE", 3),
        ("b", "100 1 INVITE", 2),
        ("a", "9 1 INVITE", 4),
    ]


def test_the_requests_after_the_answer_are_numbered_after_the_pracks() -> None:
    call = calling()
    invite = call.asked("INVITE")
    for tag in ("a", "b"):
        call.answer(invite, 183, REQUIRED, ("RSeq", "1"), tag=tag, body=description())
    for tag in ("a", "b"):
        call.answer(invite, 200, tag=tag)
    assert [(bye.to.tag, bye.cseq.number) for _, bye in call.heard(Post, "BYE")] == [("b", 3)]
    assert {effect.ack.cseq.number for _, effect in call.heard(Acknowledge)} == {1}
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(200)]
    call.tell(call.protocol.hang_up, "end")
    assert call.asked("BYE").cseq.number == 3


def test_a_challenged_prack_is_sent_again_with_credentials() -> None:
    call = calling()
    invite = call.asked("INVITE")
    call.answer(invite, 180, REQUIRED, ("RSeq", "1"))
    prack = call.asked("PRACK")
    call.answer(prack, 407, ("Proxy-Authenticate", 'Digest realm="far", nonce="n", qop="auth"'))
    again = call.asked("PRACK")
    assert again.headers.get("RAck") == "1 1 INVITE" and "Proxy-Authorization" in again.headers


@pytest.mark.parametrize("number", [None, "x", "-1"])
def test_a_reliable_response_without_a_number_is_ignored(number: str | None) -> None:
    call = calling()
    invite = call.asked("INVITE")
    call.answer(invite, 180, REQUIRED, *([("RSeq", number)] if number else []))
    assert not call.heard(Ask, "PRACK")
