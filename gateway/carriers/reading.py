"""What the dialects' readers share: strict values out of lenient JSON, and the decode loop of event messages.

Numbers are taken as numbers or numeric strings (vendors differ, and differ between versions); unknown keys are ignored.
Readers only index and convert: whatever they raise becomes one ``ProtocolError``.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.errors import ProtocolError
from gateway.seams.media_messages import DtmfReceived, Message, UnknownEvent
from voicecodecs import g722
from voicecodecs.registry import AudioFormat

Body = Mapping[str, Any]

_DIGITS = frozenset("0123456789*#ABCD")
_ENCODINGS = {
    "mulaw": "PCMU",
    "ulaw": "PCMU",
    "pcmu": "PCMU",
    "alaw": "PCMA",
    "pcma": "PCMA",
    "g722": "G722",
    "opus": "OPUS",
    "l16": "L16",
    "raw": "L16",
    "slin": "L16",
}


def text(value: Any) -> str:
    """A string, and nothing that could be turned into one."""
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, expected a string")
    return value


def integer(value: Any) -> int:
    """A whole number, or a string of one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"got {type(value).__name__}, expected a whole number")
    return int(value)


def item(body: Body, *names: str) -> Any:
    """The value of the first of these keys that is there; vendors spell some in two ways.

    Raises:
        KeyError: none is.
    """
    for name in names:
        if name in body:
            return body[name]
    raise KeyError(names[0])


def payload(value: Any) -> bytes:
    """Audio in base64, standard alphabet with padding."""
    return a2b_base64(text(value), strict_mode=True)


def digit(value: Any) -> DtmfReceived:
    """One key; letters in either case."""
    key = text(value).upper()
    if key not in _DIGITS:
        raise ValueError("digit is not one of 0-9 * # A-D")
    return DtmfReceived(key)


def parameters(value: Any) -> dict[str, str]:
    """The call's own parameters: an object of scalars; what is nested is left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"parameters are {type(value).__name__}, expected an object")
    return {str(key): str(entry) for key, entry in value.items() if isinstance(entry, str | int | float)}


def audio_format(encoding: str, sample_rate: int, *, ptime_ms: int = 20) -> AudioFormat:
    """A vendor's name for an encoding (``audio/x-mulaw``, ``PCMU``, ``slin``) and its rate.

    Raises:
        ValueError: not spoken here.
    """
    short = encoding.strip().lower().removeprefix("audio/").removeprefix("raw/").removeprefix("x-")
    name = _ENCODINGS.get(short)
    if name is None:
        raise ValueError(f"encoding is {encoding[:40]!r}, expected one of mu-law, A-law, G722, Opus, L16")
    if name == "G722":
        sample_rate = g722.SAMPLE_RATE  # announced as 8000, its RTP clock, by some
    return AudioFormat(name, sample_rate, ptime_ms)


def reading(name: str, data: str | bytes, read: Callable[[], list[Message]]) -> list[Message]:
    """Run a reader; all that it trips over is the peer's fault.

    Raises:
        ProtocolError: names the dialect and the size, not the contents.
    """
    try:
        return read()
    except ProtocolError:
        raise
    except KeyError as exc:
        raise ProtocolError(f"{name}: message of {len(data)} characters lacks the key {exc}") from exc
    except (TypeError, ValueError, AttributeError, OverflowError, IndexError, RecursionError) as exc:
        raise ProtocolError(f"{name}: cannot read {len(data)} characters: {exc!r:.120}") from exc


def json_object(data: str) -> dict[str, Any]:
    """A JSON object. Raises ``ValueError`` or ``TypeError``."""
    body = orjson.loads(data)
    if not isinstance(body, dict):
        raise TypeError(f"got a JSON {type(body).__name__}, expected an object")
    return body


def metadata(data: str) -> dict[str, Any]:
    """What a start command gave along: a JSON object, or one line of other text as the parameter ``metadata``."""
    try:
        return json_object(data)
    except (ValueError, TypeError):
        if not data.isprintable() or not data.strip() or data.lstrip()[:1] in "{[":
            raise ValueError("metadata is neither a JSON object nor a line of text") from None
        return {"metadata": data}


class JsonEvents:
    """``decode`` of a dialect whose text messages are JSON objects that name their event, by a table of readers."""

    name: ClassVar[str]
    event_keys: ClassVar[tuple[str, ...]] = ("event",)
    start_event: ClassVar[str] = "start"
    """Comes once; a second one must not change what the stream is."""
    _begun = False
    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]]

    def decode(self, data: str | bytes) -> list[Message]:
        """One WebSocket message to messages; see ``Dialect.decode``."""
        if isinstance(data, bytes):
            return self.decode_binary(data)
        return reading(self.name, data, lambda: self._read(json_object(data)))

    def decode_binary(self, data: bytes) -> list[Message]:
        """A binary message: an error, unless the dialect has such."""
        raise ProtocolError(f"{self.name}: got a binary message of {len(data)} bytes, expected JSON text")

    def _read(self, body: Body) -> list[Message]:
        event = text(item(body, *self.event_keys))
        if event == self.start_event and self._begun:
            raise ProtocolError(f"{self.name}: a second start on one stream")
        reader = self.readers.get(event)
        messages: list[Message] = [UnknownEvent(event[:64])] if reader is None else list(reader(self, body))
        self._begun |= event == self.start_event
        return messages


class WholeSamples:
    """Cuts a stream of 16-bit samples at sample boundaries: an odd last byte waits for the next piece, since one lost
    byte would turn all that follows to noise."""

    def __init__(self) -> None:
        self._odd = b""

    @property
    def aligned(self) -> bool:
        """Nothing waits."""
        return not self._odd

    def push(self, piece: bytes) -> bytes:
        """Bytes in, whole samples out."""
        piece = self._odd + piece
        whole = len(piece) & ~1
        self._odd = piece[whole:]
        return piece[:whole]
