"""The queue of turns that wait for a place in the voice model. It decides which turn asks next and which is refused.

Only the model knows if it has a place. So the next turn asks it. If the model refuses, no turn asks for the next 10 ms,
or until a clause ends. While turns wait, a new turn queues in this order:

1. turns that are being heard already. They are never refused, since the caller would lose half a sentence;
2. turns by priority, and among equals by arrival;
3. turns that are made ahead.

One place of ``FAIR_EVERY`` goes to the turn that has waited for the longest time, whatever its priority. So turns of
low priority are slowed down by others and do not starve. A clause that is being made for another turn needs no place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tts_engine.errors import Exhausted
from tts_engine.synthesizer import Playhead

_ASK_S = 0.01
"""Time between two questions to a model that has refused, seconds. Other threads free places without telling us."""

_ANSWER_S = 0.005
"""Time from a question to the next one while there is no answer, seconds. A model in its own process answers within a
millisecond. Without this pause, all waiting turns would ask before the first answer came."""

_PACE_TURNS = 32
"""The pace of places is that of so many turns."""

_LONGEST_LINE_S = 10.0
"""Most seconds that the turns that wait add to the time after which a refused one shall ask again."""

Outcome = Literal["admitted", "refused", "cancelled"]
Reason = Literal["waited", "queue_full", "at_once"]
"""Reason for a refusal. ``waited``: the turn had waited for ``wait_ms``. ``queue_full``: ``MOST_WAITING`` turns waited
already, and none of lower rank. ``at_once``: its client asked not to wait, because it has other engines."""


FAIR_EVERY = 8
"""One place in this many goes to the turn that has waited longest, all others go by priority. So no turn waits for
ever."""


MOST_WAITING = 256
"""Most turns that wait at once. One more is refused, or replaces a waiting turn of lower priority. They wait half a
second by default, and no engine makes so many places in that time."""


class AdmissionConfig(BaseModel):
    """The queue of turns for which the voice model has no place."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    wait_ms: float = Field(default=500, ge=0, le=60_000)
    """Longest wait of a turn for a place, milliseconds; then the turn is refused. More refuses fewer turns, but more
    callers hear silence first. 0 refuses at once."""


class AdmissionObserver(Protocol):
    """Receives the figures of waiting turns. Its methods are called on the event loop and must not block."""

    def admission(self, seconds: float, outcome: Outcome) -> None:
        """Take the time for which a turn waited for a place, and the outcome."""
        ...

    def waiting(self, turns: int) -> None:
        """Take the number of turns that wait now."""
        ...

    def refused(self, reason: Reason) -> None:
        """Note that a turn was refused."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """A turn's place in the queue, for one clause."""

    playhead: Playhead
    key: Hashable
    """Names the clause, see ``AdmissionQueue.begun``. None: the clause cannot be shared."""
    heard: bool
    """True if the turn is being heard already."""
    came: float
    """Time of the event loop at which the turn came, seconds. A model in another process refuses later."""
    at_once: bool = False
    """True: refuse the turn at once instead of letting it wait."""
    since: float | None = None
    """Time of the event loop since which a caller waits for a place, seconds. None: the turn has not queued."""
    number: int = 0
    """Number of the ticket, in the order in which tickets first queue."""
    asked_at: float = 0.0
    """Time at which the turn was last allowed to ask the model."""
    go: asyncio.Future[None] | None = None
    """Set when the turn may ask the model, or look for its clause."""

    @property
    def rank(self) -> tuple[int, int, float, int]:
        """Sort key; the lowest goes first."""
        assert self.since is not None
        group = 0 if self.heard else 2 if self.playhead.ahead else 1
        return group, -self.playhead.priority, self.since, self.number


