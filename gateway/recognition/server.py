"""The server in the embedded recogniser's process: the protocol of ``listen.py`` over a function from audio to words.

The function takes whole utterances. Every partial result runs it again over the whole utterance, so the gateway asks
for those while the caller speaks only when they can change something (``Partials``). It also runs when the caller
pauses (``KeepAlive``): the last word has usually been said by then, so the answer to ``Finalize`` is ready. In a long
utterance, audio before such a pause is not processed again. The function runs for one call at a time: final results
first, then the partial result that has waited longest. A final result therefore waits for at most one partial result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import orjson
from aiohttp import WSMsgType, web
from numpy.typing import NDArray

from gateway.recognition import listen
from gateway.recognition.words import Words, agreed, is_english
from gateway.seams.recogniser import FRAME_BYTES, SAMPLE_RATE
from tts_engine.supervision import SUPERVISOR, SupervisedTask
from voicecodecs.pcm import to_float32

log = logging.getLogger(__name__)

PARTIAL_MS = 500
"""New speech between two partial results, milliseconds. A result takes about 0.05 s of a core."""

HANG_S = 10.0
"""Usual ``hang_s``."""

Transcribe = Callable[[NDArray[np.float32], str, str], Words]
"""A function to words, from mono audio at 16 kHz, shape ``(samples,)``, float32 in [-1, 1], its language, and the words
with which the answer must begin if the function can see to that. It runs in one thread."""

_CUT_ABOVE_S = 5.0  # a longer utterance is cut at a pause, because the work grows with the length
_MAX_UTTERANCE_S = 61  # longest utterance; the gateway's own bound is reached first
_MESSAGE_BYTES = 1 << 20
_MAX_PENDING_FINALS = 8  # most final results pending on a connection; one more ends it


class _Segment:
    """Audio up to a ``Finalize``."""

    def __init__(self) -> None:
        self.pcm = bytearray()
        self.text = ""
        self.done_bytes = 0
        """``text`` covers the audio up to this byte."""
        self.settled = ""
        self.settled_bytes = 0
        """``settled`` covers the audio up to this byte, which is not processed again."""
        self.paused_bytes = 0
        """Length of the audio at the caller's last pause."""
        self.answered = True
        """False if the words of that pause must be sent, even if they are those before it."""
        self.language = ""
        """The language of ``text``, if the network told it."""
        self._heard = ""
        """The words after ``settled``."""
        self._sure = ""
        """The first of these, which two results agree on."""

    async def read(self, transcribe: Callable[[NDArray[np.float32], str], Awaitable[Words]]) -> None:
        """Update ``text`` with the words of all audio so far."""
        size = len(self.pcm) & ~1
        if size - self.done_bytes < FRAME_BYTES:
            return
        pcm = np.frombuffer(bytes(self.pcm[self.settled_bytes : size]), "<i2").astype(np.int16)
        heard, self.language = await transcribe(to_float32(pcm), self._sure)
        self._sure = max(self._sure, agreed(self._heard, heard), key=len)
        self._heard = heard
        self.text = f"{self.settled} {heard}".strip()
        self.done_bytes = size
        if size == self.paused_bytes and size - self.settled_bytes >= _CUT_ABOVE_S * SAMPLE_RATE * 2:
            self.settled, self.settled_bytes = self.text, size
            self._heard = self._sure = ""


class _Connection:
    """The connection of one call."""

    def __init__(self, websocket: web.WebSocketResponse, *, language: str, partials: bool) -> None:
        self.websocket = websocket
        self.language = language
        self.partials = partials
        self.while_speaking = partials
        """True if words are wanted while the caller speaks."""
        self.segment = _Segment()
        self.start_s = 0.0
        self.finals = 0
        """Number of segments whose final result is pending."""

    async def send(self, segment: _Segment, *, final: bool) -> None:
        duration_s = len(segment.pcm) / 2 / SAMPLE_RATE
        results = listen.Results(text=segment.text, final=final, from_finalize=final, language=segment.language)
        await self.websocket.send_str(listen.encode(results, start_s=self.start_s, duration_s=duration_s))
        if final:
            self.finals -= 1
            self.start_s += duration_s


