"""Calls to the bridge over real sockets: the behaviour that a carrier's or a PBX's engineer would probe."""

import asyncio
import base64
import random
import re
import struct
import time
from typing import Any

import pytest
import uvloop

from gateway.media.srtp import Srtp
from sip_bridge.message.digest import ClientAuth, authorization
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Request, Response, parse, response_to
from tests.peers.ports import free_port
from tests.sip_bridge.phone import PATIENCE_S, Bridge, Phone, bridge, offer, until

UNACKED = {"t1_s": 0.1}
"""Calls without an ACK, which a test leaves behind, end after six seconds."""


def phone_of(made: Bridge, **more: Any) -> Phone:
    return Phone(made.bridge.endpoint.port, **more)


# --- from INVITE to BYE ----------------------------------------------------------------------------------------------


async def test_a_call_rings_is_answered_carries_speech_and_is_hung_up_by_the_caller() -> None:
    async with bridge(ready=False) as made:
        with phone_of(made) as phone:
            phone.send(phone.request("INVITE", body=offer(phone.rtp_port)))
            assert [(await phone.receive()).status for _ in range(2)] == [100, 180]  # type: ignore[union-attr]
            assert made.session.is_on_hold
            made.session.ready.set_result(None)
            ok = await phone.response(200)
            phone.to_tag = ok.to.tag
            phone.media = parse_sdp(ok.body).media[0]
            phone.ack(ok)
            assert made.session.is_on_hold is False
            assert made.session.call.send_frame(b"\x11" * 160, time.monotonic())
            assert await phone.hears(b"\x11" * 160) == 0
            phone.speak(b"\x22" * 160)
            await until(lambda: made.session.heard == [b"\x22" * 160])
            await phone.bye()
            assert made.session.closed == ["hangup"]
            await made.empty()


@pytest.mark.parametrize(
    ("codecs", "name", "number"), [("8 101", "PCMA", 8), ("9 101", "G722", 9), ("107 101", "OPUS", 107)]
)
async def test_the_codec_is_what_both_know(codecs: str, name: str, number: int) -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call(body=offer(phone.rtp_port, codecs=codecs))
            assert phone.media and [c.name for c in phone.media.codecs] == [name, "TELEPHONE-EVENT"]
            assert made.session.call.outbound.encoding == name
            made.session.call.send_frame(bytes(80), time.monotonic())
            assert await phone.hears(bytes(80)) == number


async def test_a_call_over_tcp_is_answered_and_hung_up_on_its_connection() -> None:
    async with bridge() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.bridge.endpoint.port)
        with phone_of(made) as phone:

            async def read() -> Request | Response:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
                return parse(head + await reader.readexactly(length))

            def over_tcp(request: Request) -> bytes:
                return request.serialise().replace(b"SIP/2.0/UDP", b"SIP/2.0/TCP")

            writer.write(over_tcp(phone.request("INVITE", body=offer(phone.rtp_port))))
            statuses = [await read() for _ in range(3)]
            ok = statuses[-1]
            assert isinstance(ok, Response) and ok.status == 200
            assert ok.contact and ok.contact.uri.params == {"transport": "tcp"}
            phone.to_tag = ok.to.tag
            writer.write(over_tcp(phone.request("ACK", cseq=1)))
            await until(lambda: made.session.call.state.value == "up")
            made.session.call.hang_up("end")
            bye = await read()
            assert isinstance(bye, Request) and bye.method == "BYE" and bye.via.transport == "TCP"
            writer.write(response_to(bye, 200).serialise())
            await made.empty()
        writer.close()


