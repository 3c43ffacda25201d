"""Functions that the dialects' readers share: tolerant readers of fields, and the decode loop of event messages.

One rule holds for every dialect, because vendors disagree with their own documents: a call is refused only if no sound
could be exchanged. Ids and numbers become text or empty, bad parameters become ``{}``, and an unknown encoding or rate
becomes the dialect's default. Each such oddity is counted in ``Oddities``. Unknown keys are ignored. A reader may still
raise for an event after the start; any exception becomes one ``ProtocolError``, and the stream continues.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from gateway.carriers.oddities import Oddities
from gateway.errors import ProtocolError
from gateway.seams.media_messages import DtmfReceived, Ignored, Message, UnknownEvent
from gateway.seams.plain_text import may_need_cleaning, plain, plain_json, read_json
from voicecodecs import g722
from voicecodecs.registry import RTP_CLOCK_HZ, AudioFormat

Body = Mapping[str, Any]

_DIGITS = frozenset("0123456789*#ABCD")
_ENCODINGS = {
    "mulaw": "PCMU",
    "ulaw": "PCMU",
    "mlaw": "PCMU",
    "pcmu": "PCMU",
    "pcmulaw": "PCMU",
    "pcmmulaw": "PCMU",
    "basic": "PCMU",
    "g711": "PCMU",
    "g711u": "PCMU",
    "g711ulaw": "PCMU",
    "g711mulaw": "PCMU",
    "alaw": "PCMA",
    "pcma": "PCMA",
    "pcmalaw": "PCMA",
    "g711a": "PCMA",
    "g711alaw": "PCMA",
    "g722": "G722",
    "opus": "OPUS",
    "l16": "L16",
    "pcm": "L16",
    "pcm16": "L16",
    "pcm16le": "L16",
    "pcms16": "L16",
    "pcms16le": "L16",
    "s16": "L16",
    "s16le": "L16",
    "lpcm": "L16",
    "lpcm16": "L16",
    "raw": "L16",
    "slin": "L16",
    "linear": "L16",
    "linear16": "L16",
}
"""Encoding by its names, in lower case without ``-``, ``_``, ``.`` and spaces. ``audio/basic`` is mu-law (RFC 2046
section 4.3)."""
_OTHER_CODECS = (
    "aac", "amr", "evs", "f32", "float", "g723", "g726", "g728", "g729", "gsm", "ilbc", "l8", "l24", "lpc", "mp3",
    "mpeg", "pcmf32", "pcms24", "pcmu8", "pcms32", "silk", "speex", "vorbis",
)  # fmt: skip
"""Beginnings of names of encodings that are not supported. Decoded as another encoding, their audio would be noise, so
the call is refused."""
_ENCODING = re.compile(r"\s*(?:(?:audio|raw)\s*/\s*)?(?:x-)?([^;@/,]*?)\s*(?:[;@/,](.*))?", re.IGNORECASE | re.DOTALL)
_STATED_RATE = re.compile(r"rate\s*=\s*([^;,]*)|\A\s*(\d+\s*k?(?:hz?)?)", re.IGNORECASE)
_RATE_IN_NAME = re.compile(r"(.*[-_. ]|.*[a-z])(\d{4,6}|\d{1,2}k(?:hz)?)")
_RATE = re.compile(r"\s*\"?(\d{1,6})(?:\.0*)?\s*(k?)(?:hz?)?\"?\s*", re.IGNORECASE | re.ASCII)
_RATES_HZ = range(8000, 192_001)


def text(value: Any) -> str:
    """Return a string. Other types are not converted; ``label`` is for fields of a start."""
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, expected a string")
    return value


def label(value: Any, oddities: Oddities) -> str:
    """Return an id, a telephone number or a name as text. A number becomes text, null becomes empty, and so does any
    other type."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    oddities.add("label")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def first_label(oddities: Oddities, *values: Any) -> str:
    """Return the first of these values that is a label and not empty; vendors send some labels in two places."""
    found = [label(value, oddities) for value in values]
    return next((value for value in found if value), "")


