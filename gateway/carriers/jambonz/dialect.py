"""jambonz ``listen``, two-way: s16le in binary messages, control in JSON.

The first message is one object of call attributes, into which the verb's ``metadata`` is merged. The peer starts to
play streaming audio when it has 80 ms, at first and each time its buffer ran empty. So frames have 80 ms, and no tail
is left waiting. A mark comes back as ``playout`` or as ``cleared``. Inside the peer a mark is a sample of value -1, so
samples of our audio with that value become 0.
"""

from __future__ import annotations

from array import array
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import orjson

from gateway.carriers.reading import (
    Body,
    JsonEvents,
    WholeSamples,
    digit,
    first_label,
    json_object,
    label,
    linear_format,
    parameters,
    reading,
    text,
)
from gateway.seams.media_messages import Ignored, MarkReached, MediaReceived, Message, StreamStarted
from voicecodecs.registry import AudioFormat

_ATTRIBUTES = frozenset(
    {
        "accountsid", "apibaseurl", "applicationsid", "callid", "callername", "callerid", "callsid", "callstatus",
        "calltermiationby", "callterminationby", "customerdata", "direction", "duration", "from", "fspublicip",
        "fssipaddress", "localsipaddress", "metadata", "mixtype", "originatingsipip", "originatingsiptrunkname",
        "parentcallid", "parentcallsid", "publicip", "samplerate", "sbccallid", "serviceprovidersid", "sipreason",
        "sipstatus", "to", "traceid",
    }
)  # fmt: skip
"""The fields that jambonz itself puts into the first message, in lower case without ``_``: jambonz-feature-server,
lib/session/call-info.js ``toJSON``. Several are addresses within the operator's network."""


def _is_attribute(name: str) -> bool:
    return name.replace("_", "").lower() in _ATTRIBUTES


PREBUFFER_MS = 80
_MINUS_ONE = b"\xff\xff"


class Jambonz(JsonEvents):
    """The serializer of one stream.

    Args:
        outbound_rate: ``bidirectionalAudio.sampleRate`` of the verb, Hz; 0: the announced inbound rate.
        streaming: ``bidirectionalAudio.streaming`` of the verb. Without it, audio goes back in ``playAudio`` messages,
            which have no marks.
    """

    name: ClassVar[str] = "jambonz"
    event_keys: ClassVar[tuple[str, ...]] = ("event", "type")
    max_lead_ms: ClassVar[int] = 2000
    has_clear: ClassVar[bool] = True
    call_outlives_stream: ClassVar[bool] = True
    subprotocols: ClassVar[tuple[str, ...]] = ("audio.jambonz.org", "audio.drachtio.org")

    def __init__(self, *, outbound_rate: int = 0, streaming: bool = True) -> None:
        self.has_marks = streaming
        self.media_is_text = not streaming
        self._streaming = streaming
        self._outbound = AudioFormat("L16", outbound_rate or 8000, PREBUFFER_MS if streaming else 200)
        self._outbound_rate = outbound_rate
        self._started = False
        self._stereo = False
        self._samples = WholeSamples()

    def decode(self, data: str | bytes) -> list[Message]:
        """Decode one WebSocket message; see ``Dialect.decode``."""
        if self._started or isinstance(data, bytes):
            return super().decode(data)
        return reading(self.name, data, lambda: self._first(json_object(data)))

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
        if not self._streaming:
            kind = f'"audioContentType":"raw","sampleRate":"{self._outbound.sample_rate}","queuePlay":true'
            audio = b2a_base64(payload, newline=False)
            return b'{"type":"playAudio","data":{"audioContent":"' + audio + b'",' + kind.encode() + b"}}"
        if _MINUS_ONE in payload:
            return array("h", (0 if sample == -1 else sample for sample in array("h", payload))).tobytes()
        return payload

    def mark(self, name: str) -> bytes | None:
        """Encode a mark, which comes back as ``playout`` or as ``cleared``."""
        return orjson.dumps({"type": "mark", "data": {"name": name}}) if self._streaming else None

    def clear(self) -> bytes:
        """Encode the message that empties the buffer and stops file playback."""
        return b'{"type":"killAudio"}'

    def hangup(self, handoff_data: str | None = None) -> bytes | None:
        """Encode the message that ends the verb; jambonz continues with the verb's ``actionHook``."""
        return b'{"type":"disconnect"}'

    # --- readers ---------------------------------------------------------------------------------------------------

    def _first(self, body: Body) -> list[Message]:
        """Read a message before the start, which is the start unless it is an event."""
        is_event = any(self._is_known(body.get(key)) for key in self.event_keys)
        return self._read(body) if is_event and "callSid" not in body else [self.start(body)]

    def starts(self, body: Body) -> bool:
        """Return False: the first message has no event, and is read by ``start``."""
        return False

    def _read(self, body: Body) -> list[Message]:
        if body and not any(key in body for key in self.event_keys):
            return self._repeated()
        return super()._read(body)

    def start(self, body: Body) -> StreamStarted:
        """Start the stream with the first message."""
        started = self._described(body)
        self._outbound = started.outbound
        self._stereo = body.get("mixType") == "stereo"
        self._samples = WholeSamples()  # audio before the start is dropped
        self._started = True
        return started

    def _described(self, body: Body) -> StreamStarted:
        odd = self.oddities
        own = parameters({key: value for key, value in body.items() if not _is_attribute(key)}, odd)
        for name in ("customerData", "metadata"):
            value = body.get(name)
            if isinstance(value, str) and not value.lstrip().startswith("{"):
                own[name] = value
            else:
                own |= parameters(value, odd)
        inbound = linear_format(body.get("sampleRate", 8000), AudioFormat("L16", 8000), odd)
        call_sid = first_label(odd, body.get("callSid"), body.get("callId"))
        return StreamStarted(
            stream_id=call_sid,
            call_sid=call_sid,
            account_sid=label(body.get("accountSid"), odd),
            from_=label(body.get("from"), odd),
            to=label(body.get("to"), odd),
            inbound=inbound,
            outbound=AudioFormat("L16", self._outbound_rate or inbound.sample_rate, self._outbound.ptime_ms),
            custom_parameters=own,
            direction=label(body.get("direction"), odd),
            call_status=label(body.get("callStatus"), odd),
        )

    def _marked(self, body: Body) -> Iterable[Message]:
        data = body["data"]
        if data.get("event", "playout") == "playout":
            yield MarkReached(text(data["name"]))
        else:
            yield Ignored()

    readers: ClassVar[Mapping[str, Callable[[Any, Body], Iterable[Message]]]] = {
        "dtmf": lambda self, body: [digit(body["dtmf"])],
        "mark": _marked,
        "playDone": lambda self, body: [Ignored()],
    }
