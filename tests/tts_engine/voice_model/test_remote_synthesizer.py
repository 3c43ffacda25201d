"""A voice model in a process of its own: a real child process, and the synthesizer that asks it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tts_engine.garbage import leaving_no_circles
from tests.tts_engine.voice_model.scripted_model import FAILURES, RATE, ScriptedModel, sound
from tests.waiting import PATIENCE_S, until
from tts_engine.api import VoiceInfo
from tts_engine.errors import EngineError, Exhausted, SynthesisFailed, Unavailable
from tts_engine.service.child import ChildTimes
from tts_engine.service.framing.message_connection import MessageConnection
from tts_engine.synthesizer import ClauseRequest, Playhead, VoiceEditor
from tts_engine.voice_model import child
from tts_engine.voice_model.hearing import HeardPosition
from tts_engine.voice_model.messages import Chunk, Close, Done, Hear, NextChunk, Ready, Speak
from tts_engine.voice_model.parent import RemoteSynthesizer

TIMES = ChildTimes(start_s=PATIENCE_S, hang_s=PATIENCE_S, end_s=PATIENCE_S, restart_backoff_s=60.0)


class Files:
    """Voices that the engine's process reads for itself."""

    def __init__(self, own: Any) -> None:
        self._own, self._added = own, dict[str, VoiceInfo]()

    def infos(self) -> list[VoiceInfo]:
        return [*self._own, *self._added.values()]

    def add(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        self._added[voice_id] = VoiceInfo(voice_id=voice_id, name=name, languages=(language,), engine="scripted")
        return self._added[voice_id]

    def remove(self, voice_id: str) -> None:
        del self._added[voice_id]

    def revision(self, voice_id: str) -> str:
        return f"{voice_id} 1"


class Observer:
    def __init__(self) -> None:
        self.batches: list[tuple[int, str, int]] = []

    def batch(self, rows: int, *, cache: str, cache_bytes: int, free_blocks: int) -> None:
        self.batches.append((rows, cache, cache_bytes))


def remote(settings: str = "{}", observer: Observer | None = None) -> RemoteSynthesizer:
    return RemoteSynthesizer(
        "scripted",
        "tests.tts_engine.voice_model.scripted_model",
        settings,
        times=TIMES,
        sample_rate=RATE,
        streams_text=True,
        voices=Files,
        observer=observer or Observer(),
    )


@pytest.fixture
async def model() -> AsyncIterator[RemoteSynthesizer]:
    made = remote()
    await made.start()
    yield made
    await made.aclose()


def clause(text: str, *, more: AsyncIterator[str] | None = None) -> ClauseRequest:
    return ClauseRequest(text=text, voice="", language="en", speed=1.0, instruct="", first=True, more=more)


async def nothing_is_open(model: RemoteSynthesizer) -> None:
    """The child has reported that it works on no clause, and none is kept here."""
    await until(lambda: model.status().active == 0 and not model._clauses)


async def test_clauses_are_spoken_as_the_model_makes_them(model: RemoteSynthesizer) -> None:
    async def speak() -> None:
        chunks = [chunk async for chunk in model.synthesize(clause("three seconds"), Playhead())]
        assert [chunk.engine_ms for chunk in chunks] == [0, 1, 2]
        assert [chunk.words[0].start_char for chunk in chunks] == [0, 1, 2]
        for number, chunk in enumerate(chunks):
            assert np.array_equal(chunk.pcm, sound(number))

    await asyncio.gather(*(speak() for _ in range(8)))
    await nothing_is_open(model)


async def test_no_collection_of_garbage_looks_at_much_while_clauses_are_made(model: RemoteSynthesizer) -> None:
    async with aclosing(model.synthesize(clause("garbage"), Playhead())) as chunks:
        assert 0 < (await anext(chunks)).pcm[0] < 8_000  # objects: some 2 ms


async def test_clauses_are_freed_without_a_collection_of_garbage(model: RemoteSynthesizer) -> None:
    async with leaving_no_circles():
        async for _ in model.synthesize(clause("three seconds"), Playhead()):
            pass
        async with aclosing(model.synthesize(clause("hearing"), Playhead())) as chunks:
            await anext(chunks)
        await nothing_is_open(model)


async def test_the_childs_clauses_are_freed_without_a_collection_of_garbage() -> None:
    said, clauses = asyncio.Queue[Any](), dict[int, child._Clause]()
    loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
    parent, connection = MessageConnection(said.put_nowait), MessageConnection(lambda message: None)
    await loop.create_unix_connection(lambda: parent, sock=ours)
    await loop.create_unix_connection(lambda: connection, sock=theirs)
    async with leaving_no_circles():
        for number, text in enumerate(("three seconds", "hearing")):
            speak = Speak(number, clause(text), False, HeardPosition.of(Playhead(), 0.0))
            clauses[number] = child._Clause(speak, ScriptedModel(Observer()), connection, clauses)
            while not isinstance(message := await said.get(), Done):
                if isinstance(message, Chunk):
                    clauses[number].take(Close(number) if text == "hearing" else NextChunk(number, speak.heard))
    parent.close()
    connection.close()


async def another_look(model: RemoteSynthesizer) -> None:
    """Wait until the clauses have been looked at once more."""
    before = model._looking
    await until(lambda: model._looking is not before)


async def test_who_hears_a_clause_as_before_is_not_asked_again(
    model: RemoteSynthesizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(Playhead):
        asked = 0

        def slack_s(self, now: float) -> float:
            self.asked += 1
            return super().slack_s(now)

    playhead = Counting()
    async with aclosing(model.synthesize(clause("hearing"), playhead)) as chunks:
        await anext(chunks)
        asked, sent = playhead.asked, list[object]()
        assert (connection := model._process.connection) is not None
        send = connection.send

        def note(message: object, *, at_once: bool = True) -> None:
            sent.append(message)
            send(message, at_once=at_once)

        monkeypatch.setattr(connection, "send", note)
        for _ in range(3):
            await another_look(model)
        assert (playhead.asked, sent) == (asked, [])
        playhead.tentative = True
        await until(lambda: any(isinstance(message, Hear) and message.heard.tentative for message in sent))


async def test_what_is_known_of_the_model(model: RemoteSynthesizer) -> None:
    assert isinstance(model, VoiceEditor)
    made = model.add_voice(voice_id="new", name="New", wav=b"", transcript="", language="en")
    assert (list(model.voices())[1:], model.voice_revision("new")) == ([made], "new 1")
    model.remove_voice("new")
    assert [voice.voice_id for voice in model.voices()] == ["own"]
    assert (model.status().ready, model.status().gpu) == (True, "a GPU")


async def test_the_status_is_known_to_who_hears_that_the_model_is_ready() -> None:
    made, known = remote(), list[tuple[bool, str]]()
    process, take = made._process, made._process._take

    def look(message: object) -> None:
        if isinstance(message, Ready):
            known.append((made._status.ready, made._status.gpu))
        take(message)

    process._take = look
    await made.start()
    await made.aclose()
    assert known == [(True, "a GPU")]


@pytest.mark.parametrize("text", FAILURES)
async def test_a_failure_is_told_as_it_is_and_harms_no_other(model: RemoteSynthesizer, text: str) -> None:
    async with aclosing(model.synthesize(clause("three seconds"), Playhead())) as other:
        await anext(other)
        with pytest.raises(EngineError) as caught:
            await anext(model.synthesize(clause(text), Playhead()))
        expected = FAILURES[text]
        if isinstance(expected, EngineError):
            assert type(caught.value) is type(expected)
            assert (str(caught.value), vars(caught.value)) == (str(expected), vars(expected))
        else:  # its words may quote a caller's
            assert isinstance(caught.value, SynthesisFailed)
            assert str(caught.value) == "the voice model failed: RuntimeError"
        await anext(other)
    await nothing_is_open(model)


async def test_closing_a_clause_returns_when_the_model_has_left_it(model: RemoteSynthesizer) -> None:
    chunks = model.synthesize(clause("hearing"), Playhead())
    await anext(chunks)
    await until(lambda: model.status().active == 1)
    await chunks.aclose()
    assert not model._clauses
    await nothing_is_open(model)


async def test_a_clause_cancelled_before_anything_came_leaves_nothing(model: RemoteSynthesizer) -> None:
    for turns in range(6):  # at each place that the wait can be broken off
        async with aclosing(model.synthesize(clause("hearing"), Playhead())) as chunks:
            asking = asyncio.create_task(anext(chunks))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
    await nothing_is_open(model)


async def test_a_place_is_told_before_any_sound(model: RemoteSynthesizer) -> None:
    placed = asyncio.Event()
    asked = replace(clause("until it is awaited"), placed=placed.set)
    async with aclosing(model.synthesize(asked, Playhead(ahead=True))) as chunks:
        sound = asyncio.ensure_future(anext(chunks))
        await placed.wait()
        assert not sound.done()
        sound.cancel()
        await asyncio.wait([sound])
    placed.clear()
    with pytest.raises(Exhausted):
        await anext(model.synthesize(replace(clause("full"), placed=placed.set), Playhead()))
    assert not placed.is_set()


async def test_the_model_goes_on_only_when_it_is_asked(model: RemoteSynthesizer) -> None:
    playhead = Playhead(priority=4)
    async with aclosing(model.synthesize(clause("hearing"), playhead)) as chunks:
        assert (await anext(chunks)).pcm.tolist() == pytest.approx([0, 0, 0, playhead.head_start_s, 0])
        playhead.delivered_s, playhead.played_at = 1e6, time.monotonic()
        # The next chunk is made of what is heard now, not of what was heard when the last one was ready.
        assert (await anext(chunks)).pcm.tolist() == pytest.approx([0, 0, 1, playhead.head_start_s, 1e6], rel=1e-3)


async def test_a_change_of_hearing_is_told_without_being_asked(model: RemoteSynthesizer) -> None:
    playhead = Playhead(ahead=True)
    async with aclosing(model.synthesize(clause("until it is awaited"), playhead)) as chunks:
        sound = asyncio.ensure_future(anext(chunks))
        await until(lambda: model.status().active == 1)
        assert not sound.done()
        playhead.ahead = False
        assert (await sound).pcm.tolist() == [1.0]


async def test_text_arrives_while_the_clause_is_spoken(model: RemoteSynthesizer) -> None:
    asked: asyncio.Queue[str | None] = asyncio.Queue()

    async def more() -> AsyncIterator[str]:
        while (piece := await asked.get()) is not None:
            yield piece

    async with aclosing(model.synthesize(clause("", more=more()), Playhead())) as chunks:
        for piece in ("one", "three"):
            asked.put_nowait(piece)
            assert (await anext(chunks)).pcm.tolist() == [len(piece)]
        asked.put_nowait(None)
        assert [chunk async for chunk in chunks] == []
    await nothing_is_open(model)


async def test_what_the_model_counts_is_counted_here() -> None:
    observer = Observer()
    model = remote(observer=observer)
    await model.start()
    try:
        assert len([chunk async for chunk in model.synthesize(clause("x"), Playhead())]) == 3
        await until(lambda: observer.batches == [(1, "flow", 7)])
    finally:
        await model.aclose()


async def test_a_model_that_cannot_be_loaded_says_why() -> None:
    model = remote("unloadable")
    with pytest.raises(Unavailable, match=r"^the folder lacks llm\.pt$"):
        await model.start()
    assert not model.status().ready
    with pytest.raises(Unavailable, match="is not running"):
        await anext(model.synthesize(clause("x"), Playhead()))


async def test_with_its_process_all_clauses_end_and_the_model_is_not_ready(model: RemoteSynthesizer) -> None:
    chunks = model.synthesize(clause("hearing"), Playhead())
    await anext(chunks)
    assert model._process.pid is not None
    os.kill(model._process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="has ended"):
        while True:
            await anext(chunks)
    assert not model.status().ready
    with pytest.raises(Unavailable):
        await anext(model.synthesize(clause("x"), Playhead()))


async def test_closing_ends_the_process_and_what_it_speaks() -> None:
    model = remote()
    await model.start()
    chunks = model.synthesize(clause("hearing"), Playhead())
    await anext(chunks)
    pid, begun = model._process.pid, time.monotonic()
    assert pid is not None
    await model.aclose()
    with pytest.raises(Unavailable, match="shut down"):
        await anext(chunks)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert time.monotonic() - begun < PATIENCE_S
