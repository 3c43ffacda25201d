"""Dialogs: both sides of one, route sets, the order of requests, glare, session timers."""

import pytest

from sip_bridge.dialog.dialog import (
    Dialog,
    Refusal,
    SessionTimer,
    dialog_id,
    min_session_s,
    session_agreed,
    session_answer,
    session_offer,
)
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Request, Via, parse
from tests.sip_bridge.sip_messages import answer, request

CONTACT = ("Contact", "<sip:bot@192.0.2.9:5060;transport=tcp>")
ROUTES = (
    ("Record-Route", "<sip:p2.example;lr>"),
    ("Record-Route", "<sip:p1.example;lr>"),
    ("Contact", "<sip:ann@192.0.2.4:5070>"),
)
VIA = Via("UDP", "192.0.2.9", 5060, {"branch": "z9hG4bK-new"})


def pair(headers: tuple[tuple[str, str], ...] = ROUTES) -> tuple[Dialog, Dialog]:
    """Client's and server's view of one call."""
    invite = request(headers=headers)
    accepted = answer(invite, 200, headers=(CONTACT,))
    return Dialog.as_client(invite, accepted), Dialog.as_server(invite, "ours")


def test_both_sides_know_the_same_dialog() -> None:
    client, server = pair()
    assert client.id == ("call-1", "theirs", "ours")
    assert server.id == ("call-1", "ours", "theirs")
    bye = parse(server.request("BYE", VIA).serialise())
    assert isinstance(bye, Request)
    assert dialog_id(bye, received=True) == client.id
    assert dialog_id(bye, received=False) == server.id
    ok = answer(bye, 200)
    assert dialog_id(ok, received=True) == server.id
    assert dialog_id(ok, received=False) == client.id


def test_route_sets_are_mirrored() -> None:
    client, server = pair()
    assert server.routes == ("<sip:p2.example;lr>", "<sip:p1.example;lr>")
    assert client.routes == ("<sip:p1.example;lr>", "<sip:p2.example;lr>")
    assert (str(server.next_hop), str(client.next_hop)) == ("sip:p2.example;lr", "sip:p1.example;lr")
    bye = client.request("BYE", VIA)
    assert (bye.uri, bye.headers.all("Route")) == ("sip:bot@192.0.2.9:5060;transport=tcp", client.routes)
    assert (bye.via.branch, str(bye.cseq)) == ("z9hG4bK-new", "2 BYE")


def test_without_routes_requests_go_to_the_contact() -> None:
    client, server = pair((("Contact", "<sip:ann@192.0.2.4:5070>"),))
    assert str(server.next_hop) == "sip:ann@192.0.2.4:5070"
    assert server.request("BYE", VIA).headers.all("Route") == ()
    assert str(client.next_hop) == "sip:bot@192.0.2.9:5060;transport=tcp"


def test_a_strict_router_gets_its_own_uri_and_ours_last() -> None:
    _, server = pair((("Record-Route", "<sip:old.example>, <sip:p1.example;lr>"), ("Contact", "<sip:ann@192.0.2.4>")))
    bye = server.request("BYE", VIA)
    assert bye.uri == "sip:old.example"
    assert bye.headers.all("Route") == ("<sip:p1.example;lr>", "<sip:ann@192.0.2.4>")


def test_the_ack_of_a_2xx_has_the_number_of_its_invite() -> None:
    client, _ = pair()
    client.request("INFO", VIA)
    assert str(client.request("ACK", VIA, cseq=1).cseq) == "1 ACK"
    assert str(client.request("BYE", VIA).cseq) == "3 BYE"


def test_the_target_moves_and_the_routes_do_not() -> None:
    _, server = pair()
    server.refresh(request(cseq=2, headers=(("Contact", "<sip:ann@198.51.100.1>"), ("Record-Route", "<sip:x;lr>"))))
    assert server.request("BYE", VIA).uri == "sip:ann@198.51.100.1"
    assert server.routes == ("<sip:p2.example;lr>", "<sip:p1.example;lr>")
    server.refresh(request("UPDATE", cseq=3, headers=()))
    assert str(server.target) == "sip:ann@198.51.100.1"


def test_forks_are_dialogs_of_their_own() -> None:
    invite = request()
    forks = {Dialog.as_client(invite, answer(invite, 183, to_tag=tag, headers=(CONTACT,))).id for tag in ("a", "b")}
    assert len(forks) == 2


def test_what_makes_no_dialog() -> None:
    invite = request()
    with pytest.raises(SipProtocolError, match="without a To tag"):
        Dialog.as_client(invite, answer(invite, 180, to_tag=""))
    with pytest.raises(SipProtocolError, match="INVITE without Contact"):
        Dialog.as_server(request(headers=()), "ours")


def test_an_answer_needs_neither_contact_nor_tag() -> None:
    invite = request()
    bare = Dialog.as_client(invite, answer(invite, 200, to_tag=""))
    assert (str(bare.target), bare.remote.tag) == (invite.uri, "")


