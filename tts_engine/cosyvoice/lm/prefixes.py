"""The cache of prompt prefixes, such as a voice's transcript: assigns slots to prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tts_engine.cosyvoice.lm.api import SequencePrefill

LEAST_IDS = 16
"""Shorter prefixes are not cached, because copying them is not much faster than computing them."""


class Prefixes:
    """The cached prefixes, by their ids. The least recently used one is replaced.

    Prefills read and write the slots in the order of their launches, so a slot can be reused at once.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._free = list(slots)
        self._slots: dict[bytes, int] = {}
        """Slots of the cached prefixes, most recently used last."""

    def computed(self, admission: SequencePrefill) -> int:
        """Return the number of positions of a prompt that are not covered by a cached prefix."""
        return len(admission.ids) - (admission.shared if _key(admission) in self._slots else 0)

    @contextmanager
    def placed(self, admissions: Sequence[SequencePrefill]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield, for each prompt of a prefill, the slots from which its prefix is read and to which it is written; -1:
        none.

        At most one new prefix is written. It is cached once the ``with`` block ends without an error.
        """
        keys = [_key(a) for a in admissions]
        read, written = [self._slots.get(key, -1) for key in keys], [-1] * len(keys)
        for key in keys:
            if key in self._slots:
                self._slots[key] = self._slots.pop(key)
        row = next((row for row, key in enumerate(keys) if key and key not in self._slots), None)
        if row is None:
            yield read, written
            return
        # The same prefill may read the replaced prefix, because it reads before it writes.
        slot = self._free.pop() if self._free else self._slots.pop(next(iter(self._slots)))
        written[row] = slot
        try:
            yield read, written
        except BaseException:
            self._free.append(slot)
            raise
        self._slots[keys[row]] = slot


def _key(admission: SequencePrefill) -> bytes:
    """Return the bytes of a prefix, or ``b""`` if it is too short or is the whole prompt."""
    kept = LEAST_IDS <= admission.shared < len(admission.ids)
    return admission.ids[: admission.shared].tobytes() if kept else b""