def integer(value: Any) -> int:
    """Return a whole number, given as a number or a string."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"got {type(value).__name__}, expected a whole number")
    return int(value)


def whole_number(value: Any, default: int, oddities: Oddities) -> int:
    """Return a whole number, given as a number or a string. Anything else becomes ``default``."""
    try:
        return int(value) if isinstance(value, float) and value.is_integer() else integer(value)
    except (TypeError, ValueError):
        oddities.add("number")
        return default


def item(body: Body, *names: str) -> Any:
    """Return the value of the first of these keys that exists; vendors spell some in two ways.

    Raises:
        KeyError: none exists.
    """
    for name in names:
        if name in body:
            return body[name]
    raise KeyError(names[0])


def section(value: Any, oddities: Oddities) -> Body:
    """Return an object. Anything else becomes an empty one."""
    if isinstance(value, Mapping):
        return value
    oddities.add("object")
    return {}


def payload(value: Any, oddities: Oddities) -> bytes:
    """Decode audio from base64.

    Peers differ: some use the URL-safe alphabet, leave out the padding, or break lines (RFC 4648 sections 3.1, 3.2, 5).
    """
    data = text(value)
    try:
        return a2b_base64(data, strict_mode=True)
    except ValueError:
        standard = "".join(data.split()).rstrip("=").replace("-", "+").replace("_", "/")
        audio = a2b_base64(standard + "=" * (-len(standard) % 4), strict_mode=True)
    oddities.add("base64")
    return audio


def digit(value: Any) -> DtmfReceived:
    """Read one key, as text or as a number; letters in either case."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    key = str(value) if is_number else text(value).upper()
    if key not in _DIGITS:
        raise ValueError("digit is not one of 0-9 * # A-D")
    return DtmfReceived(key)


