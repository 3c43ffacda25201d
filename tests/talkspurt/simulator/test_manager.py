import asyncio
import json
from typing import Any

import aiohttp
import pytest

from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.simulator.peer_socket import PeerSocketError
from tests.talkspurt.simulator.toy_gateway import ToyGateway, serving

SETUP = {"type": "setup", "sessionId": "VX" + "01" * 16, "callSid": "CA1", "customParameters": {}}


class Handed:
    """Collects the calls that a manager is handed."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[ManagedCall] = asyncio.Queue()

    def __call__(self, call: ManagedCall) -> None:
        self.calls.put_nowait(call)


async def test_a_gateway_may_dial_out_to_it_one_socket_a_call() -> None:
    handed = Handed()
    manager = SimulatedManager(handed)
    url = await manager.listen()
    async with aiohttp.ClientSession() as client, client.ws_connect(url) as gateway:
        await gateway.send_json(SETUP)
        call = await handed.calls.get()
        turn = call.speak("Good morning.", interruptible="none")
        sent = json.loads((await gateway.receive()).data)
        assert sent == {
            "type": "text",
            "token": "Good morning.",
            "last": True,
            "turn": turn.turn,
            "interruptible": "none",
        }
        await gateway.send_json({"type": "turn", "turn": turn.turn, "event": "started", "firstPacketMs": 41.5})
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call.on_turn_end = ended.set_result
        await gateway.send_json({"type": "turn", "turn": turn.turn, "event": "finished", "gaps": 0, "audioMs": 900})
        assert await ended is turn
        assert (turn.outcome, turn.reported) == ("finished", {"firstPacketMs": 41.5, "gaps": 0, "audioMs": 900})
        closing = asyncio.create_task(manager.aclose())
        assert (await gateway.receive()).type is aiohttp.WSMsgType.CLOSE
    await closing


async def test_it_dials_in_and_every_message_names_its_session() -> None:
    handed = Handed()
    manager = SimulatedManager(handed)
    async with serving(ToyGateway()) as gateway:
        base = gateway.url.rpartition("/media")[0]
        await manager.dial_in(f"{base}/v1/dialogue?route=call")
        async with aiohttp.ClientSession() as client, client.ws_connect(gateway.url) as carrier:
            start = {"callSid": "CA77", "streamSid": "MZ1"}
            await carrier.send_json({"event": "start", "streamSid": "MZ1", "start": start})
            call = await handed.calls.get()
            assert call.call_sid == "CA77"
            call.speak("Hello.")
            assert json.loads((await carrier.receive()).data)["event"] == "media"
            assert gateway.received[-1]["sessionId"] == call.session_id
        await manager.aclose()


def test_what_a_call_is_told_of_its_caller_is_kept() -> None:
    call = ManagedCall(SETUP, lambda body: None)
    turn = call.speak("Goodbye.")
    for message in (
        {"type": "withdrawn", "what": "end"},
        {"type": "info", "name": "noWords", "value": turn.turn},
        {"type": "silence", "seconds": 8.0},
        {"type": "answered", "by": "human", "confidence": 0.8, "text": "", "waiting": False},
    ):
        call.receive(message, 1.0)
    assert (call.withdrawn, call.silences_s, turn.words_followed) == (["end"], [8.0], False)
    assert call.answered_by == ["human"]


def test_a_turn_that_ends_twice_is_an_error() -> None:
    call = ManagedCall(SETUP, lambda body: None)
    turn = call.speak("Hello.")
    for event in ("interrupted", "finished"):
        call.receive({"type": "turn", "turn": turn.turn, "event": event}, 1.0)
    assert call.errors == ["a turn ended twice: interrupted, then finished"]


def test_what_the_caller_had_heard_stays_with_the_turn() -> None:
    call = ManagedCall(SETUP, lambda body: None)
    turn = call.speak("Hello world.")
    call.receive({"type": "interrupt", "turn": turn.turn, "utteranceUntilInterrupt": "Hello"}, 1.0)
    assert turn.heard_text == "Hello"
    assert call.open_turns == 1


def test_events_of_turns_that_are_not_ours_are_let_pass() -> None:
    call = ManagedCall(SETUP, lambda body: None)
    call.receive({"type": "turn", "turn": "t1", "event": "finished"}, 1.0)
    assert call.turns == {} and call.errors == []


async def test_nobody_there_is_one_clear_error() -> None:
    async with serving(ToyGateway()) as gateway:
        base = gateway.url.rpartition("/media")[0]
        with pytest.raises(PeerSocketError, match="HTTP 404"):
            await SimulatedManager(lambda call: None).dial_in(f"{base}/nowhere")
    with pytest.raises(PeerSocketError, match="cannot connect"):
        await SimulatedManager(lambda call: None).dial_in(f"{base}/v1/dialogue")
