"""Ended calls in the console, in headless Chromium: calls are led to their end on a running gateway and looked at."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from gateway.call_log.log import CallLog
from gateway.config import CallsConfig
from gateway.seams.call_record import CallRecord, Fault, HeardWords, Pressed, Said
from tests.peers.live_server import TestCall
from tests.peers.programs import needs_chromium
from tests.peers.web.browsers import chromium
from tests.peers.web.test_console_chromium import CONTRAST, LONG, WIDTHS, Console, console, nameless, resize
from tests.waiting import until

pytestmark = needs_chromium

WORDS = "The shop opens at nine 🙂, and closes at five."
IDS = "return [...document.querySelectorAll('#past-rows tr')].map(row => row.dataset.call)"
STICKING = (
    "return [...document.querySelectorAll('main *')].filter(node => node.checkVisibility()"
    " && !node.closest('thead, .visually-hidden') && node.getBoundingClientRect().right > innerWidth)"
    ".map(node => node.outerHTML.slice(0, 80))"
)


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium("window-size=1280,800") as driver:
        yield driver


def logging(folder: Path) -> dict[str, Any]:
    return {
        "calls": {"folder": str(folder / "calls"), "keep_text": True},
        "recording": {"folder": str(folder)},
        "routes": {"default": {}, "talk": {"recording": True}},
    }


async def opened(page: Console, call_id: str) -> None:
    """The call's page shows it."""
    await page.until_text("#call-id", call_id)
    await page.until(lambda hidden: hidden is False, "return document.querySelector('#call-found').hidden")


async def looks_well(page: Console) -> None:
    """Both schemes can be read, nothing sticks out, and what needs a name has one."""
    for width in WIDTHS:
        await resize(page.driver, width)
        assert await page.do(STICKING) == [], width
    for width in (390, 1440):
        await resize(page.driver, width)
        for _ in range(2):
            await page.do("document.querySelector('#theme').click()")
            assert await page.do(CONTRAST) == [], "WCAG 2.2, 1.4.3"
        tree = await asyncio.to_thread(page.driver.execute_cdp_cmd, "Accessibility.getFullAXTree", {})
        assert nameless([node for node in tree["nodes"] if not node.get("ignored")]) == []
    await resize(page.driver, 1280)


