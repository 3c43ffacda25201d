"""A dialogue manager in a process of its own, which is killed in mid-call again and again. Its successors get what it
had not read, in order and once.

What it has read counts as read from its answer to the next ping on, so it is not killed between the two.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from tests.peers.live_server import child_environment, serve
from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S, until

KILLS = 10
KEYS = "0123456789*#"

MANAGER = """
import sys
from aiohttp import WSMsgType, web

async def relay(request):
    socket = web.WebSocketResponse(autoping=False)
    await socket.prepare(request)
    async for message in socket:
        if message.type == WSMsgType.PING:
            await socket.pong(message.data)
            if message.data:  # those of the heartbeat are empty
                print('{"type": "pong"}', file=log, flush=True)
        elif message.type == WSMsgType.TEXT:
            print(message.data, file=log, flush=True)
    return socket

log = open(sys.argv[2], "w")
app = web.Application()
app.router.add_get("/relay", relay)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda *_: print("up", flush=True))
"""


class ManagerProcess:
    """An application on a fixed port, which writes down each message that it reads. Each start is a new process."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._logs: list[Path] = []
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._logs.append(self._folder / f"manager-{len(self._logs)}.jsonl")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MANAGER, str(self.port), str(self._logs[-1])),
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S) == b"up\n"

    async def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.communicate()

    def read(self) -> list[list[dict[str, Any]]]:
        """The messages that each process has read."""
        return [[json.loads(line) for line in log.read_text().splitlines()] for log in self._logs]

    def answered(self) -> bool:
        """True if the last process has answered the ping after all that it has read."""
        messages = self.read()[-1]
        return bool(messages) and messages[-1]["type"] == "pong"

    def keys(self) -> str:
        """All keys that all processes have read, in order."""
        return "".join(m["digit"] for messages in self.read() for m in messages if m["type"] == "dtmf")


async def dialled_in_vain(port: int) -> None:
    """Return when the gateway has dialled ``port`` again, and was not answered."""
    dialled = asyncio.Event()

    def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        dialled.set()

    async with await asyncio.start_server(refuse, "127.0.0.1", port):
        await asyncio.wait_for(dialled.wait(), PATIENCE_S)


async def test_a_manager_killed_ten_times_in_a_call_misses_no_key_and_gets_none_twice(tmp_path: Path) -> None:
    manager = ManagerProcess(tmp_path)
    config = f"""
engine: {{kind: tone}}
carriers: {{twilio: {{verify: false}}}}
routes:
  phone:
    dialogue:
      url: "ws://127.0.0.1:{manager.port}/relay"
      give_up_s: 300
"""
    await manager.start()
    try:
        async with serve(tmp_path / "server", config) as live:
            leg = CarrierLeg(TwilioCarrier(1, {}))
            await leg.connect(f"{live.ws}/media/twilio/phone", timeout_s=PATIENCE_S)
            pressed = ""

            async def press(keys: str) -> None:
                nonlocal pressed
                for key in keys:
                    leg.press(key)
                pressed += keys

            for number in range(KILLS):
                await press(KEYS[number % 12] * (number % 3 + 1))
                await until(lambda: manager.keys() == pressed, f"{pressed} before kill {number}")
                await until(manager.answered)
                await manager.kill()
                await press(KEYS)  # at once: the gateway may not have noticed yet
                if number % 2:
                    await dialled_in_vain(manager.port)
                    await press("#")
                await manager.start()
            await until(lambda: manager.keys() == pressed, pressed)

            setups = [messages[0] for messages in manager.read()]
            assert [setup["type"] for setup in setups] == ["setup"] * (KILLS + 1)
            assert len({setup["sessionId"] for setup in setups}) == 1
            assert [setup.get("resumed", False) for setup in setups] == [False, *[True] * KILLS]
            assert all(m["type"] != "setup" for messages in manager.read() for m in messages[1:])
            leg.hang_up()
            await leg.aclose()
    finally:
        await manager.kill()
