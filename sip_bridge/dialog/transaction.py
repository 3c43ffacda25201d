"""Transactions: retransmissions and their timers (RFC 3261 section 17, RFC 6026). Pure.

Four state machines are tables that mirror the RFC's figures. ``Transactions`` holds the transactions of one endpoint:
it matches messages to them, runs their timers, and returns ``Effect`` values to be carried out. It does not know
dialogs: the user repeats and acknowledges the 2xx to an INVITE (sections 13.2.2.4 and 13.3.1.4).
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from sip_bridge.message.sip import BRANCH_MAGIC, Headers, Request, Response


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of RFC 3261 table 4, seconds."""

    t1: float = 0.5
    """Estimated round-trip time."""
    t2: float = 4.0
    """Longest pause between repetitions."""
    t4: float = 5.0
    """Longest lifetime of a message in the network."""


class TransactionState(enum.Enum):
    """The state of a transaction. Not every machine has every state."""

    CALLING = "calling"
    TRYING = "trying"
    PROCEEDING = "proceeding"
    ACCEPTED = "accepted"  # RFC 6026: a 2xx was seen, and its repetitions still belong to this transaction
    COMPLETED = "completed"
    CONFIRMED = "confirmed"
    TERMINATED = "terminated"


class TransactionEvent(enum.Enum):
    """An event in a transaction. Responses come from the peer to a client, and from the user to a server."""

    PROVISIONAL = "1xx"
    SUCCESS = "2xx"
    FAILURE = "3xx-6xx"
    REQUEST = "request again"
    ACK = "ACK"
    TRANSPORT_ERROR = "transport error"
    A = "A"  # send the INVITE again
    B = "B"  # the INVITE had no answer
    D = "D"  # end of the wait for retransmissions of a failure
    E = "E"  # send another request again
    F = "F"  # another request had no answer
    G = "G"  # send the failure of an INVITE again
    H = "H"  # the failure of an INVITE had no ACK
    I = "I"  # end of the wait for late ACKs  # noqa: E741 - the RFC's name
    J = "J"  # end of the wait for retransmissions of another request
    K = "K"  # end of the wait for retransmissions of a response
    L = "L"  # end of the wait for retransmissions of INVITE after a 2xx
    M = "M"  # end of the wait for late 2xx, including those of other forks


class Act(enum.Enum):
    """An action of a transition."""

    SEND = "send"  # send the message that the event brought
    REPEAT = "repeat"  # send the last message again, if there is one
    ACK = "ack"  # acknowledge the failure that came (section 17.1.1.3)
    DELIVER = "deliver"  # hand the message to the user
    TIMEOUT = "timeout"  # tell the user that no answer came
    BROKEN = "broken"  # tell the user that the transport failed


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """The table of one kind of transaction."""

    first: TransactionState
    transitions: Mapping[tuple[TransactionState, TransactionEvent], tuple[TransactionState, tuple[Act, ...]]]
    timers: Mapping[TransactionState, tuple[TransactionEvent, ...]]
    """The timers that run in each state. Entering a state starts its timers that do not run yet and stops all
    others."""


_C, _T, _P, _A = (
    TransactionState.CALLING,
    TransactionState.TRYING,
    TransactionState.PROCEEDING,
    TransactionState.ACCEPTED,
)
_D, _F, _X = TransactionState.COMPLETED, TransactionState.CONFIRMED, TransactionState.TERMINATED
_E = TransactionEvent