async def test_a_call_whose_connection_is_gone_is_hung_up_over_a_new_one() -> None:
    """RFC 3261 section 12.2.1.1: to the Contact; the old connection came from another port."""
    byes: asyncio.Queue[Request] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bye = parse(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S))
        assert isinstance(bye, Request)
        writer.write(response_to(bye, 200).serialise())
        writer.close()
        byes.put_nowait(bye)

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, bridge() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.bridge.endpoint.port)
        with phone_of(made) as phone:
            invite = phone.request("INVITE", body=offer(phone.rtp_port))
            invite = Request(
                invite.method,
                invite.uri,
                invite.headers.replace("Contact", f"<sip:ann@127.0.0.1:{port};transport=tcp>"),
                invite.body,
            )
            writer.write(invite.serialise().replace(b"SIP/2.0/UDP", b"SIP/2.0/TCP"))
            data = b""
            while not (tag := re.search(rb"SIP/2.0 200 .*?To: [^\r]*tag=([^\r;]+)", data, re.DOTALL)):
                data += await asyncio.wait_for(reader.read(4096), PATIENCE_S)
            phone.to_tag = tag[1].decode()
            ack = phone.request("ACK", cseq=1)
            writer.write(ack.serialise().replace(b"SIP/2.0/UDP", b"SIP/2.0/TCP"))
            await until(lambda: made.session.call.state.value == "up")
            writer.close()
            await until(lambda: not made.bridge.endpoint._connections)
            made.session.call.hang_up("end")
            bye = await asyncio.wait_for(byes.get(), PATIENCE_S)
            assert bye.method == "BYE" and bye.via.transport == "TCP"
            await made.empty()


async def test_the_session_hangs_up_with_handoff_data() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            await until(lambda: made.session.call.state.value == "up")
            made.session.call.hang_up("end", "reason=done äö")
            bye = await phone.hung_up()
            uui, _, params = (bye.headers.get("User-to-User") or "").partition(";")
            assert bytes.fromhex(uui).decode() == "reason=done äö" and params == "encoding=hex"


async def test_a_bye_waits_for_the_ack() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            ok = await phone.invited()
            made.session.call.hang_up("end")
            assert (await phone.response(200)).cseq.method == "INVITE"  # repeated, for the ACK is missing
            phone.ack(ok)
            while isinstance(message := await phone.receive(), Response):
                assert message.status == 200
            assert message.method == "BYE"
            phone.answer(message, 200)


@pytest.mark.parametrize(("reason", "status"), [("end", 480), ("dialogue_failed", 503)])
async def test_a_session_that_ends_before_the_answer_refuses_the_call(reason: str, status: int) -> None:
    async with bridge(ready=False) as made:
        with phone_of(made) as phone:
            await phone.invited(status=180)
            made.session.call.hang_up(reason)
            refused = await phone.response(status)
            assert ("Retry-After" in refused.headers) == (status == 503)
            phone.send(phone.request("ACK", cseq=1, branch=""))


async def test_a_manager_that_is_not_there_in_time_refuses_the_call() -> None:
    async with bridge(ready=False, timeouts={"ready_s": 0.05}) as made:
        with phone_of(made) as phone:
            await phone.invited(status=503)
            assert made.session.closed == ["dialogue manager is not there"]


async def test_a_trunk_may_be_answered_without_a_manager_but_not_without_a_record() -> None:
    async with bridge(ready=False, metered=False, trunk={"answer_at_once": True}) as made:
        with phone_of(made) as phone:
            await phone.invited(status=180)
            made.session.metered.set_result(None)
            phone.ack(await phone.response(200))
            await phone.bye()


async def test_early_media_speaks_before_the_answer() -> None:
    async with bridge(ready=True, trunk={"early_media": True}) as made:
        with phone_of(made) as phone:
            await phone.invited(status=183)
            assert made.session.is_on_hold is False
            made.session.call.send_frame(b"\x11" * 160, time.monotonic())
            assert await phone.hears(b"\x11" * 160) == 0
            made.session.greeted.set_result(None)
            phone.ack(await phone.response(200))
            await phone.bye()


# --- who, what, where to ---------------------------------------------------------------------------------------------


async def test_headers_and_identities_become_the_callers_parameters() -> None:
    headers = (
        ("X-Customer", "4711"),
        ("X-Note", "one"),
        ("x-note", "two"),
        ("Other", "unseen"),
        ("User-to-User", "68656c6c6f;encoding=hex"),
        ("P-Asserted-Identity", '"Bob" <sip:%2B49222@carrier.example;user=phone>'),
        ("Diversion", "<sip:+49333@carrier.example>;reason=unconditional"),
    )
    async with bridge(trunk={"numbers": {"20*": "sales", "2000": "boss"}}) as made:
        with phone_of(made) as phone:
            phone.target = phone.target.replace("bot", "2000")
            await phone.call(*headers)
            call = made.session.call
            assert call.caller.parameters == {"X-Customer": "4711", "X-Note": "one, two", "User-to-User": "hello"}
            assert (call.caller.from_, call.caller.to, call.caller.name) == ("+49222", "2000", "Bob")
            assert (call.caller.forwarded_from, call.route, call.call_sid) == ("+49333", "boss", phone.call_id)


