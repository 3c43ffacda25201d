"""Real browsers for the tests: headless, driven by selenium, asked from the test's event loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Debian's chromium, chromium-driver"
)


@contextmanager
def chromium(*flags: str, microphone: Path | None = None) -> Iterator[webdriver.Chrome]:
    """A browser; with ``microphone`` it captures that WAV file, over and over (``%noloop`` behind it: once)."""
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
    driver.set_script_timeout(40)
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
        """Run JavaScript again and again until its result satisfies; that result."""
        value = None
        try:
            async with asyncio.timeout(40):
                while not condition(value := await self.do(script)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {script}; it is {value!r}") from None
        return value
