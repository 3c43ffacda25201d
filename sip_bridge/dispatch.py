"""Chooses the worker for each datagram that arrives at the workers' common SIP address. Pure.

A dialog and a transaction stay with one worker, and their identifiers name it:

* Tags and branches that a worker makes begin with its mark (``mark_of``). So a request in a dialog names the worker in
  its To tag, and a response in its topmost branch.
* An INVITE with Replaces names the worker of the dialog that it replaces.
* Any other request that names no worker begins something. Everything that follows (retransmissions, CANCEL, the ACK
  of a refusal, the same INVITE with credentials or over another path) has the same Call-ID. So the Call-IDs of INVITEs
  are remembered for as long as such messages may come. A new one goes to the next worker in turn. For calls that begin
  on a TCP or TLS connection, the worker reports the Call-ID (``begun``), since the CANCEL may come by another
  connection.
* Anything else is answered without state, so it also goes to the next worker in turn. This includes OPTIONS and
  messages for a worker that has stopped, which get 481.

Strangers can write any mark and any Call-ID, but that only chooses the worker that refuses them.
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
"""Most Call-IDs that are remembered, about 200 bytes each. Above this, the one silent for longest is forgotten; its
CANCEL may then get 481."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The worker that gets a datagram."""

    worker: int
    begins_call: bool
    """True if the datagram begins a call that is not remembered."""


class Dispatcher:
    """Chooses workers, and drops messages over the limit of their source.

    Args:
        limit: the messages that one source may send to all workers together.
        remember_s: time for which a Call-ID is remembered after its last message.
    """

    def __init__(self, limit: MessageLimit, *, remember_s: float) -> None:
        self.counts: Counter[str] = Counter()
        """Number of dropped datagrams: ``limited``, ``unreadable``, or ``late`` (a response that names no live
        worker)."""
        self._limit = limit
        self._remember_s = remember_s
        self._secret = secrets.token_bytes(16)
        self._calls: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Digest of a Call-ID -> its worker, and the time of its last message."""

    def choose(self, data: bytes, host: str, workers: Sequence[int], *, now: float) -> Chosen | None:
        """Return the worker that gets a datagram. None: it is dropped and counted.

        Args:
            host: the source address.
            workers: the live workers. The first one gets new calls.
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
        named = worker_of(head.replaced)
        if named is not None and named in workers:  # a call that replaces another one begins at its worker
            self.begun(head.call_id, named, now=now)
            return Chosen(named, True)
        worker = self._worker_of_call(head.call_id, now=now)
        known = worker in workers
        begins_call = not known and head.method == "INVITE" and not head.ours
        if worker is None or not known:
            worker = workers[0]
        if known or begins_call:
            self.begun(head.call_id, worker, now=now)
        return Chosen(worker, begins_call)

    def begun(self, call_id: str, worker: int, *, now: float) -> None:
        """Remember the worker of a Call-ID."""
        call = self._digest(call_id)
        self._calls[call] = worker, now
        self._calls.move_to_end(call)
        if len(self._calls) > REMEMBERED:
            self._calls.popitem(last=False)

    def worker_of_cancel(self, data: bytes, *, now: float) -> int | None:
        """Return the worker that has the INVITE of a CANCEL, by its To tag (for a re-INVITE) or its Call-ID."""
        head = read_head(data)
        if head is None:
            return None
        named = worker_of(head.ours)
        return named if named is not None else self._worker_of_call(head.call_id, now=now)

    def _worker_of_call(self, call_id: str, *, now: float) -> int | None:
        """Return the worker of a Call-ID. None: it is not remembered."""
        worker, at = self._calls.get(self._digest(call_id), (None, float("-inf")))
        return worker if now - at <= self._remember_s else None

    def _digest(self, call_id: str) -> bytes:
        return hashlib.blake2b(call_id.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=8).digest()
