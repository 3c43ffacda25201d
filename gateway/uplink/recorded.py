"""Reading of recordings: one WAV file, stored in clear or encrypted.

Every function reads from the disk and may block with it, so call it in a thread meant for that.
"""

from __future__ import annotations

import contextlib
import io
import os
import wave
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import RecordingError
from gateway.uplink.sealing import Sealed

_PART = 65_536


class Recorded:
    """A recording opened for reading.

    Args:
        path: ``….wav``, or ``….wav.enc``.
        key: 32 bytes; None: there is no key.

    Raises:
        RecordingError: the file is encrypted, but not with ``key``.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, key: bytes | None) -> None:
        self._sealed: Sealed | None = None
        self._head = b""
        self._file = path.open("rb")
        try:
            if path.suffix == ".wav":
                self.size = os.fstat(self._file.fileno()).st_size
                """Size of the WAV file, bytes."""
                return
            if key is None:
                raise RecordingError("the recording is encrypted, but recording.encrypt is not set", code="no_key")
            self._sealed = Sealed(self._file, key=key)
            self._head = _wav_header(rate=self._sealed.rate, channels=self._sealed.channels, size=self._sealed.size)
            self.size = len(self._head) + self._sealed.size
        except BaseException:
            self.close()
            raise

    def parts(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the WAV file's bytes from ``begin`` to ``end`` in parts.

        Raises:
            RecordingError: the file was changed or cut off. The parts before are genuine, but incomplete.
        """
        left = end - begin
        for part in self._from(begin):
            yield part[:left]
            left -= len(part)
            if left <= 0:
                return

    def _from(self, begin: int) -> Iterator[bytes]:
        if self._sealed is not None:
            head = self._head[begin:]
            for samples in self._sealed.frames(max(0, begin - len(self._head))):
                yield head + samples  # with the first samples, so a file with a damaged beginning sends nothing
                head = b""
            return
        self._file.seek(begin)
        while part := self._file.read(_PART):
            yield part

    def close(self) -> None:
        self._file.close()


def _wav_header(*, rate: int, channels: int, size: int) -> bytes:
    """Return the WAV header of ``size`` bytes of s16le samples."""
    out = io.BytesIO()
    with contextlib.closing(wave.open(out, "wb")) as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.setnframes(size // (2 * channels))
        file.writeframesraw(b"")
        return out.getvalue()
