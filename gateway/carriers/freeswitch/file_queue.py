"""The files that one channel plays in order, and the marks between them. Pure.

The switch reports the start and end of each file. From this follows the position that the caller has heard, which
mod_audio_stream itself does not report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _File:
    path: str
    marks: list[str] = field(default_factory=list)
    """Marks after this file."""


class FileQueue:
    """Tracks one channel's playback.

    Args:
        on_mark: called with the name of each mark when all files before it were played.
        on_began: called when the first file after silence begins.
    """

    def __init__(self, on_mark: Callable[[str], None], on_began: Callable[[], None]) -> None:
        self._on_mark = on_mark
        self._on_began = on_began
        self._files: deque[_File] = deque()
        self._sounds = False

    def add(self, path: str) -> None:
        """Add a file that was queued at the switch."""
        self._files.append(_File(path))

    def mark(self, name: str) -> None:
        """Report this mark when the files so far were played; immediately if there are none."""
        if self._files:
            self._files[-1].marks.append(name)
        else:
            self._on_mark(name)

    def began(self, path: str) -> None:
        """Handle the start of a file."""
        if not self._sounds and any(file.path == path for file in self._files):
            self._sounds = True
            self._on_began()

    def ended(self, path: str) -> None:
        """Handle the end of a file, which implies the end of those before it. Cleared files do not count."""
        if not any(file.path == path for file in self._files):
            return
        while self._files:
            file = self._files.popleft()
            for name in file.marks:
                self._on_mark(name)
            if file.path == path:
                break
        self._sounds = bool(self._files)

    def clear(self) -> bool:
        """Forget all files and marks. True: there was something to stop."""
        playing = bool(self._files)
        self._files.clear()
        self._sounds = False
        return playing
