"""The pictures of `docs/`: the console with live and past calls, the page of a past call, and the web phone in a call.
``make screenshots``, or ``python -m tests.peers.web.console_screenshots FOLDER [SECONDS]``."""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
import wave
from pathlib import Path
from typing import Any

import aiohttp

from talkspurt.simulator.call_script import Expect, Press, SayStep, Wait
from talkspurt.simulator.caller import CallOptions, SimulatedCaller
from tests.peers.live_server import Live
from tests.peers.recognition.heard import speech
from tests.peers.web.browsers import Page, chromium
from tests.peers.web.busy_gateway import busy_gateway
from tests.waiting import PATIENCE_S, until
from voicecodecs.pcm import to_int16

DESKTOP, SMALL = (1440, 1000), (390, 844)
PATIENT_MS = 1000 * PATIENCE_S
TYPED = "This was typed in the console, and it is spoken into the call of the phone on this page."


class Camera:
    """Takes pictures of one page."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder

    async def _command(self, name: str, **parameters: Any) -> dict[str, str]:
        answer: dict[str, str] = await asyncio.to_thread(self._page.driver.execute_cdp_cmd, name, parameters)
        return answer

    async def resize(self, width: int, height: int) -> None:
        await self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def take(self, name: str, small: str) -> None:
        """Four pictures: wide and small, light and dark."""
        for screen, size in (("desktop", DESKTOP), (small, SMALL)):
            await self.resize(*size)
            for scheme in ("light", "dark"):
                await self._command(
                    "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
                )
                await self._page.do("document.documentElement.dataset.theme = args[0]; scrollTo(0, 0)", scheme)
                await asyncio.sleep(0.6)
                picture = await self._command("Page.captureScreenshot", format="png")
                (self._folder / f"{name}-{screen}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))


def said(folder: Path, text: str) -> SayStep:
    path = folder / f"{len(text)}.wav"
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(to_int16(speech(text)).tobytes())
    return SayStep(path)


async def spoken_call(live: Live, folder: Path) -> str:
    """Ask, interrupt a story, say goodbye. Return the address of the call's page."""
    answered = (Expect("speech", PATIENT_MS), Expect("quiet", PATIENT_MS))
    ask, interrupt = said(folder, "What are your opening hours?"), said(folder, "What time is it, please?")
    steps = (*answered, ask, *answered, Press("4"), Wait(5000), interrupt, *answered, Press("0"))
    numbers = {"talkspurt.From": "+15550142", "talkspurt.To": "+15550100"}
    url = f"{live.ws}/media/twilio/default"
    await SimulatedCaller(CallOptions(url=url, steps=(*steps, Expect("hang_up", PATIENT_MS)), parameters=numbers)).run()
    query = f"{live.http}/v1/calls?ended=true&route=default"
    async with aiohttp.ClientSession() as http:

        async def ended() -> list[dict[str, Any]]:
            async with http.get(query) as answer:
                calls: list[dict[str, Any]] = (await answer.json())["calls"]
            return calls

        (call,) = await until(ended, "the call's entry in the log, which is written behind its end")
    return f"{live.http}/#call={call['callId']}"


async def take(folder: Path, warm_up_s: float) -> None:
    """Let calls talk for a while, call from the page, have it say something, and take the pictures."""
    with tempfile.TemporaryDirectory() as work, chromium("hide-scrollbars") as driver:
        async with busy_gateway(Path(work)) as live:
            past = await spoken_call(live, Path(work))
            page = Page(driver)
            camera = Camera(page, folder)
            await camera.resize(*DESKTOP)
            await page.open(f"{live.http}/")
            await asyncio.sleep(warm_up_s)
            await page.do("document.querySelector('#phone [data-part=use]').checked = false")
            await page.do("document.querySelector('#phone [data-part=call]').click()")
            await asyncio.sleep(11)
            await page.do("document.querySelector('#turn-text').value = args[0]", TYPED)
            await page.do("document.querySelector('#speak').click()")
            await asyncio.sleep(3)
            await page.do("document.activeElement.blur()")
            await camera.take("console", "phone")
            await page.open(past)
            await page.until(lambda hidden: hidden is False, "return document.querySelector('#call-found').hidden")
            await camera.take("call", "phone")
            await page.open(f"{live.http}/phone")
            await asyncio.sleep(1)
            await page.do("document.querySelector('[data-part=use]').checked = false")
            await page.do("document.querySelector('[data-part=route]').value = 'default'")
            await page.do("document.querySelector('[data-part=call]').click()")
            await asyncio.sleep(5)
            await page.do("document.querySelector('[data-key=\"4\"]').click()")  # a story
            await asyncio.sleep(4)
            await page.do("document.querySelector('[data-key=\"3\"]').click()")  # cut, and the opening hours
            await asyncio.sleep(2)
            await camera.take("phone", "small")


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 90))
