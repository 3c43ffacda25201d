"""Handoff data that calls leave, read by several processes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.call.handoff import Handoffs
from gateway.cluster.memory_state import MemoryState
from gateway.errors import Rejected
from gateway.seams.shared_state import Handoff

LEFT = Handoff("VX1", "ended", "data", "", "sales")


class Lost(MemoryState):
    """A state that cannot be reached while it is ``down``; ``slow`` holds what is left until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.slow = asyncio.Event()
        self.slow.set()

    async def leave(self, dialect: str, call_sid: str, handoff: Handoff) -> None:
        await self.slow.wait()
        self._check()
        await super().leave(dialect, call_sid, handoff)

    async def take(self, dialect: str, call_sid: str) -> Handoff | None:
        self._check()
        return await super().take(dialect, call_sid)

    def _check(self) -> None:
        if self.down:
            raise Rejected("down", status=503, code="directory_unavailable", retry_after_s=1)


async def test_another_process_finds_what_a_call_left_and_only_once() -> None:
    state = MemoryState()
    one, two = Handoffs(shared=state), Handoffs(shared=state)
    one.leave("twilio", "c1", LEFT)
    await one.shared()
    assert await two.take("twilio", "c1") == LEFT
    assert await one.take("twilio", "c1") is None
    one.leave("twilio", "c2", LEFT)
    await one.shared()
    assert await two.take_of_any("c2", lambda route: route == "other") is None
    assert await two.take_of_any("c2", lambda route: route == "sales") == LEFT


async def test_what_is_on_its_way_to_the_others_is_found_once() -> None:
    state = Lost()
    state.slow.clear()
    one = Handoffs(shared=state)
    one.leave("twilio", "c1", LEFT)
    asking = asyncio.create_task(one.take("twilio", "c1"))
    await asyncio.sleep(0)
    state.slow.set()
    assert await asking == LEFT and await one.take("twilio", "c1") is None


async def test_in_an_outage_a_process_answers_for_its_own_calls_and_503_for_others() -> None:
    state = Lost()
    one, two = Handoffs(shared=state), Handoffs(shared=state)
    state.down = True
    one.leave("twilio", "c1", LEFT)
    with pytest.raises(Rejected) as refused:
        await two.take("twilio", "c1")
    assert refused.value.status == 503 and refused.value.retry_after_s > 0
    assert await one.take("twilio", "c1") == LEFT
