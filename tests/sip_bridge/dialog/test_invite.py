"""The protocol of a call on a virtual clock, against RFC 3261 and RFC 4028: when what is said, and what ends a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.seams.end_cause import EndCause
from sip_bridge.config import SipTimeouts, TrunkConfig
from sip_bridge.dialog.dialog import Refusal, SessionTimer
from sip_bridge.dialog.effects import (
    Acknowledge,
    Ask,
    Begin,
    Effect,
    Invite,
    Joined,
    Left,
    Outcome,
    Post,
    Respond,
    Settled,
    Silence,
    Transferred,
)
from sip_bridge.dialog.invite import InviteDialog, InviteState
from sip_bridge.dialog.invite_client import InviteClient
from sip_bridge.dialog.invite_server import InviteServer
from sip_bridge.dialog.transaction import key_of, server_key
from sip_bridge.local import LocalAddress, Peer
from sip_bridge.message.sip import Address, Headers, Request, Response, Uri, parse, response_to
from tests.sip_bridge.sip_messages import request
from tests.sip_bridge.virtual_bridge import description

PEER, LOCAL = Peer("UDP", "127.0.0.9", 7000), LocalAddress("127.0.0.1", 5060)
CONTACT = ("Contact", "<sip:ann@127.0.0.9:7000>")
SDP = ("Content-Type", "application/sdp")
TIMER = ("Supported", "timer")
Header = tuple[str, str]
END = 100_000.0


class Call:
    """A protocol and the clock; ``said`` are its effects, each with its time."""

    protocol: Any

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[tuple[float, Effect]] = []
        self._numbers = iter(range(2, 1000))

    def tell(self, event: Callable[..., Any], *what: object) -> Any:
        result = event(*what, now=self.now)
        effects = self.protocol.effects
        while effects:
            effect = effects.popleft()
            self.said.append((self.now, effect))
            if isinstance(effect, Begin):
                self.protocol.begun(now=self.now)
        return result

    def run(self, until: float = END) -> None:
        """Let the time pass, as the one timer tells it."""
        while (due := self.protocol.deadline()) is not None and due <= until:
            assert due >= self.now
            self.now = due
            self.tell(self.protocol.tick)
        self.now = until

    def heard(self, kind: type, method: str = "") -> list[tuple[float, Any]]:
        """Messages of this kind, each with its time."""
        found = []
        for at, effect in self.said:
            message = getattr(effect, "request", None) or getattr(effect, "response", None)
            if type(effect) is kind and (not method or (message and message.cseq.method == method)):
                found.append((at, message or effect))
        return found

    def asked(self, method: str) -> Request:
        """Our last request of that method."""
        last: Request = (self.heard(Ask, method) or self.heard(Invite, method))[-1][1]
        return last

    def answer(self, to: Request, status: int, *headers: Header, tag: str = "theirs", body: bytes = b"") -> None:
        more = [*headers, *([CONTACT] if status < 300 else []), *([SDP] if body else [])]
        response = response_to(to, status, to_tag=tag, headers=more, body=body)
        self.tell(self.protocol.on_response, key_of(to), response)

    def send(self, method: str, *headers: Header, body: bytes = b"", cseq: int | None = None) -> Response | None:
        """A request of the peer in the dialog; our answer."""
        dialog = self.protocol.dialog
        number = next(self._numbers) if cseq is None else cseq
        items = [
            ("Via", f"SIP/2.0/UDP 127.0.0.9:7000;branch=z9hG4bK-{method}-{number}"),
            ("From", str(dialog.remote)),
            ("To", str(dialog.local)),
            ("Call-ID", dialog.call_id),
            ("CSeq", f"{number} {method}"),
            CONTACT,
            *([SDP] if body else []),
            *headers,
        ]
        message = Request(method, "sip:bot@127.0.0.1", Headers(items), body)
        if method == "ACK":
            self.tell(self.protocol.on_ack, message)
            return None
        before = len(self.said)
        self.tell(self.protocol.on_request, server_key(message), message)
        answers = [e.response for _, e in self.said[before:] if isinstance(e, Respond)]
        return next((each for each in answers if each.cseq.method == method), None)

    def is_over(self, reason: str) -> None:
        assert [effect.reason for _, effect in self.said if isinstance(effect, Silence)] == [reason]
        assert [effect for _, effect in self.said if isinstance(effect, Left)] == [Left()]
        assert self.protocol.state is InviteState.OVER and self.protocol.deadline() is None


def called(
    *headers: Header, body: bytes | None = None, trunk: dict[str, Any] | None = None, **timeouts: Any
) -> tuple[Call, Request]:
    """A call to us, its INVITE read."""
    call = Call()
    more = (CONTACT, *([SDP] if body is None or body else []), *headers)
    invite = request(headers=more, body=description() if body is None else body)
    config = TrunkConfig(**{"answer_at_once": True, "addresses": ("127.0.0.0/8",)} | (trunk or {}))
    call.protocol = InviteServer(
        config,
        PEER,
        LOCAL,
        40000,
        SipTimeouts(**{"session_s": 0} | timeouts),
        key=server_key(invite),
        invite=invite,
    )
    return call, invite


AT_ONCE = {("answer_at_once", True), ("early_media", False)}


def started(*headers: Header, **more: Any) -> Call:
    """A call to us: rings, or is answered already."""
    call, _ = called(*headers, **more)
    assert call.tell(call.protocol.start) is None
    if not call.protocol.late:
        call.tell(call.protocol.begun)
        if {"answer_at_once": True, "early_media": False, **(more.get("trunk") or {})}.items() >= AT_ONCE:
            call.tell(call.protocol.on_ready)
    return call


def up(*headers: Header, **more: Any) -> Call:
    """A call to us that stands."""
    call = started(*headers, **more)
    call.send("ACK", cseq=1)
    assert call.protocol.state is InviteState.UP
    return call


def calling(**timeouts: Any) -> Call:
    """Our call, its INVITE sent."""
    call = Call()
    call.protocol = InviteClient(
        TrunkConfig(username="bot", password=SecretStr("secret")),
        PEER,
        LOCAL,
        40000,
        SipTimeouts(**{"session_s": 0} | timeouts),
        uri=Uri.parse("sip:ann@127.0.0.9:7000"),
        from_=Address.parse("<sip:bot@127.0.0.1>"),
        headers=[],
    )
    call.tell(call.protocol.start)
    return call


# --- our 2xx and its ACK (RFC 3261 section 13.3.1.4) -----------------------------------------------------------------


def test_a_2xx_is_repeated_until_64_t1_and_then_the_call_is_ended() -> None:
    call = started()
    call.run()
    sent = [at for at, response in call.heard(Respond, "INVITE") if response.status == 200]
    assert sent == [0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5, 23.5, 27.5, 31.5]
    assert [at for at, _ in call.heard(Ask, "BYE")] == [32]
    call.is_over("no ACK")


@pytest.mark.parametrize("after_s", [0.2, 6.0, 31.9])
def test_the_ack_ends_the_repetitions(after_s: float) -> None:
    call = started()
    call.run(after_s)
    before = len(call.said)
    call.send("ACK", cseq=1)
    call.send("ACK", cseq=1)
    call.run()
    assert len(call.said) == before and call.protocol.state is InviteState.UP and call.protocol.deadline() is None


def test_an_ack_of_another_invite_is_none() -> None:
    call = started()
    call.send("ACK", cseq=2)
    assert call.protocol.state is InviteState.UNCONFIRMED


@pytest.mark.parametrize("acked", [True, False])
def test_no_bye_before_the_ack_or_the_end_of_waiting_for_it(acked: bool) -> None:
    """Section 15."""
    call = started()
    call.tell(call.protocol.hang_up, "end")
    call.run(3)
    assert not call.heard(Ask, "BYE") and call.protocol.state is InviteState.LEAVING
    if acked:
        call.send("ACK", cseq=1)
    call.run()
    assert [at for at, _ in call.heard(Ask, "BYE")] == [3 if acked else 32]
    call.is_over("end")


def test_a_reinvite_that_is_not_acknowledged_ends_the_call_too() -> None:
    call = up()
    call.now = 100
    assert call.send("INVITE", body=description()) is not None
    call.run()
    assert [at for at, _ in call.heard(Ask, "BYE")] == [132]


# --- one offer at a time (sections 14.1 and 14.2) --------------------------------------------------------------------


def test_an_offer_before_the_ack_of_the_last_gets_500_and_a_time() -> None:
    call = started()
    answer = call.send("INVITE", body=description())
    assert answer and answer.status == 500 and 0 <= int(answer.headers.get("Retry-After") or -1) <= 10


def refreshing(*headers: Header, **more: Any) -> Call:
    """A call that we have begun to refresh, at 450 s."""
    call = up(("Session-Expires", "900;refresher=uas"), TIMER, *headers, **more)
    call.run(450)
    return call


@pytest.mark.parametrize(("ours", "low", "high"), [(False, 0.0, 2.0), (True, 2.1, 4.0)])
def test_offers_that_cross_are_both_refused_and_tried_again_at_different_times(
    ours: bool, low: float, high: float
) -> None:
    if ours:
        call = calling()
        timer = ("Session-Expires", "900;refresher=uac")
        call.answer(call.asked("INVITE"), 200, timer, body=description())
        call.run(450)
    else:
        call = refreshing()
    first = call.asked("INVITE")
    answer = call.send("INVITE", body=description())
    assert answer and answer.status == 491
    call.answer(first, 491)
    call.run(460)
    (_, again) = call.heard(Ask, "INVITE")[-1:][0]
    (at,) = [at for at, message in call.heard(Ask, "INVITE") if message is again]
    assert low <= at - 450 <= high and again is not first and again.body == first.body
    call.answer(again, 200, ("Session-Expires", "900;refresher=uac"), body=description())
    assert not call.protocol.dialog.inviting


def test_an_update_with_an_offer_crosses_too_and_one_without_does_not() -> None:
    """RFC 3311 section 5.2."""
    call = refreshing()
    for body, status in ((description(), 491), (b"", 200)):
        answer = call.send("UPDATE", body=body)
        assert answer and answer.status == status


# --- the session timer (RFC 4028) ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval_s", "end_s"), [(90, 60.0), (96, 64.0), (900, 868.0), (1800, 1768.0)])
def test_a_session_that_they_do_not_refresh_ends(interval_s: int, end_s: float) -> None:
    """Section 10: a third of the interval before its end, 32 s at most."""
    call = up(("Session-Expires", f"{interval_s};refresher=uac"), TIMER)
    call.run()
    ((at, bye),) = call.heard(Ask, "BYE")
    assert at == pytest.approx(end_s) and "408" in (bye.headers.get("Reason") or "")
    call.is_over("session expired")


def test_each_refresh_of_theirs_begins_the_interval_anew() -> None:
    call = up(("Session-Expires", "90;refresher=uac"), TIMER)
    for at, method in ((50.0, "UPDATE"), (100.0, "INVITE"), (150.0, "UPDATE")):
        call.run(at)
        body = description() if method == "INVITE" else b""
        answer = call.send(method, ("Session-Expires", "90;refresher=uac"), TIMER, body=body)
        assert answer and answer.headers.get("Session-Expires") == "90;refresher=uac"
        assert "timer" in answer.headers.tokens("Require")
        if method == "INVITE":
            call.send("ACK", cseq=answer.cseq.number)
    call.run()
    assert [at for at, _ in call.heard(Ask, "BYE")] == [210.0]


@pytest.mark.parametrize(("allow", "method"), [("INVITE, UPDATE", "UPDATE"), ("INVITE", "INVITE")])
def test_we_refresh_at_half_of_the_interval_by_update_where_the_peer_knows_it(allow: str, method: str) -> None:
    call = up(("Session-Expires", "900;refresher=uas"), TIMER, ("Allow", allow))
    for nth in range(1, 4):
        call.run(450.0 * nth)
        at, refresh = call.heard(Ask, method)[-1]
        assert at == 450.0 * nth and refresh.headers.get("Session-Expires") == "900;refresher=uac"
        assert bool(refresh.body) == (method == "INVITE")
        answer = description() if method == "INVITE" else b""
        call.answer(refresh, 200, ("Session-Expires", "900;refresher=uac"), body=answer)
    assert len(call.heard(Acknowledge)) == (3 if method == "INVITE" else 0)
    assert call.protocol.state is InviteState.UP


@pytest.mark.parametrize("status", [405, 501])
def test_a_peer_that_does_not_know_update_after_all_gets_an_invite(status: int) -> None:
    call = refreshing(("Allow", "UPDATE"))
    call.answer(call.asked("UPDATE"), status)
    assert [at for at, _ in call.heard(Ask, "INVITE")] == [450]


def test_a_refresh_too_short_is_tried_again_with_what_is_asked_for() -> None:
    """Section 7.4; only as long as the peer asks for more."""
    call = refreshing(("Allow", "UPDATE"))
    call.answer(call.asked("UPDATE"), 422, ("Min-SE", "2400"))
    assert [at for at, _ in call.heard(Ask, "UPDATE")] == [450, 450]
    assert call.asked("UPDATE").headers.get("Session-Expires") == "2400;refresher=uac"
    call.answer(call.asked("UPDATE"), 200, ("Session-Expires", "2400;refresher=uac"))
    assert call.protocol.refresh.timer == SessionTimer(2400, True)
    call.run(450 + 1200)
    call.answer(call.asked("UPDATE"), 422, ("Min-SE", "2400"))
    assert len(call.heard(Ask, "UPDATE")) == 3


@pytest.mark.parametrize("status", [408, 481, None])
def test_a_refresh_that_the_peer_does_not_know_of_ends_the_call(status: int | None) -> None:
    """Section 10; None: no answer within the transaction's time."""
    call = refreshing(("Allow", "UPDATE"))
    asked = call.asked("UPDATE")
    if status is None:
        call.tell(call.protocol.on_failed, key_of(asked), 408)
    else:
        call.answer(asked, status)
    assert len(call.heard(Ask, "BYE")) == 1
    call.is_over("peer is gone")


