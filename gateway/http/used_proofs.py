"""The proofs that carriers' webhooks came with. A proof is good for one call, on one route, by one method.

A carrier that got no answer in time asks again, with the same proof. For ``KEEP_S`` it gets the first answer again,
which starts nothing new. A client that shows the proof elsewhere has copied it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.carriers.signatures import MAX_AGE_S
from gateway.errors import Rejected
from gateway.http.after import KEEP_S

Use = tuple[str, ...]
"""Kind of webhook, method, route and call id."""

_REMEMBER_S = 2 * MAX_AGE_S
"""Time for which a proof is remembered, seconds. A signed time is good for ``MAX_AGE_S`` before and after it."""
_MOST = 20_000


@dataclass(slots=True)
class _Proof:
    use: Use
    at: float
    """Time of the first request, seconds on the store's clock."""
    answer: tuple[str, bytes] | None = None
    """Content type and body."""


class UsedProofs:
    """Remembers proofs by their id. Beyond ``limit`` the oldest is forgotten."""

    def __init__(self, *, limit: int = _MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._proofs: OrderedDict[bytes, _Proof] = OrderedDict()

    def bind(self, proof_id: bytes, use: Use) -> None:
        """Bind a proof to its first use.

        Raises:
            Rejected: 403, the proof came with another call, route or method.
        """
        now = self._clock()
        while self._proofs:
            oldest = next(iter(self._proofs.values()))
            if oldest.at > now - _REMEMBER_S and len(self._proofs) < self._limit:
                break
            self._proofs.popitem(last=False)
        if self._proofs.setdefault(proof_id, _Proof(use, now)).use != use:
            raise Rejected("this proof came before, with another call, route or method", status=403, code="replayed")

    def answer(self, proof_id: bytes) -> web.Response | None:
        """Return the first answer again. None: there is none, or it is older than ``KEEP_S``."""
        known = self._proofs.get(proof_id)
        if known is None or known.answer is None or self._clock() - known.at >= KEEP_S:
            return None
        content_type, body = known.answer
        return web.Response(body=body, headers={"Content-Type": content_type})

    def store(self, proof_id: bytes, answer: web.Response) -> None:
        """Keep the answer to the first request."""
        known = self._proofs.get(proof_id)
        if known is not None and isinstance(answer.body, bytes):
            known.answer = (answer.headers["Content-Type"], answer.body)
