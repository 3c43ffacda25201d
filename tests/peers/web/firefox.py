"""Firefox without a driver program: Debian has no geckodriver, and Firefox speaks WebDriver BiDi itself."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.peers.programs import FIREFOX
from tests.waiting import PATIENCE_S, until

PREFERENCES = {
    "media.navigator.streams.fake": True,  # a tone instead of a microphone
    "media.navigator.permission.disabled": True,
    "media.autoplay.default": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
}


class Firefox:
    """One tab, over WebDriver BiDi (W3C)."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._tab = ""
        self.patience_s = PATIENCE_S
        """Longest wait for the result of a command, seconds."""

    async def command(self, method: str, **params: Any) -> Any:
        """One command at a time; its result."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = json.loads(await self._socket.receive_str(timeout=self.patience_s))
            if answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    async def open(self, url: str) -> None:
        if not self._tab:
            await self.command("session.new", capabilities={})
            self._tab = (await self.command("browsingContext.getTree"))["contexts"][0]["context"]
        await self.command("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    async def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the view in CSS pixels."""
        viewport = {"width": width, "height": height}
        await self.command("browsingContext.setViewport", context=self._tab, viewport=viewport)

    async def do(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript as if a visitor had asked for it, awaiting promises; its result. ``arguments`` are ``args``
        there."""
        function = f"async args => {{ {script} }}"
        result = await self.command(
            "script.evaluate",
            expression=f"({function})({json.dumps(arguments)}).then(result => JSON.stringify(result ?? null))",
            target={"context": self._tab},
            awaitPromise=True,
            userActivation=True,
        )
        assert result["type"] == "success", result["exceptionDetails"]["text"]
        return json.loads(result["result"]["value"])

    async def until(self, script: str) -> Any:
        """Run JavaScript again and again until its result is true; that result."""
        return await until(lambda: self.do(script), script)


@asynccontextmanager
async def firefox(profile: Path) -> AsyncIterator[Firefox]:
    """A headless Firefox with a profile in an empty folder."""
    assert FIREFOX is not None
    profile.mkdir()
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
    (profile / "user.js").write_text("".join(lines))
    process = await asyncio.create_subprocess_exec(
        *(FIREFOX, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := re.search(rb"WebDriver BiDi listening on (\S+)", await process.stderr.readline())):
                assert process.returncode is None, "Firefox has ended"
        drain = asyncio.create_task(process.stderr.read())  # or it blocks when the pipe is full
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{found[1].decode()}/session", max_msg_size=0) as socket,
        ):
            yield Firefox(socket)
        process.terminate()
        await drain
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