class ListenServer:
    """The recogniser's server. Serve ``app``.

    Args:
        hang_s: the server is unwell if the network works on one utterance for this long, seconds.
        knows: whether ``transcribe`` understands the language of a BCP 47 tag.
    """

    def __init__(
        self,
        transcribe: Transcribe,
        *,
        partial_ms: int = PARTIAL_MS,
        hang_s: float = HANG_S,
        knows: Callable[[str], bool] = is_english,
    ) -> None:
        self._transcribe = transcribe
        self._hang_s = hang_s
        self._knows = knows
        self._partial_bytes = partial_ms * SAMPLE_RATE // 1000 * 2
        self._finals: deque[tuple[_Connection, _Segment]] = deque()
        self._partials: dict[_Connection, _Segment] = {}  # in the order of the requests
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "recogniser")
        self._busy_since: float | None = None
        self._worker: SupervisedTask | None = None
        self.app = web.Application()
        self.app.router.add_get(listen.PATH, self._listen)
        self.app.router.add_get("/healthz", self._health)
        self.app.cleanup_ctx.append(self._working)
        self.app.on_shutdown.append(self._hang_up)
        self._connections: set[_Connection] = set()

    async def _working(self, app: web.Application) -> AsyncIterator[None]:
        self._worker = SUPERVISOR.task("recogniser", self._work)
        yield
        await self._worker.aclose()
        self._thread.shutdown(wait=False)

    async def _hang_up(self, app: web.Application) -> None:
        await asyncio.gather(*(connection.websocket.close() for connection in self._connections))

    async def _health(self, request: web.Request) -> web.Response:
        """Answer 200, unless the network has worked on one utterance for more than ``hang_s``."""
        loop = asyncio.get_running_loop()
        hangs = self._busy_since is not None and loop.time() - self._busy_since > self._hang_s
        return web.Response(status=503 if hangs else 200)

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        wrong = _unsupported(request, self._knows)
        if wrong:
            return web.Response(status=400, text=wrong)
        websocket = web.WebSocketResponse(max_msg_size=_MESSAGE_BYTES)
        try:
            await websocket.prepare(request)
        except ConnectionError:  # the call has ended meanwhile
            return web.Response(status=499)
        connection = _Connection(
            websocket,
            language=request.query.get("language", "en"),
            partials=request.query.get("interim_results") == "true",
        )
        self._connections.add(connection)
        try:
            async for message in websocket:
                if message.type is WSMsgType.BINARY:
                    self._hear(connection, message.data)
                elif message.type is WSMsgType.TEXT and not self._take_text(connection, message.data):
                    await websocket.close()
        finally:
            self._partials.pop(connection, None)
            self._connections.discard(connection)
        return websocket

    def _hear(self, connection: _Connection, pcm: bytes) -> None:
        segment = connection.segment
        segment.pcm += pcm
        # The gateway never sends that much; recognise what came so far.
        if len(segment.pcm) > _MAX_UTTERANCE_S * SAMPLE_RATE * 2:
            self._finalize(connection)
            return
        if connection.while_speaking and len(segment.pcm) - segment.done_bytes >= self._partial_bytes:
            self._queue_partial(connection)

    def _take_text(self, connection: _Connection, data: str) -> bool:
        """Handle a text message. Return False if the connection ends."""
        try:
            kind = orjson.loads(data)["type"]
        except (ValueError, KeyError, TypeError):
            log.warning("message is not a JSON object with a type", extra={"characters": len(data)})
            return False
        if kind == "Finalize":
            self._finalize(connection)
        elif kind == "KeepAlive":  # the caller pauses
            self._pause(connection)
        elif kind in ("Partials", "NoPartials"):
            connection.while_speaking = connection.partials and kind == "Partials"
        return kind != "CloseStream" and connection.finals <= _MAX_PENDING_FINALS

    def _finalize(self, connection: _Connection) -> None:
        self._partials.pop(connection, None)
        connection.finals += 1
        self._finals.append((connection, connection.segment))
        connection.segment = _Segment()
        self._wake.set()

    def _pause(self, connection: _Connection) -> None:
        segment = connection.segment
        if segment.paused_bytes != len(segment.pcm):
            segment.paused_bytes, segment.answered = len(segment.pcm), False
            self._queue_partial(connection)

    def _queue_partial(self, connection: _Connection) -> None:
        self._partials.setdefault(connection, connection.segment)
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._finals or self._partials:
                final = bool(self._finals)
                if final:
                    connection, segment = self._finals.popleft()
                else:
                    connection = next(iter(self._partials))
                    segment = self._partials.pop(connection)
                if connection.websocket.closed:
                    continue
                before = segment.text
                try:
                    await segment.read(partial(self._run, connection.language))
                except Exception:  # an utterance on which the network fails must not end the others
                    log.exception("recogniser failed on an utterance")
                answers = not segment.answered and segment.done_bytes + FRAME_BYTES > segment.paused_bytes
                segment.answered |= answers
                news = answers or segment.text != before
                if final or (connection.partials and connection.segment is segment and news):
                    try:
                        await connection.send(segment, final=final)
                    except (ConnectionError, RuntimeError):
                        pass  # the call has ended meanwhile

    async def _run(self, language: str, pcm: NDArray[np.float32], begun: str) -> Words:
        loop = asyncio.get_running_loop()
        self._busy_since = loop.time()
        try:
            return await loop.run_in_executor(self._thread, self._transcribe, pcm, language, begun)
        finally:
            self._busy_since = None


def _unsupported(request: web.Request, knows: Callable[[str], bool]) -> str:
    """Return why this stream cannot be recognised. Empty: it can."""
    expected = {"encoding": "linear16", "sample_rate": str(SAMPLE_RATE), "channels": "1"}
    for name, value in expected.items():
        if request.query.get(name, value) != value:
            return f"{name} is {request.query[name]!r}, expected {value}"
    language = request.query.get("language", "en")
    return "" if knows(language) else f"language is {language!r}, which the model does not know"
