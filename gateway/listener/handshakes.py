"""Connections in their TLS handshake, counted before the handshake costs anything. Pure.

A flood of silent connections makes room for new ones: at the limit of a source its own oldest is closed, at the limit
of all the oldest of the source with the most. So no source can lock another out. Peers that are known by their address,
such as trunks and proxies, are not counted, and do not make room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

_OF_FILES, _OF_ALL, _MOST = 16, 4, 1024
"""Handshakes may have one of so many descriptors, and a source one of so many handshakes. A core does about a thousand
in a second."""


class Handshake(Protocol):
    """The task of an accepted connection, until its handshake is complete."""

    def cancel(self) -> object: ...


class Handshakes:
    """The handshakes of one listener.

    Args:
        most: most handshakes at a time.
        per_source: most of one source.
        on_room: called for each handshake that makes room for another one.
    """

    def __init__(self, *, most: int, per_source: int, on_room: Callable[[], None] = lambda: None) -> None:
        self._most = most
        self._on_room = on_room
        self._per_source = per_source
        self._waiting: dict[str, dict[Handshake, None]] = {}
        """Handshakes of each source, the oldest first."""
        self._sources: dict[Handshake, str] = {}

    @classmethod
    def of_files(cls, files: int, on_room: Callable[[], None] = lambda: None) -> Self:
        """Return those of a process that may have so many descriptors."""
        most = min(_MOST, files // _OF_FILES)
        return cls(most=most, per_source=most // _OF_ALL, on_room=on_room)

    def __len__(self) -> int:
        return len(self._sources)

    def enter(self, source: str, handshake: Handshake) -> None:
        """Add a handshake, and close another one if there are too many."""
        if len(self._waiting.get(source, ())) >= self._per_source:
            self._end_oldest(source)
        elif len(self._sources) >= self._most:
            self._end_oldest(max(self._waiting, key=lambda each: len(self._waiting[each])))
        self._waiting.setdefault(source, {})[handshake] = None
        self._sources[handshake] = source

    def leave(self, handshake: Handshake) -> None:
        """Remove a handshake that is complete or has failed. May be called again."""
        source = self._sources.pop(handshake, None)
        if source is not None:
            del self._waiting[source][handshake]
            if not self._waiting[source]:
                del self._waiting[source]

    def close(self) -> None:
        """Close all, because the listener closes."""
        for handshake in list(self._sources):
            self.leave(handshake)
            handshake.cancel()

    def _end_oldest(self, source: str) -> None:
        oldest = next(iter(self._waiting[source]))
        self.leave(oldest)
        oldest.cancel()
        self._on_room()