def test_a_refresh_that_is_refused_otherwise_is_tried_until_the_session_has_expired() -> None:
    call = refreshing(("Allow", "UPDATE"))
    while call.protocol.state is InviteState.UP:
        call.answer(call.asked("UPDATE"), 500)
        due = call.protocol.deadline()
        assert due is not None
        call.run(due)
    assert len(call.heard(Ask, "UPDATE")) > 100
    assert [at for at, _ in call.heard(Ask, "BYE")] == [868]


def test_a_refresh_waits_until_their_offer_is_through() -> None:
    call = up(("Session-Expires", "900;refresher=uas"), TIMER)
    call.run(449.5)
    answer = call.send("INVITE", ("Session-Expires", "900;refresher=uas"), TIMER, body=description())
    assert answer
    call.run(455)
    call.send("ACK", cseq=answer.cseq.number)
    call.run(449.5 + 450)
    assert [at for at, _ in call.heard(Ask, "INVITE")] == [899.5]


def test_the_interval_of_the_invite_is_judged_before_anything_else() -> None:
    call, _ = called(("Session-Expires", "60"), TIMER)
    assert call.tell(call.protocol.start) == Refusal(422, (("Min-SE", "90"),))
    assert not call.said


# --- before the answer -----------------------------------------------------------------------------------------------


