"""Our calls to a phone that does whatever a callee, a proxy or a fork may do."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import sip_bridge.io.locate
import sip_bridge.outgoing
from gateway.errors import Rejected
from gateway.seams.originate import Attempt, CallOrder
from sip_bridge.call import SipCall
from sip_bridge.config import SipConfig
from sip_bridge.message.digest import DigestVerdict, ServerAuth
from sip_bridge.message.sip import Headers, Message, Request, Response, parse, response_to
from tests.peers.ports import free_port
from tests.sip_bridge.io.test_locate import name_server
from tests.sip_bridge.phone import Bridge, Phone, bridge, offer, until
from tests.waiting import PATIENCE_S

ANYWHERE: dict[str, Any] = {"allowed_targets": ["*@127.0.0.1"]}
"""Loopback only."""


def callee(made: Bridge) -> Phone:
    return Phone(made.bridge.endpoint.port)


@asynccontextmanager
async def trunked(**trunk: Any) -> AsyncIterator[tuple[Bridge, Phone]]:
    """A bridge whose trunk leads to the phone."""
    with Phone(0) as phone:
        async with bridge(trunk={"proxy": f"sip:127.0.0.1:{phone.port}", **trunk}, **ANYWHERE) as made:
            phone.server = ("127.0.0.1", made.bridge.endpoint.port)
            yield made, phone


async def place(made: Bridge, phone: Phone, **more: Any) -> Attempt:
    order = CallOrder(**{"target": f"sip:ann@127.0.0.1:{phone.port}", **more})
    return await made.bridge.outgoing.place(order)


def reply(
    phone: Phone, request: Request, status: int, *headers: tuple[str, str], tag: str = "a", body: bytes = b""
) -> Response:
    contact = ("Contact", f"<sip:ann@127.0.0.1:{phone.port}>")
    more = [*([contact] if status < 300 else []), *headers, *([("Content-Type", "application/sdp")] if body else [])]
    response = response_to(request, status, to_tag="" if status == 100 else tag, headers=more, body=body)
    phone.send(response)
    if response.to.tag:
        phone.to_tag, phone.call_id = response.to.tag, response.call_id
    return response


async def next_of(phone: Phone, *methods: str) -> list[Request]:
    """The next new requests, of these methods in any order. Repetitions are passed over: on a busy machine the bridge's
    quick timers make some."""
    found: dict[str, Request] = {}
    while found.keys() != set(methods):
        message: Message = await phone.receive()
        assert isinstance(message, Request)
        if phone.is_new(message):
            assert message.method in methods, message
            found[message.method] = message
    return [found[method] for method in methods]


async def fresh(phone: Phone, method: str) -> Request:
    """The next new request, of that method."""
    return (await next_of(phone, method))[0]


async def repeated(phone: Phone, method: str) -> Request:
    """A repetition of a request of that method; of others they are passed over."""
    while True:
        message = await phone.receive()
        assert isinstance(message, Request) and not phone.is_new(message), message
        if message.method == method:
            return message


def only_repetitions(phone: Phone) -> bool:
    """True if nothing new waits to be read now."""
    while not phone.nothing():
        message = parse(phone.sip.recv(65536))
        if not isinstance(message, Request) or phone.is_new(message):
            return False
    return True


async def ended(made: Bridge, attempt: Attempt) -> tuple[str, int, str]:
    await until(lambda: attempt.state in ("answered", "failed"))
    return attempt.state, attempt.status, attempt.reason


async def test_a_call_rings_is_answered_speaks_and_hangs_up() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(
                made, phone, custom_parameters={"X-Case": "7", "Name": "Ann"}, headers={"Subject": "hi"}
            )
            invite = await fresh(phone, "INVITE")
            assert invite.uri == f"sip:ann@127.0.0.1:{phone.port}" and str(invite.to) == f"<{invite.uri}>"
            assert (invite.headers.get("Subject"), invite.headers.get("X-Case")) == ("hi", "7")
            assert "Name" not in invite.headers
            assert attempt.state == "calling" and made.bridge.outgoing.attempt(attempt.call_id) is attempt
            reply(phone, invite, 100)
            reply(phone, invite, 180)
            await until(lambda: attempt.state == "ringing")
            assert made.sessions == []
            reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0 101"))
            ack = (await next_of(phone, "ACK"))[0]
            assert ack.to.tag == "a" and ack.cseq.number == invite.cseq.number
            assert await ended(made, attempt) == ("answered", 200, "")
            call = made.session.call
            assert (call.session_id, call.direction, call.caller.to) == (attempt.call_id, "outbound", "ann")
            assert dict(call.caller.parameters) == {"X-Case": "7", "Name": "Ann"}
            assert made.session.is_on_hold is False
            call.send_frame(b"\x11" * 160, time.monotonic())
            assert await phone.hears(b"\x11" * 160) == 0
            call.hang_up("end")
            bye = await phone.hung_up()
            assert bye.cseq.number == invite.cseq.number + 1 and bye.to.tag == "a"


async def test_the_callee_hangs_up() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="8"))
            await next_of(phone, "ACK")
            await until(lambda: made.sessions)
            assert made.session.call.outbound.encoding == "PCMA"
            bye = Request(
                "BYE",
                f"sip:talkspurt@127.0.0.1:{made.bridge.endpoint.port}",
                phone.request("BYE").headers.replace("From", f"{invite.headers.get('To')};tag=a")
                .replace("To", invite.headers.get("From") or "")
                .replace("Call-ID", invite.call_id),
            )  # fmt: skip
            phone.send(bye)
            await phone.response(200)
            assert made.session.closed == ["hangup"]


@pytest.mark.parametrize("early_session", [False, True])
async def test_early_media_is_received_and_its_description_may_be_the_answer(early_session: bool) -> None:
    async with trunked(early_media=early_session) as (made, phone):
        attempt = await place(made, phone, trunk="office")
        invite = await fresh(phone, "INVITE")
        reply(phone, invite, 183, body=offer(phone.rtp_port, codecs="0 101"))
        await until(lambda: attempt.state == "early_media")
        assert len(made.sessions) == int(early_session)
        if early_session:
            assert made.session.is_on_hold
        reply(phone, invite, 200)
        await next_of(phone, "ACK")
        assert await ended(made, attempt) == ("answered", 200, "")
        assert made.session.is_on_hold is False
        made.session.call.send_frame(b"\x22" * 160, time.monotonic())
        assert await phone.hears(b"\x22" * 160) == 0
        made.session.call.hang_up("end")
        await phone.hung_up()


async def test_an_early_session_ends_with_a_call_that_is_not_answered() -> None:
    async with trunked(early_media=True) as (made, phone):
        attempt = await place(made, phone, trunk="office")
        invite = await fresh(phone, "INVITE")
        reply(phone, invite, 183, body=offer(phone.rtp_port, codecs="0 101"))
        await until(lambda: made.sessions)
        reply(phone, invite, 486)
        await next_of(phone, "ACK")
        assert await ended(made, attempt) == ("failed", 486, "busy")
        assert made.session.closed == ["busy"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(404, "not_found"), (480, "no_answer"), (486, "busy"), (488, "no_common_codec"), (500, "unavailable"),
     (600, "busy"), (603, "declined"), (499, "refused"), (401, "not_authorised"), (302, "redirected")],
)  # fmt: skip
async def test_a_refusal_is_acknowledged_and_told(status: int, reason: str) -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, status)
            (ack,) = await next_of(phone, "ACK")
            assert ack.via.branch == invite.via.branch
            assert await ended(made, attempt) == ("failed", status, reason)
            assert made.sessions == [] and made.rejected == [reason]


class Challenger:
    """The answers of a proxy that wants a password."""

    def __init__(self, lifetime_s: float = 60.0) -> None:
        self.auth = ServerAuth("pbx", b"0123456789abcdef", nonce_lifetime_s=lifetime_s)

    def challenge(self, *, stale: bool = False, age_s: float = 0.0) -> list[tuple[str, str]]:
        return [("Proxy-Authenticate", each) for each in self.auth.challenges(now=time.time() - age_s, stale=stale)]

    def verdict(self, request: Request) -> DigestVerdict:
        credentials = request.headers.all("Proxy-Authorization")
        return self.auth.check(credentials, {"bot": "secret"}, method="INVITE", uri=request.uri, now=time.time())[0]


@pytest.mark.parametrize("old", [False, True], ids=["fresh nonce", "stale nonce"])
async def test_a_challenge_is_answered(old: bool) -> None:
    async with trunked(username="bot", password="secret") as (made, phone):
        challenger = Challenger()
        attempt = await place(made, phone, target="+4930123", trunk="office")
        invite = await fresh(phone, "INVITE")
        assert invite.uri == f"sip:+4930123@127.0.0.1:{phone.port}" and invite.from_.uri.user == "bot"
        reply(phone, invite, 407, *challenger.challenge(age_s=100 if old else 0))
        ack, again = await next_two(phone)
        assert again.cseq.number == invite.cseq.number + 1 and again.call_id == invite.call_id
        if old:
            assert challenger.verdict(again) is DigestVerdict.STALE
            reply(phone, again, 407, *challenger.challenge(stale=True))
            ack, again = await next_two(phone)
        assert challenger.verdict(again) is DigestVerdict.GOOD
        reply(phone, again, 200, body=offer(phone.rtp_port, codecs="0"))
        (ack,) = await next_of(phone, "ACK")
        assert "Proxy-Authorization" in ack.headers
        assert await ended(made, attempt) == ("answered", 200, "")
        made.session.call.hang_up("end")
        await phone.hung_up()


async def next_two(phone: Phone) -> tuple[Request, Request]:
    """The ACK of a refusal and the INVITE after it."""
    ack, invite = await fresh(phone, "ACK"), await fresh(phone, "INVITE")
    return ack, invite


async def test_a_wrong_password_is_tried_once() -> None:
    async with trunked(username="bot", password="wrong") as (made, phone):
        challenger = Challenger()
        attempt = await place(made, phone, target="100")
        invite = await fresh(phone, "INVITE")
        reply(phone, invite, 407, *challenger.challenge())
        _, again = await next_two(phone)
        assert challenger.verdict(again) is DigestVerdict.WRONG
        reply(phone, again, 407, *challenger.challenge())
        await fresh(phone, "ACK")
        assert await ended(made, attempt) == ("failed", 407, "not_authorised")


async def test_a_session_interval_too_small_is_raised() -> None:
    async with bridge(timeouts={"session_s": 100}, **ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            assert invite.headers.get("Session-Expires") == "100"
            reply(phone, invite, 422, ("Min-SE", "300"))
            _, again = await next_two(phone)
            assert (again.headers.get("Session-Expires"), again.headers.get("Min-SE")) == ("300", "300")
            reply(phone, again, 486)
            await fresh(phone, "ACK")
            await ended(made, attempt)


async def test_a_redirection_is_followed_where_targets_are_allowed() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone, callee(made) as other:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reply(
                phone, invite, 302,
                ("Contact", "<sip:evil@192.0.2.1>;q=0.9"), ("Contact", f"<sip:bob@127.0.0.1:{other.port}>;q=0.5"),
            )  # fmt: skip
            await fresh(phone, "ACK")
            redirected = await fresh(other, "INVITE")
            assert redirected.uri == f"sip:bob@127.0.0.1:{other.port}"
            assert made.rejected == ["target_not_allowed"]
            reply(other, redirected, 200, body=offer(other.rtp_port, codecs="0"))
            await next_of(other, "ACK")
            assert await ended(made, attempt) == ("answered", 200, "")
            made.session.call.hang_up("end")
            await other.hung_up()


async def test_a_redirection_in_a_circle_ends() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            for _ in range(2):
                invite = await fresh(phone, "INVITE")
                reply(phone, invite, 302, ("Contact", f"<sip:ann@127.0.0.1:{phone.port};user=phone>"))
                await fresh(phone, "ACK")
            assert await ended(made, attempt) == ("failed", 302, "redirected")


async def test_of_two_forks_that_answer_the_second_is_hung_up() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone, callee(made) as other:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 180, tag="a")
            reply(other, invite, 183, tag="b", body=offer(other.rtp_port, codecs="0"))
            reply(phone, invite, 200, tag="a", body=offer(phone.rtp_port, codecs="0"))
            await next_of(phone, "ACK")
            second = reply(other, invite, 200, tag="b", body=offer(other.rtp_port, codecs="0"))
            ack, bye = await next_of(other, "ACK", "BYE")
            assert (ack.to.tag, bye.to.tag) == ("b", "b")
            other.answer(bye, 200)
            other.send(second)  # the ACK was lost
            assert (await repeated(other, "ACK")).to.tag == "b"
            assert only_repetitions(other)
            reply(phone, invite, 200, tag="a", body=offer(phone.rtp_port, codecs="0"))
            assert (await repeated(phone, "ACK")).to.tag == "a"
            assert await ended(made, attempt) == ("answered", 200, "")
            made.session.call.send_frame(b"\x33" * 160, time.monotonic())
            assert await phone.hears(b"\x33" * 160) == 0
            made.session.call.hang_up("end")
            await phone.hung_up()


async def test_a_call_is_cancelled_only_once_it_is_known() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            assert made.bridge.outgoing.cancel(attempt.call_id)
            assert await ended(made, attempt) == ("failed", 487, "cancelled")
            assert only_repetitions(phone)
            reply(phone, invite, 180)
            (cancel,) = await next_of(phone, "CANCEL")
            assert (cancel.via.branch, cancel.cseq.number) == (invite.via.branch, invite.cseq.number)
            reply(phone, invite, 180)  # does not make it say so again
            phone.answer(cancel, 200)
            reply(phone, invite, 487)
            await next_of(phone, "ACK")
            assert made.bridge.outgoing.cancel(attempt.call_id) is False


async def test_an_answer_that_crosses_our_cancel_is_acknowledged_and_hung_up() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 180)
            await until(lambda: attempt.state == "ringing")
            made.bridge.outgoing.cancel(attempt.call_id)
            answer = reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))
            cancel, _, bye = await next_of(phone, "CANCEL", "ACK", "BYE")
            phone.answer(cancel, 481)
            phone.answer(bye, 200)
            phone.send(answer)
            await repeated(phone, "ACK")
            assert await ended(made, attempt) == ("failed", 487, "cancelled")
            assert made.sessions == []


async def test_nobody_there() -> None:
    async with bridge(**ANYWHERE) as made:
        attempt = await made.bridge.outgoing.place(CallOrder(target="sip:ann@127.0.0.1:9;transport=tcp"))
        assert await ended(made, attempt) == ("failed", 503, "unreachable")


async def test_a_connection_leaves_from_the_address_that_we_listen_at() -> None:
    """A PBX that knows us by our address refused what came by TCP and TLS from another one of the machine's."""
    sources: asyncio.Queue[str] = asyncio.Queue()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sources.put_nowait(writer.get_extra_info("peername")[0])
        writer.close()

    async with (
        await asyncio.start_server(connected, "127.0.0.1", 0) as pbx,
        bridge(host="127.0.0.2", **ANYWHERE) as made,
    ):
        target = f"sip:ann@127.0.0.1:{pbx.sockets[0].getsockname()[1]};transport=tcp"
        attempt = await made.bridge.outgoing.place(CallOrder(target=target))
        assert await asyncio.wait_for(sources.get(), PATIENCE_S) == "127.0.0.2"
        made.bridge.outgoing.cancel(attempt.call_id)


