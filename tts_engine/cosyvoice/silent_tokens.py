"""Shortens long runs of silence and breath tokens between the language model and the flow (CosyVoice3)."""

from __future__ import annotations

SILENT_IDS = frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323})
"""Speech tokens of CosyVoice3 that sound like silence or breath. CosyVoice2 has no such list."""
LONGEST_RUN = 5


class SilenceFilter:
    """Passes the first five ids of a silent run and drops the others. Each utterance has its own filter.

    The language model's context keeps all ids.
    """

    def __init__(self, silent_ids: frozenset[int] = SILENT_IDS) -> None:
        self._silent_ids = silent_ids
        self._run = 0

    def keep(self, speech_id: int) -> bool:
        """Return True if the next id of the sequence is passed on to the flow."""
        self._run = self._run + 1 if speech_id in self._silent_ids else 0
        return self._run <= LONGEST_RUN
