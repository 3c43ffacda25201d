"""Client of a streaming recogniser on a WebSocket (``listen.py``), with one connection per call.

Caller audio is kept until its words have come. If a connection breaks during an utterance, the next one gets the
utterance again, but only once. Audio that makes the recogniser fail therefore costs only its own prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from yarl import URL

from gateway.config import RecogniserConfig
from gateway.errors import ProtocolError
from gateway.recognition import listen
from gateway.seams.recogniser import FRAME_BYTES, MAX_UTTERANCE_S, SAMPLE_RATE, RecognitionEvents, RecognitionStream
from gateway.websocket_client import CannotOpen, ConnectionClosed, OutgoingWebSocket, open_websocket

log = logging.getLogger(__name__)

RECONNECT_FIRST_S = 0.25
"""Pause before a lost connection is made again, seconds. It doubles after each attempt."""

CONNECT_S = 5.0
"""Longest wait for a connection, seconds."""

_KEEP_ALIVE_S = 4.0
"""Silence after which `KeepAlive` is sent, seconds. Deepgram ends a connection that is silent for 10 s."""

_MAX_UTTERANCES = 4  # utterances kept per call while the recogniser is slow; the oldest is given up
_MESSAGE_BYTES = 1 << 20
_CLOSE_S = 1.0


class _Utterance:
    """The caller's audio between two calls of ``finish``."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.sent = 0
        self.paused = False
        """True if the recogniser must still be told of a pause."""
        self.finished = False
        self.finalized = False
        self.tries = 0
        self.settled = ""
        """Words of final results."""
        self.interim = ""

    def restart(self) -> None:
        """Mark the utterance to be sent again from its beginning. Only the first retry has any audio."""
        if self.tries:
            self.frames.clear()
        self.tries += 1
        self.sent, self.finalized = 0, False
        self.settled = self.interim = ""

    @property
    def text(self) -> str:
        return f"{self.settled} {self.interim}".strip()


class ListenStream:
    """One call's connection; implements ``RecognitionStream``."""

    def __init__(
        self,
        events: RecognitionEvents,
        url: URL,
        config: RecogniserConfig,
        *,
        unix_path: str,
        partials: bool,
        reconnect_max_s: float,
        on_dropped: Callable[[], None],
        can_wait: bool = False,
    ) -> None:
        self._events = events
        self._reconnect_max_s = reconnect_max_s
        self._on_dropped = on_dropped
        self._unix_path = unix_path
        self._url = url
        self._config = config
        self._partials = partials
        self._can_wait = can_wait
        self._wants_partials = self._told_partials = True
        """True if words are wanted while the caller speaks; and what the server knows of it."""
        self.heard_language = ""
        self._waiting: deque[_Utterance] = deque()  # the first one is being recognised
        self._wake = asyncio.Event()
        self._most_frames = int(MAX_UTTERANCE_S * SAMPLE_RATE * 2 / FRAME_BYTES) + 1
        self._broken = False
        self._closed = False
        self._task = asyncio.create_task(self._run(), name="recogniser stream")

    def push(self, pcm: bytes) -> None:
        if not self._waiting or self._waiting[-1].finished:
            self._begin()
        utterance = self._waiting[-1]
        if len(utterance.frames) >= self._most_frames:
            self._on_dropped()
            return
        utterance.frames.append(pcm)
        self._wake.set()

    def want_partials(self, wanted: bool) -> None:
        if self._can_wait and wanted != self._wants_partials:
            self._wants_partials = wanted
            self._wake.set()

    def pause(self) -> None:
        if self._waiting and not self._waiting[-1].finished:
            self._waiting[-1].paused = True
            self._wake.set()

    def finish(self) -> None:
        if not self._waiting or self._waiting[-1].finished:
            self._begin()
        utterance = self._waiting[-1]
        utterance.finished = True
        asyncio.get_running_loop().call_later(self._config.final_timeout_ms / 1000, self._time_is_up, utterance)
        self._wake.set()

    async def aclose(self) -> None:
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- utterances --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if len(self._waiting) >= _MAX_UTTERANCES:
            self._time_is_up(self._waiting[0])
        self._waiting.append(_Utterance())

    def _complete(self, utterance: _Utterance) -> None:
        self._waiting.remove(utterance)
        asyncio.get_running_loop().call_soon(self._tell, utterance.text)

    def _tell(self, text: str) -> None:
        if not self._closed:
            self._events.on_final(text)

    def _time_is_up(self, utterance: _Utterance) -> None:
        if utterance not in self._waiting or self._closed:
            return
        log.warning("recogniser is late", extra={"url": str(self._url.with_query(None))})
        # Later results of this utterance must not count as words of the next one.
        self._broken = self._broken or utterance.sent > 0
        self._complete(utterance)
        self._wake.set()

    def _take_results(self, results: listen.Results) -> None:
        if not self._waiting or not self._waiting[0].sent:
            return  # no utterance is waiting for words
        utterance = self._waiting[0]
        self.heard_language = results.language
        if results.final:
            utterance.settled = f"{utterance.settled} {results.text}".strip()
            utterance.interim = ""
        else:
            utterance.interim = results.text
        if utterance.finalized and results.from_finalize:
            self._complete(utterance)
            self._wake.set()
        elif utterance.text and self._partials:
            self._events.on_partial(utterance.text)

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RECONNECT_FIRST_S
        down = ""  # logged reason of the outage
        while True:
            begun = loop.time()
            try:
                async with asyncio.timeout(CONNECT_S):
                    websocket = await _connect(self._url, self._config, self._unix_path)
                async with websocket:
                    if down:
                        log.info("recogniser line up")
                        down = ""
                    why = await self._use_connection(websocket)
            except TimeoutError:
                why = f"no connection within {CONNECT_S:g} s"
            except (CannotOpen, ProtocolError) as exc:
                why = str(exc)
            except Exception:  # an internal error must not leave the call without a recogniser
                log.exception("recogniser stream failed")
                why = "internal error"
            if loop.time() - begun > self._reconnect_max_s:
                pause_s = RECONNECT_FIRST_S
            if why != down:
                log.info("recogniser line down", extra={"why": why})
                down = why
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._reconnect_max_s)

    async def _use_connection(self, websocket: OutgoingWebSocket) -> str:
        """Use one connection to its end. Return the reason of its end."""
        self._broken, self._told_partials = False, True
        if self._waiting and self._waiting[0].sent:
            self._waiting[0].restart()
        writer = asyncio.create_task(self._write(websocket), name="recogniser writer")
        try:
            while True:
                message = await websocket.recv()
                if isinstance(message, str):
                    results = listen.decode(message)
                    if isinstance(results, listen.Results):
                        self._take_results(results)
        except ConnectionClosed:
            return f"closed with {websocket.close_code}"
        finally:
            writer.cancel()
            (ended,) = await asyncio.gather(writer, return_exceptions=True)
            if isinstance(ended, Exception) and not isinstance(ended, ConnectionClosed):
                log.error("recogniser writer failed", exc_info=ended)

    async def _write(self, websocket: OutgoingWebSocket) -> None:
        try:
            await self._send_all(websocket)
        finally:  # the reader must not wait for answers to messages that are never sent
            await websocket.close()

    async def _send_all(self, websocket: OutgoingWebSocket) -> None:
        while not self._broken:
            self._wake.clear()
            utterance = self._waiting[0] if self._waiting else None
            if self._told_partials != self._wants_partials:
                self._told_partials = self._wants_partials
                await websocket.send(listen.PARTIALS if self._wants_partials else listen.NO_PARTIALS)
            elif utterance is not None and utterance.sent < len(utterance.frames):
                piece = b"".join(utterance.frames[utterance.sent :])
                utterance.sent = len(utterance.frames)
                await websocket.send(piece)
            elif utterance is not None and utterance.finished and not utterance.finalized:
                if not utterance.sent:  # the utterance ended without a frame
                    self._complete(utterance)
                    continue
                utterance.finalized = True
                await websocket.send(listen.FINALIZE)
            elif utterance is not None and utterance.paused:
                utterance.paused = False
                await websocket.send(listen.KEEP_ALIVE)
            else:
                try:
                    async with asyncio.timeout(_KEEP_ALIVE_S):
                        await self._wake.wait()
                except TimeoutError:
                    await websocket.send(listen.KEEP_ALIVE)


