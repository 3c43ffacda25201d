"""The callers that trunks admit."""

import ipaddress
import itertools

import pytest

from gateway.listener.source_limit import SourceLimit
from sip_bridge.dialog.dialog import Refusal
from sip_bridge.message.digest import ClientAuth, ServerAuth
from sip_bridge.message.sip import Request
from sip_bridge.trunks import SourceStanding, Trunk, Trunks
from tests.sip_bridge.sip_messages import request

CNONCES = itertools.count()
AUTH = ServerAuth("talkspurt", b"0123456789abcdef", nonce_lifetime_s=60)
OFFICE = Trunk(name="office", networks=(ipaddress.ip_network("192.0.2.0/24"),), route="sales")
PHONE = Trunk(name="phone", username="ann", password="secret")
CARRIER = Trunk(name="carrier", certificate_names=frozenset({"sip.carrier.example"}))


def trunks(*those: Trunk, calls: int = 100, failures: int = 3) -> Trunks:
    return Trunks(
        those,
        AUTH,
        calls=SourceLimit(per_s=1, burst=calls, sources=10),
        failures=SourceLimit(per_s=0.1, burst=failures, sources=10),
    )


def judge(
    judges: Trunks, message: Request | None = None, host: str = "198.51.100.7", now: float = 0.0, **more: object
) -> Trunk | Refusal | None:
    return judges.admit(message or request(), host, now=now, wall=1000.0 + now, **more)  # type: ignore[arg-type]


def with_credentials(refusal: object, password: str = "secret", username: str = "ann") -> Request:
    assert isinstance(refusal, Refusal)
    answer = ClientAuth(username, password).answer(
        [value for _, value in refusal.headers], method="INVITE", uri=request().uri, cnonce=str(next(CNONCES))
    )
    assert answer
    return request(headers=(("Authorization", answer),))


def test_a_source_address_is_enough_and_a_stranger_gets_no_answer() -> None:
    judges = trunks(OFFICE)
    assert judge(judges, host="192.0.2.4") is OFFICE
    assert judge(judges, host="::ffff:192.0.2.4") is OFFICE
    assert judge(judges, host="192.0.3.4") is None
    assert judge(judges, host="fe80::1%eth0") is None
    assert judge(trunks()) is None


def test_what_a_source_is_before_its_message_counts() -> None:
    assert trunks(OFFICE).standing("::ffff:192.0.2.4") is SourceStanding.KNOWN
    assert trunks(OFFICE).standing("198.51.100.7") is SourceStanding.STRANGER
    assert trunks(OFFICE, PHONE).standing("198.51.100.7") is SourceStanding.UNPROVEN
    assert trunks(PHONE).standing("192.0.2.4") is SourceStanding.UNPROVEN
    assert trunks(CARRIER).standing("192.0.2.4", ["SIP.carrier.example"]) is SourceStanding.KNOWN
    assert trunks(CARRIER).standing("192.0.2.4") is SourceStanding.STRANGER


def test_a_password_is_asked_for_and_checked() -> None:
    judges = trunks(PHONE)
    challenge = judge(judges)
    assert isinstance(challenge, Refusal) and challenge.status == 401
    assert [value.partition("algorithm=")[2] for _, value in challenge.headers] == ["SHA-256", "MD5"]
    assert judge(judges, with_credentials(challenge)) is PHONE


def test_an_old_nonce_is_told_apart_from_a_wrong_password() -> None:
    judges = trunks(PHONE)
    answer = with_credentials(judge(judges))
    stale = judge(judges, answer, now=61)
    assert isinstance(stale, Refusal) and stale.status == 401 and "stale=true" in stale.headers[0][1]
    assert judge(judges, with_credentials(stale), now=61) is PHONE
    wrong = judge(judges, with_credentials(stale, "other"), now=61)
    assert isinstance(wrong, Refusal) and wrong.status == 401 and "stale" not in wrong.headers[0][1]


def test_guessing_ends_and_then_a_right_password_waits_too() -> None:
    judges = trunks(PHONE, failures=3)
    challenge = judge(judges)
    answers = [judge(judges, with_credentials(challenge, f"guess{n}")) for n in range(4)]
    assert [answer.status for answer in answers if isinstance(answer, Refusal)] == [401, 401, 401, 403]
    right = with_credentials(challenge)
    assert judge(judges, right) == Refusal(403)
    assert judge(judges, right, host="198.51.100.8") is PHONE
    assert judge(judges, with_credentials(challenge), now=11) is PHONE


def test_an_unknown_user_is_answered_like_a_wrong_password() -> None:
    judges = trunks(PHONE)
    challenge = judge(judges)
    assert judge(judges, with_credentials(challenge, username="bob")) == judge(
        judges, with_credentials(challenge, "other")
    )


def test_a_certificate_name_is_enough() -> None:
    judges = trunks(CARRIER)
    assert judge(judges, certificate_names=["SIP.carrier.example", "other"]) is CARRIER
    assert judge(judges, certificate_names=["carrier.example"]) is None
    assert judge(judges) is None


def test_everything_that_a_trunk_gives_must_hold() -> None:
    both = Trunk(name="both", networks=OFFICE.networks, username="ann", password="secret")
    judges = trunks(both)
    assert judge(judges) is None
    challenge = judge(judges, host="192.0.2.4")
    assert judge(judges, with_credentials(challenge)) is None
    assert judge(judges, with_credentials(challenge), host="192.0.2.4") is both


def test_a_trunk_without_a_password_comes_first() -> None:
    judges = trunks(PHONE, OFFICE)
    assert judge(judges, host="192.0.2.4") is OFFICE
    challenge = judge(judges)
    assert judge(judges, with_credentials(challenge)) is PHONE


def test_calls_of_one_source_are_limited_and_only_of_that_one() -> None:
    judges = trunks(Trunk(name="all"), calls=2)
    answers = [judge(judges) for _ in range(3)]
    assert answers[2] == Refusal(503, (("Retry-After", "5"),))
    assert isinstance(judge(judges, host="198.51.100.8"), Trunk)
    assert isinstance(judge(judges, now=1), Trunk)


def test_unreadable_credentials_are_a_bad_request() -> None:
    assert judge(trunks(PHONE), request(headers=(("Authorization", 'Digest realm="talkspurt", x'),))) == Refusal(400)


def test_a_user_needs_a_password_which_is_not_shown() -> None:
    with pytest.raises(ValueError, match="phone"):
        Trunk(name="phone", username="ann")
    assert "secret" not in repr(PHONE)


def test_wrong_passwords_from_many_addresses_of_one_network_are_those_of_one_source() -> None:
    judges = trunks(PHONE, failures=3)
    for number in range(3):
        challenge = judge(judges, host=f"2001:db8::{number}")
        judge(judges, with_credentials(challenge, password="guess"), host=f"2001:db8::{number}")
    challenge = judge(trunks(PHONE), host="2001:db8::9")
    assert judge(judges, with_credentials(challenge), host="2001:db8::9") is not PHONE, "its credentials are not read"
    assert judge(judges, with_credentials(challenge), host="2001:db8:0:1::9") is PHONE
