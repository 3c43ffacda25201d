"""The agent of llm_agent.py with OpenAI's Agents SDK, which leads the tools itself.

    OPENAI_API_KEY=sk-... python examples/openai_agents.py

Needs: pip install websockets openai-agents
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

from agents import Agent, RunContextWrapper, Runner, function_tool, set_default_openai_api, set_tracing_disabled
from llm_agent import MODEL, ORDERS, SYSTEM
from voice_call import Call, run

set_default_openai_api("chat_completions")  # what every server of language models speaks
set_tracing_disabled(True)  # traces would hold callers' words


@function_tool
def order_status(number: str) -> str:
    """Look up an order."""
    return ORDERS.get(number, "there is no such order")


@function_tool
def hand_over(context: RunContextWrapper[dict[str, Any]], reason: str) -> str:
    """Let a human take the call."""
    context.context["reason"] = reason
    return "The call is handed over."


shop = Agent[dict[str, Any]](
    name="shop",
    instructions=SYSTEM,
    model=MODEL,
    tools=[order_status, hand_over],
    tool_use_behavior={"stop_at_tool_names": ["hand_over"]},
)


async def agent(call: Call) -> AsyncGenerator[str, None]:
    context: dict[str, Any] = {}
    result = Runner.run_streamed(shop, input=list(call.history), context=context)  # type: ignore[arg-type]
    try:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta
    finally:
        result.cancel()  # a caller who interrupts ends the run
    if "reason" in context:
        yield "One moment please, I connect you."
        call.hand_over(context["reason"], target=os.environ.get("HUMAN", ""))


if __name__ == "__main__":
    run(agent)
