"""A clause whose text is still arriving. Its words go to the voice model as deltas bring them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tts_engine.speech_marks import PLAIN, Style


class GrowingText:
    """A growing clause. ``text`` is the part that was passed on; it is always the beginning of the final clause."""

    def __init__(self, start_char: int, style: Style = PLAIN, pause_ms: float | None = None) -> None:
        """``start_char`` is the clause's first character in everything that was fed; for the others see ``Clause``."""
        self.start_char = start_char
        self.style = style
        self.pause_ms = pause_ms
        self.text = ""
        self.ended = False
        self._taken = 0
        self._changed = asyncio.Event()

    def grow(self, pending: str) -> int:
        """Pass on the words of ``pending``, the uncut text from the clause's first character.

        The last whole word is kept back, because the place of the cut may depend on the next one. A text without spaces
        is passed on only at its end.

        Returns:
            Number of words that have been passed on.
        """
        whole = pending.rstrip().rfind(" ")
        cut = pending.rfind(" ", 0, max(whole, 0))
        if not self.ended and cut > len(self.text):
            self.text = pending[:cut]
            self._changed.set()
        return len(self.text.split())

    def end(self, text: str) -> None:
        """End the clause. ``text`` is its whole text."""
        if not self.ended:
            self.text = text if text.startswith(self.text) else self.text
            self.ended = True
            self._changed.set()

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the text in pieces of whole words, each with the space before it. There may be only one reader."""
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
