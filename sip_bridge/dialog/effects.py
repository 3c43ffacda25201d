"""The effects that a call's protocol requests. The protocol's owner carries them out in order. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.originate import AttemptState
from sip_bridge.dialog.transaction import Key
from sip_bridge.local import Peer
from sip_bridge.message.referral import Referral
from sip_bridge.message.sdp import Agreed
from sip_bridge.message.sip import Request, Response, Uri


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer a request. Sending a 2xx again repeats it."""

    key: Key
    response: Response


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request in a new transaction. Its responses go to ``on_response``."""

    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Invite:
    """Send an INVITE outside dialogs. Responses of all its forks go to ``on_response``, until ``Settled``."""

    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Post:
    """Send a request in a new transaction, and ignore its outcome."""

    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Send an ACK outside transactions."""

    ack: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Settled:
    """An INVITE has its final answer, or is cancelled."""

    key: Key
    more: bool
    """True: answers of other forks may still come, for 64*T1 (RFC 3261 section 13.2.2.4)."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The dialog exists. Requests in it go to ``on_request``."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Make the session, and call ``begun`` or ``not_begun``."""


@dataclass(frozen=True, slots=True)
class MediaAgreed:
    """Send media as agreed, and tell the session whether the call is on hold."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Waits:
    """Put the session on hold, since its audio is not wanted before the answer."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A touch tone came in a message."""

    digit: str


@dataclass(frozen=True, slots=True)
class PartyNamed:
    """The peer has named the party that is connected now, which may be the same as before."""

    number: str
    name: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Place the call that the peer requested, and report the outcome to ``tell_referred``."""

    referral: Referral


@dataclass(frozen=True, slots=True)
class Transferred:
    """A transfer has ended. An empty problem means success."""

    problem: str
    status: int = 0
    """Status with which the peer refused the REFER. 408: it did not answer, or told no outcome in time."""


@dataclass(frozen=True, slots=True)
class ReferOutcome:
    """Count a REFER."""

    direction: ReferDirection
    outcome: str
    """For one that was sent: completed, failed (the target was not reached), refused, unanswered, or unknown (the call
    ended before). For one that came: accepted or refused."""


@dataclass(frozen=True, slots=True)
class Progress:
    """An outgoing call has made progress."""

    state: AttemptState
    status: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final result of an outgoing INVITE."""

    status: int
    """200, or the status of the failure."""
    reason: str = ""
    """The cause of the failure, in one word."""
    elsewhere: tuple[Uri, ...] = ()
    """The Contacts of a 3xx, best first."""
    retry_after_s: float = 0.0
    """Retry-After of a 503."""
    cause: EndCause = UNKNOWN
    """The cause of the failure, as far as the messages show it."""


@dataclass(frozen=True, slots=True)
class Silence:
    """End the call for the session and the media."""

    reason: str
    cause: EndCause = UNKNOWN


@dataclass(frozen=True, slots=True)
class Left:
    """The call is over. Only answers to its last requests may still come."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Write a line to the log."""

    what: str
    why: str = ""


ReferDirection: TypeAlias = Literal["sent", "received"]

Effect: TypeAlias = (
    Respond
    | Ask
    | Invite
    | Post
    | Acknowledge
    | Settled
    | Joined
    | Begin
    | MediaAgreed
    | Waits
    | Digit
    | PartyNamed
    | Follow
    | Transferred
    | ReferOutcome
    | Progress
    | Outcome
    | Silence
    | Left
    | Trouble
)