def test_a_cancel_is_answered_with_487_before_the_answer_only() -> None:
    """Section 9.2."""
    call = started(trunk={"answer_at_once": False})
    call.tell(call.protocol.on_cancel)
    assert [response.status for _, response in call.heard(Respond)] == [180, 487]
    call.is_over("cancelled")
    answered = started()
    answered.tell(answered.protocol.on_cancel)
    assert answered.protocol.state is InviteState.UNCONFIRMED


def test_a_bye_before_the_answer_ends_the_invite_too() -> None:
    """Section 15.1.2."""
    call = started(trunk={"answer_at_once": False})
    call.send("BYE")
    assert [response.status for _, response in call.heard(Respond)] == [180, 487, 200]
    call.is_over("hangup")


def test_a_session_that_is_not_ready_in_time_refuses_the_call() -> None:
    call = started(trunk={"answer_at_once": False})
    call.run()
    assert [(at, response.status) for at, response in call.heard(Respond)] == [(0, 180), (8, 503)]
    call.is_over("dialogue manager is not there")


@pytest.mark.parametrize("greeted_s", [4.0, None])
def test_early_media_is_answered_when_it_has_been_spoken_or_has_lasted_too_long(greeted_s: float | None) -> None:
    call = started(trunk={"early_media": True})
    call.tell(call.protocol.on_ready)
    if greeted_s is not None:
        call.run(greeted_s)
        call.tell(call.protocol.on_greeted)
    call.run(30)
    assert [(at, response.status) for at, response in call.heard(Respond)][:2] == [(0, 183), (greeted_s or 30, 200)]


