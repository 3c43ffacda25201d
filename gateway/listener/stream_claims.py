"""Stream tokens that have begun a call, here or in another process. A token begins one call.

A stream does not wait for the answers of other processes: the call begins, and ends immediately if the token was
already used. While the other processes cannot be asked, only this process's calls are known.
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
        shared: state shared by the processes. None: this is the only process.
        keep_s: time for which a token is remembered there.
    """

    def __init__(self, directory: LocalDirectory[Session], shared: SharedState | None, *, keep_s: float) -> None:
        self._directory = directory
        self._shared = shared
        self._keep_s = keep_s
        self._asking: set[asyncio.Task[None]] = set()

    async def is_spent(self, token_id: bytes) -> bool:
        """Return True if a call began with a token of this id."""
        if self._directory.is_spent(token_id) or self._shared is None:
            return self._directory.is_spent(token_id)
        with suppress(Rejected):
            return await self._shared.find(_key(token_id)) is not None
        return False

    async def withdraw(self, token: StreamToken, *, now: float) -> None:
        """Let no stream begin with a carrier's signature that came with another request.

        Raises:
            Rejected: 403, a stream has begun with it; 503, the other processes cannot be asked.
        """
        self._directory.check_unspent(token)
        if self._shared is not None and await self._shared.first(_key(token.id), b"1", keep_s=self._keep_s) is not None:
            raise Rejected("the signature has opened a stream", status=403, code="replayed")
        self._directory.spend(token, now=now)

    def begun(self, token: StreamToken, session: Session) -> None:
        """Claim the token of a new call, and end the call if another process has claimed it."""
        if self._shared is not None:
            task = asyncio.create_task(self._claim(self._shared, token, session), name="claim a stream token")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def asked(self) -> None:
        """Wait until every question has its answer."""
        if self._asking:
            await asyncio.wait(set(self._asking))

    async def _claim(self, shared: SharedState, token: StreamToken, session: Session) -> None:
        with suppress(Rejected):
            for token_id in token.ids:
                if await shared.first(_key(token_id), b"1", keep_s=self._keep_s) is not None:
                    session.end("spent_token", hang_up=True)
                    return


def _key(token_id: bytes) -> str:
    return f"claimed:{token_id.hex()}"
