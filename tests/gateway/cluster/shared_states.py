"""The contract of every ``SharedState``, whatever holds its data."""

from __future__ import annotations

from gateway.seams.shared_state import Handoff, SharedState

FIRST = Handoff("VX1", "ended", "data é", "", "sales")
SECOND = Handoff("VX2", "transferred", None, "+4930000001", "support")


async def check_contract(state: SharedState) -> None:
    """Values and handoffs, as two processes use them."""
    value = bytes(range(256))
    assert await state.find("a") is None
    assert await state.first("a", value, keep_s=600) is None
    assert await state.first("a", b"other", keep_s=600) == value, "the first value stays"
    assert await state.find("a") == value
    assert await state.first("b", b"", keep_s=600) is None and await state.find("b") == b""
    await state.put("a", b"later", keep_s=600)
    assert await state.first("a", value, keep_s=600) == b"later"

    assert await state.take("twilio", "c 1") is None and list(await state.left("c 1")) == []
    await state.leave("twilio", "c 1", FIRST)
    await state.leave("telnyx", "c 1", SECOND)
    assert list(await state.left("c 1")) == [("telnyx", SECOND), ("twilio", FIRST)]
    assert await state.take("twilio", "c 1") == FIRST
    assert await state.take("twilio", "c 1") is None, "somebody has taken it"
    assert await state.take("telnyx", "c 1") == SECOND
