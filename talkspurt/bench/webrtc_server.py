"""The servers that ``talkspurt bench gateway --transport webrtc`` compares. Each is a process of its own.

``gateway`` is the product's own call (signalling, session, turns, playout, ticker, leg) with ready Opus frames.
``aiortc`` is that library with a track that returns sound, which aiortc encodes. ``aiortc-packets`` has a track that
returns ready packets. All run on uvloop and are paced by absolute time. Calls begin to speak at times that are spread
over a second, as unrelated calls do.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Any, Self

import numpy as np
import uvloop
from aiohttp import web
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, Packet

from gateway.call.defaults import turn_defaults
from gateway.call.directory import LocalDirectory
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.session import Services, Session
from gateway.calling.policy import CallingPolicy
from gateway.config import BargeInConfig, CallingConfig, LimitsConfig, PlayoutConfig, RouteConfig, WebRtcConfig
from gateway.media.playout import StartPolicy
from gateway.media.ticker import Ticker
from gateway.metrics import Metrics
from gateway.principal import ANYONE
from gateway.seams.dialogue import DialogueLink, DialogueSink
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Outbound, Text
from gateway.webrtc.leg import WebRtcLeg
from gateway.webrtc.signalling import WebRtc
from tts_engine.api import AudioChunk, EngineStatus, UtteranceRequest, VoiceInfo
from voicecodecs.opus import Encoder

MODES = ("gateway", "aiortc", "aiortc-packets")

_FRAME = 960
_RATE = 48_000
_SOUND_S = 10


def _sound() -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return noise in syllables. It needs as many bits as speech, and every frame is different."""
    time_s = np.arange(_SOUND_S * _RATE) / _RATE
    noise = np.random.default_rng(1).normal(0, 3000, len(time_s)) * np.abs(np.sin(2 * np.pi * 2 * time_s))
    return noise.astype(np.int16)


def _packets() -> list[bytes]:
    sound, encoder = _sound(), Encoder(_RATE)
    return [encoder.encode(sound[i : i + _FRAME]) for i in range(0, len(sound), _FRAME)]


# --- aiortc ------------------------------------------------------------------------------------------------------


class _Track(MediaStreamTrack):
    """A track with a timetable, because aiortc's sender sends as fast as ``recv`` answers.

    Args:
        make: returns the frame of a number.
        offset_s: when to begin, in seconds after ``begin``.
    """

    kind = "audio"

    def __init__(self, begin: asyncio.Event, make: Callable[[int], AudioFrame | Packet[Any]], offset_s: float) -> None:
        super().__init__()
        self._begin = begin
        self._make = make
        self._offset_s = offset_s
        self._begun_at = 0.0
        self._sent = 0

    async def recv(self) -> AudioFrame | Packet[Any]:
        await self._begin.wait()
        if not self._begun_at:
            self._begun_at = time.monotonic() + self._offset_s
        wait = self._begun_at + self._sent * 0.02 - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if self.readyState != "live":
            raise MediaStreamError
        frame = self._make(self._sent)
        frame.pts, frame.time_base = self._sent * _FRAME, Fraction(1, _RATE)
        self._sent += 1
        return frame


def _offset_s(call: int) -> float:
    """Return a call's offset. The offsets spread calls over a second without a pattern (golden ratio)."""
    return call * 0.6180339887 % 1.0


class AiortcServer:
    """Plain aiortc."""

    def __init__(self, *, encoded: bool) -> None:
        self._begin = asyncio.Event()
        self._connections: list[RTCPeerConnection] = []
        packets, sound = _packets(), _sound()
        frames = []
        for start in range(0, len(sound), _FRAME):
            frame = AudioFrame.from_ndarray(sound[None, start : start + _FRAME], format="s16", layout="mono")
            frame.sample_rate = _RATE
            frames.append(frame)

        def packet(number: int) -> Packet[Any]:
            return Packet(packets[number % len(packets)])

        def frame_of(number: int) -> AudioFrame:
            return frames[number % len(frames)]

        self._make: Callable[[int], AudioFrame | Packet[Any]] = packet if encoded else frame_of

    async def offer(self, sdp: str) -> str:
        connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        connection.addTrack(_Track(self._begin, self._make, _offset_s(len(self._connections))))
        self._connections.append(connection)
        await connection.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        await connection.setLocalDescription(await connection.createAnswer())
        return connection.localDescription.sdp

    def begin(self, seconds: float) -> None:
        self._begin.set()

    @property
    def connected(self) -> int:
        return sum(connection.connectionState == "connected" for connection in self._connections)


# --- the gateway
# --------------------------------------------------------------------------------------------------------


