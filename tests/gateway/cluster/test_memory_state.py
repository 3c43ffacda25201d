import pytest

from gateway.cluster import memory_state
from gateway.cluster.memory_state import MemoryState
from gateway.cluster.outage_state import OutageState
from gateway.errors import Rejected
from tests.gateway.cluster.shared_states import FIRST, check_contract


async def test_memory_keeps_the_contract() -> None:
    await check_contract(MemoryState())


async def test_a_value_is_kept_until_its_time_is_over() -> None:
    now = 100.0
    state = MemoryState(clock=lambda: now)
    assert await state.first("a", b"1", keep_s=60) is None
    now = 159.0
    assert await state.find("a") == b"1"
    now = 161.0
    assert await state.first("a", b"2", keep_s=60) is None


async def test_the_oldest_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_state, "VALUES", 2)
    monkeypatch.setattr(memory_state, "HANDOFFS", 2)
    state = MemoryState()
    for number in range(3):
        await state.first(str(number), b"1", keep_s=60)
        await state.leave("twilio", f"c{number}", FIRST)
    assert [await state.find(str(number)) for number in range(3)] == [None, b"1", b"1"]
    assert [await state.take("twilio", f"c{number}") for number in range(3)] == [None, FIRST, FIRST]


async def test_the_bytes_of_all_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_state, "VALUE_BYTES", 10)
    state = MemoryState()
    for number in range(3):
        await state.put(str(number), bytes(4), keep_s=60)
    await state.put("2", bytes(6), keep_s=60)
    assert [await state.find(str(number)) for number in range(3)] == [None, bytes(4), bytes(6)]


async def test_without_the_shared_store_this_process_knows_its_own_values() -> None:
    class Away(MemoryState):
        gone = False

        async def find(self, key: str) -> bytes | None:
            if self.gone:
                raise Rejected("away", status=503, code="directory_unavailable")
            return await super().find(key)

        async def put(self, key: str, value: bytes, *, keep_s: float) -> None:
            await self.find(key)
            await super().put(key, value, keep_s=keep_s)

    store = Away()
    here, there = OutageState(store), OutageState(store)
    assert await here.first("a", b"here", keep_s=60) is None
    assert await there.first("a", b"there", keep_s=60) == b"here" == await there.find("a")
    store.gone = True
    assert await here.first("a", b"again", keep_s=60) == b"here" == await here.find("a")
    assert await here.first("b", b"meanwhile", keep_s=60) is None
    await here.put("a", b"changed", keep_s=60)
    assert await here.find("a") == b"changed"
    store.gone = False
    assert await here.first("b", b"again", keep_s=60) == b"meanwhile"
    assert await there.first("b", b"there", keep_s=60) == b"meanwhile", "it is told what came meanwhile"
