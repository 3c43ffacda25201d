"""A clause whose text is still coming: words go in as the caller's deltas bring them, and out to the voice model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class GrowingText:
    """``text`` is what has been given out; it is always the beginning of the clause as it will be cut."""

    def __init__(self, start_char: int) -> None:
        """``start_char``: of the clause, in all that was fed."""
        self.start_char = start_char
        self.text = ""
        self.ended = False
        self._taken = 0
        self._changed = asyncio.Event()

    def grow(self, pending: str) -> int:
        """Give out the words of ``pending``, the uncut text from the clause's first character on.

        The last whole word stays back: where a clause is cut may depend on what follows it. A text without spaces
        is given out at its end only.

        Returns:
            how many words are out.
        """
        whole = pending.rstrip().rfind(" ")
        cut = pending.rfind(" ", 0, max(whole, 0))
        if not self.ended and cut > len(self.text):
            self.text = pending[:cut]
            self._changed.set()
        return len(self.text.split())

    def end(self, text: str) -> None:
        """The clause is cut: this is all of it."""
        if not self.ended:
            self.text = text if text.startswith(self.text) else self.text
            self.ended = True
            self._changed.set()

    async def pieces(self) -> AsyncIterator[str]:
        """The text in pieces of whole words, each with the space before it; for one reader."""
        while True:
            ended = self.ended
            if len(self.text) > self._taken:
                piece, self._taken = self.text[self._taken :], len(self.text)
                yield piece
            elif ended:
                return
            else:
                self._changed.clear()
                await self._changed.wait()
