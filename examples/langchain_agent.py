"""The agent of llm_agent.py with LangChain.

    OPENAI_API_KEY=sk-... python examples/langchain_agent.py

Needs: pip install websockets langchain-openai
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessageChunk, ToolMessage, convert_to_openai_messages
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llm_agent import MODEL, ORDERS, SYSTEM
from voice_call import Call, run


@tool
def order_status(number: str) -> str:
    """Look up an order."""
    return ORDERS.get(number, "there is no such order")


@tool
def hand_over(reason: str) -> str:
    """Let a human take the call."""
    return reason


model = ChatOpenAI(model=MODEL).bind_tools([order_status, hand_over])


async def agent(call: Call) -> AsyncGenerator[str, None]:
    while True:
        whole: AIMessageChunk | None = None
        messages: Any = [{"role": "system", "content": SYSTEM}, *call.history]
        async with aclosing(model.astream(messages)) as stream:  # type: ignore[type-var]
            async for chunk in stream:
                whole = chunk if whole is None else whole + chunk
                if chunk.text:
                    yield chunk.text
        if whole is None or not whole.tool_calls:
            return
        for asked in whole.tool_calls:
            if asked["name"] == "hand_over":
                yield "One moment please, I connect you."
                call.hand_over(asked["args"]["reason"], target=os.environ.get("HUMAN", ""))
                return
            answer: ToolMessage = await order_status.ainvoke(asked)
            # What was said before the tool is in the history already: it was heard.
            request = whole.model_copy(update={"content": "", "tool_calls": [asked]})
            call.history += convert_to_openai_messages([request, answer])


if __name__ == "__main__":
    run(agent)
