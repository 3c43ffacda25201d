"""FreeSWITCH with mod_audio_stream: s16le in binary messages. An ESL application controls the calls.

The first text message is the metadata of the start command, if any; audio may overtake it (the module's issue 121). The
rate is not announced: it is configured, or in
the address (``?rate=16000``). Audio to the caller has two forms. ``binary`` (commercial 1.0.3 and later, or its fork)
begins with one ``rawAudio`` message. ``file`` sends ``streamAudio``, which the module writes to files for the ESL
application to play. The module has no marks and no documented message that empties the queue, so audio is sent hardly
ahead. If this gateway is the ESL application, ``mark`` and ``clear`` travel in order with the audio: the module passes
unknown texts on as events (``mod_audio_stream::json``). DTMF reaches the socket only if the ESL application forwards
it: ``uuid_audio_stream <uuid> send_text {"event":"dtmf","digit":"5"}``.
"""

from __future__ import annotations

from array import array
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    WholeSamples,
    digit,
    item,
    linear_format,
    metadata,
    parameters,
    reading,
)
from gateway.seams.media_messages import MediaReceived, Message, MetadataReceived, Reply, StreamStarted
from voicecodecs.registry import AudioFormat

FILE_MS = 200
"""Length of one file. Shorter files are heard sooner, but between two files a busy switch may lose a frame."""


class FreeSwitch(JsonEvents):
    """The serializer of one stream.

    Args:
        sample_rate: rate of the start command, Hz.
        playback: the form of audio to the caller, ``binary`` or ``file``.
        plays: True if this gateway is the ESL application that plays the files.
        query: parameters of the stream's address: ``rate``, ``mix``, and the call's own.
    """

    name: ClassVar[str] = "freeswitch"
    event_keys: ClassVar[tuple[str, ...]] = ("event", "type")
    call_outlives_stream: ClassVar[bool] = False
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        sample_rate: int = 8000,
        playback: Literal["binary", "file"] = "binary",
        plays: bool = False,
        query: Mapping[str, str] | None = None,
    ) -> None:
        self._query = dict(query or {})
        self._format = linear_format(
            self._query.pop("rate", sample_rate), AudioFormat("L16", sample_rate), self.oddities
        )
        self._stereo = self._query.pop("mix", "mono") == "stereo"
        self.media_is_text = playback == "file"
        self.has_marks = plays and self.media_is_text
        self.has_clear = self.has_marks
        # The next file must be queued before the present one ends.
        self.max_lead_ms = 2 * FILE_MS if self.has_marks else 60
        self._media_head = b""
        self._started = False
        self._has_metadata = False
        self._samples = WholeSamples()

    def decode(self, data: str | bytes) -> list[Message]:
        """Decode one WebSocket message. The first text message starts the stream. Audio may come before it; see
        ``without_metadata``."""
        if isinstance(data, bytes) or self._has_metadata:
            return super().decode(data)
        return reading(self.name, data, lambda: self._first(metadata(data, self.oddities)))

    def without_metadata(self) -> list[Message]:
        """Start a stream without metadata."""
        return [] if self._started else self._start({})

    def decode_binary(self, data: bytes) -> list[Message]:
        """Decode the caller's audio. For stereo, use the left channel."""
        data = self._samples.push(data)
        if self._stereo:
            data = array("h", data)[::2].tobytes()
        return [MediaReceived(data)]

    def is_media(self, data: bytes | memoryview, *, binary: bool = False) -> bool:
        """Return True for audio: every binary message is."""
        return binary and self._started and not len(data) % 2 and self._samples.aligned

    def media(self, payload: bytes) -> bytes:
        """Encode one frame of audio."""
        if not self.media_is_text:
            return payload
        return self._media_head + b2a_base64(payload, newline=False) + b'"}}'

    def mark(self, name: str) -> bytes | None:
        """Encode a mark that comes back over our own event socket. None: without it, marks are not reported."""
        return orjson.dumps({"type": "mark", "name": name}) if self.has_marks else None

    def clear(self) -> bytes | None:
        """Encode the message that empties the queue of files. None: the module plays them itself, and knows none."""
        return b'{"type":"clear"}' if self.has_clear else None

    # --- readers ---------------------------------------------------------------------------------------------------

    def starts(self, body: Body) -> bool:
        """Return False: metadata names no event, and is read by ``_first``."""
        return False

    def _read(self, body: Body) -> list[Message]:
        if body and not any(key in body for key in self.event_keys):
            return self._repeated()
        return super()._read(body)

    def _first(self, body: Body) -> list[Message]:
        if "uuid" not in body and any(self._is_known(body.get(key)) for key in self.event_keys):
            return self._read(body)
        self._has_metadata = True
        if not self._started:
            return self._start(body)
        self.oddities.add("late_metadata")
        return [MetadataReceived(self._described(body))]

    def _described(self, body: Body) -> StreamStarted:
        own = parameters({**self._query, **body}, self.oddities)
        call_sid = own.pop("uuid", "")
        fmt = self._format
        return StreamStarted(
            stream_id=call_sid,
            call_sid=call_sid,
            from_=own.pop("from", ""),
            to=own.pop("to", ""),
            inbound=fmt,
            outbound=AudioFormat("L16", fmt.sample_rate, FILE_MS) if self.media_is_text else fmt,
            custom_parameters=own,
        )

    def _start(self, body: Body) -> list[Message]:
        rate = self._format.sample_rate
        self._media_head = (
            f'{{"type":"streamAudio","data":{{"audioDataType":"raw","sampleRate":{rate},"audioData":"'.encode()
        )
        self._samples = WholeSamples()  # audio before the start is dropped
        self._started = True
        started = self._described(body)
        if self.media_is_text:
            return [started]
        return [started, Reply(orjson.dumps({"type": "rawAudio", "data": {"sampleRate": rate}}))]

    def _dtmf(self, body: Body) -> Iterable[Message]:
        yield digit(item(body, "digit", "dtmf"))

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {"dtmf": _dtmf}
