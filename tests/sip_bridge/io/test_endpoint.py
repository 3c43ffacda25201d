"""The endpoint over real sockets on loopback."""

import asyncio
import contextlib
import gc
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.listener.turns import LoopTurns
from sip_bridge.dialog.dialog import Dialog, DialogId, dialog_id
from sip_bridge.dialog.transaction import Act, Key, Timing, cancel_of
from sip_bridge.errors import SipError
from sip_bridge.io import endpoint as endpoint_module
from sip_bridge.io.endpoint import Endpoint, Limits, _DatagramsInTurns
from sip_bridge.local import Peer
from sip_bridge.message.sdp import Negotiation
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Headers, Message, Request, Response, parse, response_to
from sip_bridge.trunks import SourceStanding
from tests.peers.ports import free_port
from tests.sip_bridge.sip_messages import request
from tests.waiting import PATIENCE_S, until


class Answerer:
    """Answers every call with 200 and a description, and keeps its dialogs."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(self)
        self.dialogs: dict[DialogId, Dialog] = {}
        self.calls = 0
        self.acks = 0
        self.cancelled: list[Key] = []
        self.lost: list[Peer] = []
        self.needs_asked = 0
        """Questions whether a call needs a connection."""
        self.responses: asyncio.Queue[Response | Act] = asyncio.Queue()
        self.ring_only = False
        self.ready = True
        self.callers = SourceStanding.KNOWN
        self.invites: dict[Key, Request] = {}

    def standing(self, peer: Peer) -> SourceStanding:
        return self.callers

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        contact = ("Contact", f"<sip:bot@127.0.0.1:{self.endpoint.port}>")
        if request.method == "INVITE":
            self.calls += 1
            self.invites[key] = request
            tag = f"ours{self.calls}"
            if self.ring_only:
                self.endpoint.respond(key, response_to(request, 180, to_tag=tag, headers=[contact]))
                return
            try:
                body = Negotiation(host="127.0.0.1", port=40000).answer(parse_sdp(request.body))
            except SipError as error:
                self.endpoint.respond(key, response_to(request, getattr(error, "status", 400), to_tag=tag))
                return
            dialog = Dialog.as_server(request, tag)
            self.dialogs[dialog.id] = dialog
            headers = [contact, ("Content-Type", "application/sdp")]
            self.endpoint.respond(key, response_to(request, 200, to_tag=tag, headers=headers, body=body))
            return
        found = self.dialogs.pop(dialog_id(request, received=True), None)
        self.endpoint.respond(key, response_to(request, 200 if found else 481, to_tag="none"))

    def on_ack(self, request: Request) -> None:
        self.acks += 1

    def on_cancel(self, invite: Key, cancel: Request) -> None:
        self.cancelled.append(invite)
        self.endpoint.respond(invite, response_to(self.invites[invite], 487, to_tag="ours1"))

    def on_response(self, key: Key | None, response: Response) -> None:
        self.responses.put_nowait(response)

    def on_failed(self, key: Key, reason: Act) -> None:
        self.responses.put_nowait(reason)

    def needs_connection(self, peer: Peer) -> bool:
        self.needs_asked += 1
        return bool(self.dialogs)

    def on_disconnected(self, peer: Peer) -> None:
        self.lost.append(peer)


RFC_TIMES = Timing()


@asynccontextmanager
async def listening(timing: Timing = RFC_TIMES, **limits: int) -> AsyncIterator[Answerer]:
    user = Answerer()
    user.endpoint = Endpoint(user, timing=timing, limits=Limits(**limits), ready=lambda: user.ready)  # type: ignore[arg-type]
    await user.endpoint.start("127.0.0.1", 0)
    try:
        yield user
    finally:
        await user.endpoint.close()


class Caller:
    """A peer of few words: one UDP socket."""

    def __init__(self, user: Answerer) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect(("127.0.0.1", user.endpoint.port))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return host, port

    def send(self, message: Request | bytes) -> None:
        self._socket.send(message if isinstance(message, bytes) else message.serialise())

    async def receive(self) -> Response:
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._socket, 65536), PATIENCE_S)
        message = parse(data)
        assert isinstance(message, Response)
        return message

    async def ask(self, message: Request | bytes) -> Response:
        self.send(message)
        return await self.receive()

    async def silent(self) -> bool:
        """Nothing more comes; what would have come came before the answer to an OPTIONS."""
        marker = request("OPTIONS", branch="z9hG4bK-marker", call_id="marker")
        return (await self.ask(marker)).call_id == "marker"

    def heard_nothing(self) -> bool:
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def calling(**limits: int) -> AsyncIterator[tuple[Answerer, Caller]]:
    async with listening(RFC_TIMES, **limits) as user:
        caller = Caller(user)
        try:
            yield user, caller
        finally:
            caller.close()


@asynccontextmanager
async def serving(take: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A TCP server on a port. Its handlers end with their connections."""
    handlers: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        handlers.append(handler)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await take(reader, writer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0, limit=100_000) as server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.gather(*handlers)


