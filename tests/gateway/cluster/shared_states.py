"""What every ``SharedState`` does, wherever it keeps what it knows."""

from __future__ import annotations

from gateway.seams.shared_state import Handoff, SharedState

FIRST = Handoff("VX1", "ended", "data é", "", "sales")
SECOND = Handoff("VX2", "transferred", None, "+4930000001", "support")


async def check_contract(state: SharedState) -> None:
    """Claims and handoffs, as two processes use them."""
    token = bytes(range(8))
    assert not await state.is_claimed(token)
    assert await state.claim(token, keep_s=600)
    assert not await state.claim(token, keep_s=600), "a token begins one call"
    assert await state.is_claimed(token)
    assert await state.claim(b"another!", keep_s=600)

    assert await state.take("twilio", "c 1") is None and list(await state.left("c 1")) == []
    await state.leave("twilio", "c 1", FIRST)
    await state.leave("telnyx", "c 1", SECOND)
    assert list(await state.left("c 1")) == [("telnyx", SECOND), ("twilio", FIRST)]
    assert await state.take("twilio", "c 1") == FIRST
    assert await state.take("twilio", "c 1") is None, "somebody has taken it"
    assert await state.take("telnyx", "c 1") == SECOND
