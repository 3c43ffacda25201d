"""REFERs and the dialogs that calls replace, against RFC 3515, RFC 3891, RFC 3892 and RFC 4488."""

from __future__ import annotations

from typing import Any

import pytest

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.referral import Referral, read_referral
from sip_bridge.message.replaces import Replaces, read_replaces
from sip_bridge.message.sip import Uri
from tests.sip_bridge.sip_messages import request

PEER = Uri.parse("sip:ann@example.org")
WITHIN = "98732%40sip.example.com%3Bfrom-tag%3Dr33th4x0r%3Bto-tag%3Dff87ff"  # RFC 3891 section 7.1 names such a dialog


def read(*headers: tuple[str, str]) -> Referral:
    return read_referral(request("REFER", headers=headers), by=PEER)


@pytest.mark.parametrize(
    ("refer_to", "expected"),
    [
        ("<sip:bob@example.com>", {"target": "sip:bob@example.com"}),
        ("sip:bob@example.com", {"target": "sip:bob@example.com"}),
        ("Bob <sips:bob@example.com>", {"target": "sips:bob@example.com"}),
        ("tel:+4930123", {"target": "tel:+4930123"}),
        ("<sip:bob@example.com;method=INVITE>", {"target": "sip:bob@example.com"}),
        ("<sip:bob@10.0.0.7:5062;ob;rinstance=4f>", {"target": "sip:bob@10.0.0.7:5062;ob;rinstance=4f"}),
        (
            f"<sip:bob@example.com?Replaces={WITHIN}>",
            {"target": "sip:bob@example.com", "replaces": Replaces("98732@sip.example.com", "ff87ff", "r33th4x0r")},
        ),
        (
            f"<sip:bob@example.com?replaces={WITHIN}%3Bearly-only&Require=replaces>",
            {
                "replaces": Replaces("98732@sip.example.com", "ff87ff", "r33th4x0r", early_only=True),
                "headers": (("Require", "replaces"),),
            },
        ),
        (
            "<sip:bob@example.com?Replaces=a@b;to-tag=1;from-tag=2>",  # not escaped
            {"target": "sip:bob@example.com", "replaces": Replaces("a@b", "1", "2")},
        ),
        (
            "<sip:bob@example.com?X-Case=4711&User-to-User=7b7d%3Bencoding%3Dhex>",
            {"headers": (("X-Case", "4711"), ("User-to-User", "7b7d;encoding=hex"))},
        ),
    ],
)  # fmt: skip
def test_a_refer_names_a_target_and_the_headers_of_the_call(refer_to: str, expected: dict[str, Any]) -> None:
    found = read(("Refer-To", refer_to))
    assert {name: str(getattr(found, name)) for name in expected} == {name: str(v) for name, v in expected.items()}
    assert (found.referred_by, found.wants_reports) == ("<sip:ann@example.org>", True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 400),
        ([("Refer-To", "<sip:a@b>"), ("Refer-To", "<sip:c@d>")], 400),
        ([("Refer-To", "<sip:a@b")], 400),
        ([("Refer-To", "<http://example.com/>")], 416),
        ([("Refer-To", "<urn:service:sos>")], 416),
        ([("Refer-To", "<sip:a@b;method=BYE>")], 403),
        ([("Refer-To", "<sip:a@b;method=MESSAGE>")], 403),
        ([("Refer-To", "<sip:a@b;maddr=192.0.2.1>")], 403),
        ([("Refer-To", "<sip:a@b?Replaces=one>")], 400),
        ([("Refer-To", "<sip:a@b?Replaces=one%3Bto-tag%3Dt>")], 400),
        ([("Refer-To", "<sip:a@b?X-Case=1%0D%0AX-Forged:1>")], 400),
        ([("Refer-To", "<sip:a@b?X%20Case=1>")], 400),
        ([("Refer-To", "<sip:a@b>"), ("Referred-By", "<nonsense")], 400),
    ],
)
def test_a_refer_that_cannot_be_followed_is_refused(headers: list[tuple[str, str]], status: int) -> None:
    with pytest.raises(SipProtocolError) as refused:
        read(*headers)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("value", "wants"), [("false", False), ("FALSE;x=y", False), ("true", True), ("", True), ("no", True)]
)
def test_a_refer_may_want_no_reports(value: str, wants: bool) -> None:
    assert read(("Refer-To", "<sip:a@b>"), ("Refer-Sub", value)).wants_reports is wants


def test_the_referrer_is_named_without_the_signature_that_is_not_passed_on() -> None:
    """RFC 3892 section 2.1: ``cid`` names a body of the REFER."""
    found = read(("Refer-To", "<sip:a@b>"), ("Referred-By", '"Sales" <sip:sales@pbx.example>;cid="20398823@pbx"'))
    assert found.referred_by == "<sip:sales@pbx.example>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a@b;to-tag=1;from-tag=2", Replaces("a@b", "1", "2")),
        ("a@b ; from-tag=2 ;to-tag=1;early-only", Replaces("a@b", "1", "2", early_only=True)),
        ("4@bobster.example.org;to-tag=7743;from-tag=6472", Replaces("4@bobster.example.org", "7743", "6472")),
        ("a;to-tag=1;from-tag=0", Replaces("a", "1", "0")),
        ("a;to-tag=1;from-tag=2;x=y", Replaces("a", "1", "2")),
    ],
)  # fmt: skip
def test_replaced_dialogs(text: str, expected: Replaces) -> None:
    assert read_replaces(request(headers=(("Replaces", text),))) == expected
    assert Replaces.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("INVITE", [("Replaces", "a;to-tag=1;from-tag=2"), ("Replaces", "b;to-tag=1;from-tag=2")]),
        ("INVITE", [("Replaces", "a;to-tag=1;from-tag=2"), ("Join", "b;to-tag=1;from-tag=2")]),
        ("OPTIONS", [("Replaces", "a;to-tag=1;from-tag=2")]),
        ("INVITE", [("Replaces", "a")]),
        ("INVITE", [("Replaces", ";to-tag=1;from-tag=2")]),
        ("INVITE", [("Replaces", "a;to-tag=1")]),
        ("INVITE", [("Replaces", "a;to-tag;from-tag=2")]),
        ("INVITE", [("Replaces", "a;;")]),
    ],
)
def test_unreadable_replaced_dialogs(method: str, headers: list[tuple[str, str]]) -> None:
    with pytest.raises(SipProtocolError) as refused:
        read_replaces(request(method, headers=tuple(headers)))
    assert refused.value.status == 400
