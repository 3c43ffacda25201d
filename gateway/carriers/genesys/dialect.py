"""Genesys AudioHook v2, as Audio Connector (two-way) and as monitor.

Both sides number their text messages. We answer ``open`` with ``opened`` (one of the offered media), ``ping`` with
``pong`` and ``close`` with ``closed``, immediately. An ``open`` with a null UUID is a probe and starts no call. Audio
is binary at 8 kHz; the peer allows about five messages a second, so frames have 200 ms. The peer has no marks, but
reports when playback begins after silence and when all was played. The heard position is computed from the time since
the beginning. We end a session with ``disconnect``, which the peer answers with ``close`` before it closes the socket.
Hand-off data goes to the Architect flow as an output variable.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    WholeSamples,
    audio_format,
    digit,
    label,
    parameters,
    section,
    whole_number,
)
from gateway.errors import ProtocolError
from gateway.seams.media_messages import (
    FlowControl,
    Ignored,
    MediaReceived,
    Message,
    PeerError,
    PlaybackCompleted,
    PlaybackStarted,
    Reply,
    StreamStarted,
    StreamStopped,
)
from voicecodecs.registry import AudioFormat

HANDOFF_VARIABLE = "handoffData"
"""Output variable that carries the dialogue manager's hand-off data."""

_FORMATS = ("PCMU", "L16")
_USUAL_MEDIA = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_RATE_LIMITED = "429"
_DURATION = re.compile(r"P(?:T(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)")
_MAX_WAIT_S = 30.0


def _is_null(value: Any) -> bool:
    """Return True for the null UUID."""
    return isinstance(value, str) and "0" in value and not value.strip("0-")


