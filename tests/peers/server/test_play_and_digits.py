"""Turns that are not synthesised, in whole calls: a clip, and keys that the bot presses, found in what was heard."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.live_server import Live, serve
from tests.peers.tones import tone
from tests.waiting import PATIENCE_S, until
from voicecodecs import registry
from voicecodecs.dtmf import Detector
from voicecodecs.pcm import to_float32

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("clips")
    pcm = (8000 * np.sin(2 * np.pi * 1000 * np.arange(4000) / 8000)).astype("<i2")
    with wave.open(str(folder / "tone.wav"), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(pcm.tobytes())
    config = f"""
engine: {{kind: tone}}
clips: {{folder: "{folder}"}}
carriers: {{twilio: {{verify: false}}, plivo: {{verify: false}}}}
playout: {{lead_ms: 1000}}  # the carrier holds a second of sound: a machine that stalls cuts no key in two
"""
    async with serve(folder / "server", config) as running:
        yield running


class Call:
    """A call and its bot."""

    def __init__(self, dialect: str) -> None:
        self.leg = CarrierLeg(CARRIERS[dialect](1, {}), record=True)
        self.messages: list[Any] = []
        self.manager = SimulatedManager(self._on_setup)
        self._managed: ManagedCall | None = None

    def _on_setup(self, call: ManagedCall) -> None:
        self._managed = call
        call.on_message = lambda message, now: self.messages.append(message)

    @property
    def managed(self) -> ManagedCall:
        assert self._managed is not None
        return self._managed

    def reached(self, mark: str) -> bool:
        return any(m["type"] == "mark" and m["name"] == mark for m in self.messages)

    def heard(self) -> NDArray[np.float32]:
        decoder = registry.decoder(self.leg.carrier.format)
        return to_float32(decoder.decode(bytes(self.leg.playout.heard)))


@asynccontextmanager
async def calling(live: Live, dialect: str) -> AsyncIterator[Call]:
    call = Call(dialect)
    await call.manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
    await call.leg.connect(f"{live.ws}/media/{dialect}/default", timeout_s=PATIENCE_S)
    try:
        await until(lambda: call._managed, "setup")
        yield call
    finally:
        await call.leg.aclose()
        await call.manager.aclose()


async def test_a_clip_is_heard_as_often_as_asked(live: Live) -> None:
    async with calling(live, "twilio") as call:
        call.managed.send("play", source="tone.wav", loop=2)
        call.managed.send("mark", name="over")
        await until(lambda: call.reached("over"), "the clip's end")
        heard = call.heard()
    seconds, hz = tone(heard, 8000)
    assert abs(seconds - 1.0) < 0.06, "twice half a second"
    assert abs(hz - 1000) <= 4


async def test_keys_are_tones_in_the_audio_where_the_carrier_has_no_message(live: Live) -> None:
    async with calling(live, "twilio") as call:
        call.managed.send("sendDigits", digits="12#")
        call.managed.send("mark", name="over")
        await until(lambda: call.reached("over"), "the keys' end")
        assert Detector(8000).process(call.heard()) == "12#"
        assert not call.leg.tones


async def test_keys_go_to_a_carrier_that_sends_them_behind_the_speech_before_them(live: Live) -> None:
    async with calling(live, "plivo") as call:
        turn = call.managed.speak("one two three four five six")
        call.managed.send("sendDigits", digits="12#")
        call.managed.send("mark", name="over")
        await until(lambda: call.leg.tones, "the first key")
        at_keys = len(call.leg.playout.heard)
        await until(lambda: call.reached("over"), "the keys' end")
        assert at_keys >= 8 * turn.reported["audioMs"], "the speech before them came whole"
        assert call.leg.tones == "12#"
        assert not Detector(8000).process(call.heard()), "once, not in the audio too"
        assert not call.leg.violations
