"""A child process that opens its port, never gets warm, closes the port and takes a while to end."""

import asyncio
import sys
from pathlib import Path

from tts_engine.config import EngineConfig
from tts_engine.service.server import SpeechServer


async def listen_for_a_while(config: EngineConfig) -> None:
    server = SpeechServer(config)
    await server.start()
    await asyncio.sleep(0.5)  # long enough for the parent to watch
    await server.aclose()
    await asyncio.sleep(1.0)  # what unloading a model takes


if __name__ == "__main__":
    asyncio.run(listen_for_a_while(EngineConfig.model_validate_json(Path(sys.argv[1]).read_text())))
    sys.exit(1)
