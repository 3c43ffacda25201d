import pytest

from gateway.cluster import memory_state
from gateway.cluster.memory_state import MemoryState
from tests.gateway.cluster.shared_states import FIRST, check_contract


async def test_memory_keeps_the_contract() -> None:
    await check_contract(MemoryState())


async def test_a_token_is_claimed_until_its_time_is_over() -> None:
    now = 100.0
    state = MemoryState(clock=lambda: now)
    assert await state.claim(b"token", keep_s=60)
    now = 159.0
    assert await state.is_claimed(b"token")
    now = 161.0
    assert await state.claim(b"token", keep_s=60)


async def test_the_oldest_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_state, "TOKENS", 2)
    monkeypatch.setattr(memory_state, "HANDOFFS", 2)
    state = MemoryState()
    for number in range(3):
        await state.claim(bytes([number]), keep_s=60)
        await state.leave("twilio", f"c{number}", FIRST)
    assert [await state.is_claimed(bytes([number])) for number in range(3)] == [False, True, True]
    assert [await state.take("twilio", f"c{number}") for number in range(3)] == [None, FIRST, FIRST]
