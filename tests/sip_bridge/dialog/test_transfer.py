"""Transfers: ours by REFER, and what becomes of a peer's."""

import time
from typing import Any

import pytest

from gateway.errors import Rejected
from gateway.seams.leg import TransferStart
from gateway.seams.originate import CallOrder
from sip_bridge.dialog.transfer import fragment_status
from sip_bridge.incoming import incoming_call
from sip_bridge.message.sip import Address, Request, Uri
from tests.sip_bridge.phone import Bridge, Phone, Told, bridge, offer, until
from tests.sip_bridge.test_outgoing import fresh, next_of, reply

ALLOWED: dict[str, Any] = {"allowed_targets": ["*@pbx.example", "*@127.0.0.1"]}
TARGET = "sip:sales@pbx.example"


async def up(made: Bridge, phone: Phone) -> Told:
    """A call that is answered and acknowledged."""
    await phone.call()
    await until(lambda: made.sessions and made.sessions[-1].call.state.value == "up")
    return made.sessions[-1]


async def referred(phone: Phone, status: int = 202, *headers: tuple[str, str]) -> Request:
    refer = await fresh(phone, "REFER")
    phone.answer(refer, status, *headers)
    return refer


async def notify(phone: Phone, fragment: str, state: str = "active;expires=60", status: int = 200) -> None:
    headers = (("Event", "refer"), ("Subscription-State", state))
    phone.send(phone.request("NOTIFY", *headers, body=fragment.encode(), content="message/sipfrag;version=2.0"))
    await phone.response(status)


async def test_the_pbx_learns_that_the_call_has_no_manager() -> None:
    """It learns it by the REFER to the route's human, and by the BYE that follows when no human is reached there."""
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            assert told.call.transfer(TARGET, reason="dialogue_failed") is TransferStart.UNDER_WAY
            refer = await referred(phone, 603)
            told.call.hang_up("dialogue_failed")
            bye = await fresh(phone, "BYE")
            phone.answer(bye, 200)
            why = ('SIP;cause=503;text="dialogue_failed"', 'Q.850;cause=41;text="dialogue_failed"')
            assert refer.headers.all("Reason") == bye.headers.all("Reason") == why


async def test_a_transfer_is_asked_for_followed_and_the_call_left() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            assert told.call.transfer(TARGET, "case=7 ä") is TransferStart.UNDER_WAY
            assert told.call.transfer(TARGET) is TransferStart.REFUSED  # one at a time
            refer = await referred(phone)
            target = Address.parse(refer.headers.get("Refer-To") or "").uri
            handed = "case=7 ä".encode().hex()
            assert (target.user, target.host) == ("sales", "pbx.example")
            assert target.headers == f"User-to-User={handed}%3Bencoding%3Dhex"
            assert refer.headers.get("User-to-User") == f"{handed};encoding=hex"
            assert "Referred-By" in refer.headers and "Contact" in refer.headers
            await notify(phone, "SIP/2.0 100 Trying\r\n")
            await notify(phone, "SIP/2.0 180 Ringing\r\n")
            assert told.transferred == []
            await notify(phone, "SIP/2.0 200 OK\r\n", "terminated;reason=noresource")
            assert told.transferred == [""]
            told.call.hang_up("transferred")
            await phone.hung_up()


async def test_a_number_is_a_user_at_the_peer() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            assert told.call.domain == "example.org"
            told.call.transfer("+4930123")
            assert (await referred(phone)).headers.get("Refer-To") == "<sip:+4930123@example.org>"
            await notify(phone, "SIP/2.0 200 OK\r\n", "terminated")
            await phone.bye()


