"""A gateway that takes WebRTC calls on loopback: real sessions, engine (the humming one), uplink and signalling."""

import asyncio
import gc
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from fractions import Fraction
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from gateway.call.defaults import turn_defaults
from gateway.call.directory import LocalDirectory
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.session import Services, Session
from gateway.calling.policy import CallingPolicy
from gateway.config import (
    AuthConfig,
    BargeInConfig,
    CallingConfig,
    DialogueConfig,
    LimitsConfig,
    PlayoutConfig,
    RouteConfig,
    ServerConfig,
    WebRtcConfig,
)
from gateway.dialogue.dialogues import RouteDialogues
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import DialogueStats
from gateway.dialogue.observers import Observers
from gateway.http.request import errors
from gateway.http.request.auth import Authenticator
from gateway.limits.limiter import Limiter
from gateway.media.playout import StartPolicy
from gateway.media.ticker import Ticker
from gateway.metrics import Metrics
from gateway.seams.leg import CallInfo, RtpReport
from gateway.tokens import Tokens
from gateway.uplink.worker import UplinkWorker
from gateway.webrtc.dialogue import BrowserDialogues
from gateway.webrtc.leg import WebRtcLeg
from gateway.webrtc.signalling import WebRtc
from tests.waiting import PATIENCE_S, until
from tts_engine.pipeline.engine import Engine
from tts_engine.tone import ToneSynthesizer

LIMITS = LimitsConfig(calls=50)
BARGE_IN = BargeInConfig()


class TestGateway:
    __test__ = False

    def __init__(self, config: WebRtcConfig, routes: dict[str, RouteConfig]) -> None:
        self.directory: LocalDirectory[Session] = LocalDirectory(limit=LIMITS.calls)
        self.routes = routes
        self.ended: list[str] = []
        self.reports: list[RtpReport] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.webrtc = WebRtc(
            config, routes, LIMITS,
            new_call_id=self.directory.new_call_id, check_room=self.directory.check_room, begin=self.begin,
            trusted_proxies=("127.0.0.0/8",), on_report=self.reports.append,
        )  # fmt: skip
        self.services: Services
        self.tokens = Tokens(None, lifetime_s=60)
        self.url = ""

    def begin(self, leg: WebRtcLeg) -> Session:
        route = self.routes[leg.route]
        defaults = turn_defaults(
            route, route.dialogue, self.services.playout, BARGE_IN, turn_chars=2000, turns_queued=16
        )
        call = CallInfo(call_id=leg.call_id, route=leg.route, transport="webrtc", custom_parameters=leg.parameters)
        session = Session(call, leg, leg.inbound, route, defaults, self.services)
        self.directory.add(session)
        task = asyncio.create_task(self._run(session))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return session

    async def _run(self, session: Session) -> None:
        try:
            self.ended.append(await session.run())
        finally:
            self.directory.remove(session)


@asynccontextmanager
async def gateway(
    config: WebRtcConfig | None = None, *, page: str = "", **routes: RouteConfig
) -> AsyncIterator[TestGateway]:
    """Runs on a free port of 127.0.0.1; ``page`` is served at ``/``."""
    routes = routes or {"default": RouteConfig(dialogue=DialogueConfig(give_up_s=0.2))}
    async with AsyncExitStack() as stack:
        made = TestGateway(config or WebRtcConfig(), routes)
        engine = Engine(ToneSynthesizer())
        await engine.start()
        stack.push_async_callback(engine.aclose)
        ticker = Ticker()
        stack.callback(ticker.close)
        stats = DialogueStats()
        dialogues = RouteDialogues(
            routes, limits=LIMITS, stats=stats, version="test", observers=Observers(limits=LIMITS),
            hub=DialogueHub(routes, limits=LIMITS, stats=stats, version="test"),
        )  # fmt: skip
        stack.push_async_callback(dialogues.aclose)
        uplink = UplinkWorker(routes, BARGE_IN)
        stack.callback(uplink.close)
        made.services = Services(
            engine=engine, ticker=ticker, clips=None, meter=Metrics(), playout=PlayoutConfig(), uplink=uplink,  # type: ignore[arg-type]
            dialogues=(legs := SecondLegs(BrowserDialogues(dialogues, routes, made.webrtc.browser, version="test"))),
            second_legs=legs,
            start=StartPolicy(quantile=0.98, max_delay_s=0.4), calling=CallingPolicy(CallingConfig(), routes),
        )  # fmt: skip
        app = web.Application(middlewares=[errors.middleware], client_max_size=1_000_000)
        auth = Authenticator(AuthConfig(), ServerConfig(), routes, made.tokens, Limiter(LimitsConfig()))
        for route in made.webrtc.routes():
            app.router.add_route(route.method, route.path, auth.guard(route))
        app.on_response_prepare.append(made.webrtc.add_cors)

        async def show(request: web.Request) -> web.Response:
            return web.Response(text=page, content_type="text/html")

        app.router.add_get("/", show)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        stack.push_async_callback(made.webrtc.aclose)
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
        for session in made.directory:
            session.end("test over", hang_up=True)
        if made.tasks:
            await asyncio.wait(made.tasks, timeout=PATIENCE_S)


