"""Reads messages of FreeSWITCH's event socket: header lines, a blank line, and a body of ``Content-Length`` bytes.

FreeSWITCH ``mod_event_socket``. Events are requested in JSON. An event is one object whose values, such as ``_body``,
are strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.errors import ProtocolError
from gateway.seams.plain_text import plain, plain_lines, read_json

_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EslMessage:
    """One message of the switch."""

    kind: str
    """``Content-Type``: ``auth/request``, ``command/reply``, ``text/event-json``, ``text/disconnect-notice`` ..."""
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> Mapping[str, str]:
        """The fields of an event. The switch passes on the bytes of a caller's name as they came, UTF-8 or not.

        Raises:
            ProtocolError: the body is not a JSON object.
        """
        try:
            fields = read_json(self.body.decode("utf-8", "replace"))
            return {plain(name): plain_lines(value) for name, value in fields.items() if isinstance(value, str)}
        except (ValueError, AttributeError) as exc:
            raise ProtocolError(f"event of {len(self.body)} bytes is not a JSON object") from exc


class EslReader:
    """Splits the stream into messages.

    Args:
        max_bytes: largest body; events of busy switches have some kilobytes.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._searched = 0
        """Number of bytes at the front that were searched. The end of the headers does not begin within them."""

    def feed(self, data: bytes) -> Iterator[EslMessage]:
        """Take received bytes, in pieces of any size, and yield the complete messages.

        Raises:
            ProtocolError: the peer is not an event socket, or a message is too large. The connection is unusable.
        """
        self._pending += data
        while True:
            end = self._pending.find(b"\n\n", self._searched)
            self._searched = end if end >= 0 else max(0, len(self._pending) - 1)
            if end < 0:
                if len(self._pending) > _HEAD_BYTES:
                    raise ProtocolError(f"{len(self._pending)} bytes of headers, expected at most {_HEAD_BYTES}")
                return
            headers: dict[str, str] = {}
            for line in self._pending[:end].decode(errors="replace").lstrip("\n").split("\n"):
                name, colon, value = line.partition(":")
                if not colon:
                    raise ProtocolError(f"a header line of {len(line)} characters has no colon")
                headers[plain(name.strip())] = plain(value.strip())
            length = headers.get("Content-Length", "0")
            if not length.isdecimal() or len(length) > 12 or int(length) > self._max_bytes:
                raise ProtocolError(f"Content-Length is {length[:20]!r}, expected 0 to {self._max_bytes}")
            stop = end + 2 + int(length)
            if len(self._pending) < stop:
                return
            body = bytes(self._pending[end + 2 : stop])
            del self._pending[:stop]
            self._searched = 0
            yield EslMessage(headers.get("Content-Type", ""), headers, body)
