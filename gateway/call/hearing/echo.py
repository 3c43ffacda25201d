"""Detection of transcripts that are an echo of the bot's own speech. Pure.

A phone without echo cancelling sends the bot's voice back, and the recogniser transcribes it. The transcript then has
the bot's words in the bot's order, apart from some misheard ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

MIN_WORDS = 3
"""Words that a transcript needs to count as an echo. A shorter one may be an answer in the bot's words ("yes", "the
second one")."""
SAME_WORDS = 0.8
"""Share of a transcript's words that must be the bot's, in the bot's order."""
STRETCH = 1.5
"""Longest stretch of the bot's words that an echo may cover, as a multiple of the transcript's words."""


def is_echo(heard: Sequence[str], said: Sequence[str]) -> bool:
    """Return True if the words ``heard`` echo a stretch of the words ``said``. Both use the same spelling."""
    if len(heard) < MIN_WORDS or not said:
        return False
    *blocks, _ = SequenceMatcher(None, heard, said, autojunk=False).get_matching_blocks()
    if sum(block.size for block in blocks) < SAME_WORDS * len(heard):
        return False
    return blocks[-1].b + blocks[-1].size - blocks[0].b <= STRETCH * len(heard)


def may_become_echo(heard: Sequence[str], said: Sequence[str]) -> bool:
    """Return True if ``heard`` is too short to be an echo yet and is a run of the words ``said``."""
    if len(heard) >= MIN_WORDS:
        return False
    beginnings = range(len(said) - len(heard) + 1)
    return any(list(said[at : at + len(heard)]) == list(heard) for at in beginnings)
