"""Records on their way to a real receiver that fails, hangs, redirects and dies: each arrives at least once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config import RecordsConfig
from gateway.metering.outbox import Delivery
from gateway.metering.store import Records
from gateway.metering.webhook import AT_ONCE, LONGEST_WAIT_S, Webhook, signed_headers, wait_s
from tests.gateway.metering.test_store import NOON, Lost, begun, call, ended

KEY = b"0123456789abcdefghijklmn"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """Keeps what it gets. ``says`` is its answer: a status, or ``hang``, ``die`` or ``redirect``."""

    def __init__(self) -> None:
        self.says: int | str = 200
        self.got: list[tuple[str, bytes]] = []
        self.elsewhere = 0
        self.url = ""
        self._over = asyncio.Event()

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        message_id, at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        signed = f"{message_id}.{at}.".encode() + body
        version, _, signature = request.headers["webhook-signature"].partition(",")
        assert version == "v1" and base64.b64decode(signature) == hmac.digest(KEY, signed, hashlib.sha256)
        self.got.append((message_id, body))
        match self.says:
            case "hang":
                await self._over.wait()
            case "die":
                assert request.transport is not None
                request.transport.close()
            case "redirect":
                raise web.HTTPTemporaryRedirect("/elsewhere")
            case int(status):
                return web.Response(status=status)
        return web.Response()

    async def stray(self, request: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        app = web.Application()
        app.add_routes([web.post("/records", self.take), web.post("/elsewhere", self.stray)])
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        try:
            await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
            assert site.name
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/records"
            yield
        finally:
            self._over.set()
            await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    async with made.listening():
        yield made


class Counts:
    """Notes what the metrics count."""

    def __init__(self) -> None:
        self.deliveries: Counter[str] = Counter()
        self.pending = 0

    def record_deliveries(self, outcome: str, count: int = 1) -> None:
        self.deliveries[outcome] += count

    def records_pending(self, count: int) -> None:
        self.pending = count


class Sender:
    """A process with records and a webhook, at a time that a test sets."""

    def __init__(self, folder: Path, url: str, **fields: Any) -> None:
        said = {"database_url": f"sqlite:///{folder}/records.sqlite3", "webhook_url": url, "webhook_secret": SECRET}
        self.now = NOON
        self.counts = Counts()
        config = RecordsConfig.model_validate(said | fields)
        self.records = Records(config, Lost(), clock=lambda: self.now)
        self.webhook = Webhook(config, self.records, self.counts, clock=lambda: self.now)

    async def __aenter__(self) -> Sender:
        await self.records.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.webhook.aclose()
        await self.records.aclose()


def test_a_message_is_signed_as_standard_webhooks_says() -> None:
    """The example of the specification."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    delivery = Delivery(record_id="msg_p5jXN8AQM9LWM0D4loKWxJek", body=b'{"test": 2432232314}', attempts=0)
    assert signed_headers([key, KEY], delivery, at=1614265330) | {"webhook-signature": ""} == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330", "webhook-signature": "",
    }  # fmt: skip
    one, two = signed_headers([key, KEY], delivery, at=1614265330)["webhook-signature"].split()
    assert one == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" and two.startswith("v1,") and two != one


async def test_what_has_ended_is_delivered_once_and_what_goes_on_is_not(tmp_path: Path, receiver: Receiver) -> None:
    async with Sender(tmp_path, receiver.url) as sender:
        begun(sender.records, call(1))
        for _ in range(2):
            sender.records.end(ended(call(2)))
        assert await sender.webhook.deliver() == 1 and await sender.webhook.deliver() == 0
        ((message_id, body),) = receiver.got
        told = json.loads(body)
        assert message_id == told["data"]["id"] == call(2).id
        assert (told["type"], told["timestamp"]) == ("call.ended", "2027-01-15T12:00:12.000+00:00")
        assert (told["data"]["outcome"], told["data"]["from"], told["data"]["characters"]) == ("completed", "", 20)
        assert sender.counts.deliveries == {"delivered": 1} and sender.counts.pending == 0


