"""The files that one channel plays in order, and the marks between them. Pure.

The switch reports the start and end of each file. From this follows the position that the caller has heard, which
mod_audio_stream itself does not report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _File:
    path: str
    marks: list[str] = field(default_factory=list)
    """Marks after this file."""


class FileQueue:
    """Tracks one channel's playback."""

    def __init__(self) -> None:
        self._files: deque[_File] = deque()
        self._sounds = False

    def add(self, path: str) -> None:
        """Add a file that was queued at the switch."""
        self._files.append(_File(path))

    def mark(self, name: str) -> bool:
        """Add a mark after the files so far. True: there are none, so the mark has been reached."""
        if self._files:
            self._files[-1].marks.append(name)
        return not self._files

    def began(self, path: str) -> bool:
        """Handle the start of a file. Return True if it is the first one after silence."""
        begins = not self._sounds and any(file.path == path for file in self._files)
        self._sounds |= begins
        return begins

    def ended(self, path: str) -> list[str]:
        """Handle the end of a file, which implies the end of those before it. Cleared files do not count.

        Returns:
            The marks that have been reached.
        """
        reached: list[str] = []
        if not any(file.path == path for file in self._files):
            return reached
        while self._files:
            file = self._files.popleft()
            reached.extend(file.marks)
            if file.path == path:
                break
        self._sounds = bool(self._files)
        return reached

    def clear(self) -> bool:
        """Forget all files and marks. True: there was something to stop."""
        playing = bool(self._files)
        self._files.clear()
        self._sounds = False
        return playing