async def test_a_call_that_ends_is_listed_found_by_its_words_and_opened(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    async with console(driver, tmp_path, **logging(tmp_path)) as page:
        await page.until_text("#past-note", "none yet")
        async with TestCall(page.live, "talk", number=1) as one:
            await one.spoken(WORDS)
            cut = one.call.speak(LONG)
            await until(lambda: one.leg.messages > 120, "speech")
            one.call.send("cancel")
            await until(lambda: cut.outcome, "the cut")
        async with TestCall(page.live, "default", number=2) as two:
            await two.spoken("Hello.")
        first, second = one.call.session_id, two.call.session_id
        await page.until(lambda ids: ids == [second, first], IDS)

        await page.type("#past-text", "SHOP opens")
        await page.until(lambda ids: ids == [first], IDS)
        rows = "return (await (await fetch(document.querySelector('#past-csv').href)).text())"
        assert [row["callId"] for row in csv.DictReader(io.StringIO(await page.do(rows)))] == [first]
        await page.do("document.querySelector('#past-text').value = ''")
        await page.do(
            "const route = document.querySelector('#past-route'); route.value = 'default';"
            "route.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        await page.until(lambda ids: ids == [second], IDS)
        await page.type("#past-route", "all")
        await page.until(lambda ids: ids == [second, first], IDS)
        await page.until_text("#past-totals", "All: 2 calls", "0 failed")
        await page.tab_to("#past .sort[data-sort=turns]")
        await page.press(Keys.ENTER)
        await page.until(lambda ids: ids == [first, second], IDS)
        await page.press(Keys.ENTER)
        await page.until(lambda ids: ids == [second, first], IDS)
        assert await page.do("return document.querySelector('#past [aria-sort]').ariaSort") == "ascending"
        await page.type("#past-shortest", "3600")
        await page.until_text("#past-note", "no call matches")
        assert await page.text("#past-totals") == ""
        await page.click("#past-clear")
        await page.until(lambda ids: ids == [second, first], IDS)
        await looks_well(page)

        await page.tab_to(f"[data-call='{first}'] a")
        await page.press(Keys.ENTER)
        await opened(page, first)
        assert await page.do("return location.hash") == f"#call={first}"
        assert await page.do("return document.activeElement.id") == "call-title"
        said = await page.do(
            "return [...document.querySelectorAll('#call-entries .said')].map(entry =>"
            "['.played', '.unheard', '.cut'].map(part => entry.querySelector(part)?.textContent ?? ''))"
        )
        assert said[0] == [WORDS, "", ""]
        played, unheard, label = said[1]
        assert played and unheard and played + unheard == LONG
        assert label == "cut: stopped"
        waits = await page.do(
            "return [...document.querySelectorAll('.waterfall')].map(table => ['.stage', '.total'].map(part =>"
            "[...table.querySelectorAll(part + ' .number')].map(cell => parseFloat(cell.textContent))))"
        )
        assert len(waits) == 2
        assert await page.do("return document.querySelectorAll('#call-entries details[open]').length") == 0
        await page.click("#unfold")
        assert await page.do("return document.querySelectorAll('#call-entries details[open]').length") == 2
        for stages, (total,) in waits:
            assert len(stages) >= 2 and sum(stages) == pytest.approx(total, abs=0.1 * (len(stages) + 1))
        sound = "const p = document.querySelector('#call-recording'); return p.readyState >= 1 && p.duration"
        assert await page.until(bool, sound) > 1
        await looks_well(page)
        assert await page.errors() == []

        await page.tab_to("#call-page nav a")
        await page.press(Keys.ENTER)
        await page.until(lambda at: at, f"return document.activeElement.matches(\"[data-call='{first}'] a\")")
        assert await page.do("return document.querySelector('#overview').hidden") is False


async def test_a_link_to_a_live_call_shows_it_when_it_has_ended(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path, **logging(tmp_path)) as page:
        async with TestCall(page.live, "default") as call:
            await page.open(f"{page.live.http}/#call={call.call.session_id}")
            await page.until_text("#call-note", "not ended")
            await call.spoken(WORDS)
        await opened(page, call.call.session_id)
        await page.until_text("#call-entries", WORDS)
        assert await page.do("return document.querySelector('#call-recording').hidden") is True
        await page.do("location.hash = '#call=VXnobody'")
        await page.until_text("#call-note", "VXnobody", "calls.folder")


async def test_more_calls_come_page_by_page_and_words_are_text(driver: webdriver.Chrome, tmp_path: Path) -> None:
    log = CallLog(CallsConfig(folder=str(tmp_path / "calls"), keep_text=True), on_lost=pytest.fail)
    log.start()
    text = "Nine 🙂 o'clock <img src=x onerror=alert(1)>"
    for number in range(30):
        log.add(
            CallRecord(
                callId=f"VX{number:02}", callSid="", route="<b>", transport="sip", direction="inbound",
                from_="<i>1</i>", to="", startedAt=1.9e9 + number, durationMs=61_000, reason="hangup", outcome="failed",
                turns=1, gaps=2, gapMs=1500, firstPacketMs=None, entriesLost=3,
                entries=[
                    HeardWords(atMs=61_250, text=text, lang="en"),
                    Said(
                        atMs=62_000, turn="t", what="text", text=text, heardChars=6, startedMs=62_000, endedMs=62_500,
                        outcome="interrupted", reason="speech", firstPacketMs=None, stagesMs={}, gaps=2, gapMs=1500,
                        callerStoppedMs=60_400,
                    ),
                    Pressed(atMs=62_600, digit="#"),
                    Fault(atMs=62_700, code="64105", description="no such voice"),
                    Fault(atMs=62_800, code="64105", description="no such voice"),
                ],
            )
        )  # fmt: skip
    await log.aclose()
    async with console(driver, tmp_path, **logging(tmp_path)) as page:
        newest = [f"VX{number:02}" for number in reversed(range(30))]
        await page.until(lambda ids: ids == newest[:25], IDS)
        assert "<i>1</i> → –" in await page.text("#past-rows")
        await page.click("#past-more")
        await page.until(lambda ids: ids == newest, IDS)
        assert await page.do("return document.querySelector('#past-more').hidden") is True
        await page.do("location.hash = '#call=VX07'")
        await opened(page, "VX07")
        assert await page.text(".heard .text") == text
        assert (await page.text(".said .played"), await page.text(".said .unheard")) == (text[:6], text[6:])
        assert "1:01.2" in await page.text(".heard .who")
        assert await page.text(".pressed .text") == "pressed #"
        assert await page.text(".fault .text") == "64105: no such voice"
        assert "2 times, last at 1:02.8" in await page.text(".fault .who")
        assert await page.do("return document.querySelectorAll('.fault').length") == 1
        assert await page.text(".said .silence") == "1.6 s caller stopped to bot heard"
        assert "2 gaps" in await page.text(".said .small.muted:not(.figure)")
        assert "3 more" in await page.text("#call-lost")
        assert await page.do("return document.querySelectorAll('main :is(img, b b, i i)').length") == 0


async def test_the_conversation_is_copied_with_what_was_not_heard(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path, **logging(tmp_path)) as page:
        async with TestCall(page.live, "default") as call:
            call.leg.press("5")
            await call.spoken(WORDS)
            cut = call.call.speak(LONG)
            await until(lambda: call.leg.messages > 120, "speech")
            call.call.send("cancel")
            await until(lambda: cut.outcome, "the cut")
        await page.open(f"{page.live.http}/#call={call.call.session_id}")
        await opened(page, call.call.session_id)
        rights = {"origin": page.live.http, "permissions": ["clipboardReadWrite"]}
        await asyncio.to_thread(driver.execute_cdp_cmd, "Browser.grantPermissions", rights)
        for button, told in {
            "#copy-id": call.call.session_id,
            "#copy-words": "[not heard: ",
            "#copy-record": '"entries"',
        }.items():
            await page.click(button)
            await page.until_text(button, "Copied")
            copied = await page.do("return navigator.clipboard.readText()")
            assert told in copied
            if button == "#copy-words":
                assert "Caller: (pressed 5)" in copied and f"Bot: {WORDS}" in copied
        assert "ms caller stopped to bot heard" in await page.text(".said .silence")
        await page.until_text("#call-waits", "at most")


async def test_where_the_log_is_off_it_says_how_to_turn_it_on(driver: webdriver.Chrome, tmp_path: Path) -> None:
    async with console(driver, tmp_path) as page:
        await page.until(lambda hidden: hidden is False, "return document.querySelector('#past-off').hidden")
        assert "calls.folder" in await page.text("#past-off")
        assert await page.do("return document.querySelector('#past-on').hidden") is True


async def test_a_link_to_a_call_survives_the_sign_in(driver: webdriver.Chrome, tmp_path: Path) -> None:
    keys = {"api_keys": [{"key": "a-long-random-key", "tenant": "desk"}]}
    async with console(driver, tmp_path, auth=keys) as page:
        await page.open(f"{page.live.http}/#call=VX1")
        await page.type("#key", "a-long-random-key")
        await page.press(Keys.ENTER)
        await page.until_text("#call-id", "VX1")
        await asyncio.to_thread(driver.delete_all_cookies)


LATE_EVENTS = """
const Events = EventSource, plan = setTimeout;
window.EventSource = function (url) {
  window.connect = () => {
    const events = new Events(url);
    events.onopen = event => this.onopen?.(event);
    events.onmessage = event => this.onmessage?.(event);
  };
};
// The page's own look once a minute never comes here: the list has to be looked at for a reason.
window.setTimeout = (act, ms, ...more) => ms < 60000 ? plan(act, ms, ...more) : 0;
"""


async def test_a_call_that_ended_before_the_events_began_is_listed(driver: webdriver.Chrome, tmp_path: Path) -> None:
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LATE_EVENTS})
    try:
        async with console(driver, tmp_path, **logging(tmp_path)) as page:
            await page.until_text("#past-note", "none yet")
            async with TestCall(page.live, "talk") as call:
                await call.spoken("The shop opens at nine.")
            await page.until(lambda rows: rows == 0, "return document.querySelector('#call-rows').childElementCount")
            assert await page.do(IDS) == []
            await page.do("connect()")
            await page.until(lambda ids: ids == [call.call.session_id], IDS)
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
