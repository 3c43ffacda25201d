"""Signatures, tokens, keys, ids: who gets in."""

import pytest

from gateway.call.directory import LocalDirectory
from gateway.carriers.carrier import token_in
from gateway.carriers.signatures import twilio_signature
from gateway.carriers.twilio.proof import twilio_signed
from gateway.errors import Rejected
from gateway.tokens import Tokens


def test_twilio_signature_signs_url_and_sorted_form() -> None:
    import base64
    import hashlib
    import hmac

    expected = base64.b64encode(hmac.new(b"secret", b"https://h.example/vA1B2", hashlib.sha1).digest()).decode()
    assert twilio_signature("secret", "https://h.example/v", {"B": ["2"], "A": ["1"]}) == expected


@pytest.mark.parametrize("signed", ["https://h.example/v", "https://h.example:443/v"])
def test_either_spelling_of_the_default_port_is_good(signed: str) -> None:
    signature = twilio_signature("secret", signed, {"A": ["1"]})
    assert twilio_signed("secret", "https://h.example/v", signature, {"A": ["1"]})
    assert not twilio_signed("secret", "https://h.example/v", signature, {"A": ["2"]})
    assert not twilio_signed("other", "https://h.example/v", signature, {"A": ["1"]})


def test_a_json_body_is_signed_by_its_digest() -> None:
    import hashlib

    body = b'{"a":1}'
    url = f"https://h.example/v?bodySHA256={hashlib.sha256(body).hexdigest()}"
    signature = twilio_signature("secret", url)
    assert twilio_signed("secret", url, signature, None, body)
    assert not twilio_signed("secret", url, signature, None, b'{"a":2}')


def test_a_digest_that_is_no_hexadecimal_is_a_wrong_one() -> None:
    url = "https://h.example/v?bodySHA256=%C3%A9"
    assert not twilio_signed("secret", url, twilio_signature("secret", url), None, b"{}")


def test_upgrades_tolerate_a_trailing_slash() -> None:
    signature = twilio_signature("secret", "wss://h.example/media/twilio/")
    assert twilio_signed("secret", "wss://h.example/media/twilio", signature)


def test_stream_tokens_open_one_route_for_a_while() -> None:
    tokens = Tokens(None, lifetime_s=60)
    token = tokens.make("twilio", "sales", now=1000.0)
    tokens.check(token, "twilio", "sales", now=1059.0)
    for bad in (
        lambda: tokens.check(token, "twilio", "sales", now=1061.0),
        lambda: tokens.check(token, "twilio", "other", now=1001.0),
        lambda: tokens.check("", "twilio", "sales", now=1001.0),
        lambda: tokens.check("é" * 32, "twilio", "sales", now=1001.0),
        lambda: Tokens(None, lifetime_s=60).check(token, "twilio", "sales", now=1001.0),
    ):
        with pytest.raises(Rejected):
            bad()


def test_a_token_with_any_character_changed_is_not_ours() -> None:
    tokens = Tokens("shared", lifetime_s=60)
    token = tokens.make("twilio", "sales", now=1000.0)
    for at, character in enumerate(token):
        for other in "AB":
            if other != character:
                with pytest.raises(Rejected):
                    tokens.check(token[:at] + other + token[at + 1 :], "twilio", "sales", now=1001.0)


def test_workers_with_one_secret_accept_each_others_tokens() -> None:
    token = Tokens("shared", lifetime_s=60).make("twilio", "r", now=0.0)
    Tokens("shared", lifetime_s=60).check(token, "twilio", "r", now=1.0)


def test_a_token_of_a_call_opens_no_other() -> None:
    tokens = Tokens(None, lifetime_s=60)
    of_a_call = tokens.check(tokens.make("twilio", "r", now=0.0, call="CA1"), "twilio", "r", now=1.0)
    of_a_call.check_call("CA1")
    for other in ("CA2", ""):
        with pytest.raises(Rejected, match="another call"):
            of_a_call.check_call(other)
    tokens.check(tokens.make("exotel", "r", now=0.0), "exotel", "r", now=1.0).check_call("any")


def test_a_token_is_spent_by_one_call_and_remembered_at_least_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.call.directory.SPENT", 1)
    tokens, calls = Tokens(None, lifetime_s=60), LocalDirectory[Call](limit=1)
    first, second = (tokens.check(tokens.make("twilio", "r", now=0.0), "twilio", "r", now=0.0) for _ in range(2))
    calls.spend(first, now=1.0)
    calls.check_unspent(second)
    for again in (lambda: calls.check_unspent(first), lambda: calls.spend(first, now=60.0)):
        with pytest.raises(Rejected) as refused:
            again()
        assert (refused.value.status, refused.value.code) == (403, "spent_token")
    calls.spend(second, now=60.0)
    assert len(calls._spent) == 2, "more than wanted, since both are still good"
    third = tokens.check(tokens.make("twilio", "r", now=61.0), "twilio", "r", now=61.0)
    calls.spend(third, now=61.0)
    assert not calls.is_spent(first.id) and calls.is_spent(third.id) and len(calls._spent) == 1


class Call:
    def __init__(self, call_id: str) -> None:
        self.call_id = call_id


def test_two_directories_know_whose_call_it_is() -> None:
    first, second = LocalDirectory[Call](limit=2, worker=0), LocalDirectory[Call](limit=2, worker=7)
    mine, other = first.new_call_id(), second.new_call_id()
    assert len(mine) == len(other) == 34 and mine.startswith("VX")
    assert (first.owner(mine), first.owner(other), second.owner(mine)) == (0, 7, 0)
    second.add(Call(other))
    assert second.get(other) is not None and first.get(other) is None
    with pytest.raises(ValueError):
        first.owner("CA123")


def test_a_full_or_draining_directory_refuses_with_503() -> None:
    calls = LocalDirectory[Call](limit=1)
    calls.add(Call("VX1"))
    with pytest.raises(Rejected, match=r"limits\.calls is 1") as full:
        calls.add(Call("VX2"))
    assert full.value.status == 503
    calls.draining = True
    with pytest.raises(Rejected, match="draining"):
        calls.check_room()


@pytest.mark.parametrize(
    ("target", "token"),
    [
        ("/media/exotel/default/abc", "abc"),
        ("/media/exotel/default?token=abc", "abc"),
        ("/media/exotel/default?a=1&token=abc&b=2", "abc"),
        ("/media/exotel/default?%74oken=abc", "abc"),
        ("/media/exotel/default?ticket_token=7", ""),
        ("/media/exotel/default?note=token=7", ""),
        ("/media/exotel/default?ticket_token=7&token=abc", "abc"),
        ("/media/exotel/default", ""),
    ],
)
def test_only_a_parameter_of_the_name_token_is_our_token(target: str, token: str) -> None:
    assert token_in(target) == token
