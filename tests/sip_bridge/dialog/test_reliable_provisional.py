"""Reliable provisional responses on a virtual clock, against RFC 3262 and RFC 3311."""

from __future__ import annotations

from typing import Any

import pytest

from sip_bridge.dialog.effects import Acknowledge, Ask, MediaAgreed, Outcome, Post, Respond
from sip_bridge.dialog.transaction import server_key
from sip_bridge.message.sip import Headers, Request, Response
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


def test_early_media_is_sent_reliably_to_a_caller_that_supports_it() -> None:
    """Without the description, the caller would not hear the greeting."""
    call = started(("Supported", "timer, 100rel"), trunk={"early_media": True})
    (_, progress), *_ = answers(call, 183)
    assert progress.headers.all("Require") == ("100rel",) and progress.body
    call.tell(call.protocol.on_greeted)
    assert not answers(call, 200)
    call.send("PRACK", rack(progress))
    assert len(answers(call, 200)) == 1


def test_a_prack_that_crosses_the_answer_is_taken_once() -> None:
    """RFC 3262 section 3: the caller has sent it before it knew of the answer."""
    call = started(REQUIRED)
    (_, ringing), *_ = answers(call, 180)
    assert len(answers(call, 200)) == 1
    late = [call.send("PRACK", rack(ringing)) for _ in range(2)]
    assert [each.status for each in late if each] == [200, 481]


def test_a_call_that_is_given_up_waits_for_no_prack() -> None:
    call = started(REQUIRED, trunk={"answer_at_once": False})
    call.tell(call.protocol.hang_up, "end")
    assert [each.status for _, each in call.heard(Respond, "INVITE")] == [180, 480]
    call.run(until=40)
    assert [each.status for _, each in call.heard(Respond, "INVITE")] == [180, 480]


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
def test_a_reliable_response_without_a_number_gets_no_prack(number: str | None) -> None:
    call = calling()
    invite = call.asked("INVITE")
    call.answer(invite, 180, REQUIRED, *([("RSeq", number)] if number else []))
    assert not call.heard(Ask, "PRACK")


# --- UPDATE of a callee before its answer ------------------------------------------------------------------------


def early(
    call: Call, method: str, *headers: tuple[str, str], tag: str = "a", number: int = 1, body: bytes = b""
) -> int:
    """A request of a callee that has not answered; the status of our answer."""
    invite = call.asked("INVITE")
    items = [
        ("Via", f"SIP/2.0/UDP 127.0.0.9:7000;branch=z9hG4bK-{method}-{tag}-{number}"),
        ("From", f"{invite.to};tag={tag}"),
        ("To", str(invite.from_)),
        ("Call-ID", invite.call_id),
        ("CSeq", f"{number} {method}"),
        ("Contact", "<sip:ann@127.0.0.9:7009>"),
        *([("Content-Type", "application/sdp")] if body else []),
        *headers,
    ]
    request = Request(method, "sip:talkspurt@127.0.0.1", Headers(items), body)
    call.tell(call.protocol.on_request, server_key(request), request)
    status: int = call.heard(Respond, method)[-1][1].status
    return status


def described(call: Call, tag: str = "a", *, reliable: bool = True, **more: Any) -> None:
    """A 183 with a description."""
    headers = [REQUIRED, ("RSeq", "1")] if reliable else []
    call.answer(call.asked("INVITE"), 183, *headers, tag=tag, body=description(**more))


@pytest.mark.parametrize(
    ("reliable", "method", "body", "number", "status"),
    [
        (True, "UPDATE", description(port=40010), 1, 200),
        (True, "UPDATE", b"", 1, 200),
        (False, "UPDATE", b"", 1, 200),
        (False, "UPDATE", description(port=40010), 1, 491),  # our own offer has no answer yet
        (True, "UPDATE", description(codecs="18"), 1, 488),
        (True, "UPDATE", b"v=1", 1, 400),
        (True, "OPTIONS", b"", 1, 200),
        (True, "BYE", b"", 1, 481),
        (True, "REFER", b"", 1, 481),
        (False, "INVITE", description(), 1, 491),
    ],
)
def test_requests_of_a_callee_before_its_answer(
    reliable: bool, method: str, body: bytes, number: int, status: int
) -> None:
    """RFC 3311 section 5.2."""
    call = calling()
    described(call, reliable=reliable)
    assert early(call, method, body=body, number=number) == status


def test_an_update_that_comes_late_is_refused() -> None:
    call = calling()
    described(call)
    assert early(call, "UPDATE", number=7) == 200
    assert early(call, "UPDATE", body=description(), number=5) == 500


@pytest.mark.parametrize("repeats", [False, True])
def test_media_follows_the_update_of_a_callee_and_stays_there_after_the_answer(repeats: bool) -> None:
    """RFC 6337 section 3.1: the 2xx may repeat the first description, which is not an answer then."""
    call = calling()
    described(call)
    early(call, "UPDATE", body=description(codecs="8 101", port=40010))
    last = call.heard(MediaAgreed)[-1][1].agreed
    assert (last.port, last.codec.name) == (40010, "PCMA")
    call.answer(call.asked("INVITE"), 200, tag="a", body=description() if repeats else b"")
    last = call.heard(MediaAgreed)[-1][1].agreed
    assert (last.port, last.codec.name) == (40010, "PCMA")
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(200)]
    reinvite = call.send("INVITE", body=description(port=40020), cseq=9)
    assert reinvite and reinvite.status == 200 and call.heard(MediaAgreed)[-1][1].agreed.port == 40020


@pytest.mark.parametrize(("answers", "port"), [("a", 40010), ("b", 40110)])
def test_the_latest_fork_is_heard_and_moves_the_media_and_the_one_that_answers_counts(answers: str, port: int) -> None:
    call = calling()
    described(call, "a")
    described(call, "b", port=40100)
    assert early(call, "UPDATE", tag="a", body=description(port=40010)) == 200
    assert [each.agreed.port for _, each in call.heard(MediaAgreed)] == [40000, 40100]
    assert early(call, "UPDATE", tag="b", body=description(port=40110)) == 200
    assert call.heard(MediaAgreed)[-1][1].agreed.port == 40110
    call.answer(call.asked("INVITE"), 200, tag=answers)
    assert call.heard(MediaAgreed)[-1][1].agreed.port == port


def test_a_fork_that_repeats_itself_is_not_heard_again_and_one_without_a_codec_never() -> None:
    call = calling()
    for tag, port, codecs in (("a", 40000, "0"), ("b", 40100, "0"), ("a", 40000, "0"), ("c", 40200, "18")):
        described(call, tag, reliable=False, port=port, codecs=codecs)
    assert [each.agreed.port for _, each in call.heard(MediaAgreed)] == [40000, 40100]


def test_the_numbers_of_a_callee_count_on_after_its_answer() -> None:
    call = calling()
    described(call)
    early(call, "UPDATE", number=7)
    call.answer(call.asked("INVITE"), 200, tag="a")
    refused = call.send("INFO", cseq=6)
    assert refused and refused.status == 500
