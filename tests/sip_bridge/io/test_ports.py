"""The pool of RTP ports, over real sockets."""

import socket

import pytest

from sip_bridge.errors import PortsExhausted
from sip_bridge.io.ports import PortPool
from tests.no_room import no_file_free
from tests.peers.ports import free_port

LOW = free_port(24)
"""Ports that the bridges of other tests, which run at the same time, do not take."""


def bound(port: int) -> socket.socket:
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("127.0.0.1", port))
    return taken


def test_pairs_are_even_and_bound_and_the_longest_free_comes_first() -> None:
    pool = PortPool("127.0.0.1", LOW + 1, LOW + 6)
    first, second = pool.take(), pool.take()
    assert (first.port, second.port, pool.in_use, pool.size) == (LOW + 2, LOW + 4, 2, 2)
    assert [pair.getsockname()[1] for pair in (first.rtp, first.rtcp)] == [LOW + 2, LOW + 3]
    second.close()
    first.close()
    first.close()
    assert pool.in_use == 0
    again = pool.take()
    assert again.port == LOW + 4
    again.close()


def test_an_empty_pool_says_so_and_recovers() -> None:
    pool = PortPool("127.0.0.1", LOW + 10, LOW + 13)
    pairs = [pool.take(), pool.take()]
    with pytest.raises(
        PortsExhausted, match=rf"{LOW + 10}-{LOW + 13} on 127\.0\.0\.1: 2 of 2 pairs carry calls"
    ) as raised:
        pool.take()
    assert raised.value.status == 503
    pairs[0].close()
    pairs[0] = pool.take()
    assert pairs[0].port == LOW + 10
    for pair in pairs:
        pair.close()


@pytest.mark.parametrize("taken", [LOW + 20, LOW + 21], ids=["RTP", "RTCP"])
def test_a_port_of_another_program_is_passed_over_and_nothing_stays_bound(taken: int) -> None:
    pool = PortPool("127.0.0.1", LOW + 20, LOW + 23)
    with bound(taken):
        pair = pool.take()
        assert pair.port == LOW + 22
        with pytest.raises(PortsExhausted, match="1 of 2 pairs"):
            pool.take()
    bound(LOW + 20).close()
    bound(LOW + 21).close()
    other = pool.take()
    assert other.port == LOW + 20
    other.close()
    pair.close()


@pytest.mark.parametrize(("low", "high"), [(42000, 42000), (42001, 42002), (0, 10), (70000, 70010), (65534, 65600)])
def test_a_range_without_a_pair_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"{low}-{high}"):
        PortPool("127.0.0.1", low, high)


def test_without_a_free_descriptor_no_port_is_tried_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, tried = PortPool("127.0.0.1", LOW, LOW + 23), []
    bind = pool._bind

    def noted(port: int) -> tuple[socket.socket, socket.socket]:
        tried.append(port)
        return bind(port)

    monkeypatch.setattr(pool, "_bind", noted)
    with no_file_free(), pytest.raises(PortsExhausted, match="no socket for RTP: Too many open files"):
        pool.take()
    assert tried == [LOW]
    pair = pool.take()
    assert (pair.port, pool.in_use) == (LOW, 1)
    pair.close()
