"""Real browsers for the tests: headless, driven by selenium, asked from the test's event loop."""

from __future__ import annotations

import asyncio
import shutil
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from selenium import webdriver
from selenium.common.exceptions import JavascriptException, TimeoutException
from selenium.webdriver.chrome.service import Service

from tests.waiting import PATIENCE_S, until

_LOOK_S = 5


def tone_file(folder: Path, frequency_hz: float) -> Path:
    """Write ten seconds of a tone as a WAV file for ``chromium``, mono at 48 kHz, and return its path."""
    path = folder / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 48000, 0, "NONE", ""))
        file.writeframes((9000 * np.sin(2 * np.pi * frequency_hz * np.arange(480000) / 48000)).astype("<i2").tobytes())
    return path


@contextmanager
def chromium(*flags: str, microphone: Path | None = None) -> Iterator[webdriver.Chrome]:
    """A browser; with ``microphone`` it captures that WAV file, over and over (with the suffix ``%noloop``: once)."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    fake = (
        "use-fake-device-for-media-stream",
        "use-fake-ui-for-media-stream",
        f"use-file-for-fake-audio-capture={microphone}",
    )
    for flag in (
        "headless=new", "window-size=1280,900", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
        "autoplay-policy=no-user-gesture-required", *(fake if microphone else ()), *flags,
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE_S)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page in a browser: selenium blocks, the test's loop must not."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    async def open(self, url: str) -> None:
        await asyncio.to_thread(self.driver.get, url)

    async def do(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript, awaiting promises; its result. ``arguments`` are ``args`` there."""
        wrapped = (
            "const [args, done] = arguments;"
            f"(async () => {{ {script} }})().then(r => done([r ?? null, null]), e => done([null, String(e)]))"
        )
        result, error = await asyncio.to_thread(self.driver.execute_async_script, wrapped, list(arguments))
        assert error is None, error
        return result

    async def until(self, condition: Callable[[Any], Any], script: str) -> Any:
        """Run JavaScript again and again until its result satisfies; that result.

        A look is lost when the browser goes to another page under it, which some versions notice by its timeout only.
        """
        value = None

        async def look() -> bool:
            nonlocal value
            with suppress(TimeoutException, JavascriptException):
                value = await self.do(script)
                return bool(condition(value))
            return False

        await asyncio.to_thread(self.driver.set_script_timeout, _LOOK_S)
        try:
            await until(look, script)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {value!r}") from None
        finally:
            await asyncio.to_thread(self.driver.set_script_timeout, PATIENCE_S)
        return value