class AdmissionQueue:
    """The queue of one engine. Its timer runs only while a turn waits."""

    def __init__(self, config: AdmissionConfig, observer: AdmissionObserver | None = None) -> None:
        self._config, self._observer = config, observer
        self._waiting: list[Ticket] = []
        self._asking: set[Ticket] = set()
        """Turns that may ask now, but whose task has not run yet."""
        self._numbered = self._granted = 0
        self._next: asyncio.Handle | None = None
        self._refusal = Exhausted("no place is free", retry_after_s=1.0)
        """The model's latest refusal."""
        self._admitted_at: deque[float] = deque(maxlen=_PACE_TURNS)
        """Times at which the latest waiting turns got their places."""

    def __len__(self) -> int:
        """Number of turns that a new one has to wait for."""
        return len(self._waiting) + len(self._asking)

    async def wait(self, ticket: Ticket) -> None:
        """Return when the turn may ask the model for a place, or when its clause is being made for another turn.

        Raises:
            Exhausted: the turn has waited too long, or there is no room to wait.
        """
        loop = asyncio.get_running_loop()
        if ticket.since is None:
            self._numbered += 1
            ticket.since, ticket.number = ticket.came, self._numbered
        self._make_room(ticket)
        ticket.go = loop.create_future()
        self._waiting.append(ticket)
        self._count()
        if self._next is None:
            self._next = loop.call_later(_ASK_S, self._ask)
        outcome: Outcome = "cancelled"
        try:
            await ticket.go
            outcome = "admitted"
        except Exhausted:
            outcome = "refused"
            raise
        finally:
            self._asking.discard(ticket)
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._count()
            if self._observer is not None and outcome != "admitted":
                self._observer.admission(loop.time() - ticket.since, outcome)

    def admitted(self, ticket: Ticket) -> None:
        """Note that the model has taken a turn that has waited."""
        if ticket.since is None:
            return
        self._admitted_at.append(asyncio.get_running_loop().time())
        if self._observer is not None:
            self._observer.admission(ticket.asked_at - ticket.since, "admitted")

    def refused(self, ticket: Ticket, refusal: Exhausted) -> None:
        """Note that the model has refused the turn. Call ``wait`` next.

        Raises:
            Exhausted: the turn does not wait any longer.
        """
        loop = asyncio.get_running_loop()
        self._refusal = refusal
        if self._next is not None:
            self._next.cancel()
        self._next = loop.call_later(_ASK_S, self._ask)
        if ticket.since is not None:
            self._granted -= 1
        may_wait = self._config.wait_ms > 0 or ticket.heard or ticket.playhead.ahead
        if ticket.at_once or not may_wait:
            raise self._told("at_once" if ticket.at_once else "waited", str(refusal))

    def ask_soon(self) -> None:
        """Note that there may be a place: a clause has ended, or the turn that asked has got a place, so there may be
        more."""
        if self._waiting:
            if self._next is not None:
                self._next.cancel()
            self._next = asyncio.get_running_loop().call_soon(self._ask)

    def begun(self, key: Hashable) -> None:
        """Note that a clause is being made. Waiting turns with the same clause can follow it now. None: no turn can."""
        if key is None:
            return
        for ticket in [ticket for ticket in self._waiting if ticket.key == key]:
            self._let_go(ticket)

    # -- asking

    def _ask(self) -> None:
        """Let the next turn ask the model, and the ones after it later, until one is refused."""
        self._next = None
        loop = asyncio.get_running_loop()
        self._expire(loop.time())
        if self._waiting:
            first = min(self._waiting, key=lambda ticket: ticket.rank)
            if (self._granted + 1) % FAIR_EVERY == 0 and first.rank[0] == 1:
                awaited = (ticket for ticket in self._waiting if ticket.rank[0] == 1)
                first = min(awaited, key=lambda ticket: (ticket.since, ticket.number))
            # Turns with the same clause will follow it, and do not ask the model.
            alike = [other for other in self._waiting if other.key == first.key is not None and other is not first]
            for ticket in (first, *alike):
                self._granted += 1
                self._let_go(ticket)
                self._asking.add(ticket)
            # The turn's task asks meanwhile. ``refused`` puts the next question off, ``ask_soon`` has it asked at once.
            self._next = loop.call_later(_ANSWER_S, self._ask)

    def _let_go(self, ticket: Ticket) -> None:
        self._waiting.remove(ticket)
        ticket.asked_at = asyncio.get_running_loop().time()
        if ticket.go is not None and not ticket.go.done():
            ticket.go.set_result(None)

    # -- refusing

    def _expire(self, now: float) -> None:
        longest_s = self._config.wait_ms / 1e3
        for ticket in list(self._waiting):
            if ticket.playhead.ahead:
                ticket.since = now  # the wait counts from the moment at which the caller hears silence
            elif not ticket.heard and ticket.since is not None and now - ticket.since >= longest_s:
                why = f"waited {self._config.wait_ms:g} ms for a place (engine.speech.admission.wait_ms)"
                self._refuse(ticket, self._told("waited", f"{why}: {self._refusal}"))

    def _make_room(self, ticket: Ticket) -> None:
        """Make room for one more waiting turn."""
        if ticket.at_once:
            raise self._told("at_once", f"{len(self)} turns wait for a place: {self._refusal}")
        others = [other for other in self._waiting if not other.heard]
        if ticket.heard or len(others) < MOST_WAITING:
            return
        full = f"{len(others)} turns wait for a place, as many as may: {self._refusal}"
        error = self._told("queue_full", full)
        last = max(others, key=lambda other: other.rank, default=ticket)
        if last.rank <= ticket.rank:
            raise error
        self._refuse(last, error)

    def _refuse(self, ticket: Ticket, error: Exhausted) -> None:
        self._waiting.remove(ticket)
        if ticket.go is not None and not ticket.go.done():
            ticket.go.set_exception(error)

    def _told(self, reason: Reason, message: str) -> Exhausted:
        if self._observer is not None:
            self._observer.refused(reason)
        return Exhausted(message, retry_after_s=self._refusal.retry_after_s + self._line_s())

    def _line_s(self) -> float:
        """Return the seconds in which the turns that wait now will get their places, at the recent pace. 0: no turn
        has waited before."""
        times = self._admitted_at
        if len(times) < 2:
            return 0.0
        pace_s = (asyncio.get_running_loop().time() - times[0]) / len(times)
        return min(len(self) * pace_s, _LONGEST_LINE_S)

    def _count(self) -> None:
        if self._observer is not None:
            self._observer.waiting(len(self._waiting))
