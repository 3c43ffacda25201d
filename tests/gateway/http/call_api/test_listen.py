"""Listening in to a live call, over a real socket of a whole gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.call.hearing.listeners import LISTENERS, PIECES, Listener, Listeners
from gateway.call.session import Session
from gateway.seams.messages import Text
from talkspurt.build import Gateway
from tests.gateway.call.test_calls import CALL, Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.call_api.test_ended_calls import get, logged
from tests.waiting import until
from voicecodecs.g711 import encode_ulaw

AUTH = {"api_keys": [{"key": "one", "tenant": "one"}, {"key": "two", "tenant": "two"}]}
ROUTES = {"default": {"tenant": "one", "interruptible": "none"}}


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    sections: dict[str, Any] = {"calls": {"folder": str(tmp_path / "calls")}, "auth": AUTH, "routes": ROUTES}
    async with api_gateway(tmp_path, **sections) as (gateway, _, url):
        yield gateway, url


@contextlib.asynccontextmanager
async def call(made: Gateway, url: str) -> AsyncIterator[Session]:
    """A call whose caller whistles all the time."""
    headers = {"Authorization": "Bearer one"}
    async with aiohttp.ClientSession(headers=headers) as http, http.ws_connect(f"{url}/v1/dialogue?route=default"):
        session = made.calls.begin(CALL, Leg())
        await until(lambda: session.ready.done(), "the manager")
        whistle = asyncio.create_task(_whistle(session))
        try:
            yield session
        finally:
            whistle.cancel()
            session.end("over", hang_up=True)
            await until(lambda: not len(made.directory), "the call's end")


async def _whistle(session: Session) -> None:
    frame = encode_ulaw((8000 * np.sin(2 * np.pi * 500 * np.arange(160) / 8000)).astype(np.int16))
    while True:
        if session.listening:
            session.on_audio(frame)
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def listener(url: str, call_id: str, key: str = "one") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http,
        http.ws_connect(f"{url}/v1/calls/{call_id}/listen") as socket,
    ):
        yield socket


def both(message: aiohttp.WSMessage) -> NDArray[np.int16]:
    assert message.type is aiohttp.WSMsgType.BINARY
    return np.frombuffer(message.data, "<i2").reshape(-1, 2)


async def test_a_supervisor_hears_both_sides_until_the_call_is_over(made: tuple[Gateway, str]) -> None:
    gateway, url = made
    async with call(gateway, url) as session:
        async with listener(url, session.call_id) as socket:
            told = {"type": "listening", "sampleRate": 8000, "channels": 2, "encoding": "s16le"}
            assert await socket.receive_json() == told
            loud = np.zeros(2, bool)
            session.on_message(Text(token="One two three four five six seven eight nine ten.", last=True))
            while not loud.all():
                loud |= np.abs(both(await socket.receive())).max(axis=0, initial=0) > 1000
            session.end("over", hang_up=True)
            while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
            assert message.json() == {"type": "ended"}
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 1000
        call_id = session.call_id
    await logged(url, call_id, key="one")
    entries = (await get(f"{url}/v1/calls/{call_id}", key="one"))["entries"]
    assert {"kind": "listened", "by": "one", "event": "joined"}.items() <= entries[0].items()
    assert b"talkspurt_listeners_total 1.0" in await gateway.http.exposition()


async def test_who_has_heard_enough_leaves_and_the_callers_audio_is_wanted_no_longer(made: tuple[Gateway, str]) -> None:
    gateway, url = made
    async with call(gateway, url) as session:
        assert not session.listening
        async with listener(url, session.call_id) as socket:
            await socket.receive_json()
            both(await socket.receive())
            assert session.listening
        await until(lambda: not session.listening, "the last listener's leaving")


async def test_strangers_keys_without_the_scope_and_a_plain_get_hear_nothing(made: tuple[Gateway, str]) -> None:
    gateway, url = made
    async with call(gateway, url) as session:
        path = f"{url}/v1/calls/{session.call_id}/listen"
        assert (await get(path, status=404, key="two"))["error"]["code"] == "unknown_call"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer one"}) as http:
            async with http.post(f"{url}/v1/tokens", json={"scope": "read", "call": session.call_id}) as answer:
                token = (await answer.json())["token"]
        refused = (await get(path, status=403, key=token))["error"]
        assert (refused["code"], refused["param"]) == ("missing_scope", "calls")
        assert (await get(path, status=426, key="one"))["error"]["code"] == "no_websocket"
        async with contextlib.AsyncExitStack() as others:
            for _ in range(LISTENERS):
                await (await others.enter_async_context(listener(url, session.call_id))).receive_json()
            with pytest.raises(aiohttp.WSServerHandshakeError) as full:
                await others.enter_async_context(listener(url, session.call_id))
            assert full.value.status == 429


async def test_a_listener_with_a_slow_connection_loses_the_oldest_sound_and_delays_nobody() -> None:
    wanted: list[bool] = []
    listeners = Listeners(wanted.append)
    with listeners.join() as slow, listeners.join() as quick:
        heard = []
        hearing = asyncio.create_task(_collect(quick, heard))
        for number in range(PIECES + 7):
            listeners.put(bytes([number]))
            await asyncio.sleep(0)
        listeners.close()
        await hearing
        assert (slow.dropped, quick.dropped) == (7, 0)
        assert [piece[0] for piece in heard] == list(range(PIECES + 7))
        late: list[bytes] = []
        await _collect(slow, late)
        assert [piece[0] for piece in late] == list(range(7, PIECES + 7))
    assert wanted == [True]


async def _collect(listener: Listener, pieces: list[bytes]) -> None:
    async for piece in listener:
        pieces.append(piece)