def parameters(value: Any, oddities: Oddities) -> dict[str, str]:
    """Read the call's own parameters: an object of scalars, or its JSON text. Nested values are left out. Anything else
    becomes ``{}``."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json_object(value)
        except ValueError:
            oddities.add("parameters")
            return {}
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        oddities.add("parameters")
        return {}
    return {str(key): str(entry) for key, entry in value.items() if isinstance(entry, str | int | float)}


def audio_format(dialect: str, media: Any, default: AudioFormat, oddities: Oddities, *, hint: str = "") -> AudioFormat:
    """Read the format that a stream's start announces.

    An unknown encoding or rate becomes the dialect's default. Missing keys mean the default too.

    Args:
        dialect: name of the dialect, for messages.
        media: the object with ``encoding`` (``audio/x-mulaw``, ``PCMU``, ``audio/l16;rate=16000``, ``L16@24000h``) and
            ``sample_rate`` or ``sampleRate``. Any other type counts as unreadable.
        default: the dialect's format; its frame length is kept.
        hint: a sentence for the refusal that says what to set.

    Raises:
        ProtocolError: the encoding is a codec that is not supported, such as AMR-WB.
    """
    media = section(media, oddities)
    encoding, rate = media.get("encoding"), media.get("sample_rate", media.get("sampleRate"))
    chosen, stated = _encoding(encoding) if isinstance(encoding, str) else (None, None)
    if isinstance(encoding, str) and chosen == "":
        known = "expected one of mu-law, A-law, G722, Opus, L16"
        raise ProtocolError(
            f"{dialect}: encoding is {encoding[:40]!r}, {known}{'. ' * bool(hint)}{hint}",
            field="encoding",
            code="unsupported_encoding",
        )
    if chosen is None:
        chosen = default.encoding
        if "encoding" in media:
            oddities.add("encoding")
    if stated is not None:
        rate = stated
    if chosen == "G722":  # some announce 8000, its RTP clock
        return AudioFormat(chosen, g722.SAMPLE_RATE, default.ptime_ms)
    if rate is not None or "sample_rate" in media or "sampleRate" in media:
        try:
            return AudioFormat(chosen, sample_rate(rate), default.ptime_ms)
        except ValueError:
            oddities.add("sample_rate")
    usual = default.sample_rate if chosen == default.encoding or chosen == "L16" else RTP_CLOCK_HZ[chosen]
    return AudioFormat(chosen, usual, default.ptime_ms)


def _encoding(value: str) -> tuple[str | None, str | None]:
    """Return our name of an encoding, and the rate that its name states. The name is empty for a codec that is not
    supported, and None for an unknown one."""
    match = _ENCODING.fullmatch(value)
    if match is None:
        return None, None
    name, inside = match[1].lower(), _RATE_IN_NAME.fullmatch(match[1].lower())
    stated = _STATED_RATE.search(match[2]) if match[2] else None
    rate = None if stated is None else (stated[1] or stated[2] or "")
    if inside is not None:
        name, rate = inside[1], rate or inside[2]
    name = re.sub(r"[-_. ]", "", name)
    if name == "slin16":  # Asterisk's name of the rate, not of the sample size
        name, rate = "slin", rate or "16000"
    if name in _ENCODINGS:
        return _ENCODINGS[name], rate
    return ("" if name.startswith(_OTHER_CODECS) else None), rate


def sample_rate(value: Any) -> int:
    """Return a rate in hertz, given as ``8000``, ``8000.0``, ``"8000"``, ``"8000Hz"`` or ``"8 kHz"``.

    Raises:
        ValueError: the value is none of these, or no rate of speech.
    """
    match = None if isinstance(value, bool) else _RATE.fullmatch(str(value))
    rate = int(match[1]) * (1000 if match[2] else 1) if match else 0
    if rate not in _RATES_HZ:
        raise ValueError(f"sample rate is {str(value)[:40]!r}, expected {_RATES_HZ.start} to {_RATES_HZ.stop - 1} Hz")
    return rate


def linear_format(value: Any, default: AudioFormat, oddities: Oddities) -> AudioFormat:
    """Return L16 at a rate in hertz. An unknown rate becomes that of ``default``."""
    try:
        return AudioFormat("L16", sample_rate(value), default.ptime_ms)
    except ValueError:
        oddities.add("sample_rate")
        return AudioFormat("L16", default.sample_rate, default.ptime_ms)


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
    body = read_json(data)
    if may_need_cleaning(data):
        body = plain_json(body, plain)
    if not isinstance(body, dict):
        raise TypeError(f"got a JSON {type(body).__name__}, expected an object")
    return body


def metadata(data: str, oddities: Oddities) -> dict[str, Any]:
    """Read the metadata of a start command: a JSON object, or one line of other text as the parameter ``metadata``.
    Unreadable metadata is left out."""
    try:
        return json_object(data)
    except (ValueError, TypeError):
        if data.isprintable() and data.strip() and data.lstrip()[:1] not in "{[":
            return {"metadata": data}
        oddities.add("metadata")
        return {}


class JsonEvents:
    """Base class of a dialect whose text messages are JSON objects that name their event. It reads them by a table of
    readers. It sends none of the messages that a dialect may lack; a dialect that has one overrides the method.
    """

    name: ClassVar[str]
    event_keys: ClassVar[tuple[str, ...]] = ("event",)
    start_event: ClassVar[str] = "start"
    """Event that starts the stream. A repetition is ignored."""
    _begun = False
    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]]

    @cached_property
    def oddities(self) -> Oddities:
        """Oddities of this stream that were tolerated."""
        return Oddities()

    def decode(self, data: str | bytes) -> list[Message]:
        """Decode one WebSocket message; see ``Dialect.decode``."""
        if isinstance(data, bytes):
            return self.decode_binary(data)
        return reading(self.name, data, lambda: self._read(json_object(data)))

    def decode_binary(self, data: bytes) -> list[Message]:
        """Refuse a binary message. Dialects that have binary messages override this."""
        raise ProtocolError(f"{self.name}: got a binary message of {len(data)} bytes, expected JSON text")

    def mark(self, name: str) -> bytes | None:
        """Return None: the dialect has no marks."""
        return None

    def clear(self) -> bytes | None:
        """Return None: the peer cannot empty its buffer."""
        return None

    def dtmf(self, digits: str) -> bytes | None:
        """Return None: tones are sent in the audio."""
        return None

    def hangup(self, handoff_data: str | None = None) -> bytes | None:
        """Return None: closing the socket ends the stream."""
        return None

    def without_metadata(self) -> list[Message]:
        """Start a stream whose peer announces nothing. Empty: this dialect waits for its start."""
        return []

    def starts(self, body: Body) -> bool:
        """Return True if a message has the contents of a start, in case its name of the event is missing or wrong."""
        return isinstance(body.get(self.start_event), Mapping)

    def _is_known(self, event: object) -> bool:
        return isinstance(event, str) and event in self.readers

    def _read(self, body: Body) -> list[Message]:
        event = next((body[key] for key in self.event_keys if key in body), None)
        if not self._begun and not self._is_known(event) and self.starts(body):
            self.oddities.add("label")
            event = self.start_event
        event = text(item(body, *self.event_keys) if event is None else event)
        if event == self.start_event and self._begun:
            return self._repeated()
        reader = self.readers.get(event)
        messages: list[Message] = [UnknownEvent(event[:64])] if reader is None else list(reader(self, body))
        self._begun |= event == self.start_event
        return messages

    def _repeated(self) -> list[Message]:
        """Ignore a second start."""
        self.oddities.add("repeated_start")
        return [Ignored()]


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
