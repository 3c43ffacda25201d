"""What remains of a call when it is over: one value, which the call makes, the call log keeps and REST shows.

The names are those of REST. What was said, written and pressed is None where it is not kept (``calls.keep_text``).
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)

    atMs: int
    """Milliseconds after the call began."""


class Said(_Entry):
    """A turn of ours; ``atMs`` is when it was accepted."""

    kind: Literal["said"] = "said"
    turn: str
    what: Literal["text", "play", "digits"]
    text: str | None
    """All text of the turn, whether it was heard or not."""
    heardChars: int
    """How much of the text the caller heard, the word under way included."""
    startedMs: int | None
    """When its first audible frame left. None: it was never heard."""
    endedMs: int
    outcome: Literal["finished", "interrupted", "failed"]
    reason: str
    """Who cut it (``speech``, ``dtmf``, ``cancel``, ``preempted``, ...). Empty: nobody."""
    firstPacketMs: float | None
    """How long the caller waited for it. None: nobody waited, since it followed another turn, or it was never heard."""
    stagesMs: dict[str, float]
    """What that wait was made of."""
    gaps: int
    """How often the caller heard nothing in the middle of it, and for how long in all."""
    gapMs: int


class Heard(_Entry):
    """What the caller said, when the manager was told."""

    kind: Literal["heard"] = "heard"
    text: str | None
    lang: str


class Pressed(_Entry):
    """The caller pressed a key."""

    kind: Literal["pressed"] = "pressed"
    digit: str | None


class Fault(_Entry):
    """The manager was told of an error."""

    kind: Literal["fault"] = "fault"
    code: str
    description: str | None


class Listened(_Entry):
    """Somebody began to listen in to the call, or stopped. Whoever is still there at the end leaves with the call."""

    kind: Literal["listened"] = "listened"
    by: str
    """The tenant of the key."""
    event: Literal["joined", "left"]


Entry = Annotated[Said | Heard | Pressed | Fault | Listened, Field(discriminator="kind")]


class CallSummary(BaseModel):
    """An ended call without what was said in it."""

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
    """Why it ended, as ``ended`` told the manager."""
    outcome: Literal["completed", "failed"]
    """``failed``: a fault of ours ended it, or no dialogue manager could be had (reason ``dialogue_failed``)."""
    turns: int
    """Turns of ours that were heard."""
    gaps: int
    gapMs: int
    firstPacketMs: float | None
    """The longest wait for a first packet. None: nobody waited."""


class CallRecord(CallSummary):
    """An ended call, whole."""

    entries: list[Entry]
    """In the order of ``atMs``."""
    entriesLost: int
    """Entries beyond the bound of a call, which were not kept."""


class CallLogSink(Protocol):
    """Takes the record of each call that ends."""

    keeps_text: bool

    def add(self, record: CallRecord) -> None:
        """Keep a record. It never blocks and never raises: a full queue or disk costs the record, and nothing else."""
        ...
