"""Asterisk chan_websocket: media in binary messages, control in text messages. Our control messages are JSON or plain
text, like the peer's ``MEDIA_START``.

``MEDIA_START`` announces codec and frame size; a message must be a whole number of frames. The peer's queue holds 1000
frames; ``MEDIA_XOFF`` stops us before it is full. ``FLUSH_MEDIA`` empties the queue including its marks, which never
come back. The peer ignores a text message of more than 128 bytes. A call ends with ``HANGUP`` or with the socket. The
dialplan continues after ``Dial(…,,g)``, and may ask ``/v1/handoffs`` for the session's hand-off data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    WholeSamples,
    digit,
    first_label,
    parameters,
    reading,
    text,
    whole_number,
)
from gateway.errors import ProtocolError
from gateway.seams.media_messages import (
    FlowControl,
    Ignored,
    MarkReached,
    MediaReceived,
    Message,
    PeerError,
    Reply,
    StreamStarted,
)
from gateway.seams.plain_text import plain
from voicecodecs.registry import AudioFormat

MAX_TEXT_BYTES = 128
_SLIN = {"slin": 8000, "slin12": 12000, "slin16": 16000, "slin24": 24000, "slin32": 32000, "slin44": 44100}
_SLIN |= {"slin48": 48000, "slin96": 96000, "slin192": 192000}
_FORMATS = {"ulaw": ("PCMU", 8000), "alaw": ("PCMA", 8000), "g722": ("G722", 16000)} | {
    name: ("L16", rate) for name, rate in _SLIN.items()
}
_INTERNAL_VARIABLES = re.compile(r"_.*|TALKSPURT_.*|MEDIA_WEBSOCKET_.*|DIALEDPEERNUMBER|GOSUB_.*|ARG(C|\d+)")
"""Channel variables that chan_websocket, Dial, Gosub (seen with 22.10) and our dialplan sample set for their own
use."""
_PASSED_THROUGH = (
    "adpcm", "codec2", "g719", "g723", "g726", "g729", "gsm", "ilbc", "lpc10", "opus", "silk", "siren", "speex",
    "testlaw",
)  # fmt: skip
"""Beginnings of the names of Asterisk's other audio formats (main/format_cache.c)."""
_BARE_IDS = {"MEDIA_MARK_PROCESSED", "MEDIA_BUFFERING_COMPLETED"}