@pytest.mark.parametrize(
    ("fragment", "state", "problem"),
    [
        ("SIP/2.0 486 Busy Here\r\n", "terminated;reason=noresource", "486 Busy Here"),
        ("SIP/2.0 603 Decline\r\n", "active", "603 Decline"),
        ("SIP/2.0 100 Trying\r\n", "terminated;reason=timeout", "no outcome"),
        ("nonsense", "terminated", "no outcome"),
    ],
)
async def test_a_target_that_is_not_reached_leaves_the_call_as_it_was(fragment: str, state: str, problem: str) -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            await referred(phone)
            await notify(phone, fragment, state)
            assert len(told.transferred) == 1 and problem in told.transferred[0]
            told.call.send_frame(b"\x11" * 160, time.monotonic())
            assert await phone.hears(b"\x11" * 160) == 0
            told.call.transfer(TARGET)  # and may be tried again
            await referred(phone)
            await notify(phone, "SIP/2.0 200 OK\r\n", "terminated")
            assert told.transferred[1:] == [""]
            await phone.bye()
            assert made.refers == [("sent", "failed"), ("sent", "completed")]


@pytest.mark.parametrize("status", [405, 501, 403, 603])
async def test_a_peer_that_refuses_refer_leaves_the_call_as_it_was(status: int) -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            await referred(phone, status)
            await until(lambda: told.transferred)
            assert str(status) in told.transferred[0]
            await phone.bye()
            assert told.closed == ["hangup"] and made.refers == [("sent", "refused")]


@pytest.mark.parametrize("target", ["sales", "VX" + "1" * 32, "http://pbx.example", "sip:a@", ""])
async def test_a_target_that_is_nobody_is_not_even_asked_for(target: str) -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            assert told.call.transfer(target) is TransferStart.UNDER_WAY
            await until(lambda: told.transferred)
            assert told.transferred[0]
            await phone.bye()  # the next request that passes is ours to answer: no REFER came before it


async def test_a_peer_that_notifies_nothing_is_taken_at_its_word() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            await referred(phone, 202, ("Refer-Sub", "false"))
            await until(lambda: told.transferred)
            assert told.transferred == [""]
            await phone.bye()