@pytest.mark.parametrize("body", [b"", b"v=0\r\nnonsense", offer(9, codecs="18"), offer(0)])
async def test_an_answer_without_a_usable_description_is_hung_up(body: bytes) -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reply(phone, invite, 200, body=body)
            _, bye = await next_of(phone, "ACK", "BYE")
            phone.answer(bye, 200)
            assert "488" in (bye.headers.get("Reason") or "")
            assert await ended(made, attempt) == ("failed", 488, "no_common_codec")


async def test_a_trunk_that_requires_srtp_offers_it() -> None:
    async with trunked(srtp="required") as (made, phone):
        attempt = await place(made, phone, trunk="office")
        invite = await fresh(phone, "INVITE")
        assert b"RTP/SAVP" in invite.body and b"a=crypto:1 AES_CM_128_HMAC_SHA1_80" in invite.body
        reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))  # without a key
        _, bye = await next_of(phone, "ACK", "BYE")
        phone.answer(bye, 200)
        assert await ended(made, attempt) == ("failed", 488, "no_common_codec")


@pytest.mark.parametrize(
    ("order", "status", "code"),
    [
        ({"target": "sip:ann@192.0.2.1"}, 403, "target_not_allowed"),
        ({"target": "sip:ann@127.0.0.1", "route": "nowhere"}, 404, "unknown_route"),
        ({"target": "sip:ann@127.0.0.1", "trunk": "nowhere"}, 404, "unknown_trunk"),
        ({"target": "sip:ann@127.0.0.1", "trunk": "office"}, 422, "invalid_body"),
        ({"target": "+4930123"}, 403, "target_not_allowed"),
        ({"target": "nonsense"}, 403, "target_not_allowed"),
        ({"target": "http://127.0.0.1"}, 422, "invalid_target"),
        ({"target": "sip:ann@127.0.0.1", "from_": "nonsense"}, 422, "invalid_body"),
        ({"target": "sip:ann@127.0.0.1", "headers": {"Via": "x"}}, 422, "invalid_body"),
        ({"target": "sip:ann@127.0.0.1", "headers": {"X-A": "b\r\nVia: x"}}, 422, "invalid_body"),
    ],
)
async def test_orders_that_are_refused(order: dict[str, Any], status: int, code: str) -> None:
    async with bridge(**ANYWHERE) as made:
        with pytest.raises(Rejected) as refused:
            await made.bridge.outgoing.place(CallOrder(**order))
        assert (refused.value.status, refused.value.code) == (status, code)
        assert made.bridge.kept["ports"] == 0


