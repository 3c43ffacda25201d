"""Long runs of silence and breath codes, shortened on their way from the language model to the flow (CosyVoice3)."""

from __future__ import annotations

SILENT_IDS = frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323})
"""Codes that sound as silence or breath, in CosyVoice3's codebook. CosyVoice2 has no such list."""
LONGEST_RUN = 5


class SilenceFilter:
    """Passes the first five of a run of silent ids and drops the others, one utterance through. The language model's
    own context keeps all of them."""

    def __init__(self, silent_ids: frozenset[int] = SILENT_IDS) -> None:
        self._silent_ids = silent_ids
        self._run = 0

    def keep(self, speech_id: int) -> bool:
        """Whether the next id of the sequence reaches the flow."""
        self._run = self._run + 1 if speech_id in self._silent_ids else 0
        return self._run <= LONGEST_RUN
