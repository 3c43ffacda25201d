"""A stream token begins one call, in whichever process."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.call.directory import LocalDirectory
from gateway.cluster.memory_state import MemoryState
from gateway.errors import Rejected
from gateway.listener.stream_claims import StreamClaims
from gateway.tokens import StreamToken

TOKEN = StreamToken(b"12345678", 2_000_000_000, bytes(8))


class Call:
    """A call that keeps the way in which it was ended."""

    def __init__(self) -> None:
        self.ended = ""

    def end(self, reason: str, *, hang_up: bool) -> None:
        assert hang_up
        self.ended = reason


class Lost(MemoryState):
    async def find(self, key: str) -> bytes | None:
        raise Rejected("down", status=503, code="directory_unavailable")


def claims(state: MemoryState | None) -> StreamClaims:
    directory: LocalDirectory[Any] = LocalDirectory(limit=10)
    return StreamClaims(directory, state, keep_s=60)


async def test_the_second_call_with_a_token_ends_whichever_process_has_it() -> None:
    state = MemoryState()
    one, two = claims(state), claims(state)
    first, second = Call(), Call()
    one.begun(TOKEN, first)  # type: ignore[arg-type]
    await one.asked()
    two.begun(TOKEN, second)  # type: ignore[arg-type]
    await two.asked()
    assert second.ended == "spent_token" and not first.ended
    assert await two.is_spent(TOKEN.id)


async def test_while_nobody_answers_calls_begin_and_a_process_knows_its_own() -> None:
    made = claims(Lost())
    call = Call()
    made.begun(TOKEN, call)  # type: ignore[arg-type]
    await made.asked()
    assert not call.ended and not await made.is_spent(TOKEN.id)
    made._directory.spend(TOKEN, now=0)
    assert await made.is_spent(TOKEN.id)


async def test_a_signature_that_came_elsewhere_opens_no_stream_whichever_process_got_it() -> None:
    state = MemoryState()
    one, two = claims(state), claims(state)
    await one.withdraw(TOKEN, now=0)
    call = Call()
    two.begun(StreamToken(b"87654321", TOKEN.expires, bytes(8), signature=TOKEN.id), call)  # type: ignore[arg-type]
    await two.asked()
    assert call.ended == "spent_token"
    for other in (one, two):
        with pytest.raises(Rejected):
            await other.withdraw(TOKEN, now=0)
