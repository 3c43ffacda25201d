"""The event socket's client against a peer on a real socket, and its reader against the protocol's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from gateway.carriers.freeswitch.esl import EslClient, EslError
from gateway.carriers.freeswitch.esl_messages import EslReader
from gateway.carriers.freeswitch.settings import EslConfig
from gateway.errors import ProtocolError
from tests.gateway.carriers.freeswitch_peer import PASSWORD, FreeSwitch, kept
from tests.waiting import PATIENCE_S, until


def test_messages_come_in_any_pieces() -> None:
    body = b'{"Event-Name":"DTMF","DTMF-Digit":"#"}'
    stream = (
        b"Content-Type: auth/request\n\nContent-Type: command/reply\nReply-Text: +OK accepted\n\n"
        b"Content-Length: %d\nContent-Type: text/event-json\n\n" % len(body) + body
    )
    for size in (1, 7, len(stream)):
        reader = EslReader(max_bytes=1000)
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        hello, reply, event = [message for piece in pieces for message in reader.feed(piece)]
        assert hello.kind == "auth/request"
        assert reply.headers["Reply-Text"] == "+OK accepted"
        assert event.event == {"Event-Name": "DTMF", "DTMF-Digit": "#"}


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n\n\n", b"Content-Length: 2000\n\n", b"Content-Length: -1\n\n", b"x: y\n" * 20_000]
)
def test_what_is_no_event_socket_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(EslReader(max_bytes=1000).feed(data))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd" * 3),
        (rb"\ud83d", "\ufffd"),
        (rb"a\u001b[2J", "a\ufffd[2J"),
    ],
)
def test_an_event_of_a_caller_whose_name_is_no_text_is_read(name: bytes, read: str) -> None:
    body = b'{"Event-Name":"DTMF","Caller-Caller-ID-Name":"' + name + b'","DTMF-Digit":"5"}'
    reader = EslReader(max_bytes=1000)
    [message] = reader.feed(b"Content-Length: %d\nContent-Type: text/event-json\n\n" % len(body) + body)
    assert message.event == {"Event-Name": "DTMF", "Caller-Caller-ID-Name": read, "DTMF-Digit": "5"}


@asynccontextmanager
async def client(
    switch: FreeSwitch, *, password: str = PASSWORD, **constants: float
) -> AsyncIterator[tuple[EslClient, list[Mapping[str, str]]]]:
    """A client that is quick to come back. ``constants`` are set in ``esl``."""
    events: list[Mapping[str, str]] = []
    config = EslConfig(**kept(port=switch.port, password=password))
    with pytest.MonkeyPatch.context() as patched:
        for name, value in ({"RECONNECT_FIRST_S": 0.02, "RECONNECT_MAX_S": 0.1} | constants).items():
            patched.setattr(f"gateway.carriers.freeswitch.esl.{name}", value)
        made = EslClient(config, ("DTMF", "CUSTOM", "a::b"), events.append)
        made.start()
        try:
            yield made, events
        finally:
            await made.aclose()


async def test_commands_and_events() -> None:
    async with FreeSwitch() as switch, client(switch) as (esl, events):
        answers = await asyncio.gather(*(esl.command(f"echo {n}") for n in range(20)))
        assert answers == [str(n) for n in range(20)]
        assert switch.subscribed == ["json", "HEARTBEAT", "BACKGROUND_JOB", "DTMF", "CUSTOM", "a::b"]
        switch.event("DTMF", "7", DTMF_Digit="5")
        switch.event("HEARTBEAT")
        await until(lambda: events)
        assert events == [{"Event-Name": "DTMF", "Unique-ID": "7", "DTMF-Digit": "5"}]


async def test_an_event_that_is_no_json_costs_no_other_call_its_connection() -> None:
    async with FreeSwitch() as switch, client(switch) as (esl, events):
        await until(lambda: esl.connected)
        switch.tell(b'{"Event-Name":"DTMF","Unique-ID":"6","DTMF-Dig')
        switch.tell(b'["DTMF"]')
        switch.event("DTMF", "7", DTMF_Digit="5")
        await until(lambda: events)
        assert events == [{"Event-Name": "DTMF", "Unique-ID": "7", "DTMF-Digit": "5"}] and switch.logins == 1


async def test_failures_say_what_the_switch_said() -> None:
    async with FreeSwitch() as switch, client(switch) as (esl, _):
        with pytest.raises(EslError, match="uuid_kill: -ERR No such channel!"):
            await esl.command("uuid_kill 7")
        with pytest.raises(EslError, match="line break"):
            await esl.command("echo a\n\nexit")
    async with FreeSwitch() as switch, client(switch, COMMAND_S=0.2, MOST_COMMANDS=1) as (esl, _):
        switch.mute = True
        waiting = asyncio.create_task(esl.command("echo"))
        await asyncio.sleep(0)
        with pytest.raises(EslError, match="1 commands are waiting"):
            await esl.command("echo")
        with pytest.raises(EslError, match="no answer within 0.2 s"):
            await waiting


async def test_a_wrong_password_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with FreeSwitch() as switch, client(switch, password="wrong", COMMAND_S=0.2) as (esl, _):
        await until(lambda: len(caplog.records) >= 2)
        assert "auth: -ERR invalid" in str(caplog.records[0].__dict__["why"])
        with pytest.raises(EslError, match="no answer"):
            await esl.command("echo")
        assert switch.logins == 0


async def test_a_command_waits_for_a_switch_that_comes_back() -> None:
    async with FreeSwitch() as switch, client(switch) as (esl, _):
        await until(lambda: esl.connected)
        await switch.go_down()
        await until(lambda: not esl.connected)
        waiting = asyncio.create_task(esl.command("echo again"))
        await asyncio.sleep(0)  # the command waits
        await switch.listen()
        assert await waiting == "again"
        assert switch.logins == 2


async def test_a_command_under_way_fails_with_its_connection() -> None:
    async with FreeSwitch() as switch, client(switch) as (esl, _):
        await until(lambda: esl.connected)
        switch.mute = True
        waiting = asyncio.create_task(esl.command("echo"))
        await until(lambda: switch.asked == ["echo"], "the command")
        await switch.go_down()
        with pytest.raises(EslError, match="the connection was lost"):
            await waiting


async def test_silence_is_a_lost_connection() -> None:
    async with FreeSwitch() as switch, client(switch, SILENT_S=0.05) as _:
        await until(lambda: switch.logins >= 2)


async def test_leaving_lets_what_has_begun_finish_and_waits_for_nothing_else() -> None:
    async with FreeSwitch() as switch, asyncio.timeout(PATIENCE_S):
        switch.channels = {uuid: {} for uuid in "12345678"}
        async with client(switch, COMMAND_S=10 * PATIENCE_S) as (esl, _):
            for uuid in switch.channels:
                esl.run(f"uuid_break {uuid}9 all", f"uuid_kill {uuid}")
        assert not switch.channels
        assert len(switch.commands) == 16