class SilentMicrophone(MediaStreamTrack):
    """Paced silence, or what ``pcm`` holds (int16, 48 kHz), then silence."""

    kind = "audio"

    def __init__(self, pcm: np.ndarray | None = None) -> None:
        super().__init__()
        self.pcm = np.zeros(0, np.int16) if pcm is None else pcm
        self._sent = 0
        self._begun = 0.0

    async def recv(self) -> AudioFrame:
        now = asyncio.get_running_loop().time()
        self._begun = self._begun or now
        await asyncio.sleep(max(0.0, self._begun + self._sent / 48000 - now))
        if self.readyState != "live":
            raise MediaStreamError
        piece = np.zeros(960, np.int16)
        part = self.pcm[self._sent : self._sent + 960]
        piece[: len(part)] = part
        frame = AudioFrame.from_ndarray(piece[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 48000, self._sent, Fraction(1, 48000)
        self._sent += 960
        return frame


class Phone:
    """An independent peer: aiortc's own connection, receiver and decoder."""

    def __init__(self, *, microphone: MediaStreamTrack | None = None, channel: bool = True) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.heard: list[np.ndarray] = []
        self.messages: list[dict[str, Any]] = []
        self.call_id = ""
        self.resource = ""
        self.etag = ""
        self._reader: asyncio.Task[None] | None = None
        if microphone is None:
            self.connection.addTransceiver("audio", direction="recvonly")
        else:
            self.connection.addTrack(microphone)
        self.channel = self.connection.createDataChannel("talkspurt") if channel else None
        if self.channel is not None:
            self.channel.on("message", lambda text: self.messages.append(json.loads(text)))
        self.connection.on("track", self._on_track)

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._reader = asyncio.create_task(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, AudioFrame)
            self.heard.append(frame.to_ndarray().reshape(-1, len(frame.layout.channels))[:, 0])

    async def offer(self, change: Callable[[str], str] = lambda sdp: sdp) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return change(self.connection.localDescription.sdp)

    async def call(
        self, url: str, *, change: Callable[[str], str] = lambda sdp: sdp, token: str = "", **body: Any
    ) -> None:
        sdp = await self.offer(change)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"} if token else {}) as http,
            http.post(f"{url}/v1/webrtc/offer", json={"sdp": sdp, "type": "offer", **body}) as response,
        ):
            answer = await response.json()
            assert response.status == 200, answer
            self.call_id = answer["callId"]
            self.resource, self.etag = response.headers["Location"], response.headers["ETag"]
        await self.connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
        await until(lambda: self.connection.connectionState == "connected", "connected")
        if self.channel is not None:
            await until(lambda: self.of_type("setup"), "setup")

    def say(self, **message: Any) -> None:
        assert self.channel is not None
        self.channel.send(json.dumps(message))

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    def turn_events(self, turn: str) -> list[str]:
        return [message["event"] for message in self.of_type("turn") if message["turn"] == turn]

    @property
    def pcm(self) -> np.ndarray:
        return np.concatenate(self.heard) if self.heard else np.zeros(0, np.int16)

    async def close(self) -> None:
        await self.connection.close()
        if self._reader is not None:
            await self._reader


@asynccontextmanager
async def calling(url: str, **more: Any) -> AsyncIterator[Phone]:
    """A phone in a call; closed at the end."""
    made = {name: more.pop(name) for name in ("microphone", "channel") if name in more}
    phone = Phone(**made)
    try:
        await phone.call(url, **more)
        yield phone
    finally:
        await phone.close()


def strongest_hz(pcm: np.ndarray, rate: int) -> float:
    """The frequency with the most energy."""
    spectrum = np.abs(np.fft.rfft(pcm.astype(float) * np.hanning(len(pcm))))
    return float(np.argmax(spectrum)) * rate / len(pcm)


def resources() -> dict[str, int]:
    """Return the resources that a call could leak."""
    gc.collect()
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }
