"""How a caller's sound arrives over a whole call: packets, loss and jitter (RFC 3550 section 6.4.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.media.rtp import IncomingStream
from gateway.seams.leg import Reception
from voicecodecs.registry import AudioFormat


class Arrival:
    """Adds up the streams of a call. A transfer, hold music or a new connection begins another stream."""

    def __init__(self) -> None:
        self._streams: list[IncomingStream] = []
        self._received = 0
        self._lost = 0
        self._moved_s = 0.0
        self._moves = 0
        self._max_jitter_s = 0.0
        self.remote: tuple[int, float] | None = None
        """What the peer last reported: how many of our packets it did not get, and their jitter in seconds."""

    def begin(self, stream: IncomingStream) -> None:
        """Count a stream that begins; the one before it is over."""
        for over in self._streams:
            self._received += over.received
            self._lost += max(0, over.lost)
            self._moved_s += over.moved_s
            self._moves += over.moves
            self._max_jitter_s = max(self._max_jitter_s, over.max_jitter_s)
        self._streams = [stream]

    def reception(self, *, has_sequence: bool = True) -> Reception | None:
        """Return the figures so far. None: nothing came.

        Args:
            has_sequence: whether packets are numbered, so that it shows which are lost.
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
    """The same for a connection whose messages have no numbers and times, and are not lost: WebSocket, TCP.

    A message is due when the one before it has been played. Messages that nobody listens to are not counted, because
    they may be left in the kernel for a while.

    Args:
        fmt: format of the caller's sound.
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
        """A message came that nobody listens to; the next one is due whenever it comes."""
        if self._stream.received:
            self._begin()

    def add(self, payload: bytes, *, now: float) -> None:
        """Count a message of sound."""
        self._stream.add(self._stream.received & 0xFFFF, self._samples, now=now)
        one, size = self._format.frame_samples, self._format.frame_bytes
        self._samples += len(payload) * one // size if size else one  # a packet of Opus is a frame

    def reception(self) -> Reception | None:
        """Return the figures so far. None: nothing came."""
        return self._arrival.reception(has_sequence=False)