class Asterisk(JsonEvents):
    """The serializer of one channel.

    Args:
        answer: True: send ``ANSWER`` at the start, for ``Dial(WebSocket/…/n)``.
        query: parameters of the stream's address, from the dial string's ``v(...)``.
    """

    name: ClassVar[str] = "asterisk"
    start_event: ClassVar[str] = "MEDIA_START"
    max_lead_ms: ClassVar[int] = 2000
    has_marks: ClassVar[bool] = True
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = True
    media_is_text: ClassVar[bool] = False
    subprotocols: ClassVar[tuple[str, ...]] = ("media",)

    def __init__(self, *, answer: bool = False, query: Mapping[str, str] | None = None) -> None:
        self._answer = answer
        self._query = dict(query or {})
        self._plain = False
        self._inbound = AudioFormat()
        self._samples = WholeSamples()

    def decode(self, data: str | bytes) -> list[Message]:
        """Decode one WebSocket message; see ``Dialect.decode``."""
        if isinstance(data, bytes) or data.lstrip()[:1] in ("{", "[", '"', ""):
            return super().decode(data)
        return reading(self.name, data, lambda: self._read(_plain_body(plain(data))))

    def decode_binary(self, data: bytes) -> list[Message]:
        """Decode the caller's audio."""
        return [MediaReceived(self._samples.push(data) if self._inbound.encoding == "L16" else data)]

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: every binary message is."""
        return binary and not len(data) % 2 and self._samples.aligned

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        return payload

    def mark(self, name: str) -> bytes:
        """Encode a mark, which comes back as ``MEDIA_MARK_PROCESSED``.

        Raises:
            ValueError: the message is longer than the peer reads, or the name has a space and control is plain text.
        """
        return self._command("MARK_MEDIA", name)

    def clear(self) -> bytes:
        """Encode the message that empties the queue including its marks."""
        return self._command("FLUSH_MEDIA")

    def hangup(self, handoff_data: str | None = None) -> bytes:
        """Encode the message that hangs the channel up."""
        return self._command("HANGUP")

    def _command(self, command: str, correlation_id: str = "") -> bytes:
        if self._plain:
            if " " in correlation_id:
                raise ValueError(
                    f"mark name of {len(correlation_id)} characters has a space, which plain-text control cannot carry"
                )
            message = f"{command} {correlation_id}".rstrip().encode()
        else:
            message = orjson.dumps(
                {"command": command} | ({"correlation_id": correlation_id} if correlation_id else {})
            )
        if len(message) > MAX_TEXT_BYTES:
            raise ValueError(f"{command} is {len(message)} bytes, expected at most {MAX_TEXT_BYTES}")
        return message

    # --- readers ---------------------------------------------------------------------------------------------------

    def starts(self, body: Body) -> bool:
        """Return True if a message has the audio format."""
        return "format" in body and "optimal_frame_size" in body

    def _format(self, name: Any, size: int, ptime_ms: int) -> AudioFormat:
        """Return the caller's format. If Asterisk names none, the size of a frame in bytes tells it.

        Raises:
            ProtocolError: the codec is one that Asterisk passes through and we do not decode.
        """
        if isinstance(name, str) and name in _FORMATS:
            return AudioFormat(*_FORMATS[name])
        if isinstance(name, str) and name.startswith(_PASSED_THROUGH):
            raise ProtocolError(
                f"asterisk: channel format is {name[:20]!r}, expected one of {', '.join(_FORMATS)}. Set the format in "
                "the dial string with c(slin16)",
                field="format", code="unsupported_encoding",
            )  # fmt: skip
        self.oddities.add("encoding")
        rate = size * 1000 // (2 * ptime_ms) if ptime_ms > 0 else 0
        return AudioFormat("L16", rate) if rate in _SLIN.values() else AudioFormat()

    def _frames(self, size: int, ptime_ms: int) -> AudioFormat:
        """Return the format of our messages, which must be a whole number of Asterisk's frames of ``size`` bytes."""
        encoding, rate = self._inbound.encoding, self._inbound.sample_rate
        for candidate_ms in (ptime_ms, 20, *range(10, 61, 10), 80, 100, 200):
            try:
                outbound = AudioFormat(encoding, rate, candidate_ms)
            except ValueError:
                continue
            if size <= 0 or not (outbound.frame_bytes or 0) % size:
                if candidate_ms != ptime_ms:
                    self.oddities.add("frame_size")
                return outbound
        self.oddities.add("frame_size")
        return self._inbound

    def _started(self, body: Body) -> Iterable[Message]:
        odd = self.oddities
        size = whole_number(body.get("optimal_frame_size", 0), 0, odd)
        ptime_ms = whole_number(body.get("ptime", 20), 20, odd)
        self._inbound = self._format(body.get("format"), size, ptime_ms)
        outbound = self._frames(size, ptime_ms)
        self._plain = "plain" in body
        self._samples = WholeSamples()  # audio before the start is dropped
        channel = first_label(odd, body.get("channel_id"), body.get("connection_id"))
        variables = {
            name: value
            for name, value in parameters(body.get("channel_variables"), odd).items()
            if not _INTERNAL_VARIABLES.fullmatch(name)
        }
        yield StreamStarted(
            stream_id=channel,
            call_sid=channel,
            inbound=self._inbound,
            outbound=outbound,
            custom_parameters={**self._query, **variables},
        )
        if self._answer:
            yield Reply(self._command("ANSWER"))

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "MEDIA_START": _started,
        "MEDIA_XOFF": lambda self, body: [FlowControl(stopped=True)],
        "MEDIA_XON": lambda self, body: [FlowControl(stopped=False)],
        "MEDIA_MARK_PROCESSED": lambda self, body: [MarkReached(text(body["correlation_id"]))],
        "DTMF_END": lambda self, body: [digit(body["digit"])],
        "ERROR": lambda self, body: [PeerError(str(body.get("error_text", ""))[:80])],
        "QUEUE_DRAINED": lambda self, body: [Ignored()],
        "MEDIA_BUFFERING_COMPLETED": lambda self, body: [Ignored()],
        "STATUS": lambda self, body: [Ignored()],
    }


def _plain_body(data: str) -> dict[str, Any]:
    """Read ``EVENT key:value key:value``. Two events have an id without a key, and ``error_text`` extends to the
    end."""
    event, _, rest = data.strip().partition(" ")
    if not event.replace("_", "").isalpha() or not event.isupper():
        raise ValueError("first word is not an event")
    if event in _BARE_IDS:
        return {"event": event, "correlation_id": rest.strip(), "plain": True}
    rest, _, error_text = rest.partition("error_text:")
    body: dict[str, Any] = {"event": event, "plain": True}
    for pair in rest.split():
        key, colon, value = pair.partition(":")
        if not colon:
            raise ValueError("a word is not a key:value")
        body[key] = value
    if error_text:
        body["error_text"] = error_text
    return body
