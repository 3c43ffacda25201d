"""A conversation on the web phone in a real Chromium: synthesised questions at its microphone, spoken answers."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tests.peers.live_server import Live, serve
from tests.peers.programs import needs_chromium
from tests.peers.recognition.heard import speech, words
from tests.peers.web.browsers import chromium
from tests.peers.web.test_phone_chromium import Phone, no_calls
from tests.waiting import until
from voicecodecs.pcm import to_int16

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, needs_chromium]

ROOT = Path(__file__).parent.parent.parent.parent
ROWS = "return [...document.querySelectorAll('.phone-rows > *')].map(r => [r.className, r.textContent])"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    patient = {"TALKSPURT__RECOGNISER__FINAL_TIMEOUT_MS": "20000"}
    async with serve(tmp_path_factory.mktemp("server"), ROOT / "configs/demo.yaml", patient) as running:
        yield running


@pytest.fixture(scope="module")
def microphone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions, with time for the answers."""
    silence = np.zeros(9 * 48000, np.float32)  # as long as an answer; two of them: greeting and menu
    pieces = (silence, silence, speech("What are your opening hours?", rate=48000), silence)
    sound = np.concatenate((*pieces, speech("I would like a banana.", rate=48000), silence, silence, silence))
    path = tmp_path_factory.mktemp("microphone") / "questions.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 48000, 0, "NONE", ""))
        file.writeframes(to_int16(sound).tobytes())
    return path


async def test_spoken_questions_are_shown_and_answered(live: Live, microphone: Path) -> None:
    with chromium(microphone=Path(f"{microphone}%noloop")) as driver:
        phone = Phone(driver)
        await phone.open(f"{live.http}/phone")
        await phone.call("default", microphone=True)
        await phone.until(lambda rows: any("just ask" in text for _, text in rows), ROWS)
        for question, answer in (("opening", "We are open from Monday"), ("banana", "I have no answer to that")):
            rows = await phone.until(lambda rows, answer=answer: any(answer in text for _, text in rows), ROWS)
            asked = next(i for i, (kind, text) in enumerate(rows) if "caller" in kind and question in words(text))
            answered = next(i for i, (kind, text) in enumerate(rows) if "bot" in kind and answer in text)
            assert asked < answered, rows
        assert any("banana" in words(text) for kind, text in rows if "bot" in kind), "it says what it heard"
        assert (await phone.heard())["loud"] > 0
        await phone.open("about:blank")
        await until(lambda: no_calls(live), "the end of the call")
