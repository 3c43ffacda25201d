"""Oddities of a peer's messages that a dialect tolerates, so that the connection can count and log them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, get_args

Oddity = Literal[
    "label",
    "number",
    "object",
    "parameters",
    "encoding",
    "sample_rate",
    "frame_size",
    "base64",
    "metadata",
    "unreadable",
    "repeated_start",
    "early_audio",
    "early_event",
    "late_metadata",
]
"""Kinds of oddities. ``label``: an id or a number is not text. ``number``: a count is not a number. ``object``: a value
is not an object. ``parameters``: the call's own parameters are not an object. ``encoding``, ``sample_rate`` and
``frame_size``: unknown, so the dialect's default is used. ``base64``: audio in another alphabet, unpadded or with line
breaks. ``metadata``: unreadable metadata of a switch. ``unreadable``: an unreadable message before the start.
``repeated_start``: a second start. ``early_audio`` and ``early_event``: audio, a key or a mark before the start.
``late_metadata``: metadata after the call began."""

KINDS: tuple[Oddity, ...] = get_args(Oddity)


class Oddities:
    """Oddities of one peer by kind, until they are taken."""

    def __init__(self) -> None:
        self._new: Counter[Oddity] = Counter()

    def add(self, kind: Oddity) -> None:
        """Note one oddity."""
        self._new[kind] += 1

    def take(self) -> Mapping[Oddity, int]:
        """Return the oddities since the last call by kind, and forget them."""
        if not self._new:
            return {}
        new, self._new = self._new, Counter()
        return new