INVITE_CLIENT = Machine(
    _C,
    {
        (_C, _E.A): (_C, (Act.REPEAT,)),
        (_C, _E.B): (_X, (Act.TIMEOUT,)),
        (_C, _E.PROVISIONAL): (_P, (Act.DELIVER,)),
        (_P, _E.PROVISIONAL): (_P, (Act.DELIVER,)),
        **{(state, _E.SUCCESS): (_A, (Act.DELIVER,)) for state in (_C, _P, _A)},
        **{(state, _E.FAILURE): (_D, (Act.ACK, Act.DELIVER)) for state in (_C, _P)},
        (_D, _E.FAILURE): (_D, (Act.REPEAT,)),
        **{(state, _E.TRANSPORT_ERROR): (_X, (Act.BROKEN,)) for state in (_C, _P, _D)},
        (_A, _E.M): (_X, ()),
        (_D, _E.D): (_X, ()),
    },
    {_C: (_E.A, _E.B), _A: (_E.M,), _D: (_E.D,)},
)
"""RFC 3261 figure 5 with RFC 6026 section 7.2. A transport error in the accepted state is ignored."""

NON_INVITE_CLIENT = Machine(
    _T,
    {
        **{(state, _E.E): (state, (Act.REPEAT,)) for state in (_T, _P)},
        **{(state, _E.F): (_X, (Act.TIMEOUT,)) for state in (_T, _P)},
        **{(state, _E.TRANSPORT_ERROR): (_X, (Act.BROKEN,)) for state in (_T, _P)},
        **{(state, _E.PROVISIONAL): (_P, (Act.DELIVER,)) for state in (_T, _P)},
        **{(state, event): (_D, (Act.DELIVER,)) for state in (_T, _P) for event in (_E.SUCCESS, _E.FAILURE)},
        (_D, _E.K): (_X, ()),
    },
    {_T: (_E.E, _E.F), _P: (_E.E, _E.F), _D: (_E.K,)},
)
"""RFC 3261 figure 6."""

INVITE_SERVER = Machine(
    _P,
    {
        (_P, _E.REQUEST): (_P, (Act.REPEAT,)),
        (_P, _E.PROVISIONAL): (_P, (Act.SEND,)),
        (_P, _E.SUCCESS): (_A, (Act.SEND,)),
        (_P, _E.FAILURE): (_D, (Act.SEND,)),
        (_A, _E.SUCCESS): (_A, (Act.SEND,)),
        (_A, _E.ACK): (_A, (Act.DELIVER,)),
        (_A, _E.L): (_X, ()),
        (_D, _E.REQUEST): (_D, (Act.REPEAT,)),
        (_D, _E.G): (_D, (Act.REPEAT,)),
        (_D, _E.H): (_X, (Act.TIMEOUT,)),
        (_D, _E.ACK): (_F, ()),
        (_F, _E.I): (_X, ()),
        **{(state, _E.TRANSPORT_ERROR): (_X, (Act.BROKEN,)) for state in (_P, _D)},
        (_A, _E.TRANSPORT_ERROR): (_A, (Act.BROKEN,)),
    },
    {_A: (_E.L,), _D: (_E.G, _E.H), _F: (_E.I,)},
)
"""RFC 3261 figure 7 with RFC 6026 section 7.1: a retransmission of an accepted INVITE is absorbed silently."""

NON_INVITE_SERVER = Machine(
    _T,
    {
        (_T, _E.PROVISIONAL): (_P, (Act.SEND,)),
        (_P, _E.PROVISIONAL): (_P, (Act.SEND,)),
        (_P, _E.REQUEST): (_P, (Act.REPEAT,)),
        **{(state, event): (_D, (Act.SEND,)) for state in (_T, _P) for event in (_E.SUCCESS, _E.FAILURE)},
        (_D, _E.REQUEST): (_D, (Act.REPEAT,)),
        (_D, _E.J): (_X, ()),
        **{(state, _E.TRANSPORT_ERROR): (_X, (Act.BROKEN,)) for state in (_T, _P, _D)},
    },
    {_D: (_E.J,)},
)
"""RFC 3261 figure 8."""

_REPEATERS = frozenset({_E.A, _E.E, _E.G})
_NONE_ON_STREAMS = frozenset({_E.D, _E.I, _E.J, _E.K})
"""Timers that wait for retransmissions. A reliable transport has none, so these timers end at once there."""


