"""Symmetric RTP: following a peer behind a translator, and nobody else."""

from gateway.media.latch import Latch, PeerAddress

NAMED, REAL, THIEF = ("10.0.0.4", 4000), ("192.0.2.4", 61000), ("203.0.113.66", 4000)


def latch(policy: str = "any") -> Latch:
    latch = Latch(policy, signalling_host="192.0.2.4")  # type: ignore[arg-type]
    latch.negotiated(NAMED, now=0.0)
    return latch


def send(
    latch: Latch, source: PeerAddress, sequences: list[int], *, now: float = 1.0, ssrc: int = 7
) -> PeerAddress | None:
    for sequence in sequences:
        latch.accept(source, ssrc, sequence, now=now)
    return latch.remote


def test_follows_a_stream_of_three() -> None:
    at = latch()
    assert send(at, REAL, [65535, 0]) == NAMED
    assert send(at, REAL, [1]) == REAL
    assert at.accept(REAL, 7, 2, now=1.0)


def test_a_few_packets_that_are_no_stream_are_not_followed() -> None:
    assert send(latch(), THIEF, [1, 9, 17, 25]) == NAMED
    assert send(latch(), THIEF, [1, 1, 1, 1]) == NAMED
    at = latch()
    for ssrc in range(5):
        send(at, THIEF, [ssrc], ssrc=ssrc)
    assert at.remote == NAMED


def test_once_followed_it_stays() -> None:
    at = latch()
    send(at, REAL, [1, 2, 3])
    assert send(at, THIEF, list(range(50))) == REAL


def test_an_address_that_answers_is_kept() -> None:
    at = latch()
    assert at.accept(NAMED, 7, 1, now=0.1)
    assert send(at, THIEF, list(range(50))) == NAMED


def test_the_window_closes() -> None:
    assert send(latch(), REAL, [1, 2, 3], now=10.1) == NAMED


def test_policies() -> None:
    assert send(latch("strict"), REAL, [1, 2, 3]) == NAMED
    assert send(latch("host"), REAL, [1, 2, 3]) == REAL
    assert send(latch("host"), THIEF, [1, 2, 3]) == NAMED


def test_a_new_address_opens_the_window_again_and_a_refresh_does_not() -> None:
    at = latch()
    send(at, REAL, [1, 2, 3])
    at.negotiated(NAMED, now=60.0)
    assert at.remote == REAL
    assert send(at, THIEF, [1, 2, 3], now=61.0) == REAL
    other = ("10.0.0.5", 4000)
    at.negotiated(other, now=70.0)
    assert at.remote == other
    assert send(at, REAL, [4, 5, 6], now=71.0) == REAL


def test_nowhere() -> None:
    at = Latch("any")
    assert send(at, REAL, [1, 2, 3]) is None
    at.negotiated(None, now=0.0)
    assert send(at, REAL, [1, 2, 3]) is None


def test_reports_may_come_from_the_host_that_was_named_and_from_the_one_that_is_followed() -> None:
    at = latch()
    assert at.knows(NAMED[0]) and not at.knows(REAL[0])
    send(at, REAL, [1, 2, 3])
    assert at.knows(NAMED[0]) and at.knows(REAL[0]) and not at.knows(THIEF[0])
    assert not Latch("any").knows(NAMED[0])
