"""Files of sound on a FreeSWITCH channel: played in order, stopped, and marks that come back when they were heard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.freeswitch.file_queue import FileQueue
from gateway.carriers.freeswitch.settings import EslConfig
from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted
from tests.gateway.carriers.freeswitch_peer import FreeSwitch, kept
from tests.waiting import until

UUID = "0f0c2c4e-0000-4000-8000-000000000001"


def test_marks_are_reported_behind_their_files() -> None:
    told: list[str] = []
    queue = FileQueue(told.append, lambda: told.append("began"))
    queue.mark("at once")
    for name in "ab":
        queue.add(name)
    queue.mark("b")
    queue.began("a")
    queue.ended("a")
    queue.began("b")
    queue.ended("another application's")
    assert told == ["at once", "began"]
    queue.ended("b")
    assert told == ["at once", "began", "b"]
    queue.add("c")
    queue.began("c")
    assert told[3:] == ["began"]


def test_a_file_whose_end_was_not_told_does_not_hold_the_marks_back() -> None:
    told: list[str] = []
    queue = FileQueue(told.append, lambda: None)
    for name in "ab":
        queue.add(name)
        queue.mark(name)
    queue.ended("b")
    assert told == ["a", "b"]


def test_what_is_cleared_is_not_reported() -> None:
    told: list[str] = []
    queue = FileQueue(told.append, lambda: None)
    assert not queue.clear()
    queue.add("old")
    queue.mark("old")
    assert queue.clear()
    queue.add("new")
    queue.mark("new")
    queue.ended("old")
    assert told == []
    queue.ended("new")
    assert told == ["new"]


@asynccontextmanager
async def channel(switch: FreeSwitch) -> AsyncIterator[list[str]]:
    """A call of ours on a channel of the switch; what it is told."""
    told: list[str] = []
    calls = FreeSwitchCalls(
        EslConfig(**kept(port=switch.port)), "uuid_audio_stream",
        sample_rate=8000, flush_command="", start_options="", variables={}, files=True,
        media_url=lambda route, given: "",
    )  # fmt: skip
    switch.channels[UUID] = {}
    calls.esl.start()
    try:
        await until(lambda: calls.esl.connected)
        events: Any = SimpleNamespace(
            on_digit=told.append, on_mark=told.append, on_playback=lambda started: told.append("began")
        )
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
