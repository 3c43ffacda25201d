"""Reception statistics of a whole call: packets, loss and jitter (RFC 3550 section 6.4.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.media.rtp import IncomingStream
from gateway.seams.leg import Reception
from voicecodecs.registry import AudioFormat


class Arrival:
    """Sum over the streams of a call. A transfer, hold music or a new connection begins another stream."""

    def __init__(self) -> None:
        self._streams: list[IncomingStream] = []
        self._received = 0
        self._lost = 0
        self._moved_s = 0.0
        self._moves = 0
        self._max_jitter_s = 0.0
        self.remote: tuple[int, float] | None = None
        """The peer's last report: lost packets of the sent audio, and their jitter in seconds."""

    def begin(self, stream: IncomingStream) -> None:
        """Start counting a new stream; the previous one is over."""
        for over in self._streams:
            self._received += over.received
            self._lost += max(0, over.lost)
            self._moved_s += over.moved_s
            self._moves += over.moves
            self._max_jitter_s = max(self._max_jitter_s, over.max_jitter_s)
        self._streams = [stream]

    def reception(self, *, has_sequence: bool = True) -> Reception | None:
        """Return the figures so far. None: nothing arrived.

        Args:
            has_sequence: True if packets are numbered, so that losses can be counted.
        """
        now: Sequence[IncomingStream] = self._streams
        received = self._received + sum(stream.received for stream in now)
        moves = self._moves + sum(stream.moves for stream in now)
        if not received:
            return None
        return Reception(
            received=received,
            lost=self._lost + sum(max(0, stream.lost) for stream in now) if has_sequence else None,
            jitter_s=(self._moved_s + sum(stream.moved_s for stream in now)) / moves if moves else 0.0,
            max_jitter_s=max(self._max_jitter_s, *(stream.max_jitter_s for stream in now)),
            remote_lost=None if self.remote is None else self.remote[0],
            remote_jitter_s=None if self.remote is None else self.remote[1],
        )


class MessageArrival:
    """Reception statistics of a connection whose messages have no numbers or timestamps and are not lost: WebSocket,
    TCP.

    A message is due when the one before it has been played. Messages are not counted while their audio is unused,
    because they may stay in the kernel for a while.

    Args:
        fmt: format of the caller's audio.
    """

    def __init__(self, fmt: AudioFormat) -> None:
        self._format = fmt
        self._arrival = Arrival()
        self._begin()

    def _begin(self) -> None:
        self._stream = IncomingStream(ssrc=0, clock_hz=self._format.sample_rate)
        self._samples = 0
        self._arrival.begin(self._stream)

    def skip(self) -> None:
        """Skip a message whose audio is unused; the next message counts as punctual."""
        if self._stream.received:
            self._begin()

    def add(self, payload: bytes, *, now: float) -> None:
        """Count an audio message."""
        self._stream.add(self._stream.received & 0xFFFF, self._samples, now=now)
        one, size = self._format.frame_samples, self._format.frame_bytes
        self._samples += len(payload) * one // size if size else one  # an Opus packet is one frame

    def reception(self) -> Reception | None:
        """Return the figures so far. None: nothing arrived."""
        return self._arrival.reception(has_sequence=False)
