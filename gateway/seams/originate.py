"""The seam to a part that places calls: the gateway orders a call and can query its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gateway.seams.calling import Allowance
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.messages import Outbound, ProgressEvent

AttemptState = Literal["calling", "ringing", "early_media", "answered", "failed"]

FINAL_EVENTS: frozenset[ProgressEvent] = frozenset({"busy", "noAnswer", "failed", "canceled", "completed"})
"""Events after which nothing follows."""


def _nothing() -> None:
    """Do nothing: nothing was counted."""


def no_progress(_attempt: Attempt) -> None:
    """Do nothing: no one follows the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressStep:
    """One event of a placed call."""

    event: ProgressEvent
    sip_status: int | None = None
    """SIP status of the network. None: unknown."""
    code: str = ""
    """The carrier's code."""
    at: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondLeg:
    """The part of an order that makes it the second leg of a call."""

    joined_to: str
    """Id of the first leg's call."""
    shown_number: str = ""
    """The caller's number, for From and P-Asserted-Identity (RFC 3325). Empty: the trunk's own identity."""
    shown_name: str = ""
    diverted_from: str = ""
    """The number that the caller called, for Diversion (RFC 5806). Empty: no Diversion."""
    own_number: str = ""
    """Our number in the first call, for a carrier that needs a caller id."""
    by_operator: bool = False
    """True: the operator configured the target, so no list needs to allow it; a denied target is refused."""
    on_progress: Callable[[Attempt], None] = no_progress
    """Called after each change of the attempt's state, on the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrder:
    """An order to place a call."""

    target: str
    """SIP URI or number."""
    route: str = "default"
    """Route of the call once it is answered."""
    from_: str = ""
    """Caller id: a SIP URI or a number. Empty: the trunk's own From."""
    trunk: str = ""
    """Name of the trunk that carries the call. Empty: the trunk that leads to ``target``."""
    carrier: str = ""
    """Name of the carrier that places the call by its REST interface. Empty: the call is placed by SIP."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Additional headers for the peer."""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    """Custom parameters for the dialogue manager."""
    parent_call_sid: str = ""
    """``callSid`` of the call whose peer asked for this one. Empty: no peer asked for it."""
    allowance: Allowance | None = None
    """Allowance of the key that ordered the call. None: no key ordered it."""
    second_leg: SecondLeg | None = None
    """Set for a call that is to be joined with another one."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A placed call. It is kept until it is answered, and for some time after a failure so that it can be queried."""

    call_id: str
    """Id of the session that the attempt becomes."""
    route: str
    state: AttemptState = "calling"
    status: int = 0
    """SIP status code of the peer's last answer; 0: none yet."""
    reason: str = ""
    """Reason of a failure: ``busy``, ``no_answer``, ``declined``, ``not_found`` ... ``cancelled``."""
    cause: EndCause = UNKNOWN
    """The cause of a failure."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    begun: float = field(default_factory=time.monotonic)
    """The same moment in monotonic seconds, from which times are measured."""
    transport: str = "sip"
    """``sip``, or the carrier's name."""
    call_sid: str = ""
    """The carrier's id of the call, once it is known."""
    to: str = ""
    from_: str = ""
    custom_parameters: Mapping[str, str] = field(default_factory=dict)
    token_id: bytes = b""
    """Id of the token of the call's stream. Empty: it has no stream of a carrier."""
    events: list[ProgressStep] = field(default_factory=list)
    """The progress so far, at most ``gateway.placing.progress.EVENTS``."""
    over: Callable[[], None] = _nothing
    """Called once when the call is over."""
    joined_to: str = ""
    """Id of the call for whose caller this one is placed. Empty: this is no second leg."""
    on_progress: Callable[[Attempt], None] = no_progress
    """Called after each change of the state of a second leg at a carrier."""


class PlacedCalls(Protocol):
    """The placed calls, as a session sees them."""

    def begun(self, call_id: str, tell: Callable[[Outbound], None]) -> None:
        """The session of a call exists. If the call was placed, ``tell`` gets its events so far, and the later
        ones."""
        ...

    def over(self, call_id: str, cause: EndCause) -> None:
        """The session of a call is about to end."""
        ...


class FollowPlaced(Protocol):
    """The placed calls, as the part sees them that places calls."""

    def add(self, attempt: Attempt) -> None:
        """Follow a placed call from now on."""
        ...

    def tell(self, attempt: Attempt, event: ProgressEvent, *, sip_status: int | None = None, code: str = "") -> bool:
        """Report an event. False: it says nothing new."""
        ...


class NoPlacedCalls:
    """No call was placed."""

    def begun(self, call_id: str, tell: Callable[[Outbound], None]) -> None:
        """Do nothing: the call was not placed."""

    def over(self, call_id: str, cause: EndCause) -> None:
        """Do nothing: the call was not placed."""

    def add(self, attempt: Attempt) -> None:
        """Do nothing: no one wants to know."""

    def tell(self, attempt: Attempt, event: ProgressEvent, *, sip_status: int | None = None, code: str = "") -> bool:
        """Return True; no one wants to know."""
        return True


class Originator(Protocol):
    """Places calls."""

    async def place(self, order: CallOrder) -> Attempt:
        """Start a call. Returns at once; the attempt continues in the background.

        Raises:
            Rejected: 403 if the target, caller id or a header is not allowed; 422 if the target cannot be read; 404 if
                the route or trunk is unknown; 429 if the key or the route has too many calls; 503 if there is no room
                for a call, no free port or no trunk that leads to the target.
        """
        ...

    def attempt(self, call_id: str) -> Attempt | None:
        """Return a placed call. None: the id is unknown, or the call was answered and is a session."""
        ...

    def under_way(self) -> list[Attempt]:
        """Return the placed calls that are neither answered nor given up."""
        ...

    def cancel(self, call_id: str) -> bool:
        """Give up a call that is not answered yet. False: there is no such call."""
        ...
