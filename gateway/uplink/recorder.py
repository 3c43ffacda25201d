"""WAV files of recordings. That of a call is stereo: the caller on the left, the bot as it was heard on the right.
``recording_thread`` runs them."""

from __future__ import annotations

import contextlib
import os
import wave
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.sealing import HEADER_BYTES, SealedFile
from gateway.uplink.timeline import KEPT_S, Samples, Timeline

_WAV_HEADER_BYTES, _RIFF_SIZE_AT, _DATA_SIZE_AT = 44, 4, 40
"""Header of a WAV file with PCM as ``wave`` writes it, and the places of its two sizes, bytes."""

_WRITE_EVERY_S = 2.0
"""Pause between two writes, seconds. A process that is killed loses so much, and the sound that may still move. With
100 calls, writing each second takes 1.9 % of a core, and every two seconds 0.9 %."""


class RecordingFile:
    """A WAV file that is being written, in clear or encrypted.

    Args:
        path: the WAV file. It gets this name when the recording is complete; an encrypted one gets ``.enc`` appended.
        rate: sample rate, Hz.
        max_s: longest recording, seconds. The rest is not written.
        key: encryption key, 32 bytes. None: the file is not encrypted.

    Methods raise OSError if the file cannot be written. ``gateway.uplink.retention`` relies on the names of the files.
    """

    def __init__(self, path: Path, *, rate: int, channels: int, max_s: float, key: bytes | None) -> None:
        self._path = path if key is None else path.with_name(f"{path.name}.enc")
        self._part = path.with_suffix(".part")
        self._rate = rate
        self._channels = channels
        self._key = key
        self._left = int(max_s * rate)
        self._file: wave.Wave_write | SealedFile | None = None
        self._raw: BinaryIO | None = None

    @property
    def begun(self) -> bool:
        """True if the file exists."""
        return self._file is not None

    def open(self) -> None:
        """Create the file if it does not exist. This is not done at the start of the call, since the disk may hang."""
        if self._file is None:
            # The folder may be gone, or its disk was not there at the start. Only this account may read both.
            self._part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._raw = os.fdopen(os.open(self._part, flags, 0o600), "wb")
            if self._key is not None:
                self._file = SealedFile(self._raw, key=self._key, rate=self._rate, channels=self._channels)
            else:
                self._file = wave.open(self._raw, "wb")
                self._file.setnchannels(self._channels)
                self._file.setsampwidth(2)
                self._file.setframerate(self._rate)

    def write(self, samples: Samples) -> None:
        """Append samples: int16, shape ``(samples, channels)``."""
        samples = samples[: self._left]
        self._left -= len(samples)
        if len(samples):
            self.open()
            assert self._file is not None
            self._file.writeframes(samples.tobytes())

    def close(self) -> None:
        """Give the complete file its final name. It is on the disk then: only the sync tells of some of its errors."""
        self.open()
        assert self._file is not None and self._raw is not None
        with self._raw:
            self._file.close()
            if not self._raw.closed:  # an encrypted file has synced and closed it
                self._raw.flush()
                os.fsync(self._raw.fileno())
        self._part.rename(self._path)

    def give_up(self) -> None:
        """Close the file after an error. The written part stays under the name of an incomplete recording, unless it
        has no sound."""
        if self._file is None:
            return
        for file in (self._file, self._raw):
            with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
                if file is not None:
                    file.close()
        with contextlib.suppress(OSError):  # a full disk still lets written bytes be changed
            self._keep_sound()

    def _keep_sound(self) -> None:
        """Let the header of the part tell the length of its sound. Remove a part without sound."""
        begin = HEADER_BYTES if self._key is not None else _WAV_HEADER_BYTES
        size = self._part.stat().st_size - begin
        if size <= 0:
            self._part.unlink()
        elif self._key is None:
            size -= size % (2 * self._channels)
            with self._part.open("r+b") as file:
                for place, value in ((_RIFF_SIZE_AT, size + _WAV_HEADER_BYTES - 8), (_DATA_SIZE_AT, size)):
                    file.seek(place)
                    file.write(value.to_bytes(4, "little"))


class Recorder(Timeline):
    """The file of one call.

    Args:
        path: see ``RecordingFile``, also for the other arguments and errors.
        rate: sample rate of both sides, Hz.
        started: the monotonic second at which the recording begins.
    """

    def __init__(self, path: Path, *, rate: int, max_s: float, started: float, key: bytes | None = None) -> None:
        self._file = RecordingFile(path, rate=rate, channels=2, max_s=max_s, key=key)
        super().__init__(rate=rate, started=started, out=self._file.write)
        self._written_at = started

    @property
    def begun(self) -> bool:
        """True if the file exists."""
        return self._file.begun

    def open(self) -> None:
        """Create the file if it does not exist."""
        self._file.open()

    def caller(self, pcm: NDArray[np.float32], *, at: float) -> None:
        """Add caller audio that was received at monotonic second ``at``."""
        self.open()
        super().caller(pcm, at=at)
        self._write_sound(at)

    def bot(self, pcm: NDArray[np.float32], *, at: float) -> None:
        """Add bot audio that is heard from monotonic second ``at`` on, or after the audio added before."""
        self.open()
        super().bot(pcm, at=at)
        self._write_sound(at)

    def _write_sound(self, now: float) -> None:
        """Write the sound that is final. The header then has its length, so that a part can be played at any time."""
        if now - self._written_at >= _WRITE_EVERY_S:
            self._written_at = now
            self.release(now - KEPT_S)

    def close(self, *, at: float | None = None) -> None:
        """Write the rest, or only the part before monotonic second ``at``, and give the file its final name."""
        self.finish(at)
        self._file.close()

    def give_up(self) -> None:
        """Close the file after an error; see ``RecordingFile.give_up``."""
        self._file.give_up()