def _seconds(value: Any) -> float | None:
    """Return a duration such as ``PT2.5S`` in seconds, ``_MAX_WAIT_S`` at most. None: it is not a duration."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not (match[1] or match[2]):
        return None
    return min(_MAX_WAIT_S, 60 * float(match[1] or 0) + float(match[2] or 0))


class Genesys(JsonEvents):
    """One session's serializer.

    Args:
        message_ms: audio per outgoing message, milliseconds. Fewer messages stay further below the peer's rate limit.
    """

    name: ClassVar[str] = "genesys"
    event_keys: ClassVar[tuple[str, ...]] = ("type",)
    start_event: ClassVar[str] = "open"
    max_lead_ms: ClassVar[int] = 1000
    has_marks: ClassVar[bool] = False
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = False
    media_is_text: ClassVar[bool] = False
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message_ms: int = 200) -> None:
        self._message_ms = message_ms
        self._session_id = ""
        self._seq = 0
        self._peer_seq = 0
        self._inbound = AudioFormat()
        self._channels = 1
        self._caller = 0
        self._samples = WholeSamples()

    def decode_binary(self, data: bytes) -> list[Message]:
        """Decode the caller's audio. With two channels, use ``external``."""
        if self._inbound.encoding == "L16":
            data = self._samples.push(data)
        if self._channels > 1:
            if self._inbound.encoding == "L16":
                samples = array("h", data)
                data = samples[self._caller :: self._channels].tobytes()
            else:
                data = data[self._caller :: self._channels]
        return [MediaReceived(data)]

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: every binary message is."""
        return binary and not len(data) % 2 and self._samples.aligned

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        return payload

    def clear(self) -> bytes:
        """Encode a barge-in event, which empties the peer's buffer."""
        return self._message("event", {"entities": [{"type": "barge_in", "data": {}}]})

    def hangup(self, handoff_data: str | None = None) -> bytes:
        """Encode ``disconnect``; the peer answers with ``close``."""
        variables = {} if handoff_data is None else {"outputVariables": {HANDOFF_VARIABLE: handoff_data}}
        return self._message("disconnect", {"reason": "completed", **variables})

    def _message(self, kind: str, parameters: dict[str, Any]) -> bytes:
        self._seq += 1
        return orjson.dumps(
            {
                "version": "2",
                "type": kind,
                "seq": self._seq,
                "clientseq": self._peer_seq,
                "id": self._session_id,
                "parameters": parameters,
            }
        )

    # --- readers ---------------------------------------------------------------------------------------------------

    def starts(self, body: Body) -> bool:
        """Return True if a message offers media."""
        opening = body.get("parameters")
        return isinstance(opening, Mapping) and "media" in opening

    def _read(self, body: Body) -> list[Message]:
        if self._session_id and body.get("id") not in (self._session_id, None):
            raise ProtocolError("genesys: message names another session", field="id")
        seq = whole_number(body.get("seq"), self._peer_seq, self.oddities)
        self._peer_seq = max(self._peer_seq, seq)
        if not self._begun and body.get("type") != self.start_event and not self.starts(body):
            raise ProtocolError("genesys: the first message has to be open", field="type")
        return super()._read(body)

    def _open(self, body: Body) -> Iterable[Message]:
        odd = self.oddities
        opening = section(body.get("parameters"), odd)
        session_id, conversation = label(body.get("id"), odd), label(opening.get("conversationId"), odd)
        participant = section(opening.get("participant", {}), odd)
        probe = _is_null(conversation) or _is_null(participant.get("id"))
        offered = opening.get("media", [_USUAL_MEDIA])
        if not isinstance(offered, list):
            odd.add("object")
            offered = [_USUAL_MEDIA]
        self._session_id = session_id
        if probe:
            yield Reply(self._opened([self._chosen(offered)[0]] if offered else []))
            return
        media, fmt = self._chosen(offered)
        yield StreamStarted(
            stream_id=session_id,
            call_sid=conversation,
            account_sid=label(opening.get("organizationId"), odd),
            from_=label(participant.get("ani"), odd),
            to=label(participant.get("dnis"), odd),
            inbound=fmt,
            outbound=AudioFormat(fmt.encoding, fmt.sample_rate, self._message_ms),
            custom_parameters={
                **parameters(opening.get("customConfig"), odd),
                **parameters(opening.get("inputVariables"), odd),
            },
        )
        yield Reply(self._opened([media]))

    def _opened(self, media: list[Any]) -> bytes:
        return self._message("opened", {"startPaused": False, "media": media})

    def _chosen(self, offered: list[Any]) -> tuple[Any, AudioFormat]:
        """Choose one of the offered media: preferably the caller alone, and preferably PCMU. A key of an unexpected
        type has its usual value."""
        usable: list[tuple[int, int, int, AudioFormat, int]] = []
        for number, offer in enumerate(offered):
            media = section(offer, self.oddities)
            channels = media.get("channels")
            if not isinstance(channels, list) or not {"external", "internal"} & set(filter(_is_text, channels)):
                self.oddities.add("object")
                channels = ["external"] + ["internal"] * (isinstance(channels, list) and len(channels) > 1)
            if media.get("type") == "video" or "external" not in channels:
                continue
            named = {"encoding": media.get("format"), "sample_rate": media.get("rate")}
            with contextlib.suppress(ProtocolError):  # a codec that we do not have
                fmt = audio_format(self.name, named, AudioFormat("PCMU", 8000), self.oddities)
                rank = _FORMATS.index(named["encoding"]) if named["encoding"] in _FORMATS else len(_FORMATS)
                usable.append((len(channels), rank, number, fmt, channels.index("external")))
        if not usable:
            raise ProtocolError(
                f"genesys: none of {len(offered)} offered media is PCMU or L16 with the external channel",
                field="media", code="unsupported_encoding",
            )  # fmt: skip
        self._channels, _, number, self._inbound, self._caller = min(usable, key=lambda one: one[:3])
        media = offered[number] if isinstance(offered[number], Mapping) else _USUAL_MEDIA
        self._samples = WholeSamples()  # audio before the start is dropped
        return media, self._inbound

    def _close(self, body: Body) -> Iterable[Message]:
        yield Reply(self._message("closed", {}))
        yield StreamStopped(peer_closes=True)

    def _answer(self, kind: str) -> Callable[[Body], Iterable[Message]]:
        def answer(body: Body) -> Iterable[Message]:
            yield Reply(self._message(kind, {}))

        return answer

    def _error(self, body: Body) -> Iterable[Message]:
        error = section(body.get("parameters"), self.oddities)
        wait_s = _seconds(error.get("retryAfter"))
        if str(error.get("code", "")) == _RATE_LIMITED and wait_s is not None:
            yield FlowControl(stopped=True, resume_after_s=wait_s)
        yield PeerError(f"{str(error.get('code', ''))[:20]} {str(error.get('message', ''))[:80]}".strip())

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "open": _open,
        "close": _close,
        "ping": lambda self, body: self._answer("pong")(body),
        "update": lambda self, body: self._answer("updated")(body),
        "dtmf": lambda self, body: [digit(body["parameters"]["digit"])],
        "error": _error,
        "paused": lambda self, body: [Ignored()],
        "resumed": lambda self, body: [Ignored()],
        "discarded": lambda self, body: [Ignored()],
        "playback_started": lambda self, body: [PlaybackStarted()],
        "playback_completed": lambda self, body: [PlaybackCompleted()],
    }
