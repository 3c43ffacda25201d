"""Is a transcript the echo of what we have just said? Pure.

A phone without echo cancelling sends our own voice back, and the recogniser writes it down. Such a transcript has our
words in our order, but for some that were misheard.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

MIN_WORDS = 3
"""A shorter transcript may be an answer in our words ("yes", "the second one"), so it never counts as an echo."""
SAME_WORDS = 0.8
"""How many of a transcript's words have to be ours, in our order."""
STRETCH = 1.5
"""Over how many of our words they may be spread, as a multiple of their number."""


def is_echo(heard: Sequence[str], said: Sequence[str]) -> bool:
    """Whether the words ``heard`` are an echo of a stretch of the words ``said``. Both are in one spelling."""
    if len(heard) < MIN_WORDS or not said:
        return False
    *blocks, _ = SequenceMatcher(None, heard, said, autojunk=False).get_matching_blocks()
    if sum(block.size for block in blocks) < SAME_WORDS * len(heard):
        return False
    return blocks[-1].b + blocks[-1].size - blocks[0].b <= STRETCH * len(heard)


def may_become_echo(heard: Sequence[str], said: Sequence[str]) -> bool:
    """Whether so few words, all of them ours and in a row, may be the beginning of an echo."""
    if len(heard) >= MIN_WORDS:
        return False
    beginnings = range(len(said) - len(heard) + 1)
    return any(list(said[at : at + len(heard)]) == list(heard) for at in beginnings)
