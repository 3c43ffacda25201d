"""The sound of a clause that may be complete, made before the next token shows it. It is sent only if the clause was
complete."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from tts_engine.synthesizer import PcmChunk
from tts_engine.text.clauses import Clause

Make = Callable[[], AsyncGenerator[PcmChunk, None]]
"""Begins to synthesise the clause."""


class Draft:
    """The beginning of a clause's sound. ``keep`` says that the clause is complete, ``aclose`` drops the draft."""

    def __init__(self, clause: Clause, make: Make, *, samples: int, clock: Callable[[], float]) -> None:
        """
        Args:
            samples: number of samples of the clause that are made before ``keep``.
            clock: monotonic seconds.
        """
        self.clause = clause
        self.kept_at: float | None = None
        """Time at which the clause was known to be complete. None: that is not known yet."""
        self.waited_ms = 0.0
        """Time for which the latest of ``chunks`` waited for ``keep``, milliseconds."""
        self._taken = False
        self._make, self._samples, self._clock = make, samples, clock
        self._begun = make()
        self._chunks: deque[tuple[PcmChunk, float]] = deque()
        """Each chunk with the time at which it was made."""
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._fill(), name="draft")

    def keep(self) -> None:
        """Allow the sound to be taken."""
        self.kept_at = self._clock()

    async def chunks(self) -> AsyncGenerator[PcmChunk, None]:
        """Yield the whole clause, after ``keep``. If the draft failed before its first sound, the clause is made
        anew."""
        assert self.kept_at is not None
        sounded = False
        while self._chunks or not self._task.done():
            if self._chunks:
                sounded = True
                chunk, made_at = self._chunks.popleft()
                self.waited_ms = max(0.0, self.kept_at - made_at) * 1e3
                yield chunk
            else:
                self._changed.clear()
                await self._changed.wait()
        if self._error is not None and sounded:
            raise self._error
        self.waited_ms = 0.0
        self._taken = self._error is None
        rest = self._begun if self._taken else self._make()
        try:
            async for chunk in rest:
                yield chunk
        finally:
            await rest.aclose()

    async def _fill(self) -> None:
        samples = 0
        try:
            async for chunk in self._begun:
                self._chunks.append((chunk, self._clock()))
                self._changed.set()
                samples += len(chunk.pcm)
                if self.kept_at is not None or samples >= self._samples:
                    break
        except Exception as exc:  # of any voice: the reader of the chunks gets it
            self._error = exc
        finally:
            self._changed.set()

    async def aclose(self) -> None:
        """Cancel the work that is left, and return when it has ended. If ``chunks`` is being read, its reader closes
        the draft instead."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._taken:
            await self._begun.aclose()
