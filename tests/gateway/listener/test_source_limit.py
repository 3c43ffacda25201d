"""The bound on requests from one source, on a virtual clock."""

import pytest

from gateway.listener.source_limit import SourceLimit, source


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


@pytest.mark.parametrize(
    ("address", "unit"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("64:ff9b::192.0.2.7", "192.0.2.7"),
        ("64:ff9b:1::192.0.2.7", "64:ff9b:1::/64"),
        ("2002:c000:207:5::9", "192.0.2.7"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdf8", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("sip.example.org", "sip.example.org"),
        ("", ""),
    ],
)
def test_the_source_of_an_address(address: str, unit: str) -> None:
    assert source(address) == unit


def test_all_addresses_of_a_network_share_one_bucket() -> None:
    limit = SourceLimit(per_s=1, burst=3, sources=10)
    assert [limit.take(f"2001:db8::{number:x}", now=0.0) for number in range(5)] == [True, True, True, False, False]
    assert limit.empty("2001:db8::ffff", now=0.0) and limit.wait_s("2001:db8::ffff", now=0.0) == 1.0
    assert limit.take("2001:db8:0:1::1", now=0.0)