@pytest.mark.parametrize("fault", [500, 404, "redirect", "die", "hang"])
async def test_a_record_that_is_not_taken_comes_again_after_a_restart(
    tmp_path: Path, receiver: Receiver, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.says = fault
    monkeypatch.setattr("gateway.metering.webhook.TIMEOUT_S", 0.05 if fault == "hang" else 30)
    async with Sender(tmp_path, receiver.url) as sender:
        sender.records.end(ended(call(1)))
        assert await sender.webhook.deliver() == 0
        assert await sender.webhook.deliver() == 0, "it was tried again at once"
        assert sender.counts.deliveries == {"failed": 1} and sender.counts.pending == 1
    receiver.says = 200
    async with Sender(tmp_path, receiver.url) as sender:
        sender.now = NOON + 2
        assert await sender.webhook.deliver() == 1
    # Whether a receiver that hangs had read the message when the sender gave up is chance.
    assert len(receiver.got) >= (1 if fault == "hang" else 2)
    assert set(receiver.got) == {receiver.got[0]}, "another id or body"
    assert receiver.elsewhere == 0


async def test_a_receiver_that_is_gone_gets_all_of_it_when_it_is_back(tmp_path: Path) -> None:
    receiver = Receiver()
    async with receiver.listening():
        url = receiver.url
    async with Sender(tmp_path, url) as sender:
        for number in range(AT_ONCE + 2):
            sender.records.end(ended(call(number)))
        for _ in range(2):
            assert await sender.webhook.deliver() == 0
        assert sender.counts.deliveries == {"failed": AT_ONCE + 2}
        back = Receiver()
        async with back.listening():
            object.__setattr__(sender.webhook._config, "webhook_url", back.url)  # its port is another one
            sender.now = NOON + 2
            assert [await sender.webhook.deliver() for _ in range(3)] == [AT_ONCE, 2, 0]
        assert {message_id for message_id, _ in back.got} == {call(number).id for number in range(AT_ONCE + 2)}


async def test_a_clock_that_is_set_back_postpones_no_record(tmp_path: Path, receiver: Receiver) -> None:
    receiver.says = 500
    async with Sender(tmp_path, receiver.url) as sender:
        sender.records.end(ended(call(1)))
        assert await sender.webhook.deliver() == 0
        sender.records.end(ended(call(2)))
        await sender.records.in_thread(lambda: None)
        sender.now = NOON - 3600
        receiver.says = 200
        assert await sender.webhook.deliver() == 2


async def test_a_process_that_dies_behind_an_answer_delivers_again_under_the_same_id(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with Sender(tmp_path, receiver.url) as sender:
        sender.records.end(ended(call(1)))
        due = await sender.records.in_transaction(sender.webhook._take)
        assert [await sender.webhook._post(delivery) for delivery in due] == [True]  # and dies here
        assert await sender.webhook.deliver() == 1
    assert len(receiver.got) == 2 and len(set(receiver.got)) == 1


async def test_a_crashed_call_is_delivered_too_and_of_two_processes_one_delivers(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with Sender(tmp_path, receiver.url) as one, Sender(tmp_path, receiver.url) as two:
        begun(one.records, call(1))
        begun(one.records, call(2))
        one.records.end(ended(call(2)))
        assert await one.webhook.deliver() == 1 and await two.webhook.deliver() == 0
        two.records.end(ended(call(3)))
        assert await two.webhook.deliver() == 0 and await one.webhook.deliver() == 1
    async with Sender(tmp_path, receiver.url) as three:
        assert await three.webhook.deliver() == 1
    assert [json.loads(body)["data"]["outcome"] for _, body in receiver.got] == ["completed", "completed", "crashed"]


async def test_what_is_too_old_or_too_much_is_given_up_and_counted(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.webhook.PENDING", 3)
    receiver.says = 500
    async with Sender(tmp_path, receiver.url, webhook_keep_hours=1) as sender:
        for number in range(5):
            sender.now = NOON + number
            sender.records.end(ended(call(number)))
            await sender.records.in_thread(lambda: None)
        await sender.webhook.deliver()
        assert {message_id for message_id, _ in receiver.got} == {call(number).id for number in (2, 3, 4)}
        assert sender.counts.deliveries == {"given_up": 2, "failed": 3}
        sender.now = NOON + 3 + 3600
        await sender.webhook.deliver()
        assert sender.counts.deliveries["given_up"] == 3 and sender.counts.pending == 2
        receiver.says = 200  # what is left arrives as the process ends


def test_attempts_come_ever_more_rarely() -> None:
    assert [wait_s(attempts, 0.0) for attempts in (0, 1, 4, 10, 10_000)] == [1, 2, 16, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert wait_s(3, 1.0) == 4


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"webhook_url": "ftp://host/x"}, "expected an address such as https"),
        ({"webhook_url": "https://me:secret@host/x"}, "without a user"),
        ({"webhook_url": "https:///x"}, "expected an address such as https"),
        ({"webhook_url": "https://host/x", "webhook_secret": SECRET}, "needs database_url"),
        ({"webhook_url": "https://host/x", "database_url": "sqlite:///x"}, "and webhook_secret"),
        ({"webhook_secret": "secret"}, "24 to 64 bytes"),
        ({"webhook_secret": "whsec_c2hvcnQ="}, "24 to 64 bytes"),
        ({"webhook_secret": " "}, "got nothing"),
    ],
)
def test_a_webhook_that_cannot_work_is_an_error_of_the_configuration(fields: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        RecordsConfig.model_validate(fields)
