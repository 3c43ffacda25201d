"""A whole call, looked into when it is over: the parts of each wait add up, and the recording agrees with the log."""

from __future__ import annotations

import io
import time
import wave
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.peers.ears import transcript, words_until_end
from tests.peers.live_server import Live, TestCall, serve
from tests.peers.recognition.heard import speech, words
from tests.waiting import until
from voicecodecs import registry
from voicecodecs.pcm import to_float32, to_int16

CONFIG = """
carriers: {{twilio: {{verify: false}}}}
playout: {{lead_ms: 500}}  # a test machine that does much else may stop for a moment
recogniser: {{end_of_speech_ms: 1500, final_timeout_ms: 60000}}
calls: {{folder: "{folder}/calls", keep_text: true}}
recording: {{folder: "{folder}"}}
routes:
  desk: {{recogniser: embedded, end_of_thought: false, recording: true, welcome_greeting: "{greeting}"}}
"""
GREETING = "Welcome to the garden shop, how can I help you?"
QUESTION = "I would like to know when my package will arrive."
ANSWER = ("It will ", "be there ", "on Friday ", "in the morning.")
WISH = "Please tell me a long story."
STORY = "This is a long story about a telephone. It was invented in a house near the sea, and no one knew why. " * 6
STOP = "Please stop talking now."
GOODBYE = "Thank you for calling, and have a nice day."

CALLER, BOT = 0, 1


def say(call: TestCall, text: str) -> None:
    sound = to_int16(speech(text))
    sound = np.concatenate((sound, np.zeros(-len(sound) % 160, np.int16)))
    payload = registry.encoder(call.leg.carrier.format).encode(sound)
    call.leg.say([payload[i : i + 160] for i in range(0, len(payload), 160)])


async def asked(call: TestCall, text: str) -> None:
    """The caller says something, and the manager gets its words."""
    before = len(prompts(call))
    say(call, text)
    await until(lambda: not call.leg.saying and len(prompts(call)) > before, f"the words of {text!r}")


def prompts(call: TestCall) -> list[Any]:
    return [message for message in call.messages if message["type"] == "prompt" and message["last"]]


async def talk(live: Live) -> str:
    """Lead the call; returns its id."""
    async with TestCall(live, "desk", uplink=True) as call:

        async def greeted() -> bool:  # no message tells of the greeting
            return (await shown(live, call.call.session_id))["outcome"] == "finished"

        await until(greeted, "the end of the greeting")
        await asked(call, QUESTION)
        answer = call.call.open_turn("".join(ANSWER))
        for token in ANSWER:
            call.call.send("text", token=token, last=token is ANSWER[-1], turn=answer.turn)
        await until(lambda: answer.outcome == "finished", "the end of the answer")
        await asked(call, WISH)
        story = call.call.speak(STORY)
        spurts = len(call.leg.spurts)
        await until(lambda: len(call.leg.spurts) > spurts, "the story")
        heard_from = call.leg.playout.position(time.monotonic())
        await until(lambda: call.leg.playout.position(time.monotonic()) > heard_from + 24000, "three seconds of it")
        await asked(call, STOP)
        assert story.outcome == "interrupted"
        await call.spoken(GOODBYE)
        return call.call.session_id


async def shown(live: Live, call_id: str) -> Any:
    async with aiohttp.ClientSession(live.http) as http, http.get(f"/v1/calls/{call_id}") as answer:
        return await answer.json()


async def kept(live: Live, call_id: str) -> tuple[Any, NDArray[np.int16], int]:
    """The call in the log, and its recording as samples of both sides with their rate."""

    async def recorded() -> Any:
        record = await shown(live, call_id)
        return "entries" in record and record["recording"] and record

    record = await until(recorded, "the call's record")
    async with aiohttp.ClientSession(live.http) as http, http.get(f"/v1/calls/{call_id}/recording") as answer:
        assert answer.status == 200
        with wave.open(io.BytesIO(await answer.read())) as sound:
            assert sound.getnchannels() == 2
            samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").reshape(-1, 2)
            return record, samples, sound.getframerate()


def wrong_words(said: str, heard: str) -> int:
    """Levenshtein's distance of two sentences, in words."""
    row = list(range(len(words(heard)) + 1))
    for count, word in enumerate(words(said), 1):
        above, row = row, [count]
        for at, other in enumerate(words(heard)):
            row.append(min(above[at] + (word != other), above[at + 1] + 1, row[at] + 1))
    return row[-1]


def disagreements(record: Any, samples: NDArray[np.int16], rate: int) -> Iterator[str]:
    """The turns of both sides of which the recording says something else than the call log, by more than a word."""

    def reading(side: int, from_ms: float, to_ms: float) -> str:
        part = samples[round(from_ms * rate / 1000) : round(to_ms * rate / 1000), side]
        return transcript(to_float32(np.ascontiguousarray(part)), rate)

    said = [entry for entry in record["entries"] if entry["kind"] == "said"]
    between = [(one["endedMs"] + other["startedMs"]) / 2 for one, other in pairwise(said)]
    for entry, (begins, ends) in zip(said, pairwise((0, *between, record["durationMs"])), strict=True):
        heard, text = reading(BOT, begins, ends), entry["text"][: entry["heardChars"]]
        if entry["outcome"] == "finished":
            off = wrong_words(text, heard)
        else:  # what was heard of the word under way may be read as any one or two
            readings = (" ".join(words(heard)[:count]) for count in range(len(words(heard)) - 2, len(words(heard)) + 1))
            off = min(abs(words_until_end(entry["text"], reading) - len(text.split())) for reading in readings)
        if off > 1:
            yield f"{entry['turn']}: {text!r} in the log, {heard!r} recorded"
    prompts = [entry for entry in record["entries"] if entry["kind"] == "heard"]
    for entry, (begins, ends) in zip(prompts, pairwise((0, *(entry["atMs"] for entry in prompts))), strict=True):
        heard = reading(CALLER, begins, ends)
        if wrong_words(entry["text"], heard) > 1:
            yield f"caller: {entry['text']!r} in the log, {heard!r} recorded"


@pytest.mark.slow
async def test_a_call_can_be_understood_from_its_log_and_its_recording(tmp_path: Path) -> None:
    for text in (QUESTION, WISH, STOP):
        speech(text)  # kept: made in mid-call, it would stop the caller's line
    async with serve(tmp_path, CONFIG.format(folder=tmp_path, greeting=GREETING)) as live:
        record, samples, rate = await kept(live, await talk(live))
    said = [entry for entry in record["entries"] if entry["kind"] == "said"]
    assert [(entry["text"], entry["outcome"]) for entry in said] == [
        (GREETING, "finished"),
        ("".join(ANSWER), "finished"),
        (STORY, "interrupted"),
        (GOODBYE, "finished"),
    ]
    for entry in said:
        assert entry["firstPacketMs"] > 0, entry
        assert sum(entry["stagesMs"].values()) == pytest.approx(entry["firstPacketMs"], abs=1), entry
    assert 0 < said[2]["heardChars"] < len(STORY)

    assert list(disagreements(record, samples, rate)) == []
    for side in (CALLER, BOT):  # else nothing was compared
        silent = samples.copy()
        silent[:, side] = 0
        assert len(list(disagreements(record, silent, rate))) == (4 if side == BOT else 3)
