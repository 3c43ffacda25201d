"""A stand-in of a language model's server: OpenAI's chat API with server-sent events, on a real socket.

It looks at the last message for what to do: an order is looked up by a tool, a human is reached by a tool, a story is
long. Each request names its agent as ``model``, so that several agents may ask at once.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

STORY = " ".join(f"And then the telephone number {n} was called by somebody who lived near the sea." for n in range(99))
_TOKEN_S = 0.02


class LanguageModel:
    """A language model that keeps the requests and the ends of its stories."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
        """The messages of all requests, by model."""
        self.told: dict[str, str] = {}
        """The part of the story that was streamed until its client went away, by model."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name, messages = body["model"], body["messages"]
        self.requests[name].append(messages)
        assert body["stream"] and {tool["function"]["name"] for tool in body["tools"]} == {"order_status", "hand_over"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(delta: dict[str, Any], finish: str | None = None) -> None:
            chunk = {
                "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": name,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            }  # fmt: skip
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

        last = messages[-1]
        words = str(last.get("content", "")).lower()
        if last["role"] == "tool":
            await self._say(f"Your order is {last['content']}.", send)
        elif "order" in words:
            await self._call("order_status", {"number": "4711"}, send)
        elif "human" in words:
            await self._call("hand_over", {"reason": "the caller asked for a human"}, send)
        elif "story" in words:
            self.told[name] = ""
            for word in STORY.split(" "):
                await send({"content": word + " "})
                self.told[name] += word + " "
                await asyncio.sleep(_TOKEN_S)
            await send({}, "stop")
        else:
            await self._say("All right, I have stopped.", send)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _say(self, text: str, send: Any) -> None:
        await send({"role": "assistant", "content": ""})
        for word in text.split(" "):
            await send({"content": word + " "})
            await asyncio.sleep(_TOKEN_S)
        await send({}, "stop")

    async def _call(self, tool: str, arguments: dict[str, str], send: Any) -> None:
        """A tool call whose arguments come in pieces."""
        whole = json.dumps(arguments)
        function = {"name": tool, "arguments": whole[:5]}
        await send({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})
        await send({"tool_calls": [{"index": 0, "function": {"arguments": whole[5:]}}]})
        await send({}, "tool_calls")


@asynccontextmanager
async def serving() -> AsyncIterator[LanguageModel]:
    model = LanguageModel()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        await runner.cleanup()