async def test_strangers_get_no_answer() -> None:
    async with bridge(trunk={"addresses": ["192.0.2.1"]}) as made:
        with phone_of(made) as phone:
            phone.send(phone.request("INVITE", body=offer(phone.rtp_port)))
            await until(lambda: made.rejected == ["unknown"])
            assert phone.nothing() and not made.sessions


async def test_requests_of_strangers_in_dialogs_that_are_none_leave_room_for_callers() -> None:
    async with bridge(trunk={"addresses": ["127.0.0.1"]}, limits={"transactions": 100}) as made:
        with phone_of(made) as phone:
            take = made.bridge.endpoint._datagrams.datagram_received
            for number in range(200):
                bye = phone.request("BYE", to_tag="none", branch=f"-{number}").serialise()
                take(bye, (f"127.0.1.{number % 130}", 9))
            assert made.bridge.endpoint.transactions == 0
            assert not made.bridge.endpoint.counts["limited"]
            await phone.call()
            await phone.bye()


async def test_a_lost_dialog_is_told() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            phone.send(phone.request("BYE", to_tag="none"))
            assert (await phone.response(None)).status == 481
            assert made.bridge.endpoint.transactions == 0


async def test_a_password_is_asked_for_and_a_wrong_or_old_one_refused() -> None:
    async with bridge(trunk={"addresses": [], "username": "ann", "password": "secret"}) as made:
        with phone_of(made) as phone:

            async def ask(password: str, challenged: Response) -> Response:
                """An INVITE with credentials; the next final response."""
                again = phone.request("INVITE", body=offer(phone.rtp_port))
                credentials = authorization(challenged, again, ClientAuth("ann", password))
                assert credentials
                phone.send(Request(again.method, again.uri, again.headers.add(*credentials), again.body))
                while True:
                    message = await phone.receive()
                    assert isinstance(message, Response)
                    if message.status >= 200:
                        return message

            challenge = await phone.invited(status=401)
            phone.to_tag = ""
            wrong = await ask("guessed", challenge)
            assert wrong.status == 401 and not made.sessions
            made.bridge._trunks._auth = type(made.bridge._trunks._auth)(  # as if its time had passed
                "talkspurt", made.bridge._trunks._auth.secret, nonce_lifetime_s=-1.0
            )
            stale = await ask("secret", challenge)
            assert stale.status == 401 and "stale=true" in (stale.headers.get("WWW-Authenticate") or "")
            made.bridge._trunks._auth = type(made.bridge._trunks._auth)("talkspurt", b"x" * 32)
            challenge = await phone.invited(status=401)
            phone.to_tag = ""
            ok = await ask("secret", challenge)
            assert ok.status == 200
            phone.to_tag = ok.to.tag
            phone.ack(ok)
            await phone.bye()


async def test_no_room_and_draining_are_told_with_a_time_to_come_back() -> None:
    async with bridge() as made:
        made.room = False
        with phone_of(made) as phone:
            assert (await phone.invited(status=503)).headers.get("Retry-After")
            assert made.rejected == ["full"]
            made.room = True
            made.bridge.drain()
            phone.to_tag, phone.call_id = "", "later"
            assert (await phone.invited(status=503)).headers.get("Retry-After")
            phone.to_tag = ""
            phone.send(phone.request("OPTIONS"))
            assert (await phone.response(503)).headers.get("Allow")
        assert not made.sessions


async def test_a_trunk_has_a_limit_of_its_own() -> None:
    async with bridge(trunk={"max_calls": 1}) as made:
        with phone_of(made) as first, phone_of(made) as second:
            await first.call()
            await second.invited(status=503)
            await first.bye()
            second.to_tag = ""
            await second.call()
            await second.bye()