@pytest.mark.parametrize("body", [b"", description(codecs="18")])
def test_our_offer_without_a_usable_answer_in_the_ack_ends_the_call(body: bytes) -> None:
    """RFC 3264 section 4."""
    call = started(body=b"")
    call.send("ACK", cseq=1, body=body)
    ((_, bye),) = call.heard(Ask, "BYE")
    assert "488" in (bye.headers.get("Reason") or "")
    call.is_over("no common codec")


# --- our calls -------------------------------------------------------------------------------------------------------


def test_an_answer_is_acknowledged_and_again_whenever_it_comes_again() -> None:
    """Section 13.2.2.4."""
    call = calling()
    invite = call.asked("INVITE")
    for _ in range(3):
        call.answer(invite, 200, body=description())
    acks = [effect for _, effect in call.heard(Acknowledge)]
    assert len(acks) == 3 and len(set(map(id, acks))) == 1
    assert acks[0].ack.cseq.number == invite.cseq.number and acks[0].ack.via.branch != invite.via.branch
    assert len(call.heard(Joined)) == len(call.heard(Outcome)) == 1


UNUSABLE = [
    "<sip:u@[2001:db8::9]>",
    "<sip:u@[::]:5060>",
    "<sip:u@0.0.0.0>",
    "<sip:u@224.0.0.1>",
    "<sip:u@127.0.0.9:0>",
    "<sip:u@127.0.0.8;transport=sctp>",
    "<sips:u@[fe80::1%25eth0]>",
]


