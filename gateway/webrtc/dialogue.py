"""The browser's part in the dialogue of its own call. A leading browser gets all messages of a dialogue manager,
including extensions, and may send them. On routes where managers dial in, it counts as one, so a web page alone can be
the bot. Any other browser gets what its user hears and does, and sends nothing."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.config import LimitsConfig, RouteConfig
from gateway.dialogue.line import setup_of
from gateway.dialogue.wire import decode, encode, refusal
from gateway.errors import ProtocolError
from gateway.seams.dialogue import DialogueLink, Dialogues, DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Caption, Dtmf, Ended, Inbound, Interrupt, Outbound, Prompt, Setup, TurnEvent
from gateway.webrtc.channel import Channel

log = logging.getLogger(__name__)

_WAITING_MESSAGES = 256
"""Most messages that are kept while the browser has no channel (not open yet, or reconnecting). Above this, the oldest
are dropped."""


_USER_MESSAGES = (Prompt, Dtmf, Interrupt, TurnEvent, Caption, Ended)
"""The messages for a browser that does not lead: what its user hears, says and types."""


class BrowserDialogue:
    """The messages of one call to and from its browser, over a sequence of data channels.

    Args:
        leads: True: the browser has the rights of a dialogue manager.
    """

    def __init__(self, limits: LimitsConfig, *, leads: bool) -> None:
        self.leads = leads
        self._limits = limits
        self._channel: Channel | None = None
        self._waiting: deque[Outbound] = deque(maxlen=_WAITING_MESSAGES)
        self._setup: Setup | None = None
        self._sink: DialogueSink | None = None
        self._errors = 0

    def begin(self, setup: Setup, sink: DialogueSink) -> None:
        """Begin the dialogue, since the call has a session."""
        self._setup = setup if self.leads else replace(setup, custom_parameters={})
        self._sink = sink
        if self._channel is not None:
            self._greet()

    def attach(self, channel: Channel) -> None:
        """Use the channel that the browser opened, initially or after a reconnect."""
        self._channel = channel
        channel.read(self._received)
        if self._setup is not None:
            self._greet()

    def _greet(self) -> None:
        assert self._setup is not None
        self._write(self._setup)
        self._setup = replace(self._setup, resumed=True, call_status="IN_PROGRESS")
        while self._waiting:
            self._write(self._waiting.popleft())

    def send(self, message: Outbound) -> None:
        """Send the browser a message, now or when it has a channel."""
        if not self.leads:
            if not isinstance(message, _USER_MESSAGES):
                return
            if isinstance(message, Interrupt):
                message = replace(message, utterance_remaining="")
        if self._channel is None or not self._channel.open:
            self._waiting.append(message)
        else:
            self._write(message)

    def _write(self, message: Outbound) -> None:
        text = encode(message, extensions=True)
        assert self._channel is not None and text is not None  # with extensions every message has a text
        self._channel.send(text)

    def _received(self, data: str | bytes) -> None:
        sink = self._sink
        if sink is None:
            return
        try:
            if isinstance(data, bytes):
                raise ProtocolError(f"binary message of {len(data)} bytes, expected JSON text")
            if not self.leads:
                raise ProtocolError(
                    "this browser does not lead the dialogue: a token of scope lead is needed", code="not_allowed"
                )
            _, message = decode(data, limits=self._limits, multiplexed=False)
            sink.on_message(message)
            self._errors = 0
        except ProtocolError as exc:
            self._errors += 1
            self._write(refusal(data, exc))
            if self._errors >= self._limits.errors_in_a_row and self._channel is not None:
                self._channel.close()


class _SharedSink:
    """The session as other managers of the call see it. A call that its browser leads does not end without them."""

    def __init__(self, sink: DialogueSink) -> None:
        self._sink = sink

    def on_message(self, message: Inbound) -> None:
        self._sink.on_message(message)

    def on_dialogue_ready(self) -> None:
        self._sink.on_dialogue_ready()

    def on_dialogue_closed(self) -> None:
        self._sink.on_dialogue_closed()

    def on_dialogue_lost(self) -> None:
        log.debug("no dialogue manager except the browser")

    def on_dialogue_resumed(self) -> None:
        pass

    def on_dialogue_skipped(self, kind: str, number: int) -> None:
        self._sink.on_dialogue_skipped(kind, number)

    def on_dialogue_failed(self, description: str) -> None:
        log.debug("no dialogue manager except the browser", extra={"why": description})

    def on_round_trip(self, seconds: float) -> None:
        self._sink.on_round_trip(seconds)


class _SharedLink:
    """A call's connection to its manager and its browser."""

    def __init__(self, link: DialogueLink, browser: BrowserDialogue) -> None:
        self._link = link
        self._browser = browser

    def send(self, message: Outbound) -> None:
        self._link.send(message)
        self._browser.send(message)

    def send_audio(self, pcm: bytes) -> None:
        """Send caller audio to the manager, not back to the browser."""
        self._link.send_audio(pcm)

    async def aclose(self) -> None:
        await self._link.aclose()


class BrowserDialogues:
    """``Dialogues`` that add browsers to the dialogues of another ``Dialogues``.

    Args:
        inner: gives each call its manager.
        browser: returns a call's browser by call id, or None if it has no data channel.
        version: version of this server, for ``setup``.
    """

    def __init__(
        self,
        inner: Dialogues,
        routes: Mapping[str, RouteConfig],
        browser: Callable[[str], BrowserDialogue | None],
        *,
        version: str,
    ) -> None:
        self._inner = inner
        self._routes = routes
        self._browser = browser
        self._version = version

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        """Connect a call to its manager, and to its browser if it has one."""
        browser = self._browser(call.call_id)
        if browser is None:
            return await self._inner.attach(call, sink, codec=codec)
        dialogue = self._routes[call.route].dialogue
        dials_in = not dialogue.url and not dialogue.script
        link = await self._inner.attach(call, _SharedSink(sink) if dials_in and browser.leads else sink, codec=codec)
        browser.begin(setup_of(call, codec=codec, version=self._version), sink)
        return _SharedLink(link, browser)
