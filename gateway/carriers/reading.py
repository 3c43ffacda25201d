"""Helpers that the dialects' readers share: strict values out of lenient JSON, and the decode loop of event messages.

Numbers may be numbers or numeric strings, since vendors and versions differ. Unknown keys are ignored. Readers only
index and convert: any exception becomes one ``ProtocolError``.
"""

from __future__ import annotations

import logging
import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.errors import ProtocolError
from gateway.seams.media_messages import DtmfReceived, Message, UnknownEvent
from gateway.seams.plain_text import may_need_cleaning, plain, plain_json
from voicecodecs import g722
from voicecodecs.registry import RTP_CLOCK_HZ, AudioFormat

log = logging.getLogger(__name__)

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
    "linear16": "L16",
}
_OTHER_CODECS = frozenset(("amr", "amrwb", "evs", "g723", "g729", "gsm", "ilbc", "speex"))
"""Codecs that are not supported. Decoded as another encoding, their audio would be noise, so the call is refused."""
_RATE = re.compile(r"\s*(\d{1,6})(?:\.0*)?\s*(k?)(?:hz)?\s*", re.IGNORECASE | re.ASCII)
_LOWEST_RATE = 8000


def text(value: Any) -> str:
    """Return a string. Other types are not converted."""
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, expected a string")
    return value


def integer(value: Any) -> int:
    """Return a whole number, given as a number or a string."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"got {type(value).__name__}, expected a whole number")
    return int(value)


def item(body: Body, *names: str) -> Any:
    """Return the value of the first of these keys that exists; vendors spell some in two ways.

    Raises:
        KeyError: none exists.
    """
    for name in names:
        if name in body:
            return body[name]
    raise KeyError(names[0])


def payload(value: Any) -> bytes:
    """Decode audio from base64, standard alphabet with padding."""
    return a2b_base64(text(value), strict_mode=True)


def digit(value: Any) -> DtmfReceived:
    """Read one key; letters in either case."""
    key = text(value).upper()
    if key not in _DIGITS:
        raise ValueError("digit is not one of 0-9 * # A-D")
    return DtmfReceived(key)


def parameters(value: Any) -> dict[str, str]:
    """Read the call's own parameters: an object of scalars; nested values are left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"parameters are {type(value).__name__}, expected an object")
    return {str(key): str(entry) for key, entry in value.items() if isinstance(entry, str | int | float)}


def audio_format(dialect: str, media: Any, default: AudioFormat) -> AudioFormat:
    """Read the format that a stream's start announces.

    Vendors disagree with their own documents, so nothing unreadable ends the call: an unknown encoding or rate is
    logged and replaced by the dialect's default. Missing keys mean the default too.

    Args:
        dialect: name of the dialect, for messages.
        media: the object with ``encoding`` (``audio/x-mulaw``, ``PCMU``, ``audio/l16;rate=16000``) and ``sample_rate``
            or ``sampleRate``. Any other type counts as unreadable.
        default: the dialect's format; its frame length is kept.

    Raises:
        ProtocolError: the encoding is a codec that nothing here decodes, such as AMR-WB.
    """
    if not isinstance(media, Mapping):
        _use_default(dialect, "media format", media, default)
        return default
    encoding, rate = media.get("encoding"), media.get("sample_rate", media.get("sampleRate"))
    named, _, options = encoding.partition(";") if isinstance(encoding, str) else ("", "", "")
    name = named.strip().lower().removeprefix("audio/").removeprefix("raw/").removeprefix("x-").replace("-", "")
    if name in _OTHER_CODECS:
        raise ProtocolError(
            f"{dialect}: encoding is {named[:40]!r}, expected one of mu-law, A-law, G722, Opus, L16", field="encoding"
        )
    chosen = _ENCODINGS.get(name)
    if chosen is None:
        chosen = default.encoding
        if "encoding" in media:
            _use_default(dialect, "encoding", encoding, default)
    if stated := re.search(r"rate\s*=\s*(.*)", options):
        rate = stated[1]
    if chosen == "G722":  # some announce 8000, its RTP clock
        return AudioFormat(chosen, g722.SAMPLE_RATE, default.ptime_ms)
    if rate is not None or "sample_rate" in media or "sampleRate" in media:
        try:
            return AudioFormat(chosen, _sample_rate(rate), default.ptime_ms)
        except ValueError:
            _use_default(dialect, "sample rate", rate, default)
    return AudioFormat(chosen, default.sample_rate if chosen == "L16" else RTP_CLOCK_HZ[chosen], default.ptime_ms)


def _sample_rate(value: Any) -> int:
    """Return a rate in hertz, given as ``8000``, ``8000.0``, ``"8000"``, ``"8000Hz"`` or ``"8 kHz"``.

    Raises:
        ValueError: the value is none of these, or below 8000.
    """
    match = None if isinstance(value, bool) else _RATE.fullmatch(str(value))
    rate = int(match[1]) * (1000 if match[2] else 1) if match else 0
    if rate < _LOWEST_RATE:
        raise ValueError(f"sample rate is {str(value)[:40]!r}, expected hertz, {_LOWEST_RATE} or more")
    return rate


def _use_default(dialect: str, what: str, came: Any, default: AudioFormat) -> None:
    extra = {"dialect": dialect, "field": what, "came": repr(came)[:40]}
    log.warning(
        "unknown audio format, using the dialect's default",
        extra={**extra, "default": f"{default.encoding} at {default.sample_rate} Hz"},
    )


def reading(name: str, data: str | bytes, read: Callable[[], list[Message]]) -> list[Message]:
    """Run a reader. Its exceptions are the peer's fault.

    Raises:
        ProtocolError: the message names the dialect and the size, not the contents.
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
    """Read a JSON object. Raises ``ValueError`` or ``TypeError``."""
    body = orjson.loads(data)
    if may_need_cleaning(data):
        body = plain_json(body, plain)
    if not isinstance(body, dict):
        raise TypeError(f"got a JSON {type(body).__name__}, expected an object")
    return body


def metadata(data: str) -> dict[str, Any]:
    """Read the metadata of a start command: a JSON object, or one line of other text as the parameter ``metadata``."""
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
    """Event that may come only once."""
    _begun = False
    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]]

    def decode(self, data: str | bytes) -> list[Message]:
        """Decode one WebSocket message; see ``Dialect.decode``."""
        if isinstance(data, bytes):
            return self.decode_binary(data)
        return reading(self.name, data, lambda: self._read(json_object(data)))

    def decode_binary(self, data: bytes) -> list[Message]:
        """Refuse a binary message. Dialects that have binary messages override this."""
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
    """Splits a stream of 16-bit samples at sample boundaries: an odd last byte waits for the next piece, since one
    lost byte would turn all later audio into noise."""

    def __init__(self) -> None:
        self._odd = b""

    @property
    def aligned(self) -> bool:
        """True if no byte waits."""
        return not self._odd

    def push(self, piece: bytes) -> bytes:
        """Take bytes, and return whole samples."""
        piece = self._odd + piece
        whole = len(piece) & ~1
        self._odd = piece[whole:]
        return piece[:whole]
