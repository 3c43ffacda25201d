"""The jitter buffer of a joined leg: payloads that have arrived and are not played yet. Pure.

The legs' own buffers order packets but do not smooth their arrival, because voice detection does not play them. Someone
who listens needs a payload every 20 ms. So a payload waits here until most later ones will have arrived in time, as far
as the jitter of the last seconds shows. Payloads that do not arrive in time are concealed. A buffer that stays fuller
than necessary, because the jitter has decreased or the sender's clock runs fast, gives up 20 ms at a time.
"""

from __future__ import annotations

import math
from collections import deque

LOST = b""
"""Stands for a payload that was lost on the way, as ``gateway.media.jitter_buffer.LOST`` does."""

LEAST_WAIT_S = 0.005
"""Least age of a payload when it is played. Ticks and arrivals of the same 20 ms vary by less on a working machine."""

MOST_WAIT_S = 0.2
"""Highest wait because of jitter. People notice a conversation's delay from about this on (ITU-T G.114)."""

MOST_WAITING_S = 0.6
"""Most audio that waits. When more comes at once, the oldest is dropped."""

CONCEALED_S = 0.06
"""Longest concealment of payloads that do not come, seconds. Then the sender is taken to be silent."""

_PEAK_DECAY_S = 5.0
_RESTART_S = 0.25  # a payload later than this does not show jitter: the sender was silent, or its clock has restarted
_DRIFT = 0.001  # the fastest clock that is followed
_SURPLUS_S = 0.02
_SURPLUS_FOR_S = 1.0


class ReceiveBuffer:
    """The waiting payloads of one leg.

    ``take`` is called whenever the leg's sound is due; each payload has the length that ``push`` was told.
    """

    def __init__(self) -> None:
        self.waiting_s = 0.0
        """Length of the waiting payloads, seconds."""
        self.dropped = 0
        """Payloads that were dropped because the buffer was full."""
        self.has_surplus = False
        """True if more than necessary has waited for a while: one payload should be left out, or blended into the next
        one. Taking two payloads in a row resets it."""
        self._waiting: deque[tuple[bytes, float, float]] = deque()
        """Payload, its length and its arrival, seconds."""
        self._playing = False
        self._concealed_s = 0.0
        """Concealment since the last payload that was played."""
        self._owed_s = 0.0
        """Concealment for payloads that may still be reported lost."""
        self._media_s = 0.0
        """Length of all payloads since the base was set."""
        self._base_s: float | None = None
        self._peak_s = 0.0
        self._updated_at = 0.0
        self._least_s = math.inf
        """Least that waited after a ``take``, since ``_watched_s`` began."""
        self._watched_s = 0.0

    @property
    def wait_s(self) -> float:
        """Present wait of the first payload after silence, seconds."""
        return min(MOST_WAIT_S, max(LEAST_WAIT_S, self._peak_s))

    def push(self, payload: bytes, length_s: float, *, now: float) -> None:
        """Take a payload as it arrives; ``LOST`` stands for one of that length."""
        self._note_arrival(length_s, now)
        if not payload and self._owed_s > 0.0:
            self._owed_s = max(0.0, self._owed_s - length_s)  # its place has been filled
            return
        self._waiting.append((payload, length_s, now))
        self.waiting_s += length_s
        while self.waiting_s > MOST_WAITING_S and len(self._waiting) > 1:
            self._drop()

    def _note_arrival(self, length_s: float, now: float) -> None:
        """Update the jitter: the lateness of a payload relative to the fastest ones."""
        offset_s = now - self._media_s
        if self._base_s is None or abs(offset_s - self._base_s) > _RESTART_S:
            self._base_s, self._media_s = now, 0.0
        else:
            passed_s = now - self._updated_at
            self._base_s = min(offset_s, self._base_s + passed_s * _DRIFT)
            self._peak_s = max(offset_s - self._base_s, self._peak_s * math.exp(-passed_s / _PEAK_DECAY_S))
        self._updated_at = now
        self._media_s += length_s

    @property
    def following(self) -> bytes:
        """The payload that waits next; empty: none, or a lost one."""
        return self._waiting[0][0] if self._waiting else LOST

    def take(self, length_s: float, *, now: float) -> bytes | None:
        """Return the payload that is due: ``LOST``: conceal ``length_s``. None: the sender is silent."""
        if not self._waiting:
            return self._starved(length_s)
        payload, its_length_s, arrived = self._waiting[0]
        if not self._playing:
            if now - arrived < self.wait_s and self.waiting_s < self.wait_s + its_length_s:
                return None
            self._playing = True
            self._least_s, self._watched_s = math.inf, 0.0
        payload, its_length_s, _ = self._waiting.popleft()
        self.waiting_s -= its_length_s
        self._concealed_s = 0.0
        if payload:
            self._owed_s = 0.0
        self._watch(its_length_s)
        return payload

    def _starved(self, length_s: float) -> bytes | None:
        """Return what stands for audio that has not come."""
        if not self._playing:
            return None
        self._concealed_s += length_s
        if self._concealed_s > CONCEALED_S:
            self._playing = False
            self._concealed_s = self._owed_s = 0.0
            return None
        self._owed_s += length_s
        return LOST

    def _watch(self, length_s: float) -> None:
        """Note how much waits, and whether that has been too much for a while."""
        self.has_surplus = False
        self._least_s = min(self._least_s, self.waiting_s)
        self._watched_s += length_s
        if self._watched_s >= _SURPLUS_FOR_S:
            self.has_surplus = self._least_s > self.wait_s + _SURPLUS_S
            self._least_s, self._watched_s = math.inf, 0.0

    def _drop(self) -> None:
        _, length_s, _ = self._waiting.popleft()
        self.waiting_s -= length_s
        self.dropped += 1

    def clear(self) -> list[bytes]:
        """Forget everything that waits, and return its payloads. The next payload begins after silence."""
        payloads = [payload for payload, _, _ in self._waiting]
        self._waiting.clear()
        self.waiting_s = self._concealed_s = self._owed_s = 0.0
        self._playing = self.has_surplus = False
        return payloads
