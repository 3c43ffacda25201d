"""Callers who speak: synthesised questions over real simulated calls, answered by the demo's script or by a dialogue
manager, with the embedded recogniser in its own process. Answers are checked by recognising what the caller heard."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
import wave
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from talkspurt.simulator.call_script import Expect, Press, SayStep, Step, Wait
from talkspurt.simulator.caller import CallOptions, SimulatedCaller, read_wav_frames
from tests.peers.ears import times_understood, transcript_of, understood
from tests.peers.live_server import Live, TestCall, child_environment, serve
from tests.peers.recognition.heard import speech, words
from tests.waiting import PATIENCE_S, until
from voicecodecs import registry
from voicecodecs.pcm import to_int16

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
CONFIG = f"""
carriers: {{twilio: {{verify: false}}}}
playout: {{lead_ms: 500}}  # a test machine that does much else may stop for a moment
recogniser: {{final_timeout_ms: 60000}}
routes:
  demo:
    dialogue: {{script: "{ROOT}/configs/demo-script.yaml"}}
    recogniser: auto
    end_of_thought: false  # a sentence with a comma stays one prompt here; test_end_of_thought has the turn model
    events: [speaker-events]
  managed: {{recogniser: embedded, end_of_thought: false, partial_prompts: true, events: [speaker-events]}}
  polite: {{recogniser: embedded, end_of_thought: false, ignore_backchannel: true}}
  deaf: {{}}
"""
PATIENT_MS = round(1000 * PATIENCE_S)
LONG = "This is a long story about a telephone. It was invented in a house near the sea, and no one knew why. " * 12
"""It outlasts the recogniser on a machine that does much else: the words come while we speak."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A WAV file of a sentence, as a telephone lets it through."""
    folder = tmp_path_factory.mktemp("said")

    def write(text: str) -> Path:
        path = folder / f"{'-'.join(words(text))}.wav"
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(8000)
            out.writeframes(to_int16(speech(text)).tobytes())
        return path

    return write