@pytest.mark.parametrize("address", UNUSABLE)
@pytest.mark.parametrize("header", ["Contact", "Record-Route"])
def test_an_answer_from_an_address_that_we_cannot_reach_is_one_failed_attempt(header: str, address: str) -> None:
    """The ACK and the BYE go to the known peer, so that the callee does not repeat its answer."""
    call = calling()
    invite = call.asked("INVITE")
    route = [("Record-Route", address)] if header == "Record-Route" else []
    contact = address if header == "Contact" else "<sip:ann@127.0.0.9:7000>"
    answered = response_to(invite, 200, to_tag="a", headers=[*route, ("Contact", contact), SDP], body=description())
    for _ in range(2):
        call.tell(call.protocol.on_response, key_of(invite), answered)
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(502, "unreachable")]
    assert {effect.peer for _, effect in call.heard(Acknowledge)} == {PEER}
    assert [effect.peer for _, effect in call.said if isinstance(effect, Post)] == [PEER]
    call.is_over("unreachable")


@pytest.mark.parametrize("route", ["<>", "nonsense", "<sip:p@127.0.0.9;lr>, <sip:>"])
def test_an_answer_over_proxies_that_cannot_be_read_is_acknowledged_and_hung_up(route: str) -> None:
    call = calling()
    invite = call.asked("INVITE")
    headers = [("Record-Route", route), ("Contact", "<sip:ann@127.0.0.9:7000>"), SDP]
    answered = response_to(invite, 200, to_tag="a", headers=headers, body=description())
    for _ in range(2):
        call.tell(call.protocol.on_response, key_of(invite), answered)
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(502, "refused")]
    assert len(call.heard(Acknowledge)) == 2
    assert [effect.peer.port for _, effect in call.said if isinstance(effect, Post)] == [7000]
    call.is_over("refused")


@pytest.mark.parametrize("contact", ["", "*", "<>", "127.0.0.9:7000", "Lee, Ann <sip:ann@127.0.0.9:7000>"])
@pytest.mark.parametrize("tag", ["a", ""])
def test_an_answer_without_a_usable_contact_or_tag_begins_a_call(contact: str, tag: str) -> None:
    """The ACK goes to the peer that we called, and is repeated with the answer."""
    call = calling()
    invite = call.asked("INVITE")
    headers = [("Contact", contact), SDP] if contact else [SDP]
    answered = response_to(invite, 200, to_tag=tag, headers=headers, body=description())
    for _ in range(2):
        read = parse(answered.serialise())
        assert isinstance(read, Response)
        call.tell(call.protocol.on_response, key_of(invite), read)
    assert [effect.peer for _, effect in call.heard(Acknowledge)] == [PEER, PEER]
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(200)]
    call.tell(call.protocol.hang_up, "end")
    assert [effect.peer for _, effect in call.said if isinstance(effect, Ask)] == [PEER]


