"""Symmetric RTP: following a peer that a translator hides, and no other."""

import pytest

from gateway.media.latch import REPLACED_S, SILENT_S, Latch, PeerAddress

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
    assert send(latch("host"), ("192.0.2.9", 4000), [1, 2, 3], now=10.1) == NAMED


def test_a_phone_behind_a_translator_may_be_silent_until_its_user_speaks() -> None:
    at = latch("host")
    assert send(at, REAL, [1, 2, 3], now=60.0) == REAL
    at.negotiated(MOVED, now=100.0)
    assert send(at, (REAL[0], REAL[1] + 2), [7, 8, 9], now=200.0) == (REAL[0], REAL[1] + 2)
    assert send(at, REAL, [4, 5, 6], now=201.0) == (REAL[0], REAL[1] + 2)


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
    assert send(at, ("192.0.2.4", 61002), [4, 5, 6], now=70.1) == ("192.0.2.4", 61002)


def test_nowhere() -> None:
    at = Latch("any")
    assert send(at, REAL, [1, 2, 3]) is None
    at.negotiated(None, now=0.0)
    assert send(at, REAL, [1, 2, 3]) is None


def test_reports_may_come_from_the_host_that_was_named_and_from_the_one_that_is_followed() -> None:
    at = latch()
    assert at.knows(NAMED[0]) and at.knows("192.0.2.4") and not at.knows(THIEF[0])
    send(at, REAL, [1, 2, 3])
    assert at.knows(NAMED[0]) and at.knows(REAL[0]) and not at.knows(THIEF[0])
    assert not Latch("any").knows(NAMED[0])


def test_reports_from_the_signalling_host_are_read_unless_only_the_described_address_counts() -> None:
    assert latch("any").knows("192.0.2.4") and latch("host").knows("192.0.2.4")
    assert not latch("strict").knows("192.0.2.4")


# --- a description replaces the address ----------------------------------------------------------------------------

MOVED = ("10.0.0.4", 4002)
MOVES = {
    "another port": MOVED,
    "another host": ("10.0.0.77", 4000),
    "IPv6": ("2001:db8::9", 4000),
}


def moved(to: PeerAddress = MOVED, policy: str = "any") -> Latch:
    """A leg whose peer was heard at ``NAMED`` and is described at ``to`` from second 5 on."""
    at = latch(policy)
    send(at, NAMED, [1, 2, 3])
    at.negotiated(to, now=5.0)
    return at


@pytest.mark.parametrize("to", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("policy", ["any", "host", "strict"])
def test_the_old_stream_is_heard_but_not_followed(to: PeerAddress, policy: str) -> None:
    at = moved(to, policy)
    for sequence in range(4, 54):  # one second of the old stream
        assert at.accept(NAMED, 7, sequence, now=5.0 + 0.02 * (sequence - 4))
        assert at.remote == to
    assert at.accept(to, 9, 1, now=6.0)
    assert not at.accept(NAMED, 7, 54, now=6.0)
    assert send(at, NAMED, list(range(55, 300)), now=8.5) == to


def test_the_old_source_is_followed_if_no_other_sends() -> None:
    at = moved()
    assert send(at, NAMED, list(range(4, 50)), now=5.0 + REPLACED_S - 0.01) == MOVED
    assert send(at, NAMED, [50, 51, 52], now=5.0 + REPLACED_S) == NAMED


def test_the_old_source_is_not_followed_while_another_sends() -> None:
    at = moved()
    for n in range(100):  # neither is a stream of three
        now = 5.0 + 0.1 * n
        send(at, REAL, [17 * n], now=now)
        assert send(at, NAMED, [4 + n], now=now) == MOVED


def test_the_described_address_wins_whenever_it_speaks() -> None:
    at = moved()
    send(at, NAMED, [4, 5, 6], now=7.5)
    assert at.remote == NAMED
    assert at.accept(MOVED, 9, 1, now=60.0) and at.remote == MOVED
    assert not at.accept(NAMED, 7, 7, now=60.0) and at.remote == MOVED


def test_the_described_address_wins_over_a_source_that_was_followed() -> None:
    """Early media of another server, before the phone itself speaks."""
    at = latch()
    assert send(at, REAL, [1, 2, 3]) == REAL
    assert at.accept(NAMED, 9, 1, now=20.0) and at.remote == NAMED


def test_a_phone_behind_a_translator_is_found_again_after_hold_music() -> None:
    music = ("198.51.100.7", 9000)
    at = latch()
    assert send(at, REAL, [1, 2, 3]) == REAL
    at.negotiated(music, now=20.0)
    assert send(at, REAL, [4, 5, 6], now=20.1) == music
    assert send(at, music, [1], now=20.2, ssrc=8) == music
    at.negotiated(NAMED, now=40.0)
    assert send(at, music, [2, 3, 4], now=40.0, ssrc=8) == NAMED
    assert send(at, REAL, [7, 8, 9], now=40.1) == REAL


def test_a_moved_phone_behind_a_translator_is_followed_to_its_new_port() -> None:
    at = latch()
    send(at, REAL, [1, 2, 3])
    at.negotiated(MOVED, now=20.0)
    send(at, REAL, [4, 5, 6, 7], now=20.1)
    assert send(at, ("192.0.2.4", 61002), [1, 2, 3], now=20.2, ssrc=9) == ("192.0.2.4", 61002)
    assert not at.accept(REAL, 7, 8, now=20.2)


@pytest.mark.parametrize("policy", ["any", "host", "strict"])
def test_a_phone_whose_translator_gives_it_another_port_is_followed_once_its_old_one_is_silent(policy: str) -> None:
    """No description tells of it. The address of another host is not followed."""
    at = latch(policy)
    source = NAMED if policy == "strict" else REAL
    send(at, source, [1, 2, 3])
    moved_to = (source[0], source[1] + 1)
    assert send(at, moved_to, [4, 5, 6], now=1.0 + SILENT_S - 0.01) == source
    assert send(at, THIEF, [7, 8, 9], now=1.0 + SILENT_S) == source
    found = send(at, moved_to, [7, 8, 9], now=1.0 + SILENT_S)
    assert found == (source if policy == "strict" else moved_to)
    assert at.accept(NAMED, 7, 10, now=60.0) and at.remote == NAMED


def test_many_moves_are_remembered_to_a_bound() -> None:
    at = latch()
    at.negotiated(("10.0.1.1", 4999), now=0.0)
    for n in range(100):
        at.negotiated(("10.0.1.1", 5000 + n), now=float(n))
        assert send(at, ("10.0.1.1", 5000 + n - 1), [1, 2, 3, 4], now=float(n)) == ("10.0.1.1", 5000 + n)
    assert len(at._replaced) <= 8
