"""Cancellation of the bot's echo in the caller's audio, on lines that return one.

The canceller is AEC3, WebRTC's (package ``pywebrtc-audio``). It costs 1.5 % of a core while the bot speaks, and in its
first second it suppresses a caller who speaks over the bot. So it begins only when the echo guard has found an echo,
and it ends when the line returns nothing. A line whose peer cancels the echo itself never pays for it.

AEC3 needs the sent audio at the same time as its echo or earlier, by up to 0.5 s. The caller's audio has the time of
the earliest arrival, since audio cannot arrive before it is spoken.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from pywebrtc_audio import AudioProcessor

from gateway.uplink.echo_guard import EchoGuard, Sent
from gateway.uplink.pieces import Pcm, at_rate
from voicecodecs.pcm import to_float32
from voicecodecs.registry import AudioFormat, decoder

_TAIL_S = 0.8  # an echo may be heard this long after the bot's last sound: the line's delay and the room
_KEPT_S = 2.0  # sent audio that is kept; a peer that buffers gets some ahead of time
_LATE_S = 0.2  # caller audio that is later than this belongs to a new time axis
_SILENT_DB = -60.0  # a line that returns less than this while the bot speaks has no echo
_SILENT_S = 3.0  # for this long
_MOST_SENT = 500  # frames and pauses that wait for the thread


class EchoCanceller:
    """The echo canceller of one call. Only the uplink's thread uses it.

    Args:
        inbound: format of the caller's audio.
        outbound: format of the sent frames.
        guard: knows what is sent, and finds the first echo.
    """

    def __init__(self, inbound: AudioFormat, outbound: AudioFormat, guard: EchoGuard) -> None:
        self._rate = inbound.sample_rate
        self._outbound = outbound
        self._guard = guard
        self._known = 0
        """The echoes that the guard had found when the canceller last looked."""
        self._aec: AudioProcessor | None = None
        self._sent: deque[Sent] = deque(maxlen=_MOST_SENT)

    @property
    def running(self) -> bool:
        """True if the line has an echo."""
        return self._aec is not None

    def process(self, pcm: Pcm, now: float) -> Pcm:
        """Return the caller's audio without the bot's echo.

        Args:
            pcm: shape ``(samples,)``, at the rate of ``inbound``.
            now: monotonic second of its arrival.
        """
        if self._guard.found > self._known:
            self._known = self._guard.found
            if self._aec is None:
                self._begin(now)
        if self._aec is None:
            return pcm
        begins = self._time_of(pcm, now)
        self._take_sent()
        far = self._sent_at(begins, len(pcm))
        if begins > self._active_until:
            return pcm
        if not self._returns_sound(pcm, far):
            self._end()
            return pcm
        cleaned: Pcm = self._aec.process(np.ascontiguousarray(pcm, np.float32), far)
        return cleaned

    def _begin(self, now: float) -> None:
        self._aec = AudioProcessor(sample_rate=self._rate, echo_cancellation=True)
        self._sent.clear()
        self._hear = decoder(self._outbound)
        self._to_rate = at_rate(self._outbound.sample_rate, self._rate)
        self._far: Pcm = np.zeros(0, np.float32)
        self._far_end = self._guard.follow(self._sent)
        """Monotonic second at which the sent audio ends."""
        self._active_until = -math.inf
        self._heard_until = now
        """Time of the caller's last sample, monotonic seconds."""
        self._silent_s = 0.0

    def _end(self) -> None:
        self._guard.follow(None)
        self._aec = None

    def _time_of(self, pcm: Pcm, now: float) -> float:
        """Return the time of the first sample."""
        begins, length_s = self._heard_until, len(pcm) / self._rate
        if begins + length_s > now or now - begins - length_s > _LATE_S:
            begins = now - length_s
        self._heard_until = begins + length_s
        return begins

    def _take_sent(self) -> None:
        """Append what was sent to the reference, each frame at the time at which it is heard."""
        pieces = [self._far]
        while self._sent:
            each = self._sent.popleft()
            if not isinstance(each, float):
                piece = self._to_rate(to_float32(self._hear.decode(each)))
            elif each - self._far_end < _KEPT_S:
                piece = np.zeros(max(0, round((each - self._far_end) * self._rate)), np.float32)
            else:
                pieces, piece, self._far_end = [], np.zeros(0, np.float32), each
            pieces.append(piece)
            self._far_end += len(piece) / self._rate
            if not isinstance(each, float):
                self._active_until = self._far_end + _TAIL_S
        self._far = np.concatenate(pieces)[-round(_KEPT_S * self._rate) :] if pieces else self._far[:0]

    def _sent_at(self, begins: float, samples: int) -> Pcm:
        """Return the audio that was heard by the caller from that time on; zeros where there was none."""
        first = len(self._far) - round((self._far_end - begins) * self._rate)
        known = self._far[max(0, first) : max(0, first + samples)]
        found: Pcm = np.zeros(samples, np.float32)
        at = max(0, -first)
        known = known[: max(0, samples - at)]
        found[at : at + len(known)] = known
        return found

    def _returns_sound(self, pcm: Pcm, far: Pcm) -> bool:
        """Return False if the line has been silent for long while the bot spoke."""
        if np.square(pcm).mean() > 10 ** (_SILENT_DB / 10):
            self._silent_s = 0.0
        elif np.square(far).mean() > 10 ** (_SILENT_DB / 10):
            self._silent_s += len(pcm) / self._rate
        return self._silent_s < _SILENT_S