SDP = b"v=0\r\no=a 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\n"


async def test_options_says_what_we_can() -> None:
    async with calling() as (user, caller):
        answer = await caller.ask(request("OPTIONS"))
        assert answer.status == 200
        assert "INVITE" in answer.headers.all("Allow")
        assert answer.via.params["received"] == "127.0.0.1" and answer.via.params["rport"]
        user.ready = False
        assert (await caller.ask(request("OPTIONS", branch="z9hG4bK-2"))).status == 503
        user.ready, user.endpoint.draining = True, True
        assert (await caller.ask(request("OPTIONS", branch="z9hG4bK-3"))).status == 503


@pytest.mark.parametrize(
    ("method", "headers", "status", "header"),
    [
        ("PUBLISH", (), 501, "Allow"),
        ("INVITE", (("Require", "timer, foo"), ("Contact", "<sip:a@127.0.0.1>")), 420, "Unsupported"),
        ("OPTIONS", (("Max-Forwards", "0"),), 200, "Allow"),
        ("BYE", (), 481, "To"),
        ("CANCEL", (), 481, "To"),
    ],
)
async def test_what_needs_no_call(method: str, headers: tuple[tuple[str, str], ...], status: int, header: str) -> None:
    async with calling() as (user, caller):
        answer = await caller.ask(request(method, headers=headers))
        assert answer.status == status
        assert header in answer.headers
        assert user.calls == 0


async def test_full_and_draining_refuse_new_calls() -> None:
    async with calling(transactions=0) as (user, caller):
        answer = await caller.ask(request(body=SDP))
        assert (answer.status, answer.headers.get("Retry-After")) == (503, "5")
    async with calling() as (user, caller):
        user.endpoint.draining = True
        assert (await caller.ask(request(body=SDP))).status == 503
        assert user.endpoint.transactions == 0


async def test_a_full_table_takes_what_ends_a_call() -> None:
    async with calling(transactions=10) as (user, caller):
        await caller.ask(request(body=SDP))
        user.ring_only = True
        ringing = [request(branch=f"z9hG4bK-n{number}", call_id=f"{number}", body=SDP) for number in range(10)]
        assert [(await caller.ask(invite)).status for invite in ringing] == [180] * 9 + [503]
        cancel, stray = (request("CANCEL", branch=f"z9hG4bK-n{number}", call_id=f"{number}") for number in (0, 9))
        answers = [await caller.ask(cancel), await caller.receive()]
        assert [(r.status, r.cseq.method) for r in answers] == [(200, "CANCEL"), (487, "INVITE")]
        caller.send(request("ACK", branch="z9hG4bK-n0", call_id="0", to_tag="ours2"))
        assert (await caller.ask(stray)).status == 481


async def test_a_full_table_has_a_reserve_for_dialogs() -> None:
    async with calling(transactions=10) as (user, caller):
        tag = (await caller.ask(request(body=SDP))).to.tag
        user.ring_only = True
        for number in range(9):
            await caller.ask(request(branch=f"z9hG4bK-n{number}", call_id=f"{number}", body=SDP))
        bye = request("BYE", cseq=2, branch="z9hG4bK-bye", to_tag=tag)
        assert (await caller.ask(bye)).status == 200
        assert not user.dialogs
        more = request("INFO", cseq=3, branch="z9hG4bK-more", to_tag=tag)
        assert (await caller.ask(more)).status == 503  # the reserve is a bound, too


async def test_a_call_and_its_repetitions() -> None:
    async with calling() as (user, caller):
        invite = request(body=SDP)
        accepted = await caller.ask(invite)
        assert accepted.status == 200 and b"m=audio 40000 RTP/AVP 0" in accepted.body
        caller.send(invite)
        tag = accepted.to.tag
        caller.send(request("ACK", branch="z9hG4bK-2", to_tag=tag))
        assert await caller.silent()
        bye = request("BYE", cseq=2, branch="z9hG4bK-3", to_tag=tag)
        assert [(await caller.ask(bye)).status for _ in range(2)] == [200, 200]
        assert (user.calls, user.acks, user.dialogs) == (1, 1, {})
        user.endpoint._transactions.tick(asyncio.get_running_loop().time() + 60)
        assert user.endpoint.transactions == 0


