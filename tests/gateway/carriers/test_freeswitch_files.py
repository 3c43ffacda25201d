"""Files of sound on a FreeSWITCH channel: played in order, stopped, and marks that come back when they were heard."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp

from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.freeswitch.file_queue import FileQueue
from gateway.carriers.freeswitch.settings import EslConfig
from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.gateway.carriers.freeswitch_peer import FreeSwitch, kept
from tests.gateway.http.api_gateway import api_gateway
from tests.waiting import until

UUID = "0f0c2c4e-0000-4000-8000-000000000001"


def test_a_mark_is_reached_after_its_file() -> None:
    queue = FileQueue()
    assert queue.mark("at once")
    for name in "ab":
        queue.add(name)
    assert not queue.mark("b")
    assert queue.began("a")
    assert queue.ended("a") == []
    assert not queue.began("b"), "there was no silence"
    assert queue.ended("another application's") == []
    assert queue.ended("b") == ["b"]
    queue.add("c")
    assert queue.began("c")


def test_a_file_whose_end_was_not_told_does_not_hold_the_marks_back() -> None:
    queue = FileQueue()
    for name in "ab":
        queue.add(name)
        queue.mark(name)
    assert queue.ended("b") == ["a", "b"]


def test_what_is_cleared_is_not_reported() -> None:
    queue = FileQueue()
    assert not queue.clear()
    queue.add("old")
    queue.mark("old")
    assert queue.clear()
    queue.add("new")
    queue.mark("new")
    assert queue.ended("old") == []
    assert queue.ended("new") == ["new"]


@asynccontextmanager
async def channel(switch: FreeSwitch, *, files: bool = True, **esl: str) -> AsyncIterator[list[str]]:
    """A call on a channel of the switch; yields the events that it got."""
    told: list[str] = []
    calls = FreeSwitchCalls(
        EslConfig(**kept(port=switch.port, **esl)), "uuid_audio_stream",
        sample_rate=8000, flush_command="", start_options="", variables={}, files=files,
        media_url=lambda route, given: "",
    )  # fmt: skip
    switch.channels[UUID] = {}
    calls.esl.start()
    try:
        await until(lambda: calls.esl.connected)

        class Events:
            on_digit = on_mark = staticmethod(told.append)

            def on_playback(self, *, started: bool) -> None:
                told.append("began")

        events: Any = Events()
        assert calls.open(StreamStarted(stream_id=UUID, call_sid=UUID), cast(CallEvents, events))
        yield told
    finally:
        await calls.esl.aclose()


async def test_files_are_played_one_after_another_and_nothing_waits_before_them() -> None:
    async with FreeSwitch() as switch, channel(switch) as told:
        switch.module(UUID, "play", file="/tmp/a b.tmp")  # a name that a command would take for two words
        for name in ("1", "2"):
            switch.module(UUID, "play", audioDataType="raw", sampleRate=8000, file=f"/tmp/{name}.tmp.r8")
        switch.module(UUID, "json", type="mark", name="0.1")
        switch.module(UUID, "json", type="something else")
        await until(lambda: len(switch.executes) == 2 and told, "two files and the beginning of the first")
        assert switch.queued[UUID] == ["/tmp/1.tmp.r8", "/tmp/2.tmp.r8"]
        assert all(
            (each["call-command"], each["execute-app-name"], each["event-lock"]) == ("execute", "playback", "true")
            and "lead-frames" not in each
            for each in switch.executes
        )
        switch.played(UUID)
        assert told == ["began"]
        switch.played(UUID)
        await until(lambda: "0.1" in told, "the mark")
        assert told == ["began", "0.1"]
        await until(lambda: switch.channels[UUID].get("playback_terminators") == "none", "keys that stop no file")


async def test_a_clear_stops_what_was_sent_before_it_and_nothing_that_comes_after() -> None:
    async with FreeSwitch() as switch, channel(switch) as told:
        switch.module(UUID, "json", type="clear")  # nothing sounds: a break would hit the next file
        for name in ("1", "2"):
            switch.module(UUID, "play", file=f"/tmp/{name}.tmp.r8")
        switch.module(UUID, "json", type="mark", name="0.1")
        switch.module(UUID, "json", type="clear")
        switch.module(UUID, "play", file="/tmp/3.tmp.r8")
        switch.module(UUID, "json", type="mark", name="1.1")
        await until(lambda: switch.queued.get(UUID) == ["/tmp/3.tmp.r8"], "the third file alone")
        assert switch.commands.count(f"uuid_break {UUID} all") == 1
        switch.played(UUID)
        await until(lambda: "1.1" in told, "the mark")
        assert "0.1" not in told


async def test_a_channel_that_is_gone_is_logged_and_the_socket_goes_on(caplog: Any) -> None:
    async with FreeSwitch() as switch, channel(switch) as told:
        del switch.channels[UUID]
        switch.module(UUID, "play", file="/tmp/1.tmp.r8")
        await until(lambda: any("invalid session" in vars(each).get("why", "") for each in caplog.records), "the error")
        switch.event("DTMF", UUID, DTMF_Digit="5")
        await until(lambda: told == ["5"])


async def test_a_module_that_plays_no_binary_messages_is_told_of(caplog: Any) -> None:
    """The community edition passes the message that announces them on, as it does with all that it does not know."""
    async with FreeSwitch() as switch, channel(switch, files=False) as told:
        switch.module(UUID, "json", type="rawAudio", data={"sampleRate": 8000})
        switch.event("DTMF", UUID, DTMF_Digit="5")
        await until(lambda: told == ["5"])
        assert any("hears nothing" in record.message for record in caplog.records)


class Switch:
    """FreeSWITCH with the community edition of mod_audio_stream: writes what comes to files, and tells of them."""

    def __init__(self, esl: FreeSwitch) -> None:
        self.esl = esl
        self.files: dict[str, bytes] = {}
        self.texts: list[str] = []
        """Kinds of the texts that the module did not know and passed on."""
        self.heard = b""

    async def module(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Take what the gateway sends, until the stream ends."""
        async for message in socket:
            body = json.loads(message.data)
            if body["type"] == "streamAudio":
                path = f"/tmp/{UUID}_{len(self.files)}.tmp.r8"
                self.files[path] = base64.b64decode(body["data"]["audioData"])
                self.esl.module(UUID, "play", audioDataType="raw", sampleRate=8000, file=path)
            else:
                self.texts.append(body["type"])
                self.esl.module(UUID, "json", **body)

    def play(self) -> None:
        """Play the file whose turn it is."""
        self.heard += self.files[self.esl.queued[UUID][0]]
        self.esl.played(UUID)


