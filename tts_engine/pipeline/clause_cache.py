"""Remembers spoken clauses, so that greetings and prompts cost nothing the second time. An LRU cache, bounded in bytes.
The configuration's prompts are never dropped from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_engine.synthesizer import WordSpan


@dataclass(frozen=True, slots=True)
class SpokenClause:
    """A clause as it is heard: without silence at its ends, at the synthesizer's rate."""

    pcm: NDArray[np.float32]
    words: Sequence[WordSpan]


_KEPT_SHARE = 0.5
"""Largest share of the cache that prompts may take. The rest is for clauses of calls."""


class ClauseCache:
    """The cache. The least recently used clauses are dropped if there are more than ``max_bytes`` of sound."""

    def __init__(self, max_bytes: int) -> None:
        """
        Args:
            max_bytes: most bytes of samples, 4 bytes each. 0: nothing is kept.
        """
        self.max_bytes = max_bytes
        self.bytes = 0
        self._clauses: OrderedDict[Hashable, SpokenClause] = OrderedDict()
        self._kept: dict[Hashable, SpokenClause] = {}
        self._kept_bytes = 0

    def get(self, key: Hashable) -> SpokenClause | None:
        """Return the clause of that key and mark it as the most recently used one."""
        if (kept := self._kept.get(key)) is not None:
            return kept
        clause = self._clauses.get(key)
        if clause is not None:
            self._clauses.move_to_end(key)
        return clause

    def put(self, key: Hashable, clause: SpokenClause) -> None:
        """Keep a clause, unless it is larger than the bound."""
        if clause.pcm.nbytes > self.max_bytes or key in self._kept:
            return
        if (old := self._clauses.pop(key, None)) is not None:
            self.bytes -= old.pcm.nbytes
        self._clauses[key] = clause
        self.bytes += clause.pcm.nbytes
        while self.bytes > self.max_bytes:
            _, gone = self._clauses.popitem(last=False)
            self.bytes -= gone.pcm.nbytes

    def keep(self, key: Hashable) -> bool:
        """Mark the clause of that key as one that is never dropped. Return False if it is not in the cache, or if such
        clauses fill half of the cache."""
        clause = self._clauses.get(key)
        if clause is not None and self._kept_bytes + clause.pcm.nbytes <= _KEPT_SHARE * self.max_bytes:
            self._kept[key] = self._clauses.pop(key)
            self._kept_bytes += clause.pcm.nbytes
        return key in self._kept