async def test_no_common_codec() -> None:
    async with calling() as (_, caller):
        answer = await caller.ask(request(body=SDP.replace(b"AVP 0", b"AVP 18")))
        assert answer.status == 488


async def test_cancel() -> None:
    async with calling() as (user, caller):
        user.ring_only = True
        assert (await caller.ask(request(body=SDP))).status == 180
        first = await caller.ask(request("CANCEL"))
        second = await caller.receive()
        assert [(r.status, r.cseq.method) for r in (first, second)] == [(200, "CANCEL"), (487, "INVITE")]
        assert (await caller.receive()).status == 487  # until its ACK
        caller.send(request("ACK", to_tag="ours1"))


async def test_a_stranger_who_knows_the_branch_cancels_nothing_with_or_without_a_to_tag() -> None:
    async with calling() as (user, caller):
        user.ring_only = True
        assert (await caller.ask(request(body=SDP))).status == 180
        user.callers = SourceStanding.STRANGER
        for to_tag in ("", "ours1"):
            caller.send(request("CANCEL", to_tag=to_tag))
        await until(lambda: user.endpoint.counts["strangers"] == 2)
        assert caller.heard_nothing() and not user.cancelled


@pytest.mark.parametrize(
    ("via", "to_its_port"),
    [
        ("127.0.0.1:{}", True),
        ("127.0.0.1:{};rport", False),
        ("192.0.2.4:{}", False),  # behind a translator
        ("pbx.example:{}", False),
    ],
)
async def test_a_peer_that_sends_from_another_port_than_it_listens_at_is_answered_there(
    via: str, to_its_port: bool
) -> None:
    """RFC 3261 section 18.2.2. Aastra phones without symmetric signalling and Dialogic gateways do so."""
    async with calling() as (user, sends):
        listens = Caller(user)
        try:
            invite = request(body=SDP)
            named = f"SIP/2.0/UDP {via.format(listens.address[1])};branch=z9hG4bK-1"
            sends.send(replace(invite, headers=invite.headers.replace("Via", named)))
            hears, not_heard = (listens, sends) if to_its_port else (sends, listens)
            accepted = await hears.receive()
            assert accepted.status == 200 and not_heard.heard_nothing()
        finally:
            listens.close()


async def test_malformed_is_answered_or_dropped_and_disturbs_nobody() -> None:
    async with calling() as (user, caller):
        bad = request().serialise().replace(b"Content-Length: 0", b"Content-Length: -1")
        assert (await caller.ask(bad)).status == 400
        for junk in (b"\r\n\r\n", b"\0", b"nonsense", bytes(range(256)), request().serialise()[:30]):
            caller.send(junk)
        assert await caller.silent()
        assert user.endpoint.counts["unreadable"] == 4


async def test_a_flood_of_one_source_is_dropped() -> None:
    async with calling(burst=3, requests_per_s=0) as (user, caller):
        for number in range(3):
            assert (await caller.ask(request("OPTIONS", branch=f"z9hG4bK-{number}"))).status == 200
        caller.send(request("OPTIONS", branch="z9hG4bK-x"))
        await until(lambda: user.endpoint.counts["limited"] == 1)
        assert caller.heard_nothing()


STRAY = (
    request("OPTIONS"),
    request("PUBLISH"),
    request("BYE"),
    request("CANCEL"),
    request("OPTIONS", headers=(("Require", "foo"),)),
    request("OPTIONS").serialise().replace(b"Content-Length: 0", b"Content-Length: 9"),
)


@pytest.mark.parametrize("message", STRAY, ids=lambda message: message.method if isinstance(message, Request) else "")
async def test_strangers_get_no_answer(message: Request | bytes) -> None:
    async with calling() as (user, caller):
        user.callers = SourceStanding.STRANGER
        caller.send(message)
        caller.send(request("INVITE", branch="z9hG4bK-2", body=SDP))  # which the user judges
        assert (await caller.receive()).cseq.method == "INVITE"
        assert user.endpoint.counts["unreadable"] + user.endpoint.counts["strangers"] == 1


