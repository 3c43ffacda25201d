"""The refreshing and the expiry of a session, in time as a number."""

from __future__ import annotations

import pytest

from sip_bridge.dialog.dialog import SessionTimer
from sip_bridge.dialog.session_refresh import Due, RefreshStep, SessionRefresh
from sip_bridge.errors import SipProtocolError
from tests.sip_bridge.sip_messages import answer, request


def refreshing(*, we_refresh: bool = True) -> SessionRefresh:
    refresh = SessionRefresh(wanted_s=1800, shortest_s=90)
    refresh.agree(SessionTimer(900, we_refresh), now=1000.0)
    refresh.peer_allows = frozenset({"update"})
    return refresh


def test_without_a_timer_nothing_is_due() -> None:
    refresh = SessionRefresh(wanted_s=0, shortest_s=90)
    refresh.agree(None, now=0.0)
    assert (refresh.offer(), refresh.deadline(), refresh.tick(now=1e9)) == ((), None, None)


def test_who_refreshes_does_so_at_half_of_the_interval_and_only_once() -> None:
    refresh = refreshing()
    assert refresh.deadline() == 1450.0 and refresh.tick(now=1449.9) is None
    assert refresh.tick(now=1450.0) is Due.REFRESH and refresh.tick(now=1450.0) is None
    assert refresh.deadline() == 1868.0
    assert refresh.tick(now=1868.0) is Due.END and refresh.deadline() is None


def test_who_does_not_refresh_waits_for_the_end() -> None:
    refresh = refreshing(we_refresh=False)
    assert refresh.deadline() == 1868.0


def test_a_clock_that_comes_late_ends_the_session_instead_of_refreshing_it() -> None:
    assert refreshing().tick(now=1900.0) is Due.END


@pytest.mark.parametrize(
    ("status", "headers", "follows", "deadline"),
    [
        (200, (("Session-Expires", "600;refresher=uac"),), RefreshStep.GO_ON, 1800.0),
        (200, (), RefreshStep.GO_ON, None),
        (405, (), RefreshStep.AGAIN, 1868.0),
        (501, (), RefreshStep.AGAIN, 1868.0),
        (422, (("Min-SE", "2400"),), RefreshStep.AGAIN, 1868.0),
        (422, (("Min-SE", "90"),), RefreshStep.LATER, 1502.5),  # it says nothing new
        (422, (("Min-SE", "soon"),), RefreshStep.LATER, 1502.5),
        (491, (), RefreshStep.LATER, 1502.5),
        (408, (), RefreshStep.END, 1868.0),
        (481, (), RefreshStep.END, 1868.0),
        (None, (), RefreshStep.END, 1868.0),
    ],
)
def test_what_follows_from_a_response(
    status: int | None, headers: tuple[tuple[str, str], ...], follows: RefreshStep, deadline: float | None
) -> None:
    refresh = refreshing()
    refresh.tick(now=1450.0)
    response = answer(request("UPDATE"), status, headers=headers) if status else None
    assert refresh.on_response(response, now=1500.0, wait_s=2.5) is follows
    assert refresh.deadline() == deadline


def test_a_peer_without_update_gets_an_invite_and_longer_sessions_stay_longer() -> None:
    refresh = refreshing()
    assert refresh.by_update
    refresh.on_response(answer(request("UPDATE"), 501), now=0.0, wait_s=0.0)
    assert not refresh.by_update
    refresh.on_response(answer(request("INVITE"), 422, headers=(("Min-SE", "2400"),)), now=0.0, wait_s=0.0)
    assert dict(refresh.headers()) == {"Session-Expires": "2400;refresher=uac", "Min-SE": "2400"}


def test_an_answer_that_nobody_can_read_changes_nothing() -> None:
    refresh = refreshing()
    with pytest.raises(SipProtocolError):
        refresh.on_response(
            answer(request("UPDATE"), 200, headers=(("Session-Expires", "soon"),)), now=1500.0, wait_s=2.5
        )
    assert refresh.deadline() == 1450.0