class _Ready:
    """An utterance whose frames are ready. It returns a second of them at a time."""

    def __init__(self, packets: Sequence[bytes], seconds: float) -> None:
        self._packets = packets
        self._frames = int(seconds * 50)

    def feed(self, text: str) -> None: ...
    def end_text(self) -> None: ...
    def played(self, samples: int, *, at: float) -> None: ...

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        for first in range(0, self._frames, 50):
            count = min(50, self._frames - first)
            frames = [self._packets[(first + i) % len(self._packets)] for i in range(count)]
            yield AudioChunk(frames=frames, first_sample=first * _FRAME, samples=count * _FRAME)

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _ReadyEngine:
    """A speech engine whose speech is ready, so that only the gateway is measured."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self._packets = _packets()

    def open(self, request: UtteranceRequest) -> _Ready:
        return _Ready(self._packets, self.seconds)

    async def list_voices(self) -> Sequence[VoiceInfo]:
        return []

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        raise NotImplementedError

    async def remove_voice(self, voice_id: str) -> None:
        raise NotImplementedError

    async def set_active_model(self, model: str) -> None:
        raise NotImplementedError

    async def status(self) -> EngineStatus:
        return EngineStatus(ready=True, engine="ready", model="")

    async def aclose(self) -> None: ...


class _Quiet:
    """A line to a dialogue manager that ignores all messages."""

    def send(self, message: Outbound) -> None: ...
    def send_audio(self, pcm: bytes) -> None: ...
    async def aclose(self) -> None: ...


class _Prompter:
    """The manager of all calls. They all begin to speak at one command."""

    def __init__(self) -> None:
        self.sinks: list[DialogueSink] = []

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        self.sinks.append(sink)
        return _Quiet()


class GatewayProcess:
    """The product's call, without the server's listener."""

    def __init__(self) -> None:
        self._engine = _ReadyEngine()
        self._prompter = _Prompter()
        self._routes = {"default": RouteConfig()}
        limits = LimitsConfig(calls=100_000)
        directory: LocalDirectory[Session] = LocalDirectory(limit=limits.calls)
        self._webrtc = WebRtc(
            WebRtcConfig(calls_per_address=100_000, data_channel=False), self._routes, limits,
            new_call_id=directory.new_call_id, check_room=directory.check_room, begin=self._begin,
        )  # fmt: skip
        self._services = Services(
            engine=self._engine, ticker=Ticker(), dialogues=self._prompter, clips=None,  # type: ignore[arg-type]  # no clips
            second_legs=SecondLegs(self._prompter),
            meter=Metrics(), playout=PlayoutConfig(), start=StartPolicy(quantile=1.0, max_delay_s=0.0),
            calling=CallingPolicy(CallingConfig(), self._routes),
        )  # fmt: skip
        self._tasks: set[asyncio.Task[str]] = set()

    def _begin(self, leg: WebRtcLeg) -> Session:
        route = self._routes[leg.route]
        defaults = turn_defaults(
            route, route.dialogue, self._services.playout, BargeInConfig(), turn_chars=1000, turns_queued=4
        )
        call = CallInfo(call_id=leg.call_id, route=leg.route, transport="webrtc")
        session = Session(call, leg, leg.inbound, route, defaults, self._services)
        task = asyncio.create_task(session.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return session

    async def offer(self, sdp: str) -> str:
        _, answer = await self._webrtc.answer(sdp, ANYONE)
        return answer

    def begin(self, seconds: float) -> None:
        self._engine.seconds = seconds
        for number, sink in enumerate(self._prompter.sinks):
            asyncio.get_running_loop().call_later(_offset_s(number), sink.on_message, Text(token="Speak.", last=True))

    @property
    def connected(self) -> int:
        return len(self._prompter.sinks)


async def _serve(mode: str) -> None:
    server = GatewayProcess() if mode == "gateway" else AiortcServer(encoded=mode == "aiortc-packets")

    async def offer(request: web.Request) -> web.Response:
        return web.Response(text=await server.offer(await request.text()))

    async def begin(request: web.Request) -> web.Response:
        # `talkspurt serve` does this too. Without it one full collection makes a step of aiortc fail (70 ms measured).
        gc.collect()
        gc.freeze()
        server.begin(float(request.query["seconds"]))
        return web.Response()

    async def state(request: web.Request) -> web.Response:
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        return web.json_response({"cpu_s": time.process_time(), "connected": server.connected, "rss_mb": rss_mb})

    app = web.Application()
    app.add_routes([web.post("/offer", offer), web.post("/begin", begin), web.get("/state", state)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    # The parent holds the other end of standard input, so this process ends with its parent.
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Run ``python -m talkspurt.bench.webrtc_server MODE``: print the port, and end with the standard input."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1]))


if __name__ == "__main__":
    main()