@pytest.mark.parametrize("more", [0, 40, 200])
@pytest.mark.parametrize("message", STRAY[:-1], ids=lambda message: message.method)
async def test_who_might_be_anybody_gets_no_more_bytes_than_it_sent(message: Request, more: int) -> None:
    """Else we would multiply what somebody sends to us in the name of a third."""
    async with calling() as (user, caller):
        user.callers = SourceStanding.UNPROVEN
        asked = replace(message, headers=message.headers.add("User-Agent", "x" * more)).serialise()
        user.endpoint._datagrams.datagram_received(asked, caller.address)
        user.callers = SourceStanding.KNOWN
        caller.send(request("OPTIONS", branch="z9hG4bK-2", call_id="marker"))
        answer = await caller.receive()
        assert answer.call_id == "marker" or len(answer.serialise()) <= len(asked)
        assert more < 200 or answer.call_id != "marker"


async def test_what_a_source_sends_too_much_is_not_even_read() -> None:
    """Nonsense, responses and ACKs too; long messages count as several."""
    async with listening(burst=5, requests_per_s=0) as user:
        take = user.endpoint._datagrams.datagram_received
        for _ in range(9):
            take(b"nonsense", ("127.0.0.1", 9))
        take(b"nonsense" * 5000, ("127.0.0.1", 9))
        for _ in range(9):
            take(response_to(request(), 200).serialise(), ("127.0.0.1", 9))
        assert user.endpoint.counts == {"unreadable": 10, "limited": 8}
        assert user.responses.qsize() == 1
        take(b"nonsense", ("127.0.0.2", 9))
        assert user.endpoint.counts["unreadable"] == 11


