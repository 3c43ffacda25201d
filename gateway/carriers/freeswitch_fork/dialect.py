"""FreeSWITCH with mod_audio_fork: jambonz's messages. A command starts the stream, so little is announced.

The first text message is the free-form metadata of the start command, if any; audio may overtake it. The rate of the
command is not repeated on the socket: it is configured, or in the address (``?rate=16000``) or the metadata
(``sampleRate``). So is the channel's UUID (``uuid``). Without ``bidir_stream``, and with the old drachtio module, audio
goes back in ``playAudio`` files. ``disconnect`` is only an event in this module, so the ESL application must hang up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gateway.carriers.jambonz.dialect import Jambonz
from gateway.carriers.reading import Body, metadata, reading
from gateway.seams.media_messages import Message, MetadataReceived, StreamStarted


class FreeSwitchFork(Jambonz):
    """The serializer of one stream.

    Args:
        sample_rate: rate of the start command, Hz.
        streaming: True if ``bidir_stream`` is true.
        query: parameters of the stream's address: ``rate``, ``mix``, and the call's own.
    """

    name: ClassVar[str] = "freeswitch-fork"
    call_outlives_stream: ClassVar[bool] = False
    subprotocols: ClassVar[tuple[str, ...]] = ("audio.drachtio.org", "audio.jambonz.org", "audiostream.drachtio.org")

    def __init__(
        self, *, sample_rate: int = 8000, streaming: bool = True, query: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(streaming=streaming)
        self._query = dict(query or {})
        self._rate = self._query.pop("rate", sample_rate)
        self._has_metadata = False
        self._mix = self._query.pop("mix", "mono")

    def decode(self, data: str | bytes) -> list[Message]:
        """Decode one WebSocket message. The first text message starts the stream. Audio may come before it; see
        ``without_metadata``."""
        if isinstance(data, bytes) or self._has_metadata:
            return super().decode(data)
        return reading(self.name, data, lambda: self._first(metadata(data, self.oddities)))

    def without_metadata(self) -> list[Message]:
        """Start a stream without metadata."""
        return [] if self._started else [self.start({})]

    def _first(self, body: Body) -> list[Message]:
        if "callSid" not in body and any(self._is_known(body.get(key)) for key in self.event_keys):
            return self._read(body)
        self._has_metadata = True
        if not self._started:
            return [self.start(body)]
        self.oddities.add("late_metadata")
        return [MetadataReceived(self._described(self._with_address(body)))]

    def start(self, body: Body) -> StreamStarted:
        """Start the stream with the metadata, which overrides the parameters of the address."""
        return super().start(self._with_address(body))

    def _with_address(self, body: Body) -> Body:
        own = {"sampleRate": self._rate, "mixType": self._mix, **self._query, **body}
        if "uuid" in own:
            own["callSid"] = own.pop("uuid")
        return own

    def hangup(self, handoff_data: str | None = None) -> None:
        """Return None: only an ESL application can do this."""