async def test_without_a_free_port_the_call_is_refused_and_the_others_go_on() -> None:
    port = free_port()
    async with bridge(rtp_ports=f"{port}-{port + 1}") as made:
        with phone_of(made) as first, phone_of(made) as second:
            await first.call()
            await second.invited(status=503)
            assert made.rejected == ["no_ports"]
            made.session.call.send_frame(b"\x77" * 160, time.monotonic())
            await first.hears(b"\x77" * 160)
            await first.bye()


async def test_options_are_answered_outside_and_inside_a_call() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            phone.send(phone.request("OPTIONS"))
            outside = await phone.response(200)
            assert "INVITE" in outside.headers.all("Allow") and "application/sdp" in outside.headers.all("Accept")
            await phone.call()
            phone.send(phone.request("OPTIONS"))
            assert "timer" in (await phone.response(200)).headers.tokens("Supported")


# --- messages lost, repeated and crossing ----------------------------------------------------------------------------


async def test_a_repeated_invite_is_one_call_before_and_after_the_answer() -> None:
    async with bridge(ready=False) as made:
        with phone_of(made) as phone:
            await phone.invited(status=180)
            assert phone.invite
            phone.send(phone.invite)
            assert (await phone.response(180)).to.tag == phone.to_tag
            made.session.ready.set_result(None)
            await phone.response(200)
            phone.send(phone.invite)
            phone.ack(await phone.response(200))  # repeated for want of an ACK, not for the INVITE
            phone.send(phone.invite)
            assert len(made.sessions) == 1
            await phone.bye()


async def test_the_same_invite_by_another_way_is_a_loop() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            phone.send(phone.request("INVITE", body=offer(phone.rtp_port), cseq=1, to_tag=""))
            await phone.response(482)
            assert len(made.sessions) == 1


async def test_cancel_before_the_answer_ends_the_call() -> None:
    async with bridge(ready=False) as made:
        with phone_of(made) as phone:
            await phone.invited(status=180)
            assert phone.invite
            branch = (phone.invite.via.branch).removeprefix("z9hG4bK")
            phone.send(phone.request("CANCEL", cseq=1, branch=branch, to_tag=""))
            both = [await phone.receive(), await phone.receive()]
            assert [(r.cseq.method, r.status) for r in both] == [("CANCEL", 200), ("INVITE", 487)]  # type: ignore[union-attr]
            phone.send(phone.request("ACK", cseq=1, branch=branch))
            assert made.session.closed == ["cancelled"]


async def test_cancel_that_crosses_the_answer_is_too_late() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            ok = await phone.invited()
            assert phone.invite
            branch = (phone.invite.via.branch).removeprefix("z9hG4bK")
            phone.send(phone.request("CANCEL", cseq=1, branch=branch, to_tag=""))
            while (message := await phone.receive()).cseq.method != "CANCEL":
                assert message.status == 200  # type: ignore[union-attr]
            assert message.status == 200  # type: ignore[union-attr]
            phone.ack(ok)
            assert not made.session.closed
            await phone.bye()
            assert made.session.closed == ["hangup"]


async def test_a_repeated_bye_is_answered_again_and_a_late_one_refused() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            bye = phone.request("BYE")
            for _ in range(3):
                phone.send(bye)
                await phone.response(200)
            assert made.session.closed == ["hangup"]
            phone.send(phone.request("BYE"))
            await phone.response(481)


async def test_requests_that_do_not_fit_are_refused_and_disturb_nothing() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            phone.send(phone.request("BYE", to_tag="wrong"))
            await phone.response(481)
            phone.send(phone.request("INFO", cseq=0))
            await phone.response(500)
            phone.send(phone.request("INVITE", ("Require", "100rel, precondition")))
            assert (await phone.response(420)).headers.all("Unsupported") == ("precondition",)
            phone.send(phone.request("MESSAGE"))
            await phone.response(501)
            phone.send(phone.request("INVITE", body=b"text", content="text/plain"))
            await phone.response(415)
            phone.send(phone.request("INVITE", body=b"v=1"))
            await phone.response(400)
            assert not made.session.closed
            await phone.bye()