async def test_datagrams_that_come_together_are_taken_in_turns_and_in_order() -> None:
    class Behind(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            taken.append(int(data))

    taken, counts = list[int](), Counter[str]()
    turns = LoopTurns(lambda: len(taken) * 0.0001)  # each costs a fifth of what a turn of the loop has
    datagrams = _DatagramsInTurns(Behind(), turns, counts)
    for number in range(300):
        datagrams.datagram_received(b"%d" % number, ("127.0.0.1", 9))
    at_once = len(taken)
    assert at_once in (5, 6) and counts == {"limited": 300 - at_once - 256}
    await asyncio.sleep(0)
    assert at_once < len(taken) <= at_once + 6
    datagrams.datagram_received(b"300", ("127.0.0.1", 9))
    await until(lambda: taken[-1] == 300)
    assert taken == [*range(at_once + 256), 300]


async def test_a_connection_that_brings_too_much_is_closed() -> None:
    async with listening(burst=1, requests_per_s=0) as user:
        reader, writer = await asyncio.open_connection("127.0.0.1", user.endpoint.port)
        writer.write(b"\r\n\r\n" * 3 + b"nonsense\r\n\r\n" * 1000)
        with contextlib.suppress(ConnectionResetError):  # what it has sent is not read any more
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        assert user.endpoint.counts == {"unreadable": 4, "limited": 1}
        writer.close()


async def test_tcp_answers_on_the_same_connection() -> None:
    async with listening() as user:
        reader, writer = await asyncio.open_connection("127.0.0.1", user.endpoint.port)
        writer.write(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"\r\n"
        options = request("OPTIONS").serialise().replace(b"UDP", b"TCP")
        for at in range(0, len(options), 7):
            writer.write(options[at : at + 7])
            await writer.drain()
        assert (await reader.readuntil(b"\r\n")).startswith(b"SIP/2.0 200")
        writer.write(b"OPTIONS sip:a SIP/2.0\r\nContent-Length: x\r\n\r\n")
        await asyncio.wait_for(reader.read(), PATIENCE_S)  # closed: this stream cannot be cut any more
        writer.close()
        await writer.wait_closed()


async def test_the_answer_to_a_call_whose_connection_is_gone_goes_to_the_port_in_its_via() -> None:
    """RFC 3261 section 18.2.2; issue 283 of freeswitch/sofia-sip: a caller that rings closes its connection."""
    came = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set_result(await reader.readuntil(b"\r\n"))
        writer.close()

    async with listening() as user, await asyncio.start_server(take, "127.0.0.1", 0) as listens:
        user.ring_only = True
        reader, writer = await asyncio.open_connection("127.0.0.1", user.endpoint.port)
        invite = request(body=SDP)
        via = f"SIP/2.0/TCP 127.0.0.1:{listens.sockets[0].getsockname()[1]};branch=z9hG4bK-1"
        writer.write(replace(invite, headers=invite.headers.replace("Via", via)).serialise())
        assert await asyncio.wait_for(reader.readuntil(b"\r\n"), PATIENCE_S) == b"SIP/2.0 180 Ringing\r\n"
        writer.close()
        await until(lambda: user.lost)
        ((key, taken),) = user.invites.items()
        user.endpoint.respond(key, response_to(taken, 486, to_tag="ours1"))
        assert await asyncio.wait_for(came, PATIENCE_S) == b"SIP/2.0 486 Busy Here\r\n"


@pytest.mark.parametrize("transport", ["UDP", "TCP"])
async def test_two_endpoints_talk(transport: str) -> None:
    async with listening() as ours, listening() as theirs:
        headers = Headers(
            [
                ("Via", f"SIP/2.0/{transport} 127.0.0.1:{ours.endpoint.port};branch=z9hG4bK-a;rport"),
                ("From", "<sip:a@127.0.0.1>;tag=a"),
                ("To", "<sip:b@127.0.0.1>"),
                ("Call-ID", "c"),
                ("CSeq", "1 OPTIONS"),
            ]
        )
        ours.endpoint.request(
            Request("OPTIONS", "sip:b@127.0.0.1", headers), Peer(transport, "127.0.0.1", theirs.endpoint.port)
        )
        answer = await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
        assert isinstance(answer, Response) and answer.status == 200


@pytest.mark.parametrize(("transport", "reason"), [("UDP", Act.TIMEOUT), ("TCP", Act.BROKEN)])
async def test_nobody_there(transport: str, reason: Act) -> None:
    async with listening(Timing(t1=0.01)) as user:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", free_port()))
            user.endpoint.request(request("OPTIONS"), Peer(transport, "127.0.0.1", taken.getsockname()[1]))
            assert await asyncio.wait_for(user.responses.get(), PATIENCE_S) is reason
        assert user.endpoint.transactions == 0


@pytest.mark.parametrize("host", ["2001:db8::9", "cafe.invalid", "255.255.255.255", "0.0.0.0", "1.2.3.4.5", "xn--a"])
@pytest.mark.parametrize("port", [0, 5060, 65536])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS", "WS"])
async def test_an_address_that_cannot_be_used_disturbs_no_other_transaction(
    host: str, port: int, transport: str
) -> None:
    async with listening(Timing(t1=0.01)) as user:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as quiet:
            quiet.bind(("127.0.0.1", 0))
            peers = [Peer("UDP", "127.0.0.1", quiet.getsockname()[1]), Peer(transport, host, port)]
            for number, peer in enumerate(peers):
                user.endpoint.request(request("OPTIONS", branch=f"z9hG4bK-{number}"), peer)
            user.endpoint.send(request("ACK"), peers[1])
            for _ in peers:
                assert isinstance(await asyncio.wait_for(user.responses.get(), PATIENCE_S), Act)
        assert user.endpoint.transactions == 0


async def test_a_bug_in_one_message_leaves_the_timers_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Key] = []

    def fail(key: Key, reason: Act) -> None:
        failed.append(key)
        if len(failed) == 1:
            raise RuntimeError("bug")

    async with listening(Timing(t1=0.01)) as user:
        monkeypatch.setattr(user, "on_failed", fail)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as quiet:
            quiet.bind(("127.0.0.1", 0))
            for number in range(2):
                peer = Peer("UDP", "127.0.0.1", quiet.getsockname()[1])
                user.endpoint.request(request("OPTIONS", branch=f"z9hG4bK-{number}"), peer)
            await until(lambda: len(failed) == 2)


async def test_a_connection_that_a_dialog_uses_is_not_idle() -> None:
    async with listening() as user:
        user.endpoint._limits = Limits(idle_s=0.05)
        user.dialogs["a", "b", "c"] = Dialog.as_server(request(headers=(("Contact", "<sip:a@127.0.0.1>"),)), "t")
        connection = await asyncio.open_connection("127.0.0.1", user.endpoint.port)
        await until(lambda: user.needs_asked == 3, "three looks at the idle connection")
        assert user.lost == []
        user.dialogs.clear()
        assert await asyncio.wait_for(connection[0].read(), PATIENCE_S) == b""
        assert [peer.port for peer in user.lost] == [connection[1].get_extra_info("sockname")[1]]
        connection[1].close()


async def test_a_connection_notices_a_peer_that_vanished() -> None:
    """Both that we open and that we take: probes after a minute of silence, and an end to unacknowledged data."""
    async with listening() as ours, listening() as theirs:
        ours.endpoint.request(request("OPTIONS"), Peer("TCP", "127.0.0.1", theirs.endpoint.port))
        await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
        for each in (ours, theirs):
            ((_, connection),) = each.endpoint._connections.items()
            assert connection._transport
            found = connection._transport.get_extra_info("socket")
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_request_for_a_lost_connection_goes_to_where_its_peer_listens(host: str) -> None:
    async with listening() as ours, listening() as theirs:
        gone = Peer("TCP", "127.0.0.1", free_port(), listens_at=(host, theirs.endpoint.port))
        for number in range(2):
            asked = request("OPTIONS", branch=f"z9hG4bK-{number}", call_id=f"{number}")
            ours.endpoint.request(asked, gone)
            answer = await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
            assert isinstance(answer, Response) and answer.status == 200
        assert len(ours.endpoint._connections) == 1


DEATHS: dict[str, tuple[bytes, bool]] = {
    "another machine has taken the address (issue 65 of usnistgov/jsip, 782 of SIPp/sipp)": (b"", True),
    "closed without a word (issue 384 of drachtio/drachtio-server)": (b"", False),
    "reset in the answer (issue 315 of resiprocate/resiprocate)": (b"SIP/2.0 200 OK\r\nVia: ", True),
    "closed after a keep-alive": (b"\r\n", False),
    "closed for a message that cannot be read": (b"SIP/2.0 200 OK\r\nContent-Length: x\r\n\r\n", False),
}
"""Ends of a connection that was good before: the bytes that still come, and True for a reset."""


@pytest.mark.parametrize("method", ["BYE", "INVITE", "REFER"])
@pytest.mark.parametrize(("last", "reset"), DEATHS.values(), ids=DEATHS)
async def test_a_request_that_a_dead_connection_took_is_sent_again_over_a_new_one(
    method: str, last: bytes, reset: bool
) -> None:
    """RFC 3261 section 18.1.1: the write succeeds, and only then the connection turns out to be dead."""
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            came.append(await reader.readuntil(b"\r\n\r\n"))
            if len(came) == 2:
                writer.write(last)
                await writer.drain()
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            asked = parse(came[-1])
            assert isinstance(asked, Request)
            writer.write(response_to(asked, 200, to_tag="b").serialise())

    async with serving(serve) as port, listening() as user:
        peer = Peer("TCP", "127.0.0.1", port)
        for number, each in enumerate(["OPTIONS", method]):
            user.endpoint.request(request(each, branch=f"z9hG4bK-{number}", call_id=f"{number}"), peer)
            answer = await asyncio.wait_for(user.responses.get(), PATIENCE_S)
            assert isinstance(answer, Response) and (answer.status, answer.call_id) == (200, f"{number}")
        assert len(came) == 3 and came[1] == came[2], "the branch tells the peer that it is the same request"


async def test_a_request_is_sent_again_only_once() -> None:
    """A server that closes each connection must not be called without end."""
    came: list[bytes] = []

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readuntil(b"\r\n\r\n"))

    async with serving(close) as port, listening(Timing(t1=0.01)) as user:
        user.endpoint.request(request("BYE"), Peer("TCP", "127.0.0.1", port))
        assert await asyncio.wait_for(user.responses.get(), PATIENCE_S) is Act.TIMEOUT
        assert len(came) == 2


