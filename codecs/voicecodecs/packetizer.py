"""Turns audio chunks of any size into encoded frames of exactly one ptime: resample, round, encode, cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat, encoder
from voicecodecs.resample import Resampler


class Packetizer:
    """One outgoing stream. Resampler and codec keep their state across chunks and flushes. Not thread-safe.

    Wherever the codec allows it, the work is done once per chunk, not per frame: a chunk of seconds costs one
    resampling, one rounding and one table look-up.
    """

    def __init__(self, fmt: AudioFormat, source_rate: int) -> None:
        """
        Args:
            fmt: the format that the leg wants.
            source_rate: Hz of the samples that are pushed.

        Raises:
            ValueError: the rates cannot be converted into each other.
        """
        self.format = fmt
        self.samples_out = 0
        """Samples in all frames returned so far, at the format's ``sample_rate``; padding counts."""
        self.quick = fmt.encoding in ("PCMU", "PCMA", "L16")
        """True if a second of audio takes at most 0.1 ms, with its resampling; handing a chunk to a thread costs as
        much. With G722 a second takes 1 ms, with OPUS 6."""
        self._resampler = Resampler(source_rate, fmt.sample_rate)
        self._encoder = encoder(fmt)
        self._pending = np.zeros(0, np.int16)
        self._padding = 0
        """Samples of silence that the last flush added, until something follows them."""

    @property
    def position(self) -> int:
        """The position at which the next pushed sample will be heard, if the resampler is empty, as after a flush."""
        return self.samples_out + len(self._pending)

    def push(self, pcm: NDArray[np.float32]) -> list[bytes]:
        """Take the next chunk; return all frames that are full now. Samples outside [-1, 1] are clipped.

        Args:
            pcm: shape ``(samples,)``, float32, [-1, 1], at ``source_rate``.

        Raises:
            ValueError: wrong type or shape, or a sample that is not finite. The stream is unusable afterwards.
        """
        self._padding = 0
        return self._frames(self._resampler.process(pcm))

    def pause(self, samples: int) -> list[bytes]:
        """Add silence after a flush; return all frames that are full now. The rest precedes the next push.

        The silence that the flush added counts towards the pause. Otherwise a pause would be up to a frame longer,
        which is audible with long frames.

        Args:
            samples: length of the pause, at the format's ``sample_rate``.
        """
        silence = max(0, samples - self._padding)
        self._padding = max(0, self._padding - samples)
        return self._frames(np.zeros(silence, np.float32))

    def flush(self) -> list[bytes]:
        """End a stretch of speech: return the rest, with its last frame padded with silence.

        The stream continues with the next push.
        """
        frames = self._frames(self._resampler.flush())
        if len(self._pending):
            self._padding = self.format.frame_samples - len(self._pending)
            self._pending = np.concatenate((self._pending, np.zeros(self._padding, np.int16)))
            frames += self._frames(np.zeros(0, np.float32))
        return frames

    def _frames(self, pcm: NDArray[np.float32]) -> list[bytes]:
        frame_samples, frame_bytes = self.format.frame_samples, self.format.frame_bytes
        pending = np.concatenate((self._pending, to_int16(pcm)))
        samples = len(pending) - len(pending) % frame_samples
        whole, self._pending = pending[:samples], pending[samples:]
        if not samples:
            return []
        self.samples_out += samples
        if frame_bytes is None:
            return [self._encoder.encode(frame) for frame in whole.reshape(-1, frame_samples)]
        payload = self._encoder.encode(whole)
        return [payload[at : at + frame_bytes] for at in range(0, len(payload), frame_bytes)]