@pytest.mark.parametrize(
    "header",
    [
        ("Record-Route", "<sip:proxy;lr"),
        ("Contact", "*"),
        ("Content-Type", 'multipart/mixed;boundary="\udcff"'),
    ],
)
async def test_an_invite_with_one_bad_header_is_refused_and_leaves_nothing(header: tuple[str, str]) -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.invited(header, status=415 if header[0] == "Content-Type" else 400)
            assert not made.sessions
            await made.empty()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out, put in, or said twice."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        piece = chance.choice([b"\r\n", b"\0", b"<", b'"', b";", b"\xff", b"9" * 12, bytes(out[:50]), b""])
        out[at : at + chance.choice([0, 1, 10])] = piece
    return bytes(out)


async def test_damaged_messages_disturb_nothing() -> None:
    chance = random.Random(5)
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    limits = {"requests_per_s": 1e6, "calls_per_s": 1e6}
    async with bridge(limits=limits, timeouts=UNACKED) as made:
        with phone_of(made) as phone, phone_of(made) as other:
            await phone.call(("Allow", "UPDATE"))
            seeds = [
                other.request(method, body=offer(other.rtp_port) if method in ("INVITE", "UPDATE") else b"").serialise()
                for method in "INVITE BYE ACK CANCEL OPTIONS INFO UPDATE REFER NOTIFY REGISTER".split()
            ]
            # In the dialog of a live call too, but for what would rightly end it.
            seeds += [phone.request("INFO", body=b"1", content="application/dtmf").serialise()]
            seeds += [response_to(phone.request("INVITE", cseq=1), 200).serialise()]
            for _ in range(1500):
                other.send(damaged(chance.choice(seeds), chance))
                await asyncio.sleep(0)  # no faster than they are read, or the good ones are lost too
            made.sessions[0].call.send_frame(b"\x77" * 160, time.monotonic())
            await phone.hears(b"\x77" * 160)
            assert not made.sessions[0].closed
            await phone.bye()
    assert not broken


async def test_messages_cut_short_or_too_large_get_one_status_or_none() -> None:
    async with bridge() as made:
        with phone_of(made) as phone, phone_of(made) as other:
            await phone.call()
            whole = other.request("INVITE", body=offer(other.rtp_port)).serialise()
            for length in range(0, len(whole), 7):
                other.send(whole[:length])
                await asyncio.sleep(0)
            other.send(b"\0" * 60000)
            other.send(whole.replace(b"Max-Forwards: 70", b"X: " + b"y" * 60000))
            other.send(other.request("OPTIONS"))
            statuses = set()
            while b" OPTIONS\r\n" not in (answer := await other.receive_datagram()):
                statuses.add(int(answer.split(b" ", 2)[1]))  # a refusal repeats the headers that were cut
            assert 400 in statuses and statuses <= {100, 180, 200, 400}, statuses
            made.sessions[0].call.send_frame(b"\x77" * 160, time.monotonic())
            await phone.hears(b"\x77" * 160)
            await phone.bye()


# --- offers in the call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
async def test_hold_stops_speech_and_resume_lets_it_go_on(method: str) -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            for more, host, ours in (
                ("a=sendonly", "127.0.0.1", "recvonly"),
                ("a=inactive", "127.0.0.1", "inactive"),
                ("", "0.0.0.0", "recvonly"),
            ):
                phone.send(phone.request(method, body=offer(phone.rtp_port, more=more, host=host)))
                held = await phone.response(200)
                if method == "INVITE":
                    phone.ack(held)
                assert parse_sdp(held.body).media[0].direction.value == ours
                assert made.session.is_on_hold and not made.session.call.listening
                assert not made.session.call.send_frame(bytes(160), time.monotonic())
            phone.send(phone.request(method, body=offer(phone.rtp_port, version=2)))
            resumed = await phone.response(200)
            if method == "INVITE":
                phone.ack(resumed)
            assert parse_sdp(resumed.body).media[0].direction.value == "sendrecv"
            assert made.session.is_on_hold is False and made.session.call.listening
            made.session.call.send_frame(b"\x33" * 160, time.monotonic())
            assert await phone.hears(b"\x33" * 160) == 0
            await phone.bye()


