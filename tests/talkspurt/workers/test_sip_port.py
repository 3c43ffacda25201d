"""Two workers' bridges at one port, in one process: over real sockets, with the dispatcher between them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from gateway.seams.leg import TransferStart
from sip_bridge.config import SipConfig
from sip_bridge.dialog.invite_server import EARLY_MEDIA_S
from sip_bridge.dialog.transaction import TransactionState, cancel_of, failure_ack
from sip_bridge.io.ports import share
from sip_bridge.io.shared_address import SharedAddress
from sip_bridge.local import worker_of
from sip_bridge.message.sip import MessageStream, Request, Response, parse, response_to
from talkspurt.workers.listeners import close, listen_for_sip, port_of
from talkspurt.workers.sip_port import SipPort
from tests.sip_bridge.phone import Bridge, Phone, offer, until
from tests.waiting import PATIENCE_S


class Server:
    """The dispatcher, and the workers that live, the one that is next first."""

    def __init__(self, **config: Any) -> None:
        trunks = config.pop("trunks", {"office": {"addresses": ["127.0.0.0/8"]}})
        self.config = SipConfig(port=0, rtp_ports="43000-43099", trunks=trunks, **config)
        self.listeners, udp = listen_for_sip(self.config)
        self.port = port_of(self.listeners)
        self.living = [0, 1]
        self.begun: list[int] = []
        self.sip = SipPort(self.config, udp, lambda: self.living, self._begins)
        self.workers = [self._worker(index) for index in (0, 1)]

    def _begins(self, worker: int) -> None:
        self.begun.append(worker)
        self.living.sort(key=lambda each: (self.begun.count(each), each))

    def _worker(self, index: int) -> Bridge:
        shared = SharedAddress(
            index, 2, port=self.port, tls_port=0, port_socket=self.sip.udp.dup(), dispatcher=self.sip.join(index)
        )
        low, high = share(*self.config.rtp_range, 2)[index]
        config = self.config.model_copy(update={"rtp_ports": f"{low}-{high}"})
        return Bridge(config, ready=True, shared=shared, elsewhere=lambda call_id: self._elsewhere(index, call_id))

    def _elsewhere(self, asking: int, call_id: str) -> Any:
        """Ask another worker the way processes do: the answer is JSON, and comes later."""
        owner = int(call_id[2:4], 16)

        async def ask() -> Any:
            return orjson.loads(orjson.dumps(self.workers[owner].bridge.describe(call_id)))

        return None if owner == asking else ask()

    def tell(self) -> None:
        """Tell each worker what the other one knows."""
        for worker, other in (self.workers, self.workers[::-1]):
            worker.bridge.hear(other.bridge.of_trunk, other.bridge.found)


@asynccontextmanager
async def served(**config: Any) -> AsyncIterator[Server]:
    server = Server(**config)
    for worker in server.workers:
        await worker.bridge.start()
    server.sip.start()
    try:
        yield server
        for worker in server.workers:
            for call in worker.bridge:
                call.hang_up("test is over")
            await worker.empty()
    finally:
        for worker in server.workers:
            await worker.bridge.aclose()
        server.sip.close()
        close(server.listeners)


class Stream:
    """A peer's TCP connection; the first one that was made is adopted first."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setblocking(False)
        self._messages = MessageStream()
        self._heard: list[bytes] = []

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def adopted_by(self, worker: int) -> None:
        connection, _ = self._server.listeners[0].accept()
        await self._server.workers[worker].bridge.adopt(connection, tls=False)

    async def send(self, request: Request) -> None:
        via = (request.headers.get("Via") or "").replace("UDP", "TCP")
        request = replace(request, headers=request.headers.replace("Via", via))
        await asyncio.get_running_loop().sock_sendall(self._socket, request.serialise())

    async def answer(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while not self._heard:
                data = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
                self._heard += self._messages.feed(data)
        message = parse(self._heard.pop(0))
        assert isinstance(message, Response)
        return f"{message.status} {message.cseq.method}"


async def test_calls_are_spread_and_each_stays_with_its_worker() -> None:
    async with served() as server:
        with Phone(server.port) as one, Phone(server.port) as two, Phone(server.port) as three:
            phones = (one, two, three)
            for phone in phones:
                await phone.call()
            assert [worker_of(phone.to_tag) for phone in phones] == server.begun == [0, 1, 0]
            assert [len(worker.sessions) for worker in server.workers] == [2, 1]
            for phone in phones:  # a re-INVITE, its ACK and BYE reach their worker
                phone.send(phone.request("INVITE", body=offer(phone.rtp_port, more="a=sendonly", version=2)))
                phone.ack(await phone.response(200))
                await phone.bye()
            ports = [range(*share(*server.config.rtp_range, 2)[index]) for index in (0, 1)]
            answered = [phone.media.port in ports[worker_of(phone.to_tag) or 0] for phone in phones if phone.media]
            assert answered == [True] * 3, "media at the worker's own ports"


async def test_what_a_worker_refuses_is_acknowledged_to_it_and_cancelled_there() -> None:
    async with served() as server:
        server.living = [1, 0]
        server.workers[1].room = False
        with Phone(server.port) as phone:
            phone.invite = phone.request("INVITE", body=offer(phone.rtp_port))
            phone.send(phone.invite)
            await until(lambda: server.begun == [1], "the choice of a worker")
            assert server.living == [0, 1]
            phone.send(phone.invite)
            assert (await phone.response(503)).headers.get("Retry-After")
            transactions = server.workers[1].bridge.endpoint._transactions._all
            await until(
                lambda: [each.state for each in transactions.values()] == [TransactionState.CONFIRMED], "the ACK"
            )
            assert not server.workers[0].sessions and server.workers[1].rejected == ["full"]


async def test_requests_in_calls_of_a_worker_that_is_gone_get_481() -> None:
    async with served() as server:
        server.living = [1, 0]
        with Phone(server.port) as phone, Phone(server.port) as other:
            await phone.call()
            assert worker_of(phone.to_tag) == 1
            server.living = [0]
            server.sip.leave(1)
            phone.send(phone.request("BYE"))
            await phone.response(481)
            await other.call()
            assert worker_of(other.to_tag) == 0
            await other.bye()
        server.workers[1].session.call.abandon()


async def test_a_request_over_a_connection_of_another_worker_is_passed_on_and_its_answer_comes_back() -> None:
    async with served() as server:
        server.living = [1, 0]
        with Phone(server.port) as phone, Stream(server) as stream:
            await phone.call()
            assert worker_of(phone.to_tag) == 1
            await stream.adopted_by(0)
            await stream.send(phone.request("BYE"))
            assert await stream.answer() == "200 BYE"
            assert server.workers[1].session.closed == ["hangup"]


async def test_a_cancel_over_another_connection_than_its_invite_finds_the_call_of_another_worker() -> None:
    async with served() as server:
        server.workers[1]._ready = False  # it waits for a dialogue manager, so the caller can give up
        with Phone(0) as phone, Stream(server) as before, Stream(server) as after:
            await before.adopted_by(1)
            await after.adopted_by(0)
            invite = phone.request("INVITE", body=offer(phone.rtp_port))
            await before.send(invite)
            assert [await before.answer(), await before.answer()] == ["100 INVITE", "180 INVITE"]
            unknown = phone.request("CANCEL", ("Call-ID", "of-nobody"))
            await after.send(unknown)
            assert await after.answer() == "481 CANCEL", "no worker has that call"
            await after.send(cancel_of(invite))
            assert await after.answer() == "200 CANCEL"
            assert await before.answer() == "487 INVITE"
            assert server.workers[1].session.closed == ["cancelled"]
            await before.send(failure_ack(invite, response_to(invite, 487, to_tag="any")))


async def test_a_call_is_transferred_to_a_call_of_another_worker() -> None:
    async with served() as server:
        with Phone(server.port) as one, Phone(server.port) as two:
            for phone in (one, two):
                await phone.call()
            here, there = (worker.session for worker in server.workers)
            there.call_id = f"VX01{'0' * 30}"
            assert here.call.transfer(there.call_id) is TransferStart.UNDER_WAY
            refer = await one.asked("REFER")
            name = quote(f"{two.call_id};to-tag={two.from_tag};from-tag={two.to_tag}", safe="")
            assert refer.headers.get("Refer-To") == f"<sip:ann@127.0.0.1:{two.port}?Replaces={name}>"
            one.answer(refer, 603)
            await until(lambda: here.transferred, "the outcome")
            assert here.call.transfer(f"VX01{'1' * 30}") is TransferStart.UNDER_WAY
            await until(lambda: len(here.transferred) == 2, "the outcome")
            assert here.transferred[1] == "target is no live call of this server"
            for phone in (one, two):
                await phone.bye()


async def test_one_worker_registers_and_calls_by_the_registration_reach_any() -> None:
    with Phone(0) as registrar:
        account = {"registrar": f"sip:127.0.0.1:{registrar.port}", "username": "bot", "trunk": "line"}
        async with served(trunks={"line": {}}, registrations=[account]) as server:
            registrar.server, registrar.target = ("127.0.0.1", server.port), f"sip:bot@127.0.0.1:{server.port}"
            first, second = (worker.bridge for worker in server.workers)
            register = await registrar.asked("REGISTER")
            registrar.answer(register, 200, ("Contact", register.headers.get("Contact") or ""), ("Expires", "600"))
            await until(lambda: first.registrations[0].registered, "the answer, at the worker that asked")
            server.tell()
            server.living = [1, 0]
            await registrar.call()
            assert worker_of(registrar.to_tag) == 1
            await registrar.bye()
            assert (len(first.state.registrations), len(second.state.registrations)) == (1, 0), "told once"
            await second.aclose()
            assert registrar.nothing(), "who has not registered takes no leave"
            first.registrations[0].registered = False  # the goodbye would get no answer


async def test_calls_of_a_trunk_are_counted_together() -> None:
    async with served(trunks={"office": {"addresses": ["127.0.0.0/8"], "max_calls": 1}}) as server:
        with Phone(server.port) as one, Phone(server.port) as two:
            await one.call()
            server.tell()
            assert [worker.bridge.of_trunk for worker in server.workers] == [{"office": 1}, {}]
            two.invite = two.request("INVITE", body=offer(two.rtp_port))
            two.send(two.invite)
            await two.response(503)
            assert server.workers[1].rejected == ["trunk_full"]
            await one.bye()


def test_a_call_is_remembered_as_long_as_its_caller_may_give_up() -> None:
    config = SipConfig(port=0, trunks={"office": {"addresses": ["127.0.0.0/8"]}})  # type: ignore[dict-item]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        dispatcher = SipPort(config, udp, lambda: [0], lambda worker: None).dispatcher
    dispatcher.begun("early-media", 1, now=0.0)
    cancel = b"CANCEL sip:bot@example.com SIP/2.0\r\nCall-ID: early-media\r\n\r\n"
    speech_before_the_answer_s = config.timeouts.ready_s + EARLY_MEDIA_S
    assert dispatcher.worker_of_cancel(cancel, now=speech_before_the_answer_s) == 1


async def test_messages_beyond_what_waits_for_a_worker_are_dropped_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = SipConfig(port=0, trunks={"office": {"addresses": ["127.0.0.0/8"]}})  # type: ignore[dict-item]
    listeners, udp = listen_for_sip(config)
    sip = SipPort(config, udp, lambda: [0], lambda worker: None)
    theirs = sip.join(0)  # a worker that reads nothing
    sip.start()
    with Phone(port_of(listeners)) as phone:
        async with asyncio.timeout(PATIENCE_S):
            while not sip.undelivered[0] and not sip.dispatcher.counts["limited"]:
                phone.send(phone.request("OPTIONS", body=bytes(3000)))
                await asyncio.sleep(0)
    assert sip.dropped["undelivered"] and "does not keep up" in caplog.text
    sip.close()
    theirs.close()
    close(listeners)