async def test_no_room_and_no_ports() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            first = await place(made, phone)
            ports = made.bridge._ports
            free, ports._free = ports._free, deque()
            with pytest.raises(Rejected) as refused:
                await place(made, phone)
            assert (refused.value.status, refused.value.code) == (503, "no_ports")
            ports._free = free
            made.bridge.outgoing.cancel(first.call_id)
            made.room = False
            with pytest.raises(Rejected) as refused:
                await place(made, phone)
            assert refused.value.code == "full"


async def test_no_room_for_the_session_when_it_is_answered() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            attempt = await place(made, phone)
            invite = await fresh(phone, "INVITE")
            made.room = False
            reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))
            _, bye = await next_of(phone, "ACK", "BYE")
            phone.answer(bye, 200)
            assert await ended(made, attempt) == ("failed", 503, "unavailable")


async def test_closing_gives_up_what_rings() -> None:
    config = SipConfig.model_validate({"port": 0, "rtp_ports": "42000-42999", **ANYWHERE})
    made = Bridge(config, ready=True)
    await made.bridge.start()
    with callee(made) as phone:
        attempt = await place(made, phone)
        invite = await fresh(phone, "INVITE")
        reply(phone, invite, 180)
        await until(lambda: attempt.state == "ringing")
        closing = asyncio.create_task(made.bridge.aclose())
        (cancel,) = await next_of(phone, "CANCEL")
        phone.answer(cancel, 200)
        reply(phone, invite, 487)
        await next_of(phone, "ACK")
        await closing
        assert attempt.reason == "cancelled"
        assert made.bridge.kept["ports"] == made.bridge.kept["outgoing"] == 0