def long_request(method: str = "OPTIONS", number: int = 1, size: int = 1300) -> Request:
    """A request that is too long for a datagram where the MTU is unknown."""
    contact = ("Contact", "<sip:a@127.0.0.1>")
    headers = (("X-Long", "x" * size), contact)
    return request(method, branch=f"z9hG4bK-long{number}", call_id=f"long{number}", headers=headers)


async def test_a_long_request_goes_by_tcp() -> None:
    """RFC 3261 section 18.1.1."""
    async with listening() as ours, listening() as theirs:
        peer = Peer("UDP", "127.0.0.1", theirs.endpoint.port)
        for number in range(2):
            ours.endpoint.request(long_request(number=number), peer)
            answer = await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
            assert isinstance(answer, Response) and answer.via.transport == "TCP"
        ours.endpoint.request(request("OPTIONS", branch="z9hG4bK-short"), peer)
        answer = await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
        assert isinstance(answer, Response) and answer.via.transport == "UDP"
        assert len(ours.endpoint._connections) == 1 and not ours.endpoint._moved


async def test_a_cancel_follows_its_long_invite() -> None:
    async with listening() as ours, listening() as theirs:
        theirs.ring_only = True
        peer = Peer("UDP", "127.0.0.1", theirs.endpoint.port)
        invite = long_request("INVITE")
        ours.endpoint.request(invite, peer)
        ringing = await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
        assert isinstance(ringing, Response) and ringing.status == 180
        ours.endpoint.request(cancel_of(invite), peer)
        answers = [await asyncio.wait_for(ours.responses.get(), PATIENCE_S) for _ in range(2)]
        assert {(each.status, each.cseq.method) for each in answers if isinstance(each, Response)} == {
            (200, "CANCEL"),
            (487, "INVITE"),
        }
        assert {each.via.transport for each in answers if isinstance(each, Response)} == {"TCP"}