@pytest.mark.parametrize(
    "contact", ["<sip:u@cafe.de>", "<sip:u@dead.beef.de:5070>", "<sip:u@a.b.c.d>", "<sip:u@1.2.3>"]
)
def test_a_host_name_in_the_contact_stands_for_the_known_peer(contact: str) -> None:
    call = calling()
    invite = call.asked("INVITE")
    answered = response_to(invite, 200, to_tag="a", headers=[("Contact", contact), SDP], body=description())
    call.tell(call.protocol.on_response, key_of(invite), answered)
    assert [effect.peer for _, effect in call.heard(Acknowledge)] == [PEER]
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(200)]


@pytest.mark.parametrize("tls_port", [0, 5061])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
@pytest.mark.parametrize(
    "contact", ["<sips:u@127.0.0.8>", "<sips:u@127.0.0.8:5080;transport=tcp>", "<sip:u@127.0.0.8;transport=TLS>"]
)
def test_a_peer_that_names_tls_without_having_it_is_reached_as_before(
    contact: str, transport: str, tls_port: int
) -> None:
    call = calling()
    call.protocol.requests._peer = known = Peer(transport, "127.0.0.9", 7000)
    call.protocol.requests._local = LocalAddress("127.0.0.1", 5060, tls_port)
    invite = call.asked("INVITE")
    answered = response_to(invite, 200, to_tag="a", headers=[("Contact", contact), SDP], body=description())
    call.tell(call.protocol.on_response, key_of(invite), answered)
    hop = call.protocol.requests.hop(call.protocol.dialog)
    if transport != "TLS" and not tls_port:
        assert hop == known
    else:
        assert (hop.transport, hop.host) == ("TLS", "127.0.0.8")


@pytest.mark.parametrize("contact", UNUSABLE)
def test_a_caller_that_names_an_address_out_of_reach_is_hung_up_where_it_calls_from(contact: str) -> None:
    call, invite = called(("X-Nothing", "1"))
    invite = Request(invite.method, invite.uri, invite.headers.replace("Contact", contact), invite.body)
    call.protocol = InviteServer(
        TrunkConfig(answer_at_once=True, addresses=("127.0.0.0/8",)), PEER, LOCAL, 40000, SipTimeouts(session_s=0),
        key=server_key(invite), invite=invite,
    )  # fmt: skip
    assert call.protocol.requests.hop(call.protocol.dialog) == PEER


@pytest.mark.parametrize(
    ("peer", "contact", "hop"),
    [
        ("127.0.0.9", "192.168.1.77:5060", "127.0.0.9:7000"),
        ("127.0.0.9", "127.0.0.8:7001", "127.0.0.8:7001"),
        ("8.8.8.8", "10.0.0.7", "8.8.8.8:7000"),
        ("8.8.8.8", "100.64.0.7:5062", "8.8.8.8:7000"),
        ("8.8.8.8", "127.0.0.1", "8.8.8.8:7000"),
        ("8.8.8.8", "8.8.4.4", "8.8.4.4:5060"),
        ("127.0.0.9", "[::ffff:127.0.0.8]:7001", "127.0.0.8:7001"),
        ("8.8.8.8", "[::ffff:10.0.0.7]", "8.8.8.8:7000"),
        ("192.168.1.1", "10.0.0.7:5080", "10.0.0.7:5080"),
        ("10.0.0.1", "8.8.8.8", "8.8.8.8:5060"),
    ],
)
def test_the_requests_of_our_call_go_to_the_peer_whose_translator_hides_its_contact(
    peer: str, contact: str, hop: str
) -> None:
    call = calling()
    call.protocol.requests._peer = Peer("UDP", peer, 7000)
    invite = call.asked("INVITE")
    headers = [("Contact", f"<sip:u@{contact}>"), SDP]
    call.tell(
        call.protocol.on_response,
        key_of(invite),
        response_to(invite, 200, to_tag="a", headers=headers, body=description()),
    )
    call.tell(call.protocol.hang_up, "end")
    acks = [f"{effect.peer.host}:{effect.peer.port}" for _, effect in call.heard(Acknowledge)]
    byes = [f"{effect.peer.host}:{effect.peer.port}" for _, effect in call.said if isinstance(effect, Ask)]
    assert (acks, byes) == ([hop], [hop])


