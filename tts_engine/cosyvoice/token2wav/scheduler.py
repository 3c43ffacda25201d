"""Who runs next in the token-to-wave thread, and who is let in. Pure: time and demand come in, a decision goes out.

A job makes one chunk (25 tokens, a second of sound) of one clause. Jobs of the same shape run as one batch. Thanks to
the caches a chunk costs the same wherever in the clause it lies, so hops do not grow: a larger hop would only make
the sound come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Shape = Literal["chunk", "whole"]
"""``chunk``: one chunk on top of what is cached; ``whole``: the last one, by way of everything before it."""

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Batch sizes and bounds."""

    chunk_rows: int = 16
    """Clauses of a batch of chunks. Costs 28 ms against 12 alone on an H200."""
    burst_rows: int = 32
    """The same while three quarters of so many are awaited, as when many begin at once. Costs 48 ms."""
    calm_rows: int = 8
    """The same while none of them is short of sound: a first chunk that arrives meanwhile waits for half as long."""
    calm_s: float = 1.0
    """Seconds of sound in hand above which a clause is not short."""
    whole_rows: int = 2
    """Clauses of a batch of last chunks that are made by way of everything."""
    tight_s: float = 0.1
    """Seconds of sound in hand below which a clause goes level with the first chunks."""
    patient_s: float = 0.3
    """Seconds of sound in hand above which last chunks let first ones go between their stages: each may take 40 ms."""
    max_clauses: int = 200
    """Clauses in the engine; one more is refused, so that those who are in keep their quality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[Owner]):
    """A job that could run now."""

    owner: Owner
    shape: Shape
    slack_s: float
    """Seconds until the caller hears silence; 0 for a first chunk that somebody waits for."""
    since: float
    """Monotonic second at which the job was handed in."""


def choose(candidates: Iterable[Candidate[Owner]], config: SchedulerConfig) -> Sequence[Candidate[Owner]]:
    """The next batch: all of one shape, most urgent first; empty when there is nothing to do.

    First chunks and clauses about to run dry come before all, in the order in which they came; then least slack. Those
    who are not awaited must not make the batch of those who are longer: they fill it up to a power of two, as it runs.
    """

    def urgency(c: Candidate[Owner]) -> float:
        return c.slack_s if c.slack_s > config.tight_s else 0.0

    ranked = sorted(candidates, key=lambda c: (urgency(c), c.since))
    if not ranked:
        return []
    leader = ranked[0]
    rows = config.whole_rows
    if leader.shape == "chunk":
        rows = config.calm_rows if leader.slack_s > config.calm_s else config.chunk_rows
    alike = [c for c in ranked if c.shape == leader.shape]
    if awaited := sum(urgency(c) == 0 for c in alike):
        if leader.shape == "chunk" and awaited >= 0.75 * config.burst_rows:
            rows = config.burst_rows
        rows = min(rows, 1 << (awaited - 1).bit_length())
    return alike[:rows]


Urgency = tuple[float, int]
"""Seconds of sound in hand, then the number by which clauses came: smaller is more urgent."""


def victim(holders: Sequence[tuple[Owner, Urgency]], needy: Urgency) -> Owner | None:
    """Whose cache to drop when none is free: the least urgent clause, if it is less urgent than who needs it.

    It is computed again from the voice prompt on when its turn comes, with the same result. The most urgent clause of
    all can always go on, so the engine never stands still.
    """
    if not holders:
        return None
    owner, urgency = max(holders, key=lambda pair: pair[1])
    return owner if urgency > needy else None
