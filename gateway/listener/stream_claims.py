"""Stream tokens that have begun a call, here or in another process. A token begins one call.

Whoever opens a stream does not wait until other processes are asked: the call begins, and ends at once if it was not
the first. While they cannot be asked, this process knows its own calls.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gateway.call.directory import LocalDirectory
from gateway.call.session import Session
from gateway.errors import Rejected
from gateway.seams.shared_state import SharedState
from gateway.tokens import StreamToken


class StreamClaims:
    """Owns the questions to other processes.

    Args:
        shared: what the processes know together. None: this process is the only one.
        keep_s: how long a token is remembered there.
    """

    def __init__(self, directory: LocalDirectory[Session], shared: SharedState | None, *, keep_s: float) -> None:
        self._directory = directory
        self._shared = shared
        self._keep_s = keep_s
        self._asking: set[asyncio.Task[None]] = set()

    async def is_spent(self, token_id: bytes) -> bool:
        """Whether a call began with a token of this id."""
        if self._directory.is_spent(token_id) or self._shared is None:
            return self._directory.is_spent(token_id)
        with suppress(Rejected):
            return await self._shared.is_claimed(token_id)
        return False

    def begun(self, token: StreamToken, session: Session) -> None:
        """A call has begun with a token that this process did not know: end the call if another process does."""
        if self._shared is not None:
            task = asyncio.create_task(self._claim(self._shared, token, session), name="claim a stream token")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def asked(self) -> None:
        """Return when every question has its answer."""
        if self._asking:
            await asyncio.wait(set(self._asking))

    async def _claim(self, shared: SharedState, token: StreamToken, session: Session) -> None:
        with suppress(Rejected):
            if not await shared.claim(token.id, keep_s=self._keep_s):
                session.end("spent_token", hang_up=True)
