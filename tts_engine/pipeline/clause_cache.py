"""Remembers spoken clauses, so that greetings and prompts cost nothing the second time. An LRU cache, bounded in
bytes."""

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

    def get(self, key: Hashable) -> SpokenClause | None:
        """Return the clause of that key, which then is the most recently used one."""
        clause = self._clauses.get(key)
        if clause is not None:
            self._clauses.move_to_end(key)
        return clause

    def put(self, key: Hashable, clause: SpokenClause) -> None:
        """Keep a clause, unless it is larger than the bound."""
        if clause.pcm.nbytes > self.max_bytes:
            return
        if (old := self._clauses.pop(key, None)) is not None:
            self.bytes -= old.pcm.nbytes
        self._clauses[key] = clause
        self.bytes += clause.pcm.nbytes
        while self.bytes > self.max_bytes:
            _, gone = self._clauses.popitem(last=False)
            self.bytes -= gone.pcm.nbytes
