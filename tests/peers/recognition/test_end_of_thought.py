"""The turn model on speech: alone, and in whole calls whose fixed silences are so long that only the model can end an
utterance."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.recognition.smart_turn import SmartTurn, model_file
from tests.peers.ears import understood
from tests.peers.live_server import TestCall, serve
from tests.peers.recognition.heard import speech
from tests.waiting import until
from voicecodecs import registry
from voicecodecs.pcm import to_int16

FILE = model_file()
pytestmark = pytest.mark.skipif(
    FILE is None, reason="Smart Turn is missing: pip install --no-deps -r requirements/turn-model.txt"
)
CONFIG = """
carriers: {twilio: {verify: false}}
recogniser:
  end_of_speech_ms: 600000
  final_timeout_ms: 60000
  end_of_thought: {hesitating_ms: 600000}
routes:
  listens: {recogniser: embedded}
"""
QUESTIONS = (
    "What are your opening hours?",
    "I would like to change my delivery address.",
    "How much does it cost to send a parcel to Spain?",
    "Where is my order?",
)


def first_words(text: str, *, rate: int) -> NDArray[np.float32]:
    """A sentence up to the silence between two words in its first half."""
    pcm = speech(text, rate=rate)
    at = np.arange(len(pcm) // 4, len(pcm) * 6 // 10, rate // 100)
    level = [float(np.square(pcm[i : i + rate * 3 // 100]).sum()) for i in at]
    return pcm[: at[int(np.argmin(level))] + rate * 3 // 200]


def then_silent(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate((np.zeros(4000, np.float32), pcm, np.zeros(3200, np.float32)))


def test_whole_sentences_are_finished_and_their_first_words_are_not() -> None:
    assert FILE is not None
    model = SmartTurn(FILE)
    whole = [model(then_silent(speech(text, rate=16000))) for text in QUESTIONS]
    begun = [model(then_silent(first_words(text, rate=16000))) for text in QUESTIONS]
    assert min(whole) > 0.9 and min(begun) < 0.1 and np.mean(begun) < np.mean(whole) - 0.3, (whole, begun)


def say(call: TestCall, pcm: NDArray[np.float32]) -> None:
    """Send audio at 8 kHz."""
    pcm = np.concatenate((pcm, np.zeros(-len(pcm) % 160, np.float32)))
    sound = registry.encoder(call.leg.carrier.format).encode(to_int16(pcm))
    call.leg.say([sound[i : i + 160] for i in range(0, len(sound), 160)])


def prompts(call: TestCall) -> list[str]:
    return [message["voicePrompt"] for message in call.messages if message["type"] == "prompt"]


async def test_the_model_ends_each_utterance_of_a_call(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as live, TestCall(live, "listens", number=1, uplink=True) as call:
        for number, text in enumerate(QUESTIONS[:3], 1):
            say(call, speech(text))
            await until(lambda n=number: len(prompts(call)) == n, "a prompt")  # type: ignore[misc]
            assert understood(text.strip("?."), prompts(call)[-1]), prompts(call)
            spoken = await call.spoken(f"This is answer number {number}.")
            assert spoken.outcome == "finished", "the caller does not count as speaking any more"


async def test_a_caller_who_looks_for_a_word_is_not_cut_short(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as live, TestCall(live, "listens", number=1, uplink=True) as call:
        begun = first_words(QUESTIONS[1], rate=8000)
        say(call, begun)
        await until(lambda: not call.leg.saying, "the end of the first words")
        await asyncio.sleep(2.0)  # nothing comes, which has no event
        assert prompts(call) == []
        say(call, speech(QUESTIONS[1])[len(begun) :])
        await until(lambda: prompts(call), "a prompt")
        assert understood("I would like to", prompts(call)[0]), prompts(call)
        assert understood("delivery address", prompts(call)[0]), prompts(call)