async def test_a_call_is_heard_whole_ends_when_it_was_heard_and_is_cut_at_once(tmp_path: Path) -> None:
    async with FreeSwitch() as esl:
        esl.channels[UUID] = {}
        section = {"verify": False, "playback": "file", "esl": kept(port=esl.port)}
        carriers, playout = {"freeswitch": section}, {"mark_timeout_s": 600}
        calls: list[ManagedCall] = []
        async with (
            api_gateway(tmp_path, carriers=carriers, playout=playout) as (_, _, url),
            aiohttp.ClientSession(url) as http,
        ):
            manager = SimulatedManager(calls.append)
            await manager.dial_in(f"{url.replace('http', 'ws')}/v1/dialogue?route=default")
            switch = Switch(esl)
            async with http.ws_connect(f"/media/freeswitch/default?uuid={UUID}") as socket:
                await socket.send_str("{}")
                module = asyncio.create_task(switch.module(socket))
                await until(lambda: calls and "playback_terminators" in esl.channels[UUID], "the call")
                queued = esl.queued.setdefault(UUID, [])

                turn = calls[0].speak("One two three.")
                await until(lambda: switch.texts == ["mark"] and len(queued) == len(switch.files), "all that is said")
                assert len(queued) > 2 and not turn.outcome, "nothing has been heard yet"
                while len(queued) > 1:
                    switch.play()
                assert not turn.outcome
                switch.play()
                await until(lambda: turn.outcome, "the end")
                assert turn.outcome == "finished"
                assert switch.heard == b"".join(switch.files.values()), "in order, nothing lost"

                turn = calls[0].speak("One two three four five six seven.")
                await until(lambda: queued, "its beginning")
                calls[0].send("cancel")
                await until(lambda: "clear" in switch.texts and not queued and turn.outcome, "the cut")
                cut = set(switch.files)
                turn = calls[0].speak("Yes.")
                await until(lambda: switch.texts[-1] == "mark" and queued, "the next turn")
                assert not cut & set(queued), "nothing of before the cut"

                def played() -> str:
                    if queued:
                        switch.play()
                    return turn.outcome

                assert await until(played, "its end") == "finished"
                await socket.close()
                await module
            await manager.aclose()


async def test_a_caller_whose_gateway_died_is_sent_on_when_the_next_one_logs_in() -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    async with FreeSwitch() as switch:
        machine = f"{socket.gethostname()}:"
        theirs = {
            "dead": f"{machine}{gone.pid}:uuid_audio_stream",
            "before-in-this-container": f"{machine}{os.getpid()}:uuid_audio_stream",
            "other-process": f"{machine}{os.getppid()}:uuid_audio_stream",
            "other-module": f"{machine}{os.getpid()}:uuid_audio_fork",
            "other-machine": f"elsewhere:{gone.pid}:uuid_audio_stream",
            "no-bot": "",
            "with-a-person": f"{machine}{gone.pid}:uuid_audio_stream",
            "strange": "::;",
        }
        switch.channels |= {uuid: {"talkspurt_owner": owner} for uuid, owner in theirs.items()}
        switch.channels["with-a-person"]["application"] = "bridge"
        async with channel(switch, files=False, after="after_bot"):
            moved = {"dead", "before-in-this-container"}
            await until(lambda: all("transferred" in switch.channels[uuid] for uuid in moved), "the callers")
            await until(lambda: "talkspurt_owner" in switch.channels[UUID], "the owner of a new call")
            switch.logins = 0
            await switch.go_down()
            await switch.listen()
            await until(lambda: switch.logins and switch.commands.count("show channels as json") == 2, "the next look")
            await until(lambda: switch.commands[-1].startswith("uuid_getvar strange"), "the end of the look")
        assert {uuid for uuid, told in switch.channels.items() if "transferred" in told} == moved
        assert switch.channels["dead"] == {
            "talkspurt_owner": "", "talkspurt_reason": "unreachable", "transferred": "after_bot XML default"
        }  # fmt: skip
