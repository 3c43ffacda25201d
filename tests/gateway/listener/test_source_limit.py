"""The bound on requests from one source, on a virtual clock."""

import pytest

from gateway.listener.source_limit import SourceLimit


def test_source_limits_on_a_virtual_clock() -> None:
    limit = SourceLimit(per_s=2, burst=3, sources=2)
    assert [limit.take("a", now=0.0) for _ in range(4)] == [True] * 3 + [False]
    assert [limit.take("a", now=0.5) for _ in range(2)] == [True, False]
    assert limit.take("b", now=0.5) and limit.take("c", now=0.5)
    assert limit.take("a", now=0.5)  # forgotten: the bucket is new


def test_the_wait_is_until_there_is_one_again() -> None:
    limit = SourceLimit(per_s=0.1, burst=1, sources=2)
    assert limit.wait_s("a", now=0.0) == 0.0 and limit.take("a", now=0.0)
    assert limit.wait_s("a", now=4.0) == pytest.approx(6.0)
    assert limit.empty("a", now=4.0) and not limit.empty("a", now=10.1)


def test_what_costs_more_takes_more_or_nothing() -> None:
    limit = SourceLimit(per_s=1, burst=5, sources=10)
    assert limit.take("a", now=0.0, cost=4)
    assert not limit.take("a", now=0.0, cost=2)
    assert limit.take("a", now=0.0)
