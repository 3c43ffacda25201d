"""Copies of calls to a session recording server: begun by the route or by a message, in a whole gateway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gateway.call.session import Session
from gateway.seams.messages import Record
from talkspurt.config.settings import Config
from tests.gateway.call.test_calls import CALL, Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.call_api.test_listen import _whistle
from tests.sip_bridge.siprec.recorder import Recorder, header, pitch
from tests.waiting import until

SIP = {"port": 0, "rtp_ports": "44000-44999"}


@contextlib.asynccontextmanager
async def call(tmp_path: Path, recorder: Recorder, start: str) -> AsyncIterator[Session]:
    """A call whose caller whistles all the time, at 500 Hz."""
    routes = {"default": {"siprec": {"recorder": recorder.uri, "start": start}}}
    async with api_gateway(tmp_path, sip=SIP, routes=routes) as (gateway, _, url):
        async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/v1/dialogue?route=default"):
            session = gateway.calls.begin(CALL, Leg())
            whistle = asyncio.create_task(_whistle(session))
            try:
                yield session
            finally:
                whistle.cancel()
                session.end("over", hang_up=True)
                await until(lambda: not len(gateway.directory), "the call's end")


async def is_heard(recorder: Recorder) -> None:
    recorder.answer(await recorder.heard(b"INVITE"), "200 OK", recorder.description())
    await recorder.heard(b"ACK")
    assert pitch((await recorder.sound(recorder.left, 60))[20:]) == pytest.approx(500, abs=5)


async def test_a_route_copies_its_calls_from_the_beginning_to_the_end(tmp_path: Path) -> None:
    with Recorder() as recorder:
        async with call(tmp_path, recorder, "call") as session:
            await is_heard(recorder)
            session.end("over", hang_up=True)
            assert header(bye := await recorder.heard(b"BYE"), "CSeq") == "2 BYE"
            recorder.answer(bye, "200 OK")


async def test_a_message_begins_and_ends_the_copy(tmp_path: Path) -> None:
    with Recorder() as recorder:
        async with call(tmp_path, recorder, "message") as session:
            await until(lambda: session.ready.done())
            assert not session._copy.record("pause", session.call)
            session.on_message(Record(state="start"))
            await is_heard(recorder)
            session.on_message(Record(state="stop"))
            recorder.answer(await recorder.heard(b"BYE"), "200 OK")
            assert not session.caller.listeners._all


async def test_a_recorder_that_refuses_costs_the_call_nothing(tmp_path: Path) -> None:
    with Recorder() as recorder:
        async with call(tmp_path, recorder, "call") as session:
            recorder.answer(await recorder.heard(b"INVITE"), "500 Server Internal Error")
            await until(lambda: not session.caller.listeners._all)
            assert not session.ending.decided


def test_a_recorder_needs_sip() -> None:
    with pytest.raises(ValueError, match="wants the section sip"):
        Config.model_validate({"routes": {"default": {"siprec": {"recorder": "sip:srs"}}}})
    with pytest.raises(ValueError, match="expected sip:"):
        Config.model_validate({"sip": {}, "routes": {"default": {"siprec": {"recorder": "srs"}}}})
