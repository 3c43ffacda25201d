"""Telnyx media streaming in ``rtp`` mode: snake_case JSON, base64 of RTP payloads without their headers.

``start`` announces the inbound format. The outbound format was set when streaming was started and is not repeated, so
it is configured. ``media`` may arrive out of order and is sorted by ``chunk``. ``clear`` returns pending marks
immediately. Hang-up and DTMF to the caller use REST. When the socket closes, TeXML continues.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    audio_format,
    digit,
    integer,
    label,
    parameters,
    payload,
    section,
    text,
)
from gateway.seams.media_messages import (
    Ignored,
    MarkReached,
    MediaReceived,
    Message,
    PeerError,
    StreamStarted,
    StreamStopped,
)
from gateway.seams.plain_text import plain
from voicecodecs.l16 import swap_byte_order
from voicecodecs.registry import AudioFormat

_SET_CODEC = (
    'Set stream_codec to PCMU in the command that starts the stream, or codec="PCMU" in the <Stream> of your TeXML; '
    "our own webhook sets it"
)


class InOrder:
    """Puts numbered pieces in order. Waits for a missing piece until more than ``DEPTH`` later ones have arrived."""

    DEPTH = 3
    JUMP = 50
    """A jump of this size is not reordering: pieces were dropped unread, and the order continues from the new
    number."""

    def __init__(self) -> None:
        self._next: int | None = None
        self._held: dict[int, bytes] = {}
        self._late: tuple[int, bytes] | None = None
        """The last piece that came too late."""

    def push(self, number: int, piece: bytes) -> list[bytes]:
        """Add a piece, and return the pieces that are now in order. A piece that comes too late is dropped, but two in
        sequence that are far too late begin a new numbering, as in RTP (RFC 3550 appendix A.1)."""
        if self._next is None or number - self._next >= self.JUMP:
            self._held.clear()
            self._next = number
        if number < self._next:
            late, self._late = self._late, (number, piece)
            if late is None or number != late[0] + 1 or self._next - number < self.DEPTH:
                return []
            self._held = {late[0]: late[1]}
            self._next, self._late = late[0], None
        self._held[number] = piece
        if len(self._held) > self.DEPTH:
            self._next = min(self._held)
        ready = []
        while self._next in self._held:
            ready.append(self._held.pop(self._next))
            self._next += 1
        return ready


def _client_state(value: Any) -> dict[str, str]:
    """Return the text that the controlling application attached to the call, as ``clientState``. Binary data is left
    out."""
    try:
        return {"clientState": plain(a2b_base64(text(value), strict_mode=True).decode())} if value else {}
    except (ValueError, TypeError):
        return {}


class Telnyx(JsonEvents):
    """The serializer of one stream.

    Args:
        outbound: format set by ``stream_bidirectional_codec`` and ``…_sampling_rate``.
    """

    name: ClassVar[str] = "telnyx"
    max_lead_ms: ClassVar[int] = 1000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, outbound: AudioFormat | None = None, l16_byte_order: Literal["little", "big"] = "little"
    ) -> None:
        self._outbound = outbound or AudioFormat()
        self._big_endian = l16_byte_order == "big"
        self._swap_in = False
        self._swap_out = self._big_endian and self._outbound.encoding == "L16"
        self._chunks = InOrder()

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: such messages begin with ``{"event":"media"``."""
        return bytes(data[:16]) == b'{"event":"media"'

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        if self._swap_out:
            payload = swap_byte_order(payload)
        return b'{"event":"media","media":{"payload":"' + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes:
        """Encode a mark, which comes back when everything before it was played, or immediately after ``clear``."""
        return orjson.dumps({"event": "mark", "mark": {"name": name}})

    def clear(self) -> bytes:
        """Encode the message that empties the peer's buffer."""
        return b'{"event":"clear"}'

    # --- readers ---------------------------------------------------------------------------------------------------

    def _started(self, body: Body) -> Iterable[Message]:
        odd = self.oddities
        start = section(body.get("start"), odd)
        inbound = audio_format(
            self.name, start.get("media_format", {}), AudioFormat("PCMU", 8000), odd, hint=_SET_CODEC
        )
        self._swap_in = self._big_endian and inbound.encoding == "L16"
        yield StreamStarted(
            stream_id=label(body.get("stream_id"), odd),
            call_sid=label(start.get("call_control_id"), odd),
            account_sid=label(start.get("user_id"), odd),
            from_=label(start.get("from"), odd),
            to=label(start.get("to"), odd),
            inbound=inbound,
            outbound=self._outbound,
            custom_parameters={
                **_client_state(start.get("client_state")),
                **parameters(start.get("custom_parameters"), odd),
            },
        )

    def _media(self, body: Body) -> Iterable[Message]:
        media = body["media"]
        if media.get("track") in ("outbound", "outbound_track"):
            yield Ignored()
            return
        audio = payload(media["payload"], self.oddities)
        if self._swap_in:
            audio = swap_byte_order(audio)
        try:
            pieces = self._chunks.push(integer(media.get("chunk")), audio)
        except (TypeError, ValueError):  # unnumbered
            pieces = [audio]
        for piece in pieces:
            yield MediaReceived(piece)

    def _error(self, body: Body) -> Iterable[Message]:
        error = body["error"]
        yield PeerError(f"{str(error.get('code', ''))[:20]} {str(error.get('title', ''))[:80]}".strip())

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "connected": lambda self, body: [Ignored()],
        "start": _started,
        "media": _media,
        "dtmf": lambda self, body: [digit(body["dtmf"]["digit"])],
        "mark": lambda self, body: [MarkReached(text(body["mark"]["name"]))],
        "stop": lambda self, body: [StreamStopped()],
        "error": _error,
    }
