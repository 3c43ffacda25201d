"""A conversation on the web phone in a real Chromium: synthesised questions at its microphone, spoken answers."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.peers.ears import understood
from tests.peers.live_server import Live, serve
from tests.peers.programs import needs_chromium
from tests.peers.recognition.heard import speech
from tests.peers.web.browsers import chromium
from tests.peers.web.test_phone_chromium import MICROPHONE, Phone, no_calls
from tests.waiting import until
from voicecodecs.pcm import to_int16

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, needs_chromium]

ROOT = Path(__file__).parent.parent.parent.parent
ROWS = "return [...document.querySelectorAll('.phone-rows > *')].map(r => [r.className, r.textContent])"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    patient = {"TALKSPURT__RECOGNISER__FINAL_TIMEOUT_MS": "60000"}
    async with serve(tmp_path_factory.mktemp("server"), ROOT / "configs/demo.yaml", patient) as running:
        yield running


def wav(text: str) -> str:
    """A sentence as a WAV file, base64."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 48000, 0, "NONE", ""))
        file.writeframes(to_int16(speech(text, rate=48000)).tobytes())
    return base64.b64encode(data.getvalue()).decode()


async def test_spoken_questions_are_shown_and_answered(live: Live) -> None:
    with chromium() as driver:
        phone = Phone(driver)
        await phone.open(f"{live.http}/phone")
        await phone.do(MICROPHONE)
        await phone.call("default", microphone=True)
        await phone.until(lambda rows: any("just ask" in text for _, text in rows), ROWS)
        for question, answer in (
            ("What are your opening hours?", "We are open from Monday"),
            ("I would like a banana.", "I have no answer to that"),
        ):
            await phone.do("await say(args[0])", wav(question))
            rows = await phone.until(lambda rows, answer=answer: any(answer in text for _, text in rows), ROWS)
            asked = next(i for i, (kind, text) in enumerate(rows) if "caller" in kind and understood(question, text))
            answered = next(i for i, (kind, text) in enumerate(rows) if "bot" in kind and answer in text)
            assert asked < answered, rows
        assert any(understood("banana", text) for kind, text in rows if "bot" in kind), "it says what it heard"
        assert (await phone.heard())["loud"] > 0
        await phone.open("about:blank")
        await until(lambda: no_calls(live), "the end of the call")