def recogniser_pid(live: Live) -> int | None:
    """The process that recognises, if there is one now."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = re.search(r"PPid:\s+(\d+)", (entry / "status").read_text())
            if parent and int(parent[1]) == live.process.pid:
                if b"talkspurt.recognisers" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        except OSError:
            continue  # gone meanwhile
    return None


def speak(call: TestCall, sound: Path) -> None:
    call.leg.say(read_wav_frames(sound, call.leg.carrier.format))


async def a_second_of_us(call: TestCall) -> None:
    """Wait until the caller has heard a second of our voice."""
    await until(lambda: call.leg.spurts and call.leg.playout.position(time.monotonic()) > 8000, "our voice")


def of(call: TestCall, *kinds: str) -> list[Mapping[str, Any]]:
    return [message for message in call.messages if message["type"] in kinds]


def finals(call: TestCall) -> list[str]:
    return [message["voicePrompt"] for message in of(call, "prompt") if message["last"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory, said: Callable[[str], Path]) -> AsyncIterator[Live]:
    async with serve(tmp_path_factory.mktemp("spoken"), CONFIG) as running:
        async with TestCall(running, "managed", number=10, uplink=True) as call:  # the recogniser is warm after this
            async with asyncio.timeout(2 * PATIENCE_S):
                while not finals(call):  # what is said before the recogniser is up is lost
                    speak(call, said("What time is it?"))
                    await asyncio.sleep(5)
        yield running


async def converse(live: Live, questions: Sequence[Path], heard: Path) -> None:
    """A key that cuts the menu; then the questions, each when the answer to the one before is over."""
    # A busy machine pauses between clauses. A question that falls into such a pause would cut the answer.
    over: list[Step] = [Expect("quiet", PATIENT_MS), Wait(3000), Expect("quiet", PATIENT_MS)]
    steps: list[Step] = [Expect("speech", PATIENT_MS), Press("3"), Wait(1000), *over]
    for question in questions:
        steps += [SayStep(question), Expect("speech", PATIENT_MS), *over]
    caller = SimulatedCaller(CallOptions(url=f"{live.ws}/media/twilio/demo", steps=tuple(steps)))
    await caller.run()
    await asyncio.to_thread(caller.write_wav, heard)


@pytest.mark.slow
async def test_spoken_questions_get_spoken_answers(live: Live, said: Callable[[str], Path], tmp_path: Path) -> None:
    talks = {
        "hours": ["What are your opening hours?", "Can you repeat that?"],
        "order": ["Where is my package?", "four seven one one"],
        "other": ["I would like a banana.", "I want to speak to a person."],
    }
    await asyncio.gather(
        *(converse(live, [said(text) for text in texts], tmp_path / f"{name}.wav") for name, texts in talks.items())
    )
    heard = {name: transcript_of(tmp_path / f"{name}.wav") for name in talks}
    assert times_understood("We are open from Monday to Friday", heard["hours"]) >= 3, heard["hours"]
    for answer in ("What is the order number", "arrive on Friday", "4711"):
        assert understood(answer, heard["order"]), heard["order"]
    for answer in ("banana", "no one else is here"):
        assert understood(answer, heard["other"]), heard["other"]


async def test_manager_gets_partial_prompts_then_the_final_one(live: Live, said: Callable[[str], Path]) -> None:
    async with TestCall(live, "managed", number=11, uplink=True) as call:
        speak(call, said("I would like to know when my package will arrive."))
        await until(lambda: finals(call), "a final prompt")
        prompts = of(call, "prompt")
        assert understood("when my package will arrive", prompts[-1]["voicePrompt"]), prompts
        assert len(prompts) >= 2 and all(prompt["lang"] == "en-US" for prompt in prompts)
        assert understood("I would", prompts[-2]["voicePrompt"]) and not prompts[-2]["last"]
        told = [message.get("value") or message["type"] for message in of(call, "prompt", "info")]
        assert told[0] == "on" and told[-2:] == ["off", "prompt"], told
        await call.spoken("It will arrive on Friday.")
        call.call.send("language", transcriptionLanguage="de-DE")
        await until(lambda: call.call.errors, "a refusal")
        assert "English only" in call.call.errors[0]


async def test_interruption_comes_before_the_words_that_made_it(live: Live, said: Callable[[str], Path]) -> None:
    async with TestCall(live, "managed", number=12, uplink=True) as call:
        turn = call.call.speak(LONG)
        await a_second_of_us(call)
        speak(call, said("Wait a moment, I have a question."))
        await until(lambda: finals(call), "a final prompt")
        kinds = [message["type"] for message in of(call, "interrupt", "prompt")]
        assert kinds[0] == "interrupt" and kinds.count("interrupt") == 1
        assert turn.outcome == "interrupted" and understood("I have a question", finals(call)[0]), finals(call)


async def test_acknowledgement_lets_the_voice_go_on_and_a_question_does_not(
    live: Live, said: Callable[[str], Path]
) -> None:
    async with TestCall(live, "polite", number=13, uplink=True) as call:
        turn = call.call.speak(LONG)
        await a_second_of_us(call)
        speak(call, said("Yeah."))
        await asyncio.sleep(2.5)  # nothing comes, which has no event
        assert not turn.outcome and of(call, "interrupt", "prompt") == []
        speak(call, said("No, I want to speak to a person."))
        await until(lambda: finals(call), "a final prompt")
        assert [message["type"] for message in of(call, "interrupt", "prompt")] == ["interrupt", "prompt"]
        assert understood("speak to a person", finals(call)[0]), finals(call)


async def test_noise_is_no_prompt(live: Live) -> None:
    async with TestCall(live, "managed", number=14, uplink=True) as call:
        pcm = to_int16(np.random.default_rng(3).normal(0, 0.05, 3 * 8000).astype(np.float32))
        noise = registry.encoder(call.leg.carrier.format).encode(pcm)
        call.leg.say([noise[i : i + 160] for i in range(0, len(noise), 160)])
        await call.spoken("No one has said anything yet, and so I go on.")
        await until(lambda: not call.leg.saying, "the end of the noise")
        await asyncio.sleep(1.0)  # nothing comes, which has no event
        assert of(call, "prompt", "interrupt") == []


async def test_recogniser_that_dies_costs_a_prompt_at_most_and_no_call(live: Live, said: Callable[[str], Path]) -> None:
    async with TestCall(live, "managed", number=15, uplink=True) as call:
        question = said("What are your opening hours?")
        speak(call, question)
        await until(lambda: finals(call), "a prompt before")
        pid = recogniser_pid(live)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: live.status_is("/readyz", 503), "no further calls without a recogniser")
        spoken = await call.spoken("I am still here.")
        assert spoken.outcome == "finished"
        await until(lambda: recogniser_pid(live) not in (pid, None), "another process")
        await until(lambda: live.status_is("/readyz", 200), "its readiness")
        speak(call, question)
        await until(lambda: len(finals(call)) == 2, "a prompt after")
        assert understood("opening hours", finals(call)[1]), finals(call)
    ended = [line for line in live.logged().splitlines() if "child process ended" in line]
    assert any("recogniser" in line for line in ended), ended


async def test_nothing_that_was_said_is_in_the_log(live: Live) -> None:
    assert not {"package", "banana", "opening", "question"} & set(words(live.logged()))


async def test_demo_works_with_keys_where_the_extra_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['moonshine_voice'] = None\n")
    path = os.pathsep.join((str(tmp_path), child_environment()["PYTHONPATH"]))
    async with serve(tmp_path / "server", ROOT / "configs/demo.yaml", {"PYTHONPATH": path}) as live:
        menu = (Expect("speech", PATIENT_MS), Wait(500), Press("3"))
        steps = (*menu, Expect("speech", PATIENT_MS), Expect("quiet", PATIENT_MS))
        caller = SimulatedCaller(CallOptions(url=f"{live.ws}/media/twilio", steps=steps))
        await caller.run()
        await asyncio.to_thread(caller.write_wav, tmp_path / "keys.wav")
        assert understood("We are open", transcript_of(tmp_path / "keys.wav"))
        assert recogniser_pid(live) is None
        assert live.process.stdout is not None
        told = (await live.process.stdout.read(4096)).decode()
    assert "pip install 'talkspurt[recogniser]'" in told