class ListenRecogniser:
    """Recogniser at a WebSocket address; implements ``Recogniser``.

    Args:
        url: ``ws://`` or ``wss://``; the query of ``listen.query`` is added to its own.
        unix_path: UNIX socket of a recogniser on this machine; empty: the host of the URL.
        reconnect_max_s: longest pause between attempts, seconds.
        can_wait: True: it knows ``listen.NO_PARTIALS``.
        ready: False: it counts as ready after ``reach``. A later outage changes nothing: calls continue without words,
            and each stream connects by itself.
    """

    def __init__(
        self,
        url: str,
        config: RecogniserConfig,
        *,
        unix_path: str = "",
        reconnect_max_s: float = 5.0,
        can_wait: bool = False,
        ready: bool = True,
    ) -> None:
        self._url = URL(url)
        self._reconnect_max_s = reconnect_max_s
        self._config = config
        self._unix_path = unix_path
        self._can_wait = can_wait
        self.dropped = 0
        self.ready = ready

    def knows(self, language: str) -> bool:
        return True  # only the server can tell

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> RecognitionStream:
        query = listen.query(
            language=language,
            hints=hints,
            hints_parameter=self._config.hints_parameter,
            partials=partials,
            parameters=self._config.parameters,
        )
        url = self._url.extend_query(query)
        return ListenStream(
            events,
            url,
            self._config,
            unix_path=self._unix_path,
            partials=partials,
            reconnect_max_s=self._reconnect_max_s,
            on_dropped=self._count_dropped,
            can_wait=self._can_wait,
        )

    async def reach(self, language: str) -> None:
        """Try to open a connection as a call would, until one opens. Then be ready.

        Args:
            language: BCP 47 tag of a language that calls will ask for.
        """
        query = listen.query(
            language=language, hints=(), hints_parameter="", partials=True, parameters=self._config.parameters
        )
        pause_s, told = RECONNECT_FIRST_S, ""
        while not self.ready:
            try:
                async with asyncio.timeout(CONNECT_S):
                    async with await _connect(self._url.extend_query(query), self._config, self._unix_path):
                        self.ready = True
                return
            except TimeoutError:
                why = f"no connection within {CONNECT_S:g} s"
            except (CannotOpen, ProtocolError) as exc:
                why = str(exc)
            if why != told:
                log.warning("not ready for calls: the recogniser cannot be reached", extra={"why": why})
                told = why
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._reconnect_max_s)

    def _count_dropped(self) -> None:
        self.dropped += 1

    async def aclose(self) -> None:
        """Nothing is open but the streams, which their calls close."""


async def _connect(url: URL, config: RecogniserConfig, unix_path: str) -> OutgoingWebSocket:
    return await open_websocket(
        str(url),
        headers=config.headers,
        message_bytes=_MESSAGE_BYTES,
        close_s=_CLOSE_S,
        ping_s=_KEEP_ALIVE_S,
        unix_path=unix_path,
    )
