"""A pipecat bot with its own text-to-speech on the telephone: it greets each caller and says which key was pressed.

    python examples/pipecat_bot.py http://127.0.0.1:8080

The bot follows the server's event stream and starts a pipeline for each call of a route with ``dialogue.audio``. The
text-to-speech is any server with OpenAI's API (``OPENAI_BASE_URL``, ``OPENAI_API_KEY``); put your own service there.
``TALKSPURT_KEY`` is a key of the scopes ``calls`` and ``read``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import aiohttp
from pipecat.frames.frames import EndWorkerFrame, Frame, InputDTMFFrame, InputTransportMessageFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.tts import OpenAITTSService
from pipecat_transport import TalkspurtTransport

SAMPLE_RATE = 24000
"""The rate of the text-to-speech, hertz; the gateway converts to the rate of the line."""


class Bot(FrameProcessor):
    """Your bot: here, recogniser and language model are missing."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InputTransportMessageFrame) and frame.message["type"] == "setup":
            await self.push_frame(TTSSpeakFrame("Hello. Please press a key, or zero to hang up."))
        elif isinstance(frame, InputDTMFFrame):
            if frame.button.value == "0":
                await self.push_frame(TTSSpeakFrame("Goodbye."))
                await self.push_frame(EndWorkerFrame(), FrameDirection.UPSTREAM)
            else:
                await self.push_frame(TTSSpeakFrame(f"You pressed {frame.button.value}."))
        await self.push_frame(frame, direction)


async def talk(server: str, audio: str, key: str) -> None:
    """Lead one call."""
    transport = TalkspurtTransport(server, audio, api_key=key, sample_rate=SAMPLE_RATE)
    pipeline = Pipeline([transport.input(), Bot(), OpenAITTSService(sample_rate=SAMPLE_RATE), transport.output()])
    rates = PipelineParams(audio_in_sample_rate=SAMPLE_RATE, audio_out_sample_rate=SAMPLE_RATE)
    task = PipelineTask(pipeline, params=rates, enable_rtvi=False)

    @transport.event_handler("on_disconnected")
    async def hung_up(transport: TalkspurtTransport, websocket: object) -> None:
        await task.cancel()

    await PipelineRunner(handle_sigint=False).run(task)


async def main(server: str) -> None:
    """Start a pipeline for each call that is announced."""
    key = os.environ.get("TALKSPURT_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    calls: set[asyncio.Task[None]] = set()
    forever = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(server, headers=headers, timeout=forever) as http,
        http.get("/v1/events") as events,
    ):
        events.raise_for_status()
        print("waiting for calls", flush=True)
        async for line in events.content:
            message = json.loads(line[5:]) if line.startswith(b"data:") else {}
            if message.get("type") == "setup" and message.get("audio"):
                calls.add(call := asyncio.create_task(talk(server, message["audio"], key)))
                call.add_done_callback(calls.discard)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
