"""A telephone agent on any language model with OpenAI's chat API: streams, calls a tool, hands over to a human.

    OPENAI_API_KEY=sk-... python examples/llm_agent.py        (OPENAI_BASE_URL for another server, MODEL for its model)

`voice_call.py` says how it meets talkspurt. Needs: pip install websockets openai
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import Any

from openai import AsyncOpenAI
from voice_call import Call, run

MODEL = os.environ.get("MODEL", "gpt-4.1-mini")
SYSTEM = "You answer the telephone of a shop. Speak in one or two short sentences, without lists, links or emoji."
ORDERS = {"4711": "shipped, arrives on Friday", "4712": "being packed"}
TOOLS: Any = [
    {"type": "function", "function": {
        "name": "order_status", "description": "Look up an order.",
        "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}}},
    {"type": "function", "function": {
        "name": "hand_over", "description": "Let a human take the call.",
        "parameters": {"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]}}},
]  # fmt: skip

model = AsyncOpenAI()


async def agent(call: Call) -> AsyncGenerator[str, None]:
    while True:
        asked: dict[int, dict[str, str]] = {}  # tool calls come in pieces, by their index
        system = {"role": "system", "content": SYSTEM}
        messages: Any = [system, *call.history]
        async with await model.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, stream=True
        ) as stream:  # a caller who interrupts closes it
            async for chunk in stream:
                if not chunk.choices:  # some servers send what it cost
                    continue
                delta = chunk.choices[0].delta
                if delta.content:
                    yield delta.content
                for piece in delta.tool_calls or ():
                    one = asked.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                    one["id"] += piece.id or ""
                    one["name"] += (piece.function and piece.function.name) or ""
                    one["arguments"] += (piece.function and piece.function.arguments) or ""
        if not asked:
            return
        for one in asked.values():
            arguments = json.loads(one["arguments"])
            if one["name"] == "hand_over":
                yield "One moment please, I connect you."
                call.hand_over(arguments["reason"], target=os.environ.get("HUMAN", ""))
                return
            result = ORDERS.get(arguments["number"], "there is no such order")
            function = {"name": one["name"], "arguments": one["arguments"]}
            call.history += [
                {"role": "assistant", "tool_calls": [{"id": one["id"], "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": one["id"], "content": result},
            ]


if __name__ == "__main__":
    run(agent)
