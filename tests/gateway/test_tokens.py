"""Tokens: what is ours, fresh and meant for the purpose; everything else is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gateway.call.directory import LocalDirectory
from gateway.errors import Rejected
from gateway.tokens import GRANT, Tokens

KEY = b"an api key"
NOW = 1_700_000_000.0


def test_a_grant_says_what_it_was_made_for_until_it_expires() -> None:
    tokens = Tokens("secret", lifetime_s=60)
    grant = tokens.check_grant(tokens.grant(KEY, "read", expires=NOW + 5, route="sales", call="VX1"), now=NOW)
    assert (grant.scope, grant.route, grant.call, grant.key) == ("read", "sales", "VX1", tokens.mark(KEY))
    token = tokens.grant(KEY, "call", expires=NOW + 5)
    assert Tokens("secret", lifetime_s=1).check_grant(token, now=NOW + 5).id != grant.id
    with pytest.raises(Rejected, match="expired") as refused:
        tokens.check_grant(token, now=NOW + 6)
    assert refused.value.status == 401


def test_what_is_changed_foreign_or_meant_for_something_else_is_refused() -> None:
    tokens = Tokens("secret", lifetime_s=60)
    token = tokens.grant(KEY, "call", expires=NOW + 60, route="a")
    raw = base64.urlsafe_b64decode(token.removeprefix(GRANT))
    changed = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(len(raw))]
    wrong = [
        *(GRANT + base64.urlsafe_b64encode(data).decode() for data in (*changed, raw[:-1], raw + b"\0", b"")),
        Tokens("other", lifetime_s=60).grant(KEY, "call", expires=NOW + 60, route="a"),
        GRANT + tokens.make("twilio", "a", now=NOW),
        GRANT + "é",
    ]
    for one in wrong:
        with pytest.raises(Rejected):
            tokens.check_grant(one, now=NOW)
    with pytest.raises(Rejected):
        tokens.check(token.removeprefix(GRANT), "twilio", "a", now=NOW)


def test_a_token_does_not_let_its_key_be_guessed() -> None:
    """A token's holder knows no function of the key that could be tried offline."""
    assert Tokens("one", lifetime_s=60).mark(KEY) != Tokens("other", lifetime_s=60).mark(KEY)


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_after_a_step_of_the_clock_new_tokens_open_calls_and_old_ones_at_most_one(step_s: float) -> None:
    tokens, calls = Tokens("secret", lifetime_s=60), LocalDirectory[Any](limit=10)

    def opens(token: str, now: float) -> bool:
        try:
            calls.spend(tokens.check(token, "twilio", "default", now=now), now=now)
        except Rejected:
            return False
        return True

    before = [tokens.make("twilio", "default", now=NOW) for _ in range(2)]
    assert opens(before[0], NOW) and not opens(before[0], NOW)
    after = NOW + step_s
    fresh = tokens.make("twilio", "default", now=after)
    assert opens(fresh, after) and not opens(fresh, after)
    assert not opens(before[0], after), "it has opened a call"
    assert opens(before[1], after) == (step_s < 0)