async def test_a_long_request_goes_as_a_datagram_to_a_peer_that_takes_no_connection() -> None:
    async with listening() as user:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            peer.bind(("127.0.0.1", free_port()))
            address = Peer("UDP", "127.0.0.1", peer.getsockname()[1])
            for number in range(2):
                user.endpoint.request(long_request(number=number), address)
                assert bool(user.endpoint._dialling) == (number == 0), "the second time, no connection is tried"
                got = parse(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 65536), PATIENCE_S))
                assert isinstance(got, Request) and got.via.transport == "UDP" and len(got.serialise()) > 1300
                peer.sendto(response_to(got, 200, to_tag="b").serialise(), ("127.0.0.1", user.endpoint.port))
                answer = await asyncio.wait_for(user.responses.get(), PATIENCE_S)
                assert isinstance(answer, Response) and answer.call_id == got.call_id
            assert not user.endpoint._moved


async def test_a_long_request_goes_as_a_datagram_to_a_peer_that_takes_a_connection_and_closes_it() -> None:
    """A port of another program, or of a relay whose own connection fails."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server, listening() as user:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            peer.bind(server.sockets[0].getsockname())
            user.endpoint.request(long_request(), Peer("UDP", "127.0.0.1", peer.getsockname()[1]))
            got = parse(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 65536), PATIENCE_S))
            assert isinstance(got, Request) and got.via.transport == "UDP"
            peer.sendto(response_to(got, 200, to_tag="b").serialise(), ("127.0.0.1", user.endpoint.port))
            answer = await asyncio.wait_for(user.responses.get(), PATIENCE_S)
            assert isinstance(answer, Response) and answer.status == 200
            assert not user.endpoint._moved


async def test_a_long_request_goes_as_a_datagram_to_a_peer_that_takes_a_connection_and_does_not_answer_there() -> None:
    """A firewall that takes connections for a server which listens for datagrams only. The next one tries TCP again:
    the server may only have been slow."""
    came: list[Message] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(parse(await reader.readuntil(b"\r\n\r\n")))
        await reader.read()

    async with serving(keep) as port, listening() as user:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            peer.bind(("127.0.0.1", port))
            user.endpoint.request(long_request(), Peer("UDP", "127.0.0.1", port))
            got = parse(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 65536), PATIENCE_S))
            ways = [each.via.transport for each in (*came, got)]
            assert ways == ["TCP", "UDP"] and came[0].via.branch == got.via.branch
            assert isinstance(got, Request)
            for _ in range(2):
                peer.sendto(response_to(got, 200, to_tag="b").serialise(), ("127.0.0.1", user.endpoint.port))
            answer = await asyncio.wait_for(user.responses.get(), PATIENCE_S)
            assert isinstance(answer, Response) and answer.status == 200
            assert not user.endpoint._moved and not user.endpoint._without_tcp


@pytest.mark.parametrize("size", [1301, 1400, 1500, 4000, 8000])
async def test_a_long_request_arrives_whole_and_its_failure_is_acknowledged_on_its_connection(size: int) -> None:
    """Issue 206 of emiago/sipgo: an INVITE of 4,000 bytes."""
    came: list[Request] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            asked = parse(await reader.readuntil(b"\r\n\r\n"))
            assert isinstance(asked, Request)
            came.append(asked)
            if asked.method == "INVITE":
                writer.write(response_to(asked, 486, to_tag="b").serialise())

    async with serving(serve) as port, listening() as user:
        bare = len(long_request("INVITE", size=0).serialise())
        invite = long_request("INVITE", size=size - bare)
        assert len(invite.serialise()) == size
        user.endpoint.request(invite, Peer("UDP", "127.0.0.1", port))
        await until(lambda: len(came) == 2, "the ACK")
        assert [(each.method, each.via.transport) for each in came] == [("INVITE", "TCP"), ("ACK", "TCP")]
        assert came[0].headers.get("X-Long") == invite.headers.get("X-Long")


@pytest.mark.parametrize(("size", "transport"), [(1300, "UDP"), (1301, "TCP")])
async def test_the_longest_datagram_has_1300_bytes(size: int, transport: str) -> None:
    """A request that credentials make longer (issue 5075 of pjsip/pjproject) goes another way than the first one."""
    async with listening() as ours, listening() as theirs:
        peer = Peer("UDP", "127.0.0.1", theirs.endpoint.port)
        bare = len(long_request(size=0).serialise())
        for number, length in enumerate([800, size]):
            ours.endpoint.request(long_request(number=number, size=length - bare), peer)
            answer = await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
            assert isinstance(answer, Response) and answer.status == 200
        assert answer.via.transport == transport


async def test_a_long_ack_takes_the_connection_of_its_invite() -> None:
    async with listening() as ours, listening() as theirs:
        peer = Peer("UDP", "127.0.0.1", theirs.endpoint.port)
        ours.endpoint.request(long_request(), peer)
        await asyncio.wait_for(ours.responses.get(), PATIENCE_S)
        sent: list[tuple[str, int]] = []
        ours.endpoint._datagrams.transport.sendto = lambda data, to: sent.append(to)  # type: ignore[union-attr, assignment, method-assign]
        ours.endpoint.send(long_request("ACK", 2), peer)
        await until(lambda: theirs.acks == 1)
        assert not sent
        ours.endpoint.send(request("ACK"), peer)
        assert len(sent) == 1, "a short one is a datagram"


async def test_a_request_that_no_datagram_holds_fails_alone() -> None:
    async with listening(Timing(t1=0.01)) as user:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as quiet:
            quiet.bind(("127.0.0.1", free_port()))
            peer = Peer("UDP", "127.0.0.1", quiet.getsockname()[1])
            user.endpoint.request(long_request(size=70_000), peer)
            assert isinstance(await asyncio.wait_for(user.responses.get(), PATIENCE_S), Act)
        assert user.endpoint.transactions == 0 and not user.endpoint._moved


async def test_mutated_datagrams_raise_nothing() -> None:
    """Straight into the socket's callback, where an exception would be logged and lost."""
    rng = random.Random(4)
    headers = (("Contact", "<sip:a@127.0.0.1>"), ("Require", "timer"), ("Session-Expires", "90"))
    valid = [request(method, headers=headers, body=SDP).serialise() for method in ("INVITE", "BYE", "CANCEL", "ACK")]
    valid.append(response_to(request(body=SDP), 200, to_tag="x").serialise())
    async with listening(burst=1_000_000) as user:
        for number in range(3000):
            data = bytearray(rng.choice(valid).replace(b"z9hG4bK-1", b"z9hG4bK-%d" % number))
            for _ in range(rng.randrange(4)):
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(4)] = rng.choice(
                    [b"", b"\r\n", b"\0", b"<", b'"', b"\xff", b";", b"9" * 9]
                )
            user.endpoint._datagrams.datagram_received(bytes(data), ("127.0.0.1", 9))
        assert 100 < user.endpoint.counts["unreadable"] < 2900
        assert user.calls > 100
        caller = Caller(user)
        assert await caller.silent()
        caller.close()


async def test_a_port_that_somebody_has_for_udp_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    listen, others = loop.create_datagram_endpoint, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    async def others_first(protocol: Callable[[], asyncio.DatagramProtocol], *, local_addr: tuple[str, int]) -> object:
        if others.getsockname()[1] == 0:
            others.bind(local_addr)
        return await listen(protocol, local_addr=local_addr)

    monkeypatch.setattr(loop, "create_datagram_endpoint", others_first)
    endpoint = Endpoint(Answerer())
    with others:
        await endpoint.start("127.0.0.1", 0)
        assert endpoint.port != others.getsockname()[1] != 0
        await endpoint.close()
        with pytest.raises(OSError, match="in use"):
            await Endpoint(Answerer()).start("127.0.0.1", others.getsockname()[1])


async def test_an_endpoint_that_is_closed_does_not_report_its_sockets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check of the sockets may be due in the turn in which they are closed."""
    monkeypatch.setattr(endpoint_module, "_LOOK_S", 0)
    for _ in range(3):
        async with listening():
            await asyncio.sleep(0)
    gc.collect()  # a task whose error no one has read says so when it is collected
    assert not caplog.records
