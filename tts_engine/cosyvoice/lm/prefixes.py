"""Which slots hold the keys and values of ids that many prompts begin with, such as a voice's transcript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tts_engine.cosyvoice.lm.api import Admission

LEAST_IDS = 16
"""Shorter prefixes are not kept, because they take hardly less time to copy than to compute."""


class Prefixes:
    """The prefixes on the device, by their ids. A new one takes the place of the one that was not used for longest.

    All reads and writes of the slots are in one order, that of the prefills. So a slot may be given anew at once.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._free = list(slots)
        self._slots: dict[bytes, int] = {}
        """Those that are known, the one that was used last at the end."""

    def computed(self, admission: Admission) -> int:
        """Return how many positions of a prompt have to be computed: those that no known prefix covers."""
        return len(admission.ids) - (admission.shared if _key(admission) in self._slots else 0)

    @contextmanager
    def placed(self, admissions: Sequence[Admission]) -> Iterator[tuple[list[int], list[int]]]:
        """Give, for each prompt of a prefill, the slots that its prefix is read from and written to; -1: none.

        At most one new prefix is written. It is known when the block ends without an error.
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
        # The same prefill may read the old prefix: it does before it writes the new one.
        slot = self._free.pop() if self._free else self._slots.pop(next(iter(self._slots)))
        written[row] = slot
        try:
            yield read, written
        except BaseException:
            self._free.append(slot)
            raise
        self._slots[keys[row]] = slot


def _key(admission: Admission) -> bytes:
    """Return the bytes of a prefix, or none if it is not worth a slot, or there is nothing behind it to compute."""
    kept = LEAST_IDS <= admission.shared < len(admission.ids)
    return admission.ids[: admission.shared].tobytes() if kept else b""
