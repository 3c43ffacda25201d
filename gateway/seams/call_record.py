"""The record of an ended call: the call makes it, the call log stores it, REST shows it.

The names are those of REST. Spoken, written and pressed text is None if it is not kept (``calls.keep_text``).
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from gateway.seams.end_cause import EndedBy
from gateway.seams.messages import AnsweredBy, ProgressEvent


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)

    atMs: int
    """Milliseconds after the start of the call."""


class Said(_Entry):
    """A turn of the bot; ``atMs`` is when it was accepted."""

    kind: Literal["said"] = "said"
    turn: str
    what: Literal["text", "play", "digits"]
    text: str | None
    """All text of the turn, heard or not."""
    heardChars: int
    """Characters that the caller heard, including the last word that began."""
    startedMs: int | None
    """Time at which its first audible frame left. None: it was never heard."""
    endedMs: int
    outcome: Literal["finished", "interrupted", "failed"]
    reason: str
    """Cause of the cut (``speech``, ``dtmf``, ``cancel``, ``preempted``, ...). Empty: it was not cut."""
    callerStoppedMs: int | None = None
    """Time at which the caller had stopped speaking, or pressed a key, before this turn. ``startedMs`` less this is the
    silence that the caller waited through. None: another turn was heard between, or the caller had said nothing."""
    firstPacketMs: float | None
    """The part of the caller's wait that this server caused. None: the turn followed another without silence, or was
    never heard."""
    stagesMs: dict[str, float]
    """Stages of that wait."""
    gaps: int
    """Number of silences inside the turn; ``gapMs``: their total length."""
    gapMs: int


class HeardWords(_Entry):
    """Words of the caller, at the time at which the manager received them."""

    kind: Literal["heard"] = "heard"
    text: str | None
    lang: str
    typedBy: str | None = None
    """The tenant whose client typed the words in the caller's place. None: the caller said them."""


class Pressed(_Entry):
    """A key that the caller pressed."""

    kind: Literal["pressed"] = "pressed"
    digit: str | None


class Fault(_Entry):
    """An error that was reported to the manager."""

    kind: Literal["fault"] = "fault"
    code: str
    description: str | None


class Progressed(_Entry):
    """The progress of a placed call. Events before the answer stand at the start of an answered call."""

    kind: Literal["call"] = "call"
    event: ProgressEvent
    sipStatus: int | None = None
    code: str = ""
    """The carrier's code."""


class WhoAnswered(_Entry):
    """A verdict on who or what has answered an outgoing call, as in the message ``answered``."""

    kind: Literal["answered"] = "answered"
    by: AnsweredBy
    confidence: float
    text: str | None
    waiting: bool


class Listened(_Entry):
    """A client began to listen in to the call, or stopped. The end of the call ends every listener."""

    kind: Literal["listened"] = "listened"
    by: str
    """The tenant of the client's key."""
    event: Literal["joined", "left"]


SupervisorEvent = Literal["listen", "whisper", "join", "takeover", "left", "failed"]
"""A mode of a supervisor that begins, the end of their leg, or that they were not reached."""


class SupervisorMoved(_Entry):
    """A supervisor's leg came into the call, changed its mode, or left."""

    kind: Literal["supervised"] = "supervised"
    by: str
    """The tenant of the key that asked for it."""
    leg: str
    """The leg's session id."""
    event: SupervisorEvent


Entry = Annotated[
    Said | HeardWords | Pressed | Fault | Progressed | WhoAnswered | Listened | SupervisorMoved,
    Field(discriminator="kind"),
]


class CallSummary(BaseModel):
    """An ended call without its entries."""

    model_config = ConfigDict(frozen=True)

    callId: str
    callSid: str
    route: str
    transport: str
    direction: str
    from_: str = Field(serialization_alias="from")
    to: str
    startedAt: float
    """Seconds since the epoch."""
    durationMs: int
    reason: str
    """Reason of the end, as in ``ended``."""
    endedBy: EndedBy | None = None
    """The party that ended the call, as ``by`` in ``ended``. None, here and below: unknown."""
    sipStatus: int | None = None
    q850: int | None = None
    endText: str | None = None
    """The network's text, as ``text`` in ``ended``."""
    correlationId: str | None = None
    """The id that the legs of a joined call share: that of the first leg's call. None: an old record."""
    answeredBy: AnsweredBy | None = None
    """The last verdict on who or what answered an outgoing call, as in the message ``answered``. None: there was
    none."""
    outcome: Literal["completed", "failed", "unanswered"]
    """``failed``: an internal error ended the call, or no dialogue manager was available (reason
    ``dialogue_failed``). ``unanswered``: the call was placed, and no one answered."""
    turns: int
    """Turns that the caller heard."""
    gaps: int
    gapMs: int
    firstPacketMs: float | None
    """The longest wait for a first packet. None: no turn was waited for."""


class CallRecord(CallSummary):
    """An ended call with its entries."""

    entries: list[Entry]
    """Sorted by ``atMs``."""
    entriesLost: int
    """Number of entries that were not kept because the call had too many."""


class CallLogSink(Protocol):
    """Receiver of the record of each ended call."""

    keeps_text: bool

    def add(self, record: CallRecord) -> None:
        """Queue a record. Never blocks and never raises: a full queue or disk loses the record, nothing else."""
        ...