@pytest.mark.parametrize(
    ("contact", "listens_at"),
    [
        ("<sip:ann@127.0.0.9:7070;transport=tcp>", ("127.0.0.9", 7070)),
        ("<sip:ann@127.0.0.9>", ("127.0.0.9", 5060)),
        ("<sip:ann@pbx.example;transport=tcp>", ("pbx.example", 5060)),
        ("<sip:ann@127.0.0.9:7070;transport=TCP;ob>", ("127.0.0.9", 7070)),
        ("<sip:[::ffff:127.0.0.9]:7070;transport=tcp>", ("127.0.0.9", 7070)),
        ('"Ann, x" <sip:ann;x=1:pw@127.0.0.9:7070;transport=tcp;verified>;expires=60', ("127.0.0.9", 7070)),
        ("sip:ann@127.0.0.9:7070;transport=tcp", ("127.0.0.9", 7070)),
    ],
)
def test_a_call_over_a_connection_knows_where_to_open_another(contact: str, listens_at: tuple[str, int]) -> None:
    """RFC 3261 section 18.1.1: the connection may be gone when the next request is sent."""
    call, invite = called()
    invite = Request(invite.method, invite.uri, invite.headers.replace("Contact", contact), invite.body)
    peer = Peer("TCP", "127.0.0.9", 40321)
    call.protocol = InviteServer(
        TrunkConfig(answer_at_once=True, addresses=("127.0.0.0/8",)), peer, LOCAL, 40000, SipTimeouts(session_s=0),
        key=server_key(invite), invite=invite,
    )  # fmt: skip
    hop = call.protocol.requests.hop(call.protocol.dialog)
    assert hop == peer and hop.listens_at == listens_at


def test_answers_of_other_forks_are_acknowledged_and_hung_up() -> None:
    """Section 13.2.2.4."""
    call = calling()
    invite = call.asked("INVITE")
    for tag in ("a", "b", "b", "c"):
        call.answer(invite, 200, tag=tag, body=description())
    assert [bye.to.tag for _, bye in call.heard(Post, "BYE")] == ["b", "c"]
    assert [effect.ack.to.tag for _, effect in call.heard(Acknowledge)] == ["a", "b", "b", "c"]
    assert call.protocol.state is InviteState.UP and call.protocol.dialog.remote.tag == "a"


def test_a_cancel_waits_for_a_provisional_response_and_is_sent_once() -> None:
    """Section 9.1."""
    call = calling()
    invite = call.asked("INVITE")
    call.tell(call.protocol.end, "hangup_by_api")
    assert not call.heard(Post)
    for _ in range(2):
        call.answer(invite, 180)
    ((_, cancel),) = call.heard(Post, "CANCEL")
    assert (cancel.via.branch, cancel.cseq.number, cancel.uri) == (invite.via.branch, 1, invite.uri)
    assert [effect for _, effect in call.heard(Settled)] == [Settled(key_of(invite), True)]
    call.is_over("hangup_by_api")


def test_an_answer_that_crosses_the_cancel_is_hung_up() -> None:
    call = calling()
    invite = call.asked("INVITE")
    call.answer(invite, 180)
    call.tell(call.protocol.end, "hangup_by_api")
    call.answer(invite, 200, body=description())
    assert len(call.heard(Acknowledge)) == len(call.heard(Post, "BYE")) == 1
    assert [effect for _, effect in call.heard(Outcome)] == [Outcome(487, "cancelled", cause=EndCause(by="manager"))]


def test_who_rings_too_long_is_given_up() -> None:
    call = calling()
    call.answer(call.asked("INVITE"), 180)
    call.run()
    assert [(at, effect) for at, effect in call.heard(Outcome)][0] == (60, Outcome(487, "no_answer"))
    assert [at for at, _ in call.heard(Post, "CANCEL")] == [60]


@pytest.mark.parametrize(
    ("status", "outcome"), [(408, Outcome(408, "unreachable")), (503, Outcome(503, "unreachable"))]
)
def test_an_invite_without_any_answer(status: int, outcome: Outcome) -> None:
    """Section 8.1.3.1."""
    call = calling()
    call.tell(call.protocol.on_failed, key_of(call.asked("INVITE")), status)
    assert [effect for _, effect in call.heard(Outcome)] == [outcome]
    call.is_over("unreachable")


