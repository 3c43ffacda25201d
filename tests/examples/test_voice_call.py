"""``examples/voice_call.py`` on a real socket: which answer is stopped, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.waiting import PATIENCE_S, until

EXAMPLES = Path(__file__).parents[2] / "examples"
Agent = Callable[[Any], AsyncGenerator[str, None]]
dial_in: Callable[[Agent, str], Any] = runpy.run_path(str(EXAMPLES / "voice_call.py"))["dial_in"]


class Gateway:
    """The gateway's end of one call."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.socket = socket

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_json({"type": kind, "sessionId": "VX1", **fields})

    async def ask(self, words: str, **fields: Any) -> None:
        await self.send("prompt", voicePrompt=words, last=True, **fields)

    async def next(self) -> str:
        """The next message: the token of a text, ``|`` at its end, or the type of anything else."""
        message = json.loads(await self.socket.receive_str(timeout=PATIENCE_S))
        if message["type"] != "text":
            return str(message["type"])
        assert message["last"] or message["preemptible"]
        return "|" if message["last"] else str(message["token"])


@asynccontextmanager
async def talking(agent: Agent) -> AsyncIterator[Gateway]:
    arrived: asyncio.Future[Gateway] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def accept(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        arrived.set_result(Gateway(socket))
        await over.wait()
        return socket

    app = web.Application()
    app.router.add_get("/", accept)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    program = asyncio.create_task(dial_in(agent, f"ws://127.0.0.1:{runner.addresses[0][1]}/"))
    try:
        gateway = await asyncio.wait_for(arrived, PATIENCE_S)
        await gateway.send("setup")
        yield gateway
    finally:
        over.set()
        program.cancel()
        with suppress(asyncio.CancelledError):
            await program
        await runner.cleanup()


@pytest.fixture
def seen() -> list[list[dict[str, Any]]]:
    """The history that each answer began with."""
    return []


@pytest.fixture
def agent(seen: list[list[dict[str, Any]]]) -> Agent:
    """It says "one " and then waits, unless it is asked for two words. Its library loses cancellations."""

    async def agent(call: Any) -> AsyncGenerator[str, None]:
        seen.append([dict(message) for message in call.history])
        yield "one "
        if "two" not in call.history[-2 if call.history[-1]["role"] == "assistant" else -1]["content"]:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield "lost "
        yield "two "

    return agent


async def test_a_stopped_answer_says_nothing_more_though_its_library_loses_the_cancellation(agent, seen) -> None:
    async with talking(agent) as gateway:
        await gateway.ask("Tell me.")
        assert await gateway.next() == "one "
        await gateway.send("interrupt", reason="speech", utteranceUntilInterrupt="on", durationUntilInterruptMs=80)
        await gateway.ask("Say two words.")
        assert [await gateway.next() for _ in range(3)] == ["one ", "two ", "|"]
    assert [message["content"] for message in seen[1]] == ["Tell me.", "on", "Say two words."]


async def test_an_answer_that_the_caller_spoke_on_before_is_closed_for_the_next_to_preempt_it(agent) -> None:
    async with talking(agent) as gateway:
        await gateway.ask("Tell")
        assert await gateway.next() == "one "
        await gateway.ask("me two words.")
        assert [await gateway.next() for _ in range(4)] == ["|", "one ", "two ", "|"]


@pytest.mark.parametrize("heard", ["", "on"])
async def test_what_continues_a_prompt_is_joined_with_it_and_answered_once(agent, seen, heard) -> None:
    async with talking(agent) as gateway:
        await gateway.ask("Hello, two.")
        assert [await gateway.next() for _ in range(3)] == ["one ", "two ", "|"]
        await gateway.ask("Wait a moment,", continues=False)
        assert await gateway.next() == "one "
        closed = ["|"]
        if heard:  # else nothing had left when the caller spoke again
            await gateway.send("interrupt", reason="speech", utteranceUntilInterrupt=heard, durationUntilInterruptMs=80)
            closed = []
        await gateway.ask("tell me two words.", continues=True)
        assert [await gateway.next() for _ in range(3 + len(closed))] == [*closed, "one ", "two ", "|"]
    contents = [message["content"] for message in seen[2]]
    assert contents == ["Hello, two.", "one two ", *filter(None, [heard]), "Wait a moment, tell me two words."]


async def test_an_interrupted_answer_takes_no_tool_of_an_earlier_one_along(seen) -> None:
    request = {"role": "assistant", "content": "", "tool_calls": []}  # as LangChain writes it down

    async def agent(call: Any) -> AsyncGenerator[str, None]:
        seen.append(list(call.history))
        if len(seen) == 1:
            call.history.append(request)
        yield "one "
        yield "two "

    async with talking(agent) as gateway:
        for words, heard in (("Tell me.", "one two "), ("And now?", ""), ("Once more.", "")):
            await gateway.ask(words)
            assert [await gateway.next() for _ in range(3)] == ["one ", "two ", "|"]
            await gateway.send("interrupt", reason="speech", utteranceUntilInterrupt=heard, durationUntilInterruptMs=80)
    assert request in seen[2]


async def test_a_caller_who_interrupts_a_hand_over_stays() -> None:
    async def agent(call: Any) -> AsyncGenerator[str, None]:
        if call.history[-1]["content"] == "A human, please.":
            call.hand_over("asked for", "+15550199")
            yield "one "
            await asyncio.Event().wait()
        yield "two "

    async with talking(agent) as gateway:
        await gateway.ask("A human, please.")
        assert await gateway.next() == "one "
        await gateway.send("interrupt", reason="speech", utteranceUntilInterrupt="on", durationUntilInterruptMs=80)
        for _ in range(2):
            await gateway.ask("No, wait.")
            assert [await gateway.next() for _ in range(2)] == ["two ", "|"]


@pytest.mark.parametrize("reason", [{"reason": "dtmf"}, {}], ids=["extensions", "no extensions"])
async def test_what_a_digit_interrupted_is_not_the_answer_to_it(seen, reason) -> None:
    may_answer = asyncio.Event()

    async def agent(call: Any) -> AsyncGenerator[str, None]:
        seen.append([dict(message) for message in call.history])
        if "pressed" in call.history[-1]["content"]:
            await may_answer.wait()
        yield "one "
        yield "two "

    async with talking(agent) as gateway:
        await gateway.ask("Say two words.")
        assert [await gateway.next() for _ in range(3)] == ["one ", "two ", "|"]
        await gateway.send("dtmf", digit="2")
        await gateway.send("interrupt", utteranceUntilInterrupt="one", durationUntilInterruptMs=80, **reason)
        may_answer.set()
        assert [await gateway.next() for _ in range(3)] == ["one ", "two ", "|"]
        await gateway.ask("Say them again.")
        await until(lambda: len(seen) == 3)
    assert [message["content"] for message in seen[2] if message["role"] == "assistant"] == ["one", "one two "]
