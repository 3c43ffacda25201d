"""Sliding windows and counts at once, by the numbers alone."""

from __future__ import annotations

import random

import pytest

from gateway.limits.quota import WINDOW_S, LocalQuotas, QuotaRequest, QuotaWindow


def requests(amount: int = 1, limit: int = 10, tenant: str = "shop") -> QuotaRequest:
    return QuotaRequest(tenant=tenant, what="requests", limit=limit, amount=amount)


def stream(holder: str, limit: int = 2) -> QuotaRequest:
    return QuotaRequest(tenant="shop", what="streams", limit=limit, holder=holder)


@pytest.mark.parametrize("seed", range(5))
def test_no_window_at_any_moment_holds_more_than_its_limit_and_none_is_refused_for_nothing(seed: int) -> None:
    chance, quotas, now, taken = random.Random(seed), LocalQuotas(), 0.0, list[tuple[float, int]]()
    for _ in range(3000):
        now += chance.choice((0.0, 1 / 64, 1.0, 9.0))  # sums of these are exact
        amount = chance.randint(1, 40)
        verdict = quotas.decide([requests(amount, 100)], now)
        used = sum(more for at, more in taken if at > now - WINDOW_S)
        assert (verdict.refused is None) == (used + amount <= 100)
        if verdict.refused is None:
            taken.append((now, amount))
            assert verdict.standings[0].left == 100 - used - amount
        else:
            later = now + verdict.wait_s
            assert sum(more for at, more in taken if at > later - WINDOW_S) + amount <= 100, "Retry-After is too soon"
            sooner = later - 1 / 128
            assert sum(more for at, more in taken if at > sooner - WINDOW_S) + amount > 100, "Retry-After is too late"


def test_of_asks_that_belong_together_all_are_counted_or_none() -> None:
    quotas = LocalQuotas()
    characters = QuotaRequest(tenant="shop", what="characters", limit=50, amount=51 - 1)
    assert quotas.decide([requests(9), characters], 0.0).refused is None
    assert quotas.decide([requests(1), characters], 1.0).refused == characters
    assert quotas.decide([requests(1)], 2.0).refused is None
    assert quotas.decide([requests(1, tenant="bank")], 2.0).refused is None, "another tenant's are its own"


def test_one_name_counts_once_and_a_released_one_no_longer() -> None:
    quotas = LocalQuotas()
    for name in ("a", "b", "a"):
        assert quotas.decide([stream(name)], 0.0).refused is None
    assert quotas.decide([stream("c")], 0.0).refused == stream("c") and not quotas.has_room(stream(""))
    for name in ("a", "a", "never held"):
        quotas.release(stream(name))
    assert quotas.decide([stream("c")], 0.0).refused is None


def test_a_window_tells_when_the_first_is_forgotten() -> None:
    window = QuotaWindow()
    assert window.standing("key", 2, 0.0).reset_s == 0
    window.take(1, 5.0)
    standing = window.standing("key", 2, 25.0)
    assert (standing.left, standing.reset_s) == (1, 40.0)