def test_a_challenge_is_answered_with_the_next_number_of_the_same_call() -> None:
    """Section 22.2; three times at most."""
    call = calling()
    challenge = ("WWW-Authenticate", 'Digest realm="far", nonce="n", qop="auth"')
    stale = ("WWW-Authenticate", 'Digest realm="far", nonce="m", qop="auth", stale=true')
    for given in (challenge, stale, stale, stale):
        call.answer(call.asked("INVITE"), 401, given)
    invites = [invite for _, invite in call.heard(Invite)]
    assert [invite.cseq.number for invite in invites] == [1, 2, 3, 4]
    assert len({(invite.call_id, invite.from_.tag) for invite in invites}) == 1
    assert ["Authorization" in invite.headers for invite in invites] == [False, True, True, True]
    call.is_over("not_authorised")


def test_an_invite_too_short_is_sent_again_with_what_is_asked_for() -> None:
    """RFC 4028 section 7.4."""
    call = calling(session_s=1800)
    call.answer(call.asked("INVITE"), 422, ("Min-SE", "2400"))
    again = call.asked("INVITE")
    assert (again.headers.get("Session-Expires"), again.headers.get("Min-SE")) == ("2400", "2400")


# --- transfers (RFC 3515) --------------------------------------------------------------------------------------------


def transferring() -> Call:
    call = up()
    call.tell(call.protocol.transfers.start, call.protocol.dialog, Uri.parse("sip:bob@127.0.0.9"), None, None)
    assert not call.protocol.may_transfer()
    call.answer(call.asked("REFER"), 202)
    return call


def test_a_transfer_that_tells_nothing_is_over_after_its_time() -> None:
    call = transferring()
    call.run()
    assert [(at, effect) for at, effect in call.heard(Transferred)] == [(32, Transferred("", 408))]
    assert call.protocol.may_transfer()


def test_a_late_response_to_a_refer_that_was_given_up_says_nothing_of_the_next() -> None:
    call = up()
    call.tell(call.protocol.transfers.start, call.protocol.dialog, Uri.parse("sip:bob@127.0.0.9"), None, None)
    first = call.asked("REFER")
    call.run(40)
    call.tell(call.protocol.transfers.start, call.protocol.dialog, Uri.parse("sip:carl@127.0.0.9"), None, None)
    call.answer(first, 503)
    assert not call.protocol.may_transfer() and call.heard(Transferred) == [(32, Transferred("", 408))]


def test_a_session_that_leaves_in_a_transfer_hangs_up_after_the_outcome() -> None:
    """RFC 5589 section 6.1: a BYE now could take the peer's new call with it."""
    call = transferring()
    call.tell(call.protocol.hang_up, "end")
    call.run(20)
    assert not call.heard(Ask, "BYE")
    call.send("NOTIFY", ("Event", "refer"), body=b"SIP/2.0 200 OK")
    assert [at for at, _ in call.heard(Ask, "BYE")] == [20]
    call.is_over("end")


# --- the one timer ---------------------------------------------------------------------------------------------------


def test_too_early_a_tick_does_nothing() -> None:
    call = started(session_s=1800)
    before = len(call.said)
    for now in (0.0, 0.1, 0.49):
        call.now = now
        call.tell(call.protocol.tick)
    assert len(call.said) == before and call.protocol.deadline() == 0.5


def test_a_tick_that_is_late_deals_with_everything_that_was_due() -> None:
    call = up(("Session-Expires", "90;refresher=uac"), TIMER)
    call.now = 1000
    call.tell(call.protocol.tick)
    call.is_over("session expired")


@pytest.mark.parametrize("make", [started, up, calling, refreshing, transferring])
def test_whatever_ends_a_call_leaves_no_timer(make: Callable[[], Call]) -> None:
    for end in (
        lambda protocol: (protocol.end, "x"),
        lambda protocol: (protocol.abandon,),
    ):
        call = make()
        assert isinstance(call.protocol, InviteDialog)
        call.tell(*end(call.protocol))
        call.run()
        assert call.protocol.state is InviteState.OVER and call.protocol.deadline() is None
