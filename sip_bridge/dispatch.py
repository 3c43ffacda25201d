"""Which of several workers gets a datagram that has come to their one SIP address. Pure.

A dialog and a transaction are one worker's from beginning to end, and their names say whose:

* tags and branches that a worker makes begin with its mark (``mark_of``). So a request in a dialog names the worker in
  its To tag, and a response in its topmost branch.
* A request that names nobody begins something. All that belongs to it (its repetitions, CANCEL, the ACK of a refusal,
  the same INVITE with a password or by another way) has its Call-ID, and the Call-IDs of INVITEs are remembered for as
  long as such a message may come. A new one goes to the worker that is next in turn. Of calls that begin on a TCP or
  TLS connection their workers tell the Call-ID (``begun``), since the CANCEL may come by another connection.
* Anything else is answered without state, so it goes to the worker that is next in turn, too: OPTIONS is answered by
  one that has room, and what belongs to a worker that is gone by one that knows no such call (481).

Strangers can write any mark and any Call-ID. They gain the choice of the worker that refuses them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sip_bridge.local import worker_of
from sip_bridge.message.head import read_head
from sip_bridge.message_limit import MessageLimit

REMEMBERED = 50_000
"""Call-IDs that are remembered, some 200 bytes each. Of more, the one that was silent for longest is forgotten: its
CANCEL may then get 481."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who gets a datagram."""

    worker: int
    begins_call: bool
    """Whether the datagram is the first of a call, as far as we remember."""


class Dispatcher:
    """Chooses, and drops what its source may not send.

    Args:
        limit: how many messages a source may send, to all workers together.
        remember_s: how long a Call-ID is remembered after its last message.
    """

    def __init__(self, limit: MessageLimit, *, remember_s: float) -> None:
        self.counts: Counter[str] = Counter()
        """How many datagrams were dropped: ``limited``, ``unreadable``, or ``late`` (a response for nobody)."""
        self._limit = limit
        self._remember_s = remember_s
        self._secret = secrets.token_bytes(16)
        self._calls: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Digest of a Call-ID -> its worker, and when its last message came."""

    def choose(self, data: bytes, host: str, workers: Sequence[int], *, now: float) -> Chosen | None:
        """Return who gets a datagram. None: nobody does, and it is counted.

        Args:
            host: its source address.
            workers: those that live. The first one gets what begins a call.
            now: monotonic seconds.
        """
        if not self._limit.take(host, data, now=now):
            self.counts["limited"] += 1
            return None
        head = read_head(data)
        if head is None:
            self.counts["unreadable"] += 1
            return None
        named = worker_of(head.ours)
        if named is not None and named in workers:
            return Chosen(named, False)
        if not head.method:
            self.counts["late"] += 1
            return None
        worker = self._worker_of_call(head.call_id, now=now)
        known = worker in workers
        begins_call = not known and head.method == "INVITE" and not head.ours
        if worker is None or not known:
            worker = workers[0]
        if known or begins_call:
            self.begun(head.call_id, worker, now=now)
        return Chosen(worker, begins_call)

    def begun(self, call_id: str, worker: int, *, now: float) -> None:
        """Remember whose a Call-ID is."""
        call = self._digest(call_id)
        self._calls[call] = worker, now
        self._calls.move_to_end(call)
        if len(self._calls) > REMEMBERED:
            self._calls.popitem(last=False)

    def worker_of_cancel(self, data: bytes, *, now: float) -> int | None:
        """Return who has the INVITE of a CANCEL: the worker in its To tag (of a re-INVITE), or that of its Call-ID."""
        head = read_head(data)
        if head is None:
            return None
        named = worker_of(head.ours)
        return named if named is not None else self._worker_of_call(head.call_id, now=now)

    def _worker_of_call(self, call_id: str, *, now: float) -> int | None:
        """Return whose a Call-ID is. None: it is not remembered."""
        worker, at = self._calls.get(self._digest(call_id), (None, float("-inf")))
        return worker if now - at <= self._remember_s else None

    def _digest(self, call_id: str) -> bytes:
        return hashlib.blake2b(call_id.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=8).digest()