async def test_an_outcome_that_never_comes_counts_as_done() -> None:
    async with bridge(timeouts={"transfer_s": 0.1}, **ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            await referred(phone)
            await until(lambda: told.transferred)
            assert told.transferred == [""] and made.refers == [("sent", "unanswered")]
            await phone.bye()


async def test_a_target_that_rings_is_waited_for() -> None:
    async with bridge(timeouts={"transfer_s": 0.1}, **ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            await referred(phone)
            await notify(phone, "SIP/2.0 180 Ringing\r\n")
            transfers = told.call.protocol.transfers
            until_first = transfers.deadline()
            await until(lambda: transfers.deadline() != until_first, "the longer wait")
            assert not told.transferred
            await notify(phone, "SIP/2.0 486 Busy Here\r\n", "terminated")
            await until(lambda: told.transferred)
            assert "486" in told.transferred[0]
            await phone.bye()


async def test_a_peer_that_leaves_during_the_transfer_has_transferred() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            await referred(phone)
            await phone.bye()
            assert told.closed == ["transferred"] and made.refers == [("sent", "unknown")]


async def test_a_session_that_leaves_at_once_hangs_up_after_the_outcome() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            told = await up(made, phone)
            told.call.transfer(TARGET)
            told.call.hang_up("end")
            await referred(phone)
            await notify(phone, "SIP/2.0 180 Ringing\r\n")
            assert phone.nothing()
            await notify(phone, "SIP/2.0 200 OK\r\n", "terminated")
            await phone.hung_up()


async def test_notifies_that_nobody_waits_for_are_refused() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            await up(made, phone)
            await notify(phone, "SIP/2.0 200 OK\r\n", "terminated", status=481)
            phone.send(phone.request("NOTIFY", ("Event", "message-summary"), body=b"x", content="text/plain"))
            assert (await phone.response(489)).headers.get("Allow-Events") == "refer"
            await phone.bye()


async def test_attended_the_call_to_the_target_is_replaced() -> None:
    async with bridge(**ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as expert:
            caller = await up(made, phone)
            await made.bridge.outgoing.place(CallOrder(target=f"sip:expert@127.0.0.1:{expert.port}"))
            invite = await fresh(expert, "INVITE")
            reply(expert, invite, 200, tag="theirs", body=offer(expert.rtp_port, codecs="0"))
            await next_of(expert, "ACK")
            await until(lambda: len(made.sessions) == 2)
            consulted = made.sessions[1]
            consulted.call_id = "VX" + "1" * 32
            consulted.call.route = "theirs"
            assert caller.call.transfer(consulted.call_id) is TransferStart.UNDER_WAY
            await until(lambda: caller.transferred)
            assert "live call" in caller.transferred.pop(), "another tenant's call is not there"
            consulted.call.route = "default"
            assert caller.call.transfer(consulted.call_id) is TransferStart.UNDER_WAY
            target = Address.parse((await referred(phone)).headers.get("Refer-To") or "").uri
            assert (target.host, target.port) == ("127.0.0.1", expert.port)
            replaces = f"{invite.call_id}%3Bto-tag%3Dtheirs%3Bfrom-tag%3D{invite.from_.tag}"
            assert target.headers == f"Replaces={replaces}"
            await notify(phone, "SIP/2.0 200 OK\r\n", "terminated")
            assert caller.transferred == [""]
            caller.call.hang_up("transferred")
            await phone.hung_up()
            consulted.call.hang_up("end")
            await expert.hung_up()


@pytest.mark.parametrize(
    ("contact", "code"),
    [
        ("sip:ann@127.0.0.1:7000;ob", ""),
        ("sip:+88216123@carrier.example", "target_not_allowed"),
        ("sip:ann@127.0.0.1;maddr=192.0.2.4", "target_not_allowed"),
        ("sip:ann@127.0.0.1?Route=%3Csip:192.0.2.4%3E", "target_not_allowed"),
        ("tel:+88216123", "target_not_allowed"),
        ("sip:expert@pbx.example", ""),  # one of the allowed targets
    ],
)
async def test_attended_nobody_is_called_whom_the_policy_does_not_know(contact: str, code: str) -> None:
    async with bridge(allowed_targets=["*@pbx.example"]) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as other:
            caller, consulted = await up(made, phone), await up(made, other)
            consulted.call_id = "VX" + "1" * 32
            consulted.call.dialog.target = Uri.parse(contact)  # as a re-INVITE of the other end would
            if code:
                with pytest.raises(Rejected) as refused:
                    caller.call.transfer(consulted.call_id)
                assert refused.value.code == code and "88216" not in str(refused.value)
            else:
                assert caller.call.transfer(consulted.call_id) is TransferStart.UNDER_WAY
                target = Address.parse((await referred(phone)).headers.get("Refer-To") or "").uri
                assert target.host == Uri.parse(contact).host
                await notify(phone, "SIP/2.0 200 OK\r\n", "terminated")
            consulted.call.dialog.target = Uri.parse(f"sip:ann@127.0.0.1:{other.port}")
            await phone.bye()
            await other.bye()


FOLLOWS: dict[str, Any] = {"trunk": {"transfers": "follow"}, **ALLOWED}


@pytest.mark.parametrize(
    ("trunk", "headers", "status"),
    [
        ({}, {"Refer-To": "<sip:x@127.0.0.1>"}, 603),
        ({}, {"Refer-To": "<sip:x@127.0.0.1>", "Refer-Sub": "false"}, 603),
        ({"transfers": "follow"}, {}, 400),
        ({"transfers": "follow"}, {"Refer-To": "<nonsense"}, 400),
        ({"transfers": "follow"}, {"Refer-To": "<http://127.0.0.1>"}, 416),
        ({"transfers": "follow"}, {"Refer-To": "<sip:x@127.0.0.1;method=BYE>"}, 403),
        ({"transfers": "follow"}, {"Refer-To": "<sip:x@192.0.2.1>", "Refer-Sub": "false"}, 403),
        ({"transfers": "follow"}, {"Refer-To": "<sip:x@127.0.0.1>", "Require": "multiple-refer"}, 420),
    ],
)
async def test_a_peers_refer_is_refused(trunk: dict[str, Any], headers: dict[str, str], status: int) -> None:
    async with bridge(trunk=trunk, **ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            await up(made, phone)
            phone.send(phone.request("REFER", *headers.items()))
            await phone.response(status)
            await phone.bye()
            readable = status == 603 or "Refer-Sub" in headers
            assert made.refers == [("received", "refused")] * readable


async def test_a_refer_outside_a_call_is_declined() -> None:
    async with bridge(**FOLLOWS) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            phone.send(phone.request("REFER", ("Refer-To", "<sip:x@127.0.0.1>")))
            await phone.response(603)


async def reported(phone: Phone, status: int = 200) -> Request:
    """The next NOTIFY, answered; answers to our own requests are skipped."""
    while True:
        message = await phone.receive()
        if isinstance(message, Request) and phone.is_new(message):
            assert message.method == "NOTIFY"
            phone.answer(message, status)
            return message


@pytest.mark.parametrize(
    ("target", "answer", "outcome"),
    [
        ("sip:other@127.0.0.1:{}", 200, "200 OK"),
        ("sip:other@127.0.0.1:{};ob;rinstance=4f", 200, "200 OK"),
        ("sip:other@127.0.0.1:{}", 486, "486 Busy Here"),
        ("sip:other@192.0.2.1:{}", 0, "403 Forbidden"),  # not in calling.allowed_targets
        ("sip:other@127.0.0.1:{};user=phone", 0, "404 Not Found"),  # no number: a target that cannot be read
        ("sip:@127.0.0.1", 400, ""),
        ("sip:a%20b@127.0.0.1:{}", 0, "404 Not Found"),
        ("tel:nonsense", 0, "404 Not Found"),
        ("tel:+88216123", 0, "403 Forbidden"),
    ],
)
async def test_a_peers_refer_is_followed_where_the_trunk_may(target: str, answer: int, outcome: str) -> None:
    """A status of SIP tells the outcome: 422 means something else there than in HTTP."""
    async with bridge(**FOLLOWS) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as other:
            told = await up(made, phone)
            uri = target.format(other.port)
            phone.send(phone.request("REFER", ("Refer-To", f"<{uri}>")))
            if not outcome:
                await phone.response(answer)
                await phone.bye()
                return
            first = await reported(phone)
            assert made.refers == [("received", "accepted")]
            assert fragment_status(first.body) == (100, "Trying")
            if answer:
                invite = await fresh(other, "INVITE")
                assert invite.uri == uri
                assert invite.headers.get("Referred-By") == "<sip:+4930111@example.org>"
                assert invite.from_.uri.user == "bot" or told.call.caller.to == "bot"
                reply(other, invite, answer, body=offer(other.rtp_port, codecs="0") if answer == 200 else b"")
                await next_of(other, "ACK")
            last = await reported(phone)
            assert last.body.decode() == f"SIP/2.0 {outcome}\r\n"
            assert (last.headers.get("Subscription-State") or "").startswith("terminated")
            if answer == 200:
                made_call = incoming_call(made.sessions[1].call)
                assert (made_call.parent_call_sid, made_call.greets) == (phone.call_id, False)
            await phone.bye()
            if answer == 200:
                made.sessions[1].call.hang_up("end")
                await other.hung_up()


async def test_the_call_for_a_refer_shows_our_number_and_what_the_peer_hands_over() -> None:
    """RFC 3892: the referrer is named. RFC 3891: the call at the target is replaced."""
    async with bridge(**FOLLOWS) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as other:
            phone.target = f"sip:+4930999@127.0.0.1:{made.bridge.endpoint.port}"
            await phone.call(("X-Account", "4711"))
            await until(lambda: made.sessions and made.sessions[-1].call.state.value == "up")
            within = "one%40pbx%3Bto-tag%3Dt%3Bfrom-tag%3Df&X-Queue=sales&P-Asserted-Identity=%3Csip:forged@x%3E"
            headers = (
                ("Refer-To", f"<sip:other@127.0.0.1:{other.port}?Replaces={within}>"),
                ("Referred-By", '"Sales" <sip:sales@pbx.example>'),
            )
            phone.send(phone.request("REFER", *headers))
            await reported(phone)
            invite = await fresh(other, "INVITE")
            assert invite.from_.uri.user == "+4930999"
            assert invite.headers.get("Referred-By") == "<sip:sales@pbx.example>"
            assert invite.headers.get("Replaces") == "one@pbx;to-tag=t;from-tag=f"
            assert invite.headers.all("Require") == ("replaces",)
            assert (invite.headers.get("X-Account"), invite.headers.get("X-Queue")) == ("4711", "sales")
            reply(other, invite, 486)
            await next_of(other, "ACK")
            await reported(phone)
            await phone.bye()


async def test_each_of_two_refers_has_reports_of_its_own() -> None:
    """RFC 3515 section 2.4.6."""
    async with bridge(**FOLLOWS) as made:
        with Phone(made.bridge.endpoint.port) as phone:
            await up(made, phone)
            events = []
            for _ in range(2):
                phone.send(phone.request("REFER", ("Refer-To", "<sip:other@192.0.2.1>")))
                number = phone.cseq
                events += [(await reported(phone)).headers.get("Event") for _ in range(2)]
            assert events == ["refer", "refer", *[f"refer;id={number}"] * 2]
            await phone.bye()


async def test_a_peer_that_wants_no_reports_gets_none() -> None:
    """RFC 4488."""
    async with bridge(**FOLLOWS) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as other:
            await up(made, phone)
            quiet = (("Refer-Sub", "false"), ("Require", "norefersub"), ("Supported", "norefersub"))
            phone.send(phone.request("REFER", ("Refer-To", f"<sip:other@127.0.0.1:{other.port}>"), *quiet))
            accepted = await phone.response(202)
            assert accepted.headers.get("Refer-Sub") == "false"
            reply(other, await fresh(other, "INVITE"), 486)
            await next_of(other, "ACK")
            await phone.bye()  # and no NOTIFY before it


async def test_a_peer_that_has_forgotten_its_refer_gets_no_more_reports() -> None:
    async with bridge(**FOLLOWS) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as other:
            await up(made, phone)
            phone.send(phone.request("REFER", ("Refer-To", f"<sip:other@127.0.0.1:{other.port}>")))
            await reported(phone, 481)
            reply(other, await fresh(other, "INVITE"), 486)
            await next_of(other, "ACK")
            await phone.bye()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"SIP/2.0 200 OK", (200, "OK")),
        (b"SIP/2.0 486 Busy Here\r\nTo: x", (486, "Busy Here")),
        (b"SIP/2.0 180", (180, "")),
        (b"", None),
        (b"SIP/2.0 999 x", None),
    ],
)
def test_fragments(body: bytes, status: tuple[int, str] | None) -> None:
    assert fragment_status(body) == status


async def test_who_asked_for_a_call_may_leave_before_its_outcome() -> None:
    async with bridge(trunk={"transfers": "follow"}, **ALLOWED) as made:
        with Phone(made.bridge.endpoint.port) as phone, Phone(made.bridge.endpoint.port) as other:
            await up(made, phone)
            phone.send(phone.request("REFER", ("Refer-To", f"<sip:other@127.0.0.1:{other.port}>")))
            await reported(phone)
            invite = await fresh(other, "INVITE")
            await phone.bye()  # the asker has left; the call that was asked for continues, and is refused
            reply(other, invite, 486)
            await next_of(other, "ACK")


async def test_a_transfer_before_the_ack_follows_it() -> None:
    """An application may transfer as soon as it gets the setup, which is before the ACK."""
    async with bridge(allowed_targets=["*@pbx.example"]) as made:
        with Phone(made.bridge.endpoint.port) as caller:
            ok = await caller.invited()
            (told,) = made.sessions
            assert told.call.state.value == "unconfirmed"
            assert told.call.transfer("sip:sales@pbx.example") is TransferStart.UNDER_WAY
            assert told.call.transfer("sip:sales@pbx.example") is TransferStart.REFUSED, "one at a time"
            caller.ack(ok)
            refer = await referred(caller, 603)
            assert "sip:sales@pbx.example" in (refer.headers.get("Refer-To") or "")
            await until(lambda: told.transferred)
            assert "603" in told.transferred[0]
            await caller.bye()
