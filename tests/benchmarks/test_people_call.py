"""A call of the bench runs on the virtual clock, with computed sounds in place of the packages'."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks.people.call import Call, LineSettings
from benchmarks.people.rooms import RATE, impulse_response
from gateway.seams.messages import TurnEvent

pytestmark = pytest.mark.virtual_time


async def test_a_turn_is_spoken_to_its_end_and_its_echo_comes_back() -> None:
    sound = np.random.default_rng(1).normal(0, 0.05, RATE).astype(np.float32)
    line = LineSettings(echo=impulse_response(0.1) * np.float32(0.1), delay_s=0.1)
    call = Call(line, {"Hello there.": sound}, seconds=5.0)
    call.later(0.2, lambda: call.speak("Hello there.", "one"))
    await asyncio.sleep(3.0)
    await call.finish()
    ends = [message.event for _, message in call.told if isinstance(message, TurnEvent) and message.turn == "one"]
    assert ends[-1] == "finished"
    assert len(call.sent_at) == 50
    assert call.returns(0.5, 0.9) and not call.returns(2.0, 2.5)
