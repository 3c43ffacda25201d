"""Records a call in stereo as WAV: the caller on the left, the bot as it was heard on the right. Runs in the uplink
thread.
"""

from __future__ import annotations

import os
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.sealing import SealedFile
from voicecodecs.pcm import to_int16

_BLOCK_S = 5.0


class Recorder:
    """The file of one call. The time at which sound was heard decides its place. The rest is silence.

    Args:
        path: the WAV file. It gets this name when the recording is complete; an encrypted one has ``.enc`` behind it.
        rate: sample rate of both sides, Hz.
        max_s: longest recording, seconds. The rest is not written.
        started: the monotonic second at which the recording begins.
        key: 32 bytes with which the file is encrypted. None: it is not encrypted.

    Methods raise OSError where the file cannot be written. ``gateway.uplink.retention`` knows the names of the files.
    """

    def __init__(self, path: Path, *, rate: int, max_s: float, started: float, key: bytes | None = None) -> None:
        self._path = path if key is None else path.with_name(f"{path.name}.enc")
        self._part = path.with_suffix(".part")
        self._key = key
        self.rate = rate
        self._max_samples = int(max_s * rate)
        self._started = started
        self._block = np.zeros((int(_BLOCK_S * 2 * rate), 2), np.int16)
        self._origin = 0  # sample of the recording at the block's first row
        self._ends = [0, 0]
        self._file: wave.Wave_write | SealedFile | None = None

    def _opened(self) -> wave.Wave_write | SealedFile:
        """Return the file. The first sound makes it, in the uplink's thread: a full disk must not harm the call."""
        if self._file is None:
            # Other accounts on this machine must not be able to hear it.
            os.close(os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o600))
            if self._key is not None:
                self._file = SealedFile(self._part.open("wb"), key=self._key, rate=self.rate)
            else:
                self._file = wave.open(str(self._part), "wb")
                self._file.setnchannels(2)
                self._file.setsampwidth(2)
                self._file.setframerate(self.rate)
        return self._file

    def caller(self, pcm: NDArray[np.float32], *, at: float) -> None:
        """Add caller audio that was received at monotonic second ``at``."""
        self._place(0, pcm, at - len(pcm) / self.rate)

    def bot(self, pcm: NDArray[np.float32], *, at: float) -> None:
        """Add the bot's audio, which is heard from monotonic second ``at`` on."""
        self._place(1, pcm, at)

    def _place(self, side: int, pcm: NDArray[np.float32], at: float) -> None:
        self._opened()
        start = max(round((at - self._started) * self.rate), 0)
        # Packets come a little early or late. Sound that follows sound stays joined, and only real pauses are kept.
        if abs(start - self._ends[side]) < self.rate // 10:
            start = self._ends[side]
        start = max(start, self._ends[side], self._origin)
        end = min(start + len(pcm), self._max_samples)
        if end <= start:
            return
        while end - self._origin > len(self._block):
            self._write(len(self._block) // 2)
        self._block[start - self._origin : end - self._origin, side] = to_int16(pcm[: end - start])
        self._ends[side] = end

    def _write(self, samples: int) -> None:
        self._opened().writeframes(self._block[:samples].tobytes())
        self._block[:-samples] = self._block[samples:].copy()
        self._block[len(self._block) - samples :] = 0
        self._origin += samples
        self._ends = [max(end, self._origin) for end in self._ends]

    def close(self) -> None:
        """Write the rest and give the file its name."""
        rest = max(self._ends) - self._origin
        file = self._opened()
        if rest > 0:
            file.writeframes(self._block[:rest].tobytes())
        file.close()
        self._part.rename(self._path)
