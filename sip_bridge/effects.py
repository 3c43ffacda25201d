"""What the protocol of a call wants done; whoever owns it carries that out in order. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gateway.seams.originate import AttemptState
from sip_bridge.local import Peer
from sip_bridge.message.sdp import Agreed
from sip_bridge.message.sip import Request, Response, Uri
from sip_bridge.transaction import Key


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer a request; a 2xx may come again, which repeats it."""

    key: Key
    response: Response


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request in a new transaction, whose responses are for ``on_response``."""

    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Invite:
    """Send an INVITE outside dialogs. Responses of several forks are for ``on_response``, until ``Settled``."""

    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Post:
    """Send a request in a new transaction whose outcome matters to nobody."""

    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Send an ACK, outside transactions."""

    ack: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Settled:
    """An INVITE has its final answer, or is cancelled."""

    key: Key
    more: bool
    """Answers of other forks may come, for 64*T1 (RFC 3261 section 13.2.2.4)."""


@dataclass(frozen=True, slots=True)
class Joined:
    """There is a dialog: requests in it are for ``on_request``."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Make the session, and tell ``begun`` or ``not_begun``."""


@dataclass(frozen=True, slots=True)
class MediaAgreed:
    """Offer and answer are complete: media goes where they say, and the session knows whether it is heard."""

    agreed: Agreed


@dataclass(frozen=True, slots=True)
class Waits:
    """The session waits: nobody is meant to hear it before the answer."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A key that came in a message."""

    digit: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Place the call that the peer asks for, and tell the outcome to ``tell_referred``."""

    target: Uri


@dataclass(frozen=True, slots=True)
class Transferred:
    """A transfer has ended; empty: as it should."""

    problem: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A call of ours goes on."""

    state: AttemptState
    status: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an INVITE of ours ended."""

    status: int
    """200, or why not."""
    reason: str = ""
    """In a word, where it was not answered."""
    elsewhere: tuple[Uri, ...] = ()
    """Contacts of a 3xx, best first."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The call is over for the session and the media."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing but answers to the last requests comes any more."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """For the log."""

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
