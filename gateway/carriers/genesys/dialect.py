"""Genesys AudioHook v2, as Audio Connector (two-way) and as monitor.

Both sides number their text messages. We answer ``open`` with ``opened`` (one of the offered media), ``ping`` with
``pong`` and ``close`` with ``closed``, immediately. An ``open`` with null UUIDs is a probe and starts no call. Audio is
binary at 8 kHz; the peer allows about five messages a second, so frames have 200 ms. The peer has no marks, but reports
when playback begins after silence and when all was played. The heard position is computed from the time since the
beginning. We end a session with ``disconnect``, which the peer answers with ``close`` before it closes the socket.
Hand-off data goes to the Architect flow as an output variable.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar
from uuid import UUID

import orjson

from gateway.carriers.reading import Body, JsonEvents, WholeSamples, audio_format, digit, integer, parameters, text
from gateway.errors import ProtocolError
from gateway.seams.media_messages import (
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


class Genesys(JsonEvents):
    """One session's serializer.

    Args:
        message_ms: audio per outgoing message, milliseconds. Fewer messages stay further below the peer's rate limit.
    """

    name: ClassVar[str] = "genesys"
    event_keys: ClassVar[tuple[str, ...]] = ("type",)
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

    def mark(self, name: str) -> None:
        """Return None, because Genesys has no marks."""

    def clear(self) -> bytes:
        """Encode a barge-in event, which empties the peer's buffer."""
        return self._message("event", {"entities": [{"type": "barge_in", "data": {}}]})

    def dtmf(self, digits: str) -> None:
        """Return None, because Genesys has no such message."""

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

    def _read(self, body: Body) -> list[Message]:
        if self._session_id and body.get("id") != self._session_id:
            raise ProtocolError("genesys: message names another session", field="id")
        seq = integer(body["seq"])
        if not self._session_id and body["type"] != "open":
            raise ProtocolError("genesys: the first message has to be open", field="type")
        messages = super()._read(body)
        self._peer_seq = max(self._peer_seq, seq)
        return messages

    def _open(self, body: Body) -> Iterable[Message]:
        if self._session_id:
            raise ProtocolError("genesys: a second open on one session", field="type")
        opening = body["parameters"]
        session_id, conversation = text(body["id"]), text(opening["conversationId"])
        participant = opening["participant"]
        media, fmt = self._chosen(opening["media"])
        started = StreamStarted(
            stream_id=session_id,
            call_sid=conversation,
            account_sid=text(opening.get("organizationId", "")),
            from_=text(participant.get("ani") or ""),
            to=text(participant.get("dnis") or ""),
            inbound=fmt,
            outbound=AudioFormat(fmt.encoding, fmt.sample_rate, self._message_ms),
            custom_parameters=parameters(opening.get("inputVariables")),
        )
        probe = UUID(conversation).int == 0 and UUID(text(participant["id"])).int == 0
        self._session_id = session_id
        self._peer_seq = integer(body["seq"])
        if not probe:
            yield started
        yield Reply(self._message("opened", {"startPaused": False, "media": [media]}))

    def _chosen(self, offered: Any) -> tuple[Any, AudioFormat]:
        """Choose one of the offered media: preferably the caller alone, and preferably PCMU."""

        def rank(media: Any) -> tuple[int, int]:
            return len(media["channels"]), ("PCMU", "L16").index(media["format"])

        usable = [
            media
            for media in offered
            if media["type"] == "audio" and media["format"] in ("PCMU", "L16") and "external" in media["channels"]
        ]
        if not usable:
            raise ProtocolError(
                f"genesys: none of {len(offered)} offered media is PCMU or L16 with the external channel", field="media"
            )
        best = min(usable, key=rank)
        self._channels, self._caller = len(best["channels"]), best["channels"].index("external")
        self._inbound = audio_format(
            self.name, {"encoding": best["format"], "sample_rate": best.get("rate")}, AudioFormat("PCMU", 8000)
        )
        return best, self._inbound

    def _close(self, body: Body) -> Iterable[Message]:
        self._peer_seq = integer(body["seq"])
        yield Reply(self._message("closed", {}))
        yield StreamStopped()

    def _answer(self, kind: str) -> Callable[[Body], Iterable[Message]]:
        def answer(body: Body) -> Iterable[Message]:
            self._peer_seq = integer(body["seq"])
            yield Reply(self._message(kind, {}))

        return answer

    def _error(self, body: Body) -> Iterable[Message]:
        error = body["parameters"]
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
