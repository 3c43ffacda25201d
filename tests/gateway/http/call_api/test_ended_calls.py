"""The call log over HTTP: a call is led through a whole gateway, ends, and is looked up again."""

import asyncio
import csv
import io
import threading
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from gateway.config import RecordingConfig
from gateway.http.call_api.ended_calls import EndedCalls
from gateway.http.call_api.recording_files import RecordingFiles
from gateway.http.call_api.recordings_disk import THREADS
from gateway.http.request import errors
from gateway.http.request.auth import WHO
from gateway.principal import ANYONE
from gateway.seams.call_record import CallSummary
from gateway.seams.incoming import IncomingCall
from gateway.uplink.sealing import SealedFile
from talkspurt.build import Gateway
from tests.gateway.call.test_calls import Leg
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import until
from voicecodecs.registry import AudioFormat

CALL = IncomingCall(
    route="default", transport="telnyx", inbound=AudioFormat(), call_sid="c1", from_="+4930123", to="+4989456"
)
WORDS = "The shop opens at nine."


async def a_call(made: Gateway, url: str, *, key: str = "") -> str:
    """One turn that is heard, a key, a turn that is not awaited; returns the call's id."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.ws_connect(f"{url}/v1/dialogue?route=default") as ws,
    ):
        session = made.calls.begin(CALL, Leg())
        await until(lambda: session.ready.done(), "the manager")
        live = [
            *(await get(f"{url}/v1/calls", key=key))["calls"],
            await get(f"{url}/v1/calls/{session.call_id}", key=key),
        ]
        assert [(view["from"], view["to"]) for view in live] == [(CALL.from_, CALL.to)] * 2
        await ws.send_json({"type": "text", "sessionId": session.call_id, "token": WORDS, "last": True})
        await until(lambda: session.stats.last_outcome == "finished", "the end of the turn")
        session.on_digit("5")
        await ws.send_json({"type": "text", "sessionId": session.call_id, "token": "Never ", "last": False})
        await until(lambda: session.turns.speaking() or session.turns.in_line, "the second turn")
        session.end("over", hang_up=True)
        await until(lambda: not len(made.directory), "the call's end")
        return session.call_id


async def get(url: str, *, status: int = 200, key: str = "") -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json() if answer.content_type == "application/json" else await answer.read()


async def logged(url: str, call_id: str, **options: Any) -> Any:
    """The call, as soon as it has been written."""

    async def look() -> Any:
        calls = (await get(f"{url}/v1/calls?ended=true", **options))["calls"]
        return next((call for call in calls if call["callId"] == call_id), None)

    return await until(look, "the call's record")


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    sections: dict[str, Any] = {
        "calls": {"folder": str(tmp_path / "calls"), "keep_text": True},
        "recording": {"folder": str(tmp_path)},
        "routes": {"default": {"recording": True, "interruptible": "none"}},
    }
    async with api_gateway(tmp_path, **sections) as (gateway, _, url):
        yield gateway, url


async def test_an_ended_call_is_listed_and_shown_with_both_sides(made: tuple[Gateway, str]) -> None:
    gateway, url = made
    call_id = await a_call(gateway, url)
    listed = await logged(url, call_id)
    assert (listed["from"], listed["to"], listed["reason"], listed["turns"]) == ("+4930123", "+4989456", "over", 1)
    shown = await get(f"{url}/v1/calls/{call_id}")
    assert listed.items() <= shown.items()
    said, pressed, cut = shown["entries"]
    assert (said["text"], said["heardChars"], said["outcome"]) == (WORDS, len(WORDS), "finished")
    assert (pressed["kind"], pressed["digit"]) == ("pressed", "5")
    assert (cut["outcome"], cut["startedMs"], cut["firstPacketMs"]) == ("interrupted", None, None)
    assert said["atMs"] <= said["startedMs"] <= said["endedMs"] <= pressed["atMs"] <= shown["durationMs"]
    assert said["firstPacketMs"] == listed["firstPacketMs"]
    assert sum(said["stagesMs"].values()) == pytest.approx(said["firstPacketMs"], abs=1)


async def test_the_list_is_narrowed_sorted_and_summed(made: tuple[Gateway, str]) -> None:
    gateway, url = made
    first, second = await a_call(gateway, url), await a_call(gateway, url)
    await logged(url, first)
    await logged(url, second)
    asked = f"{url}/v1/calls?ended=true&totals=true"
    shown = await get(f"{asked}&sort=start&order=asc&limit=1&number=456")
    assert [call["callId"] for call in shown["calls"]] == [first]
    assert (shown["totals"]["calls"], shown["totals"]["turns"], shown["totals"]["failed"]) == (2, 2, 0)
    rest = await get(f"{asked}&sort=start&order=asc&before={quote(shown['next'])}")
    assert [call["callId"] for call in rest["calls"]] == [second]
    assert (await get(f"{asked}&outcome=failed"))["totals"]["calls"] == 0
    assert (await get(f"{asked}&shortest=3600"))["calls"] == []
    assert (await get(f"{url}/v1/calls?ended=true"))["totals"] is None


async def test_the_list_is_also_csv(made: tuple[Gateway, str]) -> None:
    gateway, url = made
    call_id = await a_call(gateway, url)
    await logged(url, call_id)
    (row,) = csv.DictReader(io.StringIO((await get(f"{url}/v1/calls?ended=true&format=csv")).decode()))
    assert (row["callId"], row["from"], row["outcome"]) == (call_id, "'+4930123", "completed")


@pytest.mark.parametrize(("form", "method"), [("json", "model_dump_json"), ("csv", "model_dump")])
async def test_a_list_is_written_down_off_the_loop_that_paces_calls(
    form: str, method: str, made: tuple[Gateway, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, url = made
    await logged(url, await a_call(gateway, url))
    threads: list[str] = []
    write = getattr(CallSummary, method)

    def written(call: CallSummary, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return write(call, **options)

    monkeypatch.setattr(CallSummary, method, written)
    await get(f"{url}/v1/calls?ended=true&format={form}")
    (thread,) = threads
    assert thread.startswith("call log reader")


async def test_a_bad_query_is_told_what_was_expected(made: tuple[Gateway, str]) -> None:
    _, url = made
    for query, param in (
        ("limit=0", "limit"), ("since=yesterday", "since"), ("before=x,y", "before"), ("sort=name", "sort"),
        ("order=up", "order"), ("outcome=good", "outcome"), ("shortest=long", "shortest"), ("longest=-1", "longest"),
    ):  # fmt: skip
        answer = await get(f"{url}/v1/calls?ended=true&{query}", status=422)
        assert answer["error"]["param"] == param
    assert (await get(f"{url}/v1/calls?ended=true&since=2026-11-22T10:00:00Z&text=nine"))["calls"] == []


async def test_views_beside_a_hung_disk_are_refused_and_hold_few_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, hung = threading.Event(), set[threading.Thread]()

    def hang(*_: object) -> None:
        hung.add(threading.current_thread())
        released.wait()

    monkeypatch.setattr(RecordingFiles, "_found", hang)
    monkeypatch.setattr("gateway.http.call_api.recording_files.HANG_S", 0.05)
    sections: dict[str, Any] = {
        "calls": {"folder": str(tmp_path / "calls")},
        "recording": {"folder": str(tmp_path)},
    }
    async with api_gateway(tmp_path, **sections) as (made, _, url):
        try:
            call_id = await a_call(made, url)
            await logged(url, call_id)
            page = f"{url}/v1/calls/{call_id}"
            views = await asyncio.gather(*(get(page, status=503) for _ in range(3 * THREADS)))
            assert {view["error"]["code"] for view in views} == {"recordings_unavailable"}
            assert len(hung) <= THREADS
        finally:
            released.set()


@pytest.mark.parametrize("key", [None, "5a" * 32])
async def test_the_recording_of_a_call_comes_as_wav(
    tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_in: list[str] = []
    open_path = Path.open

    def opened(path: Path, *args: Any, **more: Any) -> Any:
        if path.name.startswith("VX"):
            opened_in.append(threading.current_thread().name)
        return open_path(path, *args, **more)

    folder = tmp_path / "made" / "at start"
    sections: dict[str, Any] = {
        "calls": {"folder": str(tmp_path / "calls")},
        "recording": {"folder": str(folder), "encrypt": key},
        "routes": {"default": {"recording": True, "interruptible": "none"}},
    }
    async with api_gateway(tmp_path, **sections) as (gateway, _, url):
        call_id = await a_call(gateway, url)
        await logged(url, call_id)
        await until(lambda: list(folder.glob("VX*.wav*")), "the end of the recording")
        shown = await get(f"{url}/v1/calls/{call_id}")
        assert shown["recording"] and shown["entries"][0]["text"] is None and shown["entries"][1]["digit"] is None
        monkeypatch.setattr(Path, "open", opened)
        address = f"{url}/v1/calls/{call_id}/recording"
        whole = await get(address)
        with wave.open(io.BytesIO(whole)) as sound:
            assert sound.getnchannels() == 2 and sound.getnframes() > sound.getframerate() // 2
        await get(f"{url}/v1/calls/VX{0:032x}/recording", status=404)
        size = len(whole)
        async with aiohttp.ClientSession() as http:
            for asked, begin, end in (("0-", 0, size), ("30-49", 30, 50), ("44-", 44, size), ("-9", size - 9, size)):
                async with http.get(address, headers={"Range": f"bytes={asked}"}) as answer:
                    assert (answer.status, await answer.read()) == (206, whole[begin:end])
                    assert answer.headers["Content-Range"] == f"bytes {begin}-{end - 1}/{size}"
            async with http.get(address, headers={"Range": f"bytes={size}-"}) as answer:
                assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{size}")
            for ignored in ({"Range": "bytes=0-1,3-4"}, {"Range": "bytes=0-1", "If-Range": '"1"'}):
                async with http.get(address, headers=ignored) as answer:
                    assert (answer.status, await answer.read()) == (200, whole)
        assert opened_in and all(name.startswith("recordings reader") for name in opened_in)


@web.middleware
async def _anyone(request: web.Request, handler: Any) -> Any:
    request[WHO] = ANYONE
    return await handler(request)


async def test_a_recording_of_another_key_or_damaged_is_told_and_its_error_never_sent_as_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, before = bytes(range(32)), bytes(32)
    monkeypatch.setattr(EndedCalls, "_get", AsyncMock())
    path = tmp_path / f"VX{0:032x}.wav.enc"
    calls = EndedCalls(None, RecordingFiles(RecordingConfig(folder=str(tmp_path), encrypt=SecretStr(ours.hex()))))
    app = web.Application(middlewares=[errors.middleware, _anyone])
    app.router.add_get("/v1/calls/{id}/recording", calls.recording)

    def recorded(key: bytes, *, damaged_at: int) -> None:
        file = SealedFile(path.open("wb"), key=key, rate=8000)
        file.writeframes(bytes(2 * 65_536))
        file.close()
        data = bytearray(path.read_bytes())
        data[damaged_at] ^= 1
        path.write_bytes(data)

    async with TestServer(app) as server:
        address = str(server.make_url(f"/v1/calls/{path.name.partition('.')[0]}/recording"))
        for key, damaged_at, code in ((before, -1, "wrong_key"), (ours, 40, "damaged")):
            recorded(key, damaged_at=damaged_at)
            error = (await get(address, status=409))["error"]
            assert error["code"] == code
            assert vars(caplog.records[-1])["why"] == error["message"]
        recorded(ours, damaged_at=-1)
        with pytest.raises(aiohttp.ClientPayloadError):
            await get(address)
        told = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert [record.getMessage() for record in told] == ["recording cannot be read"] * 3
        assert not any(key.hex() in str(vars(record)) for record in told for key in (ours, before))


async def test_another_tenants_ended_calls_do_not_exist(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "calls": {"folder": str(tmp_path / "calls")},
        "auth": {"api_keys": [{"key": "one", "tenant": "one"}, {"key": "two", "tenant": "two"}]},
        "routes": {"default": {"tenant": "one"}, "other": {"tenant": "two"}},
    }
    async with api_gateway(tmp_path, **sections) as (gateway, _, url):
        call_id = await a_call(gateway, url, key="one")
        await logged(url, call_id, key="one")
        await get(f"{url}/v1/calls/{call_id}", key="one")
        assert (await get(f"{url}/v1/calls?ended=true", key="two"))["calls"] == []
        await get(f"{url}/v1/calls/{call_id}", status=404, key="two")
        await get(f"{url}/v1/calls/{call_id}/recording", status=404, key="two")


async def test_without_a_folder_there_is_no_log(tmp_path: Path) -> None:
    async with api_gateway(tmp_path) as (gateway, _, url):
        call_id = await a_call(gateway, url)
        assert (await get(f"{url}/v1/calls?ended=true", status=404))["error"]["code"] == "not_configured"
        await get(f"{url}/v1/calls/{call_id}", status=404)