class Lossy:
    """Between the bridge and a phone: loses the first of every kind of message, both ways."""

    def __init__(self, phone: Phone) -> None:
        self._phone = phone
        self._seen: set[str] = set()
        self.lost: list[str] = []

    def _passes(self, kind: str) -> bool:
        if kind in self._seen:
            return True
        self._seen.add(kind)
        self.lost.append(kind)
        return False

    async def asked(self, method: str) -> Request:
        """The next request of that method that is not lost; others are repetitions."""
        while True:
            message = await self._phone.receive()
            assert isinstance(message, Request)
            if message.method == method and self._passes(method):
                return message

    async def reply(self, request: Request, status: int, **more: Any) -> None:
        """A response; a lost one is sent again when the request comes again."""
        if not self._passes(f"{status} {request.method}"):
            again = await self._phone.receive()
            assert isinstance(again, Request) and again.via.branch == request.via.branch
        reply(self._phone, request, status, **more)


async def test_every_message_may_be_lost_once() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            line = Lossy(phone)
            attempt = await place(made, phone)
            invite = await line.asked("INVITE")
            await line.reply(invite, 200, body=offer(phone.rtp_port, codecs="0"))
            answer = reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0"))
            await fresh(phone, "ACK")  # lost, as far as the phone knows
            phone.send(answer)
            await repeated(phone, "ACK")
            assert await ended(made, attempt) == ("answered", 200, "")
            made.session.call.hang_up("end")
            bye = await line.asked("BYE")
            await line.reply(bye, 200)
            assert line.lost == ["INVITE", "200 INVITE", "BYE", "200 BYE"]
            await made.empty()