async def test_an_offer_that_we_cannot_take_leaves_the_call_as_it_was() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.invited(status=488, body=offer(phone.rtp_port, codecs="18"))
            phone.to_tag = ""
            assert made.rejected == ["sip_488"] and not made.sessions
            await phone.call()
            phone.send(phone.request("INVITE", body=offer(phone.rtp_port, codecs="18 101")))
            await phone.response(488)
            made.session.call.send_frame(bytes(160), time.monotonic())
            assert await phone.hears(bytes(160)) == 0
            await phone.bye()


async def test_an_offer_while_another_is_open_is_refused() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            phone.send(phone.request("INVITE"))
            ok = await phone.response(200)
            assert ok.body  # ours, to be answered in the ACK
            phone.send(phone.request("UPDATE", body=offer(phone.rtp_port)))
            while (refused := await phone.receive()).cseq.method != "UPDATE":
                pass
            assert refused.status == 491  # type: ignore[union-attr]
            phone.ack(ok, body=offer(phone.rtp_port, codecs="0 101"))
            await until(lambda: not made.session.call.protocol.negotiation.offering)
            await phone.bye()


@pytest.mark.parametrize("multipart", [False, True])
async def test_a_late_offer_is_ours_and_the_answer_comes_with_the_ack(multipart: bool) -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            ok = await phone.invited(body=b"")
            assert {c.name for c in parse_sdp(ok.body).media[0].codecs} >= {"PCMU", "PCMA", "G722", "OPUS"}
            assert not made.sessions
            body, content = offer(phone.rtp_port, codecs="9 101"), "application/sdp"
            if multipart:
                body = (
                    b"--x\r\nContent-Type: text/plain\r\n\r\nhi\r\n--x\r\nContent-Type: application/sdp\r\n\r\n" + body
                )
                body, content = body + b"\r\n--x--\r\n", 'multipart/mixed;boundary="x"'
            phone.send(phone.request("ACK", cseq=1, body=body, content=content))
            await until(lambda: made.sessions)
            assert made.session.call.outbound.encoding == "G722" and made.session.is_on_hold is False
            made.session.call.send_frame(bytes(160), time.monotonic())
            assert await phone.hears(bytes(160)) == 9
            await phone.bye()


@pytest.mark.parametrize("body", [b"", offer(4000, codecs="18"), b"nonsense"])
async def test_a_late_offer_without_a_usable_answer_ends_the_call(body: bytes) -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            phone.ack(await phone.invited(body=b""), body=body)
            assert "488" in ((await phone.hung_up()).headers.get("Reason") or "")
            assert not made.sessions


# --- session timers --------------------------------------------------------------------------------------------------


async def test_the_session_interval_is_agreed() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            small = await phone.invited(("Session-Expires", "60"), ("Supported", "timer"), status=422)
            assert small.headers.get("Min-SE") == "90"
            phone.to_tag = ""
            ok = await phone.call(("Session-Expires", "600;refresher=uac"), ("Supported", "timer"))
            assert ok.headers.get("Session-Expires") == "600;refresher=uac" and "timer" in ok.headers.all("Require")
            await phone.bye()
            assert not made.bridge.kept["calls"]


# --- routes ----------------------------------------------------------------------------------------------------------


async def test_our_requests_visit_the_proxies_of_the_invite() -> None:
    async with bridge() as made:
        with phone_of(made) as phone, phone_of(made) as proxy:
            route = f"<sip:127.0.0.1:{proxy.port};lr>"
            ok = await phone.call(("Record-Route", route), ("Contact", "<sip:ann@10.255.255.1:5060>"))
            assert ok.headers.all("Record-Route") == (route,)
            await until(lambda: made.session.call.state.value == "up")
            made.session.call.hang_up("end")
            bye = await proxy.asked("BYE")
            assert bye.uri == "sip:ann@10.255.255.1:5060" and bye.headers.all("Route") == (route,)
            proxy.answer(bye, 200)


