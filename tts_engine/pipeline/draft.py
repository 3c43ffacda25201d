"""The sound of a clause that may be complete, made before the next token tells. It is sent only if the clause was."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from tts_engine.synthesizer import PcmChunk
from tts_engine.text.clauses import Clause

Make = Callable[[], AsyncGenerator[PcmChunk, None]]
"""Begin to synthesise the clause."""


class Draft:
    """The beginning of a clause's sound. ``keep`` says that the clause is complete, ``aclose`` drops the draft."""

    def __init__(self, clause: Clause, make: Make, *, samples: int, clock: Callable[[], float]) -> None:
        """
        Args:
            samples: no more is made of the clause before ``keep``.
            clock: monotonic seconds.
        """
        self.clause = clause
        self.kept_at: float | None = None
        """When the clause was known to be complete. None: it is not yet."""
        self.waited_ms = 0.0
        """For how long the latest of ``chunks`` waited for that."""
        self._taken = False
        self._make, self._samples, self._clock = make, samples, clock
        self._begun = make()
        self._chunks: deque[tuple[PcmChunk, float]] = deque()
        """With the time when each was made."""
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._fill(), name="draft")

    def keep(self) -> None:
        """Let the sound be taken."""
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
        except Exception as exc:
            self._error = exc
        finally:
            self._changed.set()

    async def aclose(self) -> None:
        """Cancel what is not made yet. Return when no more work is spent on it, unless ``chunks`` is being read: then
        its reader closes it."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._taken:
            await self._begun.aclose()
