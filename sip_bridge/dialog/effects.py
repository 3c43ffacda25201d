"""What the protocol of a call wants done. The owner of the protocol carries the effects out in order. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gateway.seams.originate import AttemptState
from sip_bridge.dialog.transaction import Key
from sip_bridge.local import Peer
from sip_bridge.message.sdp import Agreed
from sip_bridge.message.sip import Request, Response, Uri


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer a request. A 2xx may come again, which repeats it."""

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
    """Send a request in a new transaction. Its outcome matters to nobody."""

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
    """There is a dialog. Requests in it go to ``on_request``."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Make the session, and call ``begun`` or ``not_begun``."""


@dataclass(frozen=True, slots=True)
class MediaAgreed:
    """Send media where the complete offer and answer say, and tell the session whether it is heard."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Waits:
    """Tell the session to wait, since nobody is meant to hear it before the answer."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A touch tone came in a message."""

    digit: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Place the call that the peer asks for, and tell the outcome to ``tell_referred``."""

    target: Uri


@dataclass(frozen=True, slots=True)
class Transferred:
    """A transfer has ended. An empty problem means success."""

    problem: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A call of ours has made progress."""

    state: AttemptState
    status: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an INVITE of ours ended."""

    status: int
    """200, or the status that says why the call was not answered."""
    reason: str = ""
    """Why the call was not answered, in one word."""
    elsewhere: tuple[Uri, ...] = ()
    """The Contacts of a 3xx, best first."""


@dataclass(frozen=True, slots=True)
class Silence:
    """End the call for the session and the media."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Only answers to the last requests of the call may still come."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Write to the log."""

    what: str
    why: str = ""


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
    | Follow
    | Transferred
    | Progress
    | Outcome
    | Silence
    | Left
    | Trouble
)