async def test_a_caller_behind_a_translator_is_answered_where_it_calls_from() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            phone.address = "10.255.255.1"  # as it knows itself
            ok = await phone.call()
            assert ok.via.params["received"] == "127.0.0.1" and ok.via.params["rport"] == str(phone.port)
            await until(lambda: made.session.call.state.value == "up")
            made.session.call.hang_up("end")
            await phone.hung_up()


async def test_a_caller_whose_translator_gives_it_another_port_is_hung_up_at_the_new_one() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            phone.address = "10.255.255.1"
            await phone.call()
            await until(lambda: made.session.call.state.value == "up")
            with phone.sip:
                phone.address = "127.0.0.1"
                phone.sip = phone._socket()
            phone.address = "10.255.255.1"
            phone.send(phone.request("OPTIONS"))
            await phone.response(200)
            made.session.call.hang_up("end")
            await phone.hung_up()


async def test_a_caller_that_connects_again_is_hung_up_on_the_new_connection() -> None:
    """RFC 5626 section 4.3: a translator lets no connection through to its Contact."""
    async with bridge() as made:
        port = made.bridge.endpoint.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with phone_of(made) as phone:
            phone.address = "10.255.255.1"

            async def read(reader: asyncio.StreamReader) -> Request | Response:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
                return parse(head + await reader.readexactly(length))

            def over_tcp(request: Request) -> bytes:
                return request.serialise().replace(b"SIP/2.0/UDP", b"SIP/2.0/TCP")

            writer.write(over_tcp(phone.request("INVITE", body=offer(phone.rtp_port))))
            while (ok := await read(reader)).status < 200:  # type: ignore[union-attr]
                pass
            assert isinstance(ok, Response)
            phone.to_tag = ok.to.tag
            writer.write(over_tcp(phone.request("ACK", cseq=1)))
            await until(lambda: made.session.call.state.value == "up")
            writer.close()
            await until(lambda: not made.bridge.endpoint._connections)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(over_tcp(phone.request("OPTIONS")))
            assert (await read(reader)).status == 200  # type: ignore[union-attr]
            made.session.call.hang_up("end")
            bye = await read(reader)
            assert isinstance(bye, Request) and bye.method == "BYE"
            writer.write(response_to(bye, 200).serialise())
            await made.empty()
        writer.close()


# --- media -----------------------------------------------------------------------------------------------------------


def event(digit: int, *, end: bool, duration: int) -> bytes:
    return struct.pack("!BBH", digit, (0x80 if end else 0) | 10, duration)


async def test_keys_come_by_event_or_by_info_but_not_twice() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            for sequence, (end, duration) in enumerate([(False, 160), (False, 320), (True, 480), (True, 480)]):
                phone.speak(event(5, end=end, duration=duration), payload_type=101, sequence=sequence, timestamp=800)
            await until(lambda: made.session.digits == "5")
            phone.send(phone.request("INFO", body=b"Signal=5\r\nDuration=160\r\n", content="application/dtmf-relay"))
            await phone.response(200)
            phone.speak(event(11, end=False, duration=160), payload_type=101, sequence=9, timestamp=8000)
            await until(lambda: made.session.digits == "5#")


@pytest.mark.parametrize(
    ("content", "body", "status"),
    [
        ("application/dtmf-relay", b"Signal= *\r\nDuration= 100\r\n", 200),
        ("application/dtmf", b"*", 200),
        ("application/dtmf-relay", b"Signal=word", 400),
        ("application/dtmf", b"42", 400),
        ("application/vnd.nortelnetworks.digits", b"p=Digit-Collection\r\ny=Digits\r\nd=*\r\n", 200),
        ("text/plain", b"*", 415),
        ("", b"", 200),
    ],
)
async def test_info(content: str, body: bytes, status: int) -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            phone.send(phone.request("INFO", body=body, content=content))
            await phone.response(status)
            assert made.session.digits == ("*" if status == 200 and body else "")
            await phone.bye()


async def test_media_that_stays_away_ends_the_call() -> None:
    async with bridge(timeouts={"media_s": 0.1}) as made:
        with phone_of(made) as phone:
            await phone.call()
            assert "media timeout" in ((await phone.hung_up()).headers.get("Reason") or "")
            assert made.session.closed == ["media timeout"]