async def test_a_cancel_and_its_answer_may_be_lost() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            line = Lossy(phone)
            attempt = await place(made, phone)
            invite = await line.asked("INVITE")
            reply(phone, invite, 180)
            await until(lambda: attempt.state == "ringing")
            made.bridge.outgoing.cancel(attempt.call_id)
            cancel = await line.asked("CANCEL")
            await line.reply(cancel, 200)
            refusal = reply(phone, invite, 487)
            await fresh(phone, "ACK")
            phone.send(refusal)  # the ACK was lost
            await repeated(phone, "ACK")
            assert line.lost == ["INVITE", "CANCEL", "200 CANCEL"]
            await made.empty()


@pytest.mark.parametrize(("codecs", "payload_type"), [("9", 9), ("8 0 101", 8), ("0 8", 0)])
@pytest.mark.parametrize("tag", ["a", "b"])
async def test_the_answer_after_early_media_may_have_another_codec(codecs: str, payload_type: int, tag: str) -> None:
    async with trunked(early_media=True) as (made, phone):
        attempt = await place(made, phone, trunk="office")
        invite = await fresh(phone, "INVITE")
        reply(phone, invite, 183, tag="a", body=offer(phone.rtp_port, codecs="0"))
        await until(lambda: made.sessions)
        assert made.session.call.outbound.encoding == "PCMU"
        reply(phone, invite, 200, tag=tag, body=offer(phone.rtp_port, codecs=codecs))
        ack = await fresh(phone, "ACK")
        assert ack.to.tag == tag
        call = made.session.call
        await until(lambda: call.state.name == "UP")
        assert call.outbound.encoding == "PCMU"  # the session's format stays
        assert await sent_type(phone, call) == payload_type
        assert call.rtp.session is not None
        call.hang_up("end")
        phone.answer(await fresh(phone, "BYE"), 200)
        assert (await ended(made, attempt))[0] == "answered"


