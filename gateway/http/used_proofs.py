"""The proofs that carriers' webhooks came with. A proof is good for one call, on one route, by one method.

A carrier that got no answer in time asks again, with the same proof. For ``KEEP_S`` it gets the first answer again,
which starts nothing new. A client that shows the proof elsewhere has copied it. All processes that serve the same
callers know the proofs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from gateway.carriers.call_control import Answer
from gateway.carriers.signatures import MAX_AGE_S
from gateway.errors import Rejected
from gateway.http.after import KEEP_S
from gateway.seams.shared_state import Values

Use = tuple[str, ...]
"""Kind of webhook, method, route and call id."""

_REMEMBER_S = 2 * MAX_AGE_S
"""Time for which a proof is remembered, seconds. A signed time is good for ``MAX_AGE_S`` before and after it."""

_MEANWHILE_S = 0.2
"""Time for another process to note the use of a request that came to both at once, seconds."""


class UsedProofs:
    """Proofs by their id, each with its first use and the answer to it."""

    def __init__(self, values: Values) -> None:
        self._values = values

    async def bind(self, proof_id: bytes, use: Use, begin: Callable[[], Awaitable[None]]) -> Answer | None:
        """Bind a proof to its first use, and return the first answer if the use is repeated. None: there is no answer,
        or it is older than ``KEEP_S``.

        Args:
            begin: called before the first use. If it raises, the proof stays unused.

        Raises:
            Rejected: 403, the proof came with another call, route or method.
        """
        # A digest, since the call id may be a telephone number.
        wanted = hashlib.sha256("\0".join(use).encode(errors="replace")).digest()
        key = f"proof:{proof_id.hex()}"
        known = await self._values.find(key)
        if known is None:
            try:
                await begin()
            except Rejected:
                await asyncio.sleep(_MEANWHILE_S)  # the same request may have begun at another process
                if await self._values.find(key) != wanted:
                    raise
            known = await self._values.first(key, wanted, keep_s=_REMEMBER_S)
        if known is None:
            return None
        if known != wanted:
            raise Rejected("this proof came before, with another call, route or method", status=403, code="replayed")
        kept = await self._values.find(f"answer:{proof_id.hex()}")
        return None if kept is None else Answer.from_bytes(kept)

    async def store(self, proof_id: bytes, answer: Answer) -> None:
        """Keep the answer to the first request."""
        await self._values.put(f"answer:{proof_id.hex()}", answer.to_bytes(), keep_s=KEEP_S)