@pytest.mark.parametrize(("policy", "followed"), [("host", True), ("any", True), ("strict", False)])
async def test_media_from_another_port_is_followed_where_the_trunk_says_so(policy: str, followed: bool) -> None:
    async with bridge(trunk={"media": policy}) as made:
        with phone_of(made) as phone:
            await phone.call(body=offer(9))  # that port is empty: a translator has changed it
            for sequence in range(4):
                phone.speak(bytes(160), sequence=sequence, timestamp=160 * sequence)
            rtp = made.session.call.rtp
            await until(
                lambda: rtp.session.dropped["stranger"] == 4 or rtp._latch.remote == phone.rtp.getsockname(),
                "all four packets",
            )
            made.session.call.send_frame(b"\x44" * 160, time.monotonic())
            if followed:
                assert await phone.hears(b"\x44" * 160) == 0
            else:
                with pytest.raises(BlockingIOError):
                    phone.rtp.recv(10)


async def test_losses_and_jitter_are_reported() -> None:
    async with bridge() as made:
        with phone_of(made) as phone:
            await phone.call()
            for sequence in (1, 2, 5):
                phone.speak(bytes(160), sequence=sequence, timestamp=160 * sequence)
            await until(lambda: made.session.call.rtp.session.stats.packets_received == 3)
            await phone.bye()
            assert [report.lost for report in made.reports] == [2] and 0 < (made.reports[0].jitter_s or 0) < 1


KEY = bytes(range(30))


@pytest.mark.parametrize("protocol", ["RTP/SAVP", "RTP/AVP"])
async def test_srtp_is_taken_where_it_is_offered(protocol: str) -> None:
    line = "a=crypto:3 AES_CM_128_HMAC_SHA1_80 inline:" + base64.b64encode(KEY).decode()
    async with bridge() as made:
        with phone_of(made) as phone:
            body = offer(phone.rtp_port, protocol=protocol) + line.encode() + b"\r\n"
            await phone.call(body=body)
            assert phone.media and phone.media.protocol == protocol
            (theirs,) = phone.media.cryptos
            assert theirs.tag == 3 and theirs.key != KEY
            srtp = Srtp.keyed(theirs.suite, send_key=KEY, receive_key=theirs.key)
            made.session.call.send_frame(b"\x55" * 160, time.monotonic())
            while srtp.unprotect(await phone.packet())[12:] != b"\x55" * 160:
                pass
            packet = struct.pack("!BBHII", 0x80, 0, 1, 0, 7) + b"\x66" * 160
            phone.rtp.sendto(srtp.protect(packet), ("127.0.0.1", phone.media.port))
            await until(lambda: made.session.heard == [b"\x66" * 160])


@pytest.mark.parametrize(
    ("policy", "protocol"), [("off", "RTP/SAVP"), ("required", "RTP/AVP"), ("optional", "RTP/SAVP")]
)
async def test_srtp_without_a_key_or_against_the_trunks_policy_is_refused(policy: str, protocol: str) -> None:
    async with bridge(trunk={"srtp": policy}) as made:
        with phone_of(made) as phone:
            await phone.invited(status=488, body=offer(phone.rtp_port, protocol=protocol))
            assert not made.sessions


async def test_a_flood_from_one_address_leaves_the_others_alone() -> None:
    async with bridge(limits={"requests_per_s": 1}, timeouts=UNACKED) as made:
        with phone_of(made) as phone, phone_of(made, address="127.0.0.2") as other:
            for _ in range(50):
                phone.send(phone.request("INVITE", body=offer(phone.rtp_port), to_tag=""))
            await other.call()
            assert len(made.sessions) < 25, "four at once, then one a second"
            await other.bye()


def test_timers_that_are_due_at_once_on_the_servers_own_loop() -> None:
    """uvloop's handle of such a timer is of another kind."""

    async def run() -> None:
        async with bridge(ready=False, timeouts={"t1_s": 0.0002}) as made:
            with phone_of(made) as first, phone_of(made) as second:
                await first.invited(status=180)
                await second.invited(status=180)
                for told in made.sessions:
                    told.call.hang_up("end")
                await second.response(480)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