async def sent_type(phone: Phone, call: SipCall) -> int:
    """Payload type of the first packet of the call's audio that comes to the phone."""
    phone.waiting()
    while True:
        call.send_frame(bytes(range(160)), time.monotonic())
        packet = await phone.packet()
        if len(packet) == 172:
            return packet[1] & 0x7F


async def test_mutated_responses_end_in_an_outcome_and_raise_nothing() -> None:
    rng = random.Random(5)
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    trunk = {"username": "bot", "password": "secret"}
    headers = {401: Challenger().challenge(), 407: Challenger().challenge(), 422: [("Min-SE", "100")], 302: []}
    async with trunked(**trunk) as (made, phone):
        for number in range(60):
            attempt = await place(made, phone, trunk="office")
            invite = await fresh(phone, "INVITE")
            status = rng.choice([183, 200, 302, 401, 407, 422])
            body = offer(phone.rtp_port, codecs="0 101") if status < 300 else b""
            more = [*headers.get(status, []), ("Session-Expires", "90"), ("Contact", "<sip:x@127.0.0.1:9>")]
            data = bytearray(response_to(invite, status, to_tag="t", headers=more, body=body).serialise())
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(4)] = rng.choice([b"", b"\r\n", b"\0", b"<", b'"', b"\xff", b";", b"99"])
            phone.send(bytes(data))
            await asyncio.sleep(0.002)
            made.bridge.outgoing.cancel(attempt.call_id)
            reply(phone, invite, 486, tag=f"end{number}")
            while not phone.nothing():
                await phone.receive()
        for call in made.bridge:
            call.hang_up("end")
    assert raised == []