@dataclass(frozen=True, slots=True)
class Key:
    """The identifier of a transaction (sections 17.1.3 and 17.2.3)."""

    branch: str
    method: str
    """The request's method. An ACK counts as INVITE."""
    sent_by: str
    """Host and port in the peer's Via. Empty: we sent the request."""

    @property
    def client(self) -> bool:
        """True if we sent the request."""
        return not self.sent_by


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the wire."""

    message: Request | Response
    peer: Hashable
    key: Key | None
    """The transaction to tell (``transport_failed``) if the message cannot be sent."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass the user a new request, a response, or the ACK of a 2xx.

    ``key`` is None for a message without a transaction: an ACK, or a response to an ended transaction.
    """

    key: Key | None
    message: Request | Response
    peer: Hashable


@dataclass(frozen=True, slots=True)
class TransactionFailed:
    """Tell the user that no answer came, which counts as 408, or that the transport broke, which counts as 503 (section
    8.1.3.1)."""

    key: Key
    reason: Act


Effect: TypeAlias = Send | Deliver | TransactionFailed


class _Transaction:
    __slots__ = ("key", "last", "machine", "peer", "pauses", "reliable", "request", "sent_again", "state", "timers")

    def __init__(self, key: Key, machine: Machine, request: Request, peer: Hashable, reliable: bool) -> None:
        self.key = key
        self.machine = machine
        self.state = machine.first
        self.request = request
        self.peer = peer
        self.reliable = reliable
        self.sent_again = False
        self.last: Request | Response | None = None
        """The last message sent, which is repeated."""
        self.timers: dict[TransactionEvent, float] = {}
        """The time at which each running timer is due, in monotonic seconds."""
        self.pauses: dict[TransactionEvent, float] = {}
        """The last pause of each retransmission timer, in seconds."""


class Transactions:
    """All transactions of one endpoint.

    The caller carries out the effects that a method returns, in order, and calls ``tick`` at ``next_due``.

    Args:
        limit: most transactions. At the limit, ``has_room`` returns False for new requests.
    """

    def __init__(self, timing: Timing = Timing(), *, limit: int = 20_000) -> None:  # noqa: B008 - frozen
        self._timing = timing
        self._limit = limit
        self._all: dict[Key, _Transaction] = {}
        self._heap: list[tuple[float, int, Key, TransactionEvent]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._all)

    def has_room(self, request: Request) -> bool:
        """Return True if a new request gets a transaction. If not, answer it with 503.

        Requests in dialogs have a limit that is 10 % higher, because they continue or end existing calls. A CANCEL
        always gets a transaction.
        """
        if request.method == "CANCEL":
            return True
        limit = self._limit * 11 // 10 if request.to.tag else self._limit
        return len(self._all) < limit

    @property
    def next_due(self) -> float | None:
        """The time of the next ``tick``, or None. It may be too early, if that timer was stopped."""
        return self._heap[0][0] if self._heap else None

    def state(self, key: Key) -> TransactionState:
        """Return the state of a transaction: TERMINATED for one that is gone."""
        found = self._all.get(key)
        return found.state if found else TransactionState.TERMINATED

    def sent(self, key: Key) -> tuple[Request, Hashable] | None:
        """Return a request that we sent, and its peer. None: its transaction is gone."""
        found = self._all.get(key)
        return (found.request, found.peer) if found else None

    def request(self, request: Request, peer: Hashable, *, reliable: bool, now: float) -> tuple[Key, list[Effect]]:
        """Send our request (not an ACK) in a new transaction.

        Raises:
            ValueError: the request is an ACK, or its branch is not ours or is in use.
        """
        key = key_of(request)
        if request.method == "ACK" or not key.branch.startswith(BRANCH_MAGIC) or key in self._all:
            raise ValueError(f"{request.method} with branch {key.branch!r}, expected a new {BRANCH_MAGIC} branch")
        machine = INVITE_CLIENT if request.method == "INVITE" else NON_INVITE_CLIENT
        transaction = _Transaction(key, machine, request, peer, reliable)
        transaction.last = request
        self._all[key] = transaction
        self._start_timers(transaction, now)
        return key, [Send(request, peer, key)]

    def respond(self, key: Key, response: Response, *, now: float) -> list[Effect]:
        """Answer a request. Nothing happens if it already has its final answer, but a 2xx may be repeated."""
        transaction = self._all.get(key)
        return self._step(transaction, _by_status(response.status), response, now) if transaction else []

    def received(self, message: Request | Response, peer: Hashable, *, reliable: bool, now: float) -> list[Effect]:
        """Handle a message from ``peer``. A new request other than ACK creates a transaction."""
        if isinstance(message, Response):
            key = Key(message.via.branch, message.cseq.method, "")
            transaction = self._all.get(key)
            if transaction is None:
                return [Deliver(None, message, peer)]
            return self._step(transaction, _by_status(message.status), message, now)
        key = server_key(message)
        transaction = self._all.get(key)
        if message.method == "ACK":
            if transaction is None:
                return [Deliver(None, message, peer)]
            return self._step(transaction, _E.ACK, message, now)
        if transaction is not None:
            return self._step(transaction, _E.REQUEST, message, now)
        machine = INVITE_SERVER if message.method == "INVITE" else NON_INVITE_SERVER
        self._all[key] = _Transaction(key, machine, message, peer, reliable)
        return [Deliver(key, message, peer)]

    def cancelled(self, cancel: Request) -> Key | None:
        """Return the INVITE that a received CANCEL is for (section 9.2), or None."""
        key = replace(server_key(cancel), method="INVITE")
        return key if key in self._all else None

    def forget(self, key: Key) -> None:
        """End a transaction without reporting it."""
        self._all.pop(key, None)

    def send_again(self, key: Key) -> list[Effect]:
        """Send our request again, once, if its connection is lost before any response. The connection may have been
        dead when the request was written, and the branch tells the peer if it has the request already."""
        transaction = self._all.get(key)
        if transaction is None or not transaction.reliable or transaction.sent_again:
            return []
        if transaction.state is not transaction.machine.first:
            return []
        transaction.sent_again = True
        return [Send(transaction.request, transaction.peer, key)]

    def transport_failed(self, key: Key, *, now: float) -> list[Effect]:
        """Handle a ``Send`` of this transaction that failed."""
        transaction = self._all.get(key)
        return self._step(transaction, _E.TRANSPORT_ERROR, None, now) if transaction else []

    def tick(self, now: float) -> list[Effect]:
        """Run every timer that is due."""
        effects: list[Effect] = []
        while self._heap and self._heap[0][0] <= now:
            due, _, key, timer = heapq.heappop(self._heap)
            transaction = self._all.get(key)
            if transaction is None or transaction.timers.get(timer) != due:
                continue  # the timer was stopped, or a new transaction uses the branch
            del transaction.timers[timer]
            effects += self._step(transaction, timer, None, now)
            if timer in _REPEATERS and key in self._all and timer in self._running(transaction):
                self._start(transaction, timer, now)
        return effects

    def _step(
        self, transaction: _Transaction, event: TransactionEvent, message: Request | Response | None, now: float
    ) -> list[Effect]:
        found = transaction.machine.transitions.get((transaction.state, event))
        if found is None:
            return []
        state, acts = found
        effects = [effect for act in acts for effect in self._act(transaction, act, message)]
        if state is not transaction.state:
            transaction.state = state
            effects += self._start_timers(transaction, now)
        return effects

    def _act(self, transaction: _Transaction, act: Act, message: Request | Response | None) -> Iterator[Effect]:
        if act in (Act.TIMEOUT, Act.BROKEN):
            yield TransactionFailed(transaction.key, act)
        elif act is Act.DELIVER:
            assert message
            yield Deliver(transaction.key, message, transaction.peer)
        else:
            if act is Act.SEND:
                transaction.last = message
            elif act is Act.ACK:
                assert isinstance(message, Response)
                transaction.last = failure_ack(transaction.request, message)
            if transaction.last:
                yield Send(transaction.last, transaction.peer, transaction.key)

    def _running(self, transaction: _Transaction) -> tuple[TransactionEvent, ...]:
        timers = transaction.machine.timers.get(transaction.state, ())
        return tuple(timer for timer in timers if not (transaction.reliable and timer in _REPEATERS))

    def _start_timers(self, transaction: _Transaction, now: float) -> list[Effect]:
        running = self._running(transaction)
        transaction.timers = {timer: due for timer, due in transaction.timers.items() if timer in running}
        if transaction.state is _X:
            del self._all[transaction.key]
        for timer in running:
            if transaction.reliable and timer in _NONE_ON_STREAMS:
                return self._step(transaction, timer, None, now)
            if timer not in transaction.timers:
                self._start(transaction, timer, now)
        return []

    def _start(self, transaction: _Transaction, timer: TransactionEvent, now: float) -> None:
        due = now + self._pause(transaction, timer)
        transaction.timers[timer] = due
        heapq.heappush(self._heap, (due, next(self._order), transaction.key, timer))

    def _pause(self, transaction: _Transaction, timer: TransactionEvent) -> float:
        timing = self._timing
        if timer in (_E.I, _E.K):
            return timing.t4
        if timer not in _REPEATERS:
            return 64 * timing.t1
        pause = 2 * transaction.pauses[timer] if timer in transaction.pauses else timing.t1
        if timer is not _E.A:
            pause = timing.t2 if transaction.state is _P else min(pause, timing.t2)
        transaction.pauses[timer] = pause
        return pause


def _by_status(status: int) -> TransactionEvent:
    return _E.PROVISIONAL if status < 200 else _E.SUCCESS if status < 300 else _E.FAILURE


def key_of(request: Request) -> Key:
    """Return the transaction of a request that we send."""
    return Key(request.via.branch, request.method, "")


def server_key(request: Request) -> Key:
    """Return the transaction that a received request belongs to (section 17.2.3).

    A branch without the magic cookie, or with nothing after it, comes from a peer of RFC 2543. Such a branch need not
    be unique, so the other values that identify the request become part of the key.
    """
    via = request.via
    method = "INVITE" if request.method == "ACK" else request.method
    branch = via.branch
    if not branch.startswith(BRANCH_MAGIC) or branch == BRANCH_MAGIC:
        # The To tag is left out, because the ACK has one and its INVITE had none.
        branch = f"{branch}|{request.call_id}|{request.from_.tag}|{request.cseq.number}|{request.uri}"
    return Key(branch, method, via.sent_by)


def failure_ack(invite: Request, failure: Response) -> Request:
    """Make the ACK of a 3xx to 6xx, for the same hop and with the same branch (section 17.1.1.3)."""
    headers = [("Via", str(invite.via))]
    headers += (("Route", route) for route in invite.headers.all("Route"))
    headers += [
        ("Max-Forwards", "70"),
        ("From", invite.headers.get("From") or ""),
        ("To", failure.headers.get("To") or ""),
        ("Call-ID", invite.call_id),
        ("CSeq", f"{invite.cseq.number} ACK"),
    ]
    return Request("ACK", invite.uri, Headers(headers))


def cancel_of(invite: Request) -> Request:
    """Make the CANCEL of our INVITE (section 9.1). It may be sent between a provisional and a final response."""
    headers = [("Via", str(invite.via))]
    headers += (("Route", route) for route in invite.headers.all("Route"))
    headers += [
        ("Max-Forwards", "70"),
        ("From", invite.headers.get("From") or ""),
        ("To", invite.headers.get("To") or ""),
        ("Call-ID", invite.call_id),
        ("CSeq", f"{invite.cseq.number} CANCEL"),
    ]
    return Request("CANCEL", invite.uri, Headers(headers))
