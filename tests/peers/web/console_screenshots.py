"""Pictures of the console with live calls: ``python -m tests.peers.web.console_screenshots FOLDER [SECONDS]``."""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.peers.web.browsers import Page, chromium
from tests.peers.web.busy_gateway import busy_gateway

SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}
TYPED = "This was typed in the console, and it is spoken into the call of the phone on this page."


async def take(folder: Path, warm_up_s: float) -> None:
    """Let calls talk for a while, call from the page, have it say something, and take the pictures."""
    with tempfile.TemporaryDirectory() as work, chromium("hide-scrollbars") as driver:

        async def command(name: str, **parameters: Any) -> dict[str, str]:
            answer: dict[str, str] = await asyncio.to_thread(driver.execute_cdp_cmd, name, parameters)
            return answer

        async with busy_gateway(Path(work)) as live:
            page = Page(driver)
            width, height = SCREENS["desktop"]
            await command(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
            await page.open(f"{live.http}/")
            await asyncio.sleep(warm_up_s)
            await page.do("document.querySelector('#phone [data-part=use]').checked = false")
            await page.do("document.querySelector('#phone [data-part=call]').click()")
            await asyncio.sleep(11)
            await page.do("document.querySelector('#turn-text').value = args[0]", TYPED)
            await page.do("document.querySelector('#speak').click()")
            await asyncio.sleep(3)
            await page.do("document.activeElement.blur()")
            for screen, (width, height) in SCREENS.items():
                await command(
                    "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
                )
                for scheme in ("light", "dark"):
                    await page.do(
                        "const b = document.querySelector('#theme'); if (b.dataset.next === args[0]) b.click()", scheme
                    )
                    await page.do("scrollTo(0, 0)")
                    await asyncio.sleep(0.6)
                    picture = await command("Page.captureScreenshot", format="png")
                    (folder / f"console-{screen}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 90))
