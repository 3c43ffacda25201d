"""The pool of RTP ports, over real sockets."""

import socket

import pytest

from sip_bridge.errors import PortsExhausted
from sip_bridge.io.ports import PortPool


def bound(port: int) -> socket.socket:
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("127.0.0.1", port))
    return taken


def test_pairs_are_even_and_bound_and_the_longest_free_comes_first() -> None:
    pool = PortPool("127.0.0.1", 42001, 42006)
    first, second = pool.take(), pool.take()
    assert (first.port, second.port, pool.in_use, pool.size) == (42002, 42004, 2, 2)
    assert [pair.getsockname()[1] for pair in (first.rtp, first.rtcp)] == [42002, 42003]
    second.close()
    first.close()
    first.close()
    assert pool.in_use == 0
    again = pool.take()
    assert again.port == 42004
    again.close()


def test_an_empty_pool_says_so_and_recovers() -> None:
    pool = PortPool("127.0.0.1", 42010, 42013)
    pairs = [pool.take(), pool.take()]
    with pytest.raises(PortsExhausted, match=r"42010-42013 on 127\.0\.0\.1: 2 of 2 pairs carry calls") as raised:
        pool.take()
    assert raised.value.status == 503
    pairs[0].close()
    pairs[0] = pool.take()
    assert pairs[0].port == 42010
    for pair in pairs:
        pair.close()


@pytest.mark.parametrize("taken", [42020, 42021])
def test_a_port_of_another_program_is_passed_over_and_nothing_stays_bound(taken: int) -> None:
    pool = PortPool("127.0.0.1", 42020, 42023)
    with bound(taken):
        pair = pool.take()
        assert pair.port == 42022
        with pytest.raises(PortsExhausted, match="1 of 2 pairs"):
            pool.take()
    bound(42020).close()
    bound(42021).close()
    other = pool.take()
    assert other.port == 42020
    other.close()
    pair.close()


@pytest.mark.parametrize(("low", "high"), [(42000, 42000), (42001, 42002), (0, 10), (70000, 70010), (65534, 65600)])
def test_a_range_without_a_pair_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"{low}-{high}"):
        PortPool("127.0.0.1", low, high)