async def test_acknowledgement_and_bye_visit_the_proxies_of_the_answer() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone, callee(made) as proxy:
            await place(made, phone)
            invite = await fresh(phone, "INVITE")
            near, far = f"<sip:127.0.0.1:{proxy.port};lr>", "<sip:192.0.2.7;lr>"
            reply(
                phone, invite, 200, ("Record-Route", f"{far}, {near}"), body=offer(phone.rtp_port, codecs="0")
            )  # fmt: skip
            ack = await fresh(proxy, "ACK")
            assert ack.headers.all("Route") == (near, far) and ack.uri == f"sip:ann@127.0.0.1:{phone.port}"
            await until(lambda: made.sessions)
            made.session.call.hang_up("end")
            bye = await proxy.hung_up()
            assert bye.headers.all("Route") == (near, far)


@asynccontextmanager
async def two_targets(
    monkeypatch: pytest.MonkeyPatch, *, first: str = "UDP"
) -> AsyncIterator[tuple[Bridge, Phone, Phone]]:
    """A bridge whose trunk is a domain with two targets, and both of them."""
    with Phone(0) as one, Phone(0) as other:
        zone = (
            f'@ 60 IN NAPTR 10 1 "s" "SIP+D2{first[0]}" "" _sip._{first.lower()}\n'
            f'@ 60 IN NAPTR 20 1 "s" "SIP+D2U" "" _second._udp\n'
            f"_sip._{first.lower()} 60 IN SRV 1 1 {one.port if first == 'UDP' else free_port()} localhost.\n"
            f"_second._udp 60 IN SRV 2 1 {other.port} localhost.\n"
        )
        async with name_server(zone) as resolver:
            monkeypatch.setattr(sip_bridge.io.locate, "_system_resolver", lambda: resolver)
            monkeypatch.setattr(sip_bridge.outgoing, "_SILENT_S", 0.2)
            allowed = {"allowed_targets": ["*@carrier.test"]}
            async with bridge(trunk={"proxy": "sip:carrier.test"}, **allowed) as made:  # type: ignore[arg-type]
                one.server = other.server = ("127.0.0.1", made.bridge.endpoint.port)
                yield made, one, other


async def answered_by(made: Bridge, phone: Phone, attempt: Attempt) -> None:
    invite = await fresh(phone, "INVITE")
    reply(phone, invite, 200, body=offer(phone.rtp_port, codecs="0 101"))
    await next_of(phone, "ACK")
    assert await ended(made, attempt) == ("answered", 200, "")


