"""The agents of ``examples/`` with ``HUMAN`` set: a caller who wants a human is transferred there.

The gateway's part is played here up to its own reader; ``tests/gateway/calling/test_transports.py`` is the rest.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.config import LimitsConfig
from gateway.dialogue.wire import decode
from gateway.seams.messages import Text, Transfer
from tests.peers.examples.language_model import LanguageModel, serving
from tests.peers.live_server import child_environment
from tests.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples"
HUMAN = "+15550199"
SESSION = "VX" + "0" * 32


@asynccontextmanager
async def program(name: str, model: LanguageModel) -> AsyncIterator[asyncio.StreamReader]:
    """Run an example that waits for calls; yields what it prints, its address at the end of the first line."""
    environment = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": name, "PORT": "0", "HUMAN": HUMAN}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / name)),
        stdout=asyncio.subprocess.PIPE,
        env=child_environment() | environment,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        await process.wait()


async def transferred(printed: asyncio.StreamReader) -> tuple[str, Transfer]:
    """Ask for a human; what is said before the transfer, and the transfer."""
    line = await asyncio.wait_for(printed.readline(), 4 * PATIENCE_S)  # two of them import for seconds
    address, spoken = line.decode().split()[-1], ""
    async with aiohttp.ClientSession() as http, http.ws_connect(address) as socket:
        await socket.send_json({"type": "setup", "sessionId": SESSION, "callSid": "CA1", "customParameters": {}})
        await socket.send_json(
            {"type": "prompt", "voicePrompt": "I want to talk to a human.", "lang": "en-US", "last": True}
        )
        while True:
            raw = await asyncio.wait_for(socket.receive_str(), 4 * PATIENCE_S)
            _, message = decode(raw, limits=LimitsConfig(), multiplexed=True)
            if isinstance(message, Transfer):
                return spoken, message
            assert isinstance(message, Text)
            spoken += message.token


@pytest.mark.slow
async def test_each_agent_transfers_a_caller_who_wants_a_human() -> None:
    names = ("llm_agent.py", "openai_agents.py", "langchain_agent.py")
    async with serving() as model, AsyncExitStack() as stack:
        started = [await stack.enter_async_context(program(name, model)) for name in names]
        for spoken, transfer in await asyncio.gather(*map(transferred, started)):
            assert spoken.strip(), "a caller is not transferred without a word"
            assert transfer.target == HUMAN
            data = json.loads(transfer.handoff_data or "")
            assert data["reason"] == "the caller asked for a human"
            assert data["history"][0] == {"role": "user", "content": "I want to talk to a human."}
