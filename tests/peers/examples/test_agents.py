"""The agents of ``examples/`` as their users run them: real programs between a real server with speaking callers and a
stand-in of a language model."""

from __future__ import annotations

import asyncio
import json
import sys
import wave
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from talkspurt.simulator.call_script import Expect, SayStep, Wait
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from tests.peers.ears import transcript_of, understood
from tests.peers.examples.language_model import STORY, LanguageModel, serving
from tests.peers.live_server import child_environment, serve
from tests.peers.recognition.heard import speech
from tests.waiting import PATIENCE_S, until
from voicecodecs.pcm import to_int16

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENT_MS = 1000 * PATIENCE_S
AGENTS = {"llm": "llm_agent.py", "dials-in": "llm_agent.py", "sdk": "openai_agents.py", "chain": "langchain_agent.py"}
"""The routes, and who leads their calls."""


class Relay:
    """A TCP relay whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.relayed = 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]
            self.cut()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.relayed += 1
        self._writers += [writer, there_writer]
        await asyncio.gather(self._copy(reader, there_writer), self._copy(there_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def program(name: str, model: LanguageModel, route: str, *arguments: str) -> AsyncIterator[str]:
    """Run an example. Yields the address in its first line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / name), *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=child_environment() | {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": route, "PORT": "0"},
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 4 * PATIENCE_S)).decode()
        yield line.split()[-1]
    finally:
        process.terminate()
        await process.wait()


def said(folder: Path, text: str) -> SayStep:
    path = folder / f"{len(text)}.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(to_int16(speech(text)).tobytes())
    return SayStep(path)


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


@pytest.mark.slow
async def test_agents_answer_stop_remember_what_was_heard_and_hand_over(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(serving())
        routes = []
        relays: dict[str, Relay] = {}
        for route, name in AGENTS.items():
            if route == "dials-in":
                routes.append(f"  {route}: {{recogniser: embedded}}\n")
                continue
            url = await stack.enter_async_context(program(name, model, route))
            relays[route] = Relay(int(url.strip("/").rpartition(":")[2]))
            port = await stack.enter_async_context(relays[route].serving())
            routes.append(f"  {route}: {{recogniser: embedded, dialogue: {{url: 'ws://127.0.0.1:{port}/'}}}}\n")
        config = "carriers: {twilio: {verify: false}}\nrecogniser: {final_timeout_ms: 60000}\nroutes:\n"
        live = await stack.enter_async_context(serve(tmp_path, config + "".join(routes)))
        relays["dials-in"] = Relay(int(live.address.rpartition(":")[2]))
        port = await stack.enter_async_context(relays["dials-in"].serving())
        url = f"ws://127.0.0.1:{port}/v1/dialogue?route=dials-in"
        await stack.enter_async_context(program(AGENTS["dials-in"], model, "dials-in", url))

        steps = (
            said(tmp_path, "Where is my order?"),
            Expect("speech", PATIENT_MS),
            Wait(4000),  # the line that is cut below may leave a pause behind the first word, which is no end
            Expect("quiet", PATIENT_MS),
            said(tmp_path, "Please tell me a long story."),
            Expect("speech", PATIENT_MS),
            Wait(2500),
            said(tmp_path, "Please be quiet now."),
            Expect("quiet", PATIENT_MS),
            said(tmp_path, "I want to talk to a human."),
            Expect("hang_up", PATIENT_MS),
        )
        callers = {
            route: SimulatedCaller(CallOptions(url=f"{live.ws}/media/twilio/{route}", steps=steps)) for route in AGENTS
        }
        calling = [asyncio.create_task(caller.run()) for caller in callers.values()]

        async def cut_after_the_first_answer(route: str) -> None:
            await until(lambda: len(model.requests[route]) >= 2 or calling[0].done(), "the answer of the tool")
            relays[route].cut()

        await asyncio.gather(cut_after_the_first_answer("llm"), cut_after_the_first_answer("dials-in"), *calling)

        for route, caller in callers.items():
            requests = model.requests[route]
            order, with_result, story, after_cut, human = requests
            assert roles(order)[-1] == "user" and roles(with_result)[-2:] == ["assistant", "tool"], route
            assert "Friday" in with_result[-1]["content"]
            assert "Friday" in str(story[-2]["content"]), f"{route} forgot the first answer"
            heard = str(after_cut[-2]["content"])
            assert roles(after_cut)[-2:] == ["assistant", "user"] and STORY.startswith(heard.strip()), route
            assert 0 < len(heard) < len(model.told[route]) < len(STORY), f"{route} kept what was not heard"
            assert "human" in str(human[-1]["content"]).lower()
            async with aiohttp.ClientSession() as http:
                async with http.get(f"{live.http}/v1/handoffs/{caller.leg.carrier.call_sid}") as answer:
                    left = json.loads((await answer.json())["handoffData"])
            assert left["reason"] == "the caller asked for a human"
            assert [m["content"] for m in left["history"] if m["role"] == "user"] == [
                m["content"] for m in human if m["role"] == "user"
            ]
            caller.write_wav(tmp_path / f"{route}.wav")
            transcript = transcript_of(tmp_path / f"{route}.wav")
            assert understood("arrives on Friday", transcript), f"{route}: {transcript}"
            assert understood("One moment please", transcript), f"{route}: {transcript}"
        # Once before the cut and once after it. An agent that dials in tries again if a busy machine is slow to answer.
        assert relays["llm"].relayed == 2 and relays["dials-in"].relayed >= 2