async def test_a_target_that_is_silent_is_given_up_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 3263 section 4.3. The next call goes to the target that lives at once."""
    async with two_targets(monkeypatch) as (made, dead, phone):
        attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111"))
        lost = await fresh(dead, "INVITE")
        await answered_by(made, phone, attempt)
        reply(dead, lost, 200, body=offer(dead.rtp_port))  # after all: it must not ring for nothing
        assert {each.method for each in await next_of(dead, "ACK", "BYE")} == {"ACK", "BYE"}
        made.session.call.hang_up("end")
        await phone.hung_up()
        made.sessions.clear()
        await answered_by(made, phone, await made.bridge.outgoing.place(CallOrder(target="+4930111")))
        assert only_repetitions(dead)


async def test_a_target_that_is_unavailable_is_given_up_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_targets(monkeypatch) as (made, full, phone):
        attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111"))
        reply(full, await fresh(full, "INVITE"), 503, ("Retry-After", "60"))
        await answered_by(made, phone, attempt)


async def test_a_target_that_takes_no_connection_is_given_up_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_targets(monkeypatch, first="TCP") as (made, _, phone):
        await answered_by(made, phone, await made.bridge.outgoing.place(CallOrder(target="+4930111")))


async def test_a_callee_that_is_busy_is_not_called_at_the_next_target(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_targets(monkeypatch) as (made, one, other):
        attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111"))
        reply(one, await fresh(one, "INVITE"), 486)
        assert await ended(made, attempt) == ("failed", 486, "busy")
        assert other.nothing()


async def test_headers_of_the_answer_that_the_trunk_lists_reach_the_application() -> None:
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone:
            await place(made, phone, custom_parameters={"X-Case": "7"})
            invite = await fresh(phone, "INVITE")
            headers = [("X-Queue", "sales"), ("X-Case", "8"), ("P-Secret", "x")]
            reply(phone, invite, 200, *headers, body=offer(phone.rtp_port, codecs="0"))
            await next_of(phone, "ACK")
            await until(lambda: made.sessions)
            assert made.session.call.caller.parameters == {"X-Queue": "sales", "X-Case": "7"}
            made.session.call.hang_up("end")
            await phone.hung_up()


async def test_a_callee_changes_the_session_before_its_answer() -> None:
    """RFC 3311: 183 and PRACK, UPDATE, and a 200 without a description."""
    async with bridge(**ANYWHERE) as made:
        with callee(made) as phone, Phone(0) as elsewhere:
            await place(made, phone)
            invite = await fresh(phone, "INVITE")
            reliable = [("Require", "100rel"), ("RSeq", "1")]
            reply(phone, invite, 183, *reliable, body=offer(phone.rtp_port, codecs="0"))
            reply(phone, await fresh(phone, "PRACK"), 200)
            items = [
                ("Via", f"SIP/2.0/UDP 127.0.0.1:{phone.port};branch=z9hG4bK-update;rport"),
                ("From", f"{invite.to};tag=a"),
                ("To", str(invite.from_)),
                ("Call-ID", invite.call_id),
                ("CSeq", "1 UPDATE"),
                ("Contact", f"<sip:ann@127.0.0.1:{phone.port}>"),
                ("Content-Type", "application/sdp"),
            ]
            update = Request("UPDATE", "sip:talkspurt@127.0.0.1", Headers(items), offer(elsewhere.rtp_port, codecs="8"))
            phone.send(update)
            answered = await phone.response(200)
            assert b"PCMA/8000" in answered.body
            reply(phone, invite, 200)
            await next_of(phone, "ACK")
            await until(lambda: made.sessions and made.session.call.state.value == "up")
            assert made.session.call.outbound.encoding == "PCMA"
            made.session.call.send_frame(b"\x11" * 160, time.monotonic())
            assert await elsewhere.hears(b"\x11" * 160) == 8
            made.session.call.hang_up("end")
            await phone.hung_up()