def test_requests_count_upwards_and_gaps_are_fine() -> None:
    _, server = pair()
    assert server.check(request("INFO", cseq=7)) is None
    assert server.check(request("BYE", cseq=6)) == Refusal(500)
    assert server.check(request("ACK", cseq=1)) is None
    assert server.check(request("BYE", cseq=8)) is None


@pytest.mark.parametrize(("method", "offers"), [("INVITE", False), ("UPDATE", True)])
def test_glare(method: str, offers: bool) -> None:
    _, server = pair()
    server.inviting = True
    assert server.check(request(method, cseq=2), offers=offers) == Refusal(491)
    assert server.check(request("INFO", cseq=3)) is None
    server.inviting, server.invited = False, True
    assert server.check(request(method, cseq=4), offers=offers) == Refusal(500, (("Retry-After", "5"),))
    server.invited = False
    assert server.check(request(method, cseq=5), offers=offers) is None


def test_after_a_glare_the_two_sides_wait_differently_long() -> None:
    client, server = pair()
    assert [client.glare_wait_s(share) for share in (0.0, 1.0)] == [2.1, 4.0]
    assert [server.glare_wait_s(share) for share in (0.0, 1.0)] == [0.0, 2.0]


def timed(*headers: tuple[str, str]) -> Request:
    return request(headers=headers)


SUPPORTED = ("Supported", "100rel, timer")


@pytest.mark.parametrize(
    ("headers", "wanted_s", "expires", "required", "timer"),
    [
        ((), 0, None, False, None),
        ((SUPPORTED,), 0, None, False, None),
        ((), 1800, "1800;refresher=uas", False, SessionTimer(1800, True)),
        ((SUPPORTED,), 1800, "1800;refresher=uas", True, SessionTimer(1800, True)),
        ((SUPPORTED, ("x", "600")), 0, "600;refresher=uac", True, SessionTimer(600, False)),
        ((SUPPORTED, ("x", "600;refresher=uas")), 0, "600;refresher=uas", True, SessionTimer(600, True)),
        ((SUPPORTED, ("x", "600 ; Refresher=UAC")), 0, "600;refresher=uac", True, SessionTimer(600, False)),
        ((("x", "600;refresher=uac"),), 0, "600;refresher=uas", False, SessionTimer(600, True)),
        ((("x", "30"),), 0, "90;refresher=uas", False, SessionTimer(90, True)),
        ((("Min-SE", "2000"),), 1800, "2000;refresher=uas", False, SessionTimer(2000, True)),
    ],
)
def test_asked_for_a_session_timer(
    headers: tuple[tuple[str, str], ...], wanted_s: int, expires: str | None, required: bool, timer: SessionTimer | None
) -> None:
    asked = parse(timed(*headers).serialise())  # from the wire: x is the short name of Session-Expires
    assert isinstance(asked, Request)
    result = session_answer(asked, wanted_s=wanted_s)
    assert not isinstance(result, Refusal)
    agreed, told = result
    assert agreed == timer
    assert dict(told).get("Session-Expires") == expires
    assert (("Require", "timer") in told) is required


def test_a_session_too_short_is_refused_and_asked_for_again() -> None:
    asked = timed(SUPPORTED, ("Session-Expires", "60"))
    assert session_answer(asked, wanted_s=0, min_s=120) == Refusal(422, (("Min-SE", "120"),))
    refused = answer(asked, 422, headers=(("Min-SE", "120"),))
    assert session_offer(60, min_session_s(refused)) == [("Session-Expires", "120"), ("Min-SE", "120")]


def test_what_our_own_offer_comes_to() -> None:
    invite = timed(*session_offer(1800))
    for value, timer in (
        ("1800;refresher=uac", SessionTimer(1800, True)),
        ("1800;refresher=uas", SessionTimer(1800, False)),
        ("10", SessionTimer(90, True)),
    ):
        assert session_agreed(answer(invite, 200, headers=(("Session-Expires", value),))) == timer
    assert session_agreed(answer(invite, 200)) is None


@pytest.mark.parametrize(("interval_s", "refresh_s", "end_s"), [(1800, 900.0, 1768.0), (90, 45.0, 60.0)])
def test_when_to_refresh_and_when_to_end(interval_s: int, refresh_s: float, end_s: float) -> None:
    timer = SessionTimer(interval_s, True)
    assert (timer.refresh_at(100.0), timer.end_at(100.0)) == (100 + refresh_s, 100 + end_s)


@pytest.mark.parametrize("value", ["", "soon", "-1", "99999999999", "1800 uac", "1800, 1800", "1800s", "½"])
def test_an_unreadable_session_timer_counts_as_absent(value: str) -> None:
    for name in ("Session-Expires", "Min-SE"):
        for wanted_s in (0, 1800):
            assert session_answer(timed((name, value)), wanted_s=wanted_s) == session_answer(timed(), wanted_s=wanted_s)
    with pytest.raises(SipProtocolError, match="Session-Expires is"):
        session_agreed(answer(timed(), 200, headers=(("Session-Expires", value),)))
    if value:
        with pytest.raises(SipProtocolError, match="Min-SE is"):
            min_session_s(timed(("Min-SE", value)))
