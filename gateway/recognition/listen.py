"""The messages between the gateway and a streaming recogniser, in the format of Deepgram's ``/v1/listen``. Pure.

The gateway sends binary messages with s16le audio and the JSON messages ``Finalize``, ``KeepAlive`` and
``CloseStream``. It receives ``Results``, final or not. ``docs/recogniser.md`` describes the used part of the protocol.
The embedded recogniser speaks the same protocol on a unix socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import ProtocolError
from gateway.seams.plain_text import plain, read_json
from gateway.seams.recogniser import SAMPLE_RATE

PATH = "/v1/listen"
FINALIZE = '{"type":"Finalize"}'
KEEP_ALIVE = '{"type":"KeepAlive"}'
PARTIALS = '{"type":"Partials"}'
"""Give words while the caller speaks. Only the embedded recogniser knows this and the next one."""
NO_PARTIALS = '{"type":"NoPartials"}'
"""Give words at pauses and at the end."""

_TAG_CHARS = 35  # RFC 5646, section 4.4.1

Query = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The words of a stretch of audio."""

    text: str
    final: bool
    """True if later results are about later audio."""
    from_finalize: bool = False
    """True if all audio before the ``Finalize`` has been recognised."""
    language: str = ""
    """The language that the recogniser has detected. Empty: it has not told."""


@dataclass(frozen=True, slots=True)
class Other:
    """A message without words: ``Metadata``, ``SpeechStarted``, ..."""

    kind: str


def query(
    *, language: str, hints: Sequence[str], hints_parameter: str, partials: bool, parameters: Mapping[str, str]
) -> Query:
    """Return the query of the address: audio format and options. ``parameters`` replace the defaults."""
    values = {
        "encoding": "linear16",
        "sample_rate": str(SAMPLE_RATE),
        "channels": "1",
        "language": language,
        "interim_results": "true" if partials else "false",
        "endpointing": "false",  # the gateway's VAD decides when the caller has finished
        **parameters,
    }
    return [*values.items(), *((hints_parameter, hint) for hint in hints)]


def decode(data: str | bytes) -> Results | Other:
    """Parse a text message of the recogniser.

    Raises:
        ProtocolError: the message is not a JSON object with a type, or is ``Results`` of another shape.
    """
    try:
        body = read_json(data)
        kind = body["type"]
        if kind != "Results":
            return Other(plain(str(kind)))
        best = body["channel"]["alternatives"][0]
        text, languages = best["transcript"], best.get("languages")
        if not isinstance(text, str):
            raise TypeError(f"transcript is {type(text).__name__}, expected text")
        known = isinstance(languages, list) and languages and isinstance(languages[0], str)
        return Results(
            text=plain(text).strip(),
            final=body["is_final"] is True,
            from_finalize=body.get("from_finalize") is True,
            language=plain(languages[0])[:_TAG_CHARS] if known else "",
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise ProtocolError(f"recogniser: cannot decode {len(data)} characters: {exc!r}") from exc


def encode(results: Results, *, start_s: float, duration_s: float) -> str:
    """Serialise ``Results`` as a recogniser sends them."""
    best: dict[str, Any] = {"transcript": results.text, "confidence": 1.0 if results.text else 0.0}
    if results.language:
        best["languages"] = [results.language]
    body: dict[str, Any] = {
        "type": "Results",
        "channel_index": [0, 1],
        "start": round(start_s, 3),
        "duration": round(duration_s, 3),
        "is_final": results.final,
        "speech_final": results.final,
        "from_finalize": results.from_finalize,
        "channel": {"alternatives": [best]},
    }
    return orjson.dumps(body).decode()
