"""From a configuration to running parts: the only code that names a concrete engine, transport or dialogue line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop
from aiohttp import web
from picows import WSUpgradeRequest

from gateway.call.directory import LocalDirectory
from gateway.call.expected import ExpectedCalls
from gateway.call.garbage import collect_between_calls, keep_what_exists
from gateway.call.handoff import Handoffs
from gateway.call.listening import hearing
from gateway.call.session import Services, Session, turn_defaults
from gateway.carriers.proof import Upgrade
from gateway.carriers.tokens import StreamToken, StreamTokens
from gateway.clips.clips import Clips
from gateway.config import RouteConfig
from gateway.dialogue.dialogues import RouteDialogues
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import DialogueStats
from gateway.dialogue.observers import Observers
from gateway.errors import Rejected
from gateway.http.app import Health, HealthView, make_app
from gateway.http.attach import AttachRoutes
from gateway.http.auth import Authenticator
from gateway.http.calls import Calls, Left
from gateway.http.expected import ExpectedRoutes
from gateway.http.models import Models
from gateway.http.pages import Pages
from gateway.http.route_list import RouteList
from gateway.http.speech import Speech
from gateway.http.speech_socket import SpeechSocket
from gateway.http.usage import Usage
from gateway.http.voices import Voices
from gateway.http.webhooks import Webhooks
from gateway.listener.audiosocket import AudioSocketLeg, AudioSocketServer
from gateway.listener.connection import MediaConnection
from gateway.listener.forwarded import PublicUrl
from gateway.listener.server import GatewayServer
from gateway.listener.sites import Sites
from gateway.media.playout import StartPolicy
from gateway.media.ticker import Ticker
from gateway.metrics import Metrics
from gateway.seams.leg import CallInfo, MediaLeg
from gateway.seams.media_messages import PARAMETER_PREFIX, StreamStarted
from gateway.seams.recogniser import Recogniser
from gateway.switches import Switches
from gateway.uplink.recorder import Recorder
from gateway.uplink.worker import UplinkWorker
from gateway.webrtc.dialogue import BrowserDialogues
from gateway.webrtc.leg import WebRtcLeg
from gateway.webrtc.signalling import WebRtc
from sip_bridge.bridge import SipBridge
from sip_bridge.call import SipCall
from talkspurt import __version__
from talkspurt.config.settings import Config
from talkspurt.recognisers import HOW_TO_ADD, recognisers_for_gateway, unheard
from tts_engine.api import EngineStatus
from tts_engine.errors import EngineError
from tts_engine.service.client import GrpcEngine

log = logging.getLogger(__name__)

_CALL_TYPES = {"webrtc": "CLIENT", "sip": "SIP"}
"""Transport -> ``callType`` of ``setup``, as ConversationRelay has it; the others come from a telephone network."""


class Gateway:
    """A gateway in the making and at work: owns the sessions, the listener and the drain."""

    def __init__(self, config: Config, engine: GrpcEngine, recognisers: Mapping[str, Recogniser]) -> None:
        self.config = config
        self.engine = engine
        self.carriers = config.carriers.configured()
        self.metrics = Metrics(version=__version__, engine=config.engine.kind, calls_limit=config.limits.calls)
        self.directory: LocalDirectory[Session] = LocalDirectory(limit=config.limits.calls)
        self.handoffs = Handoffs()
        self.observers = Observers(limits=config.limits)
        self.dialogue_stats = DialogueStats()
        secret = config.server.stream_token_secret
        self.tokens = StreamTokens(
            secret.get_secret_value() if secret else None, lifetime_s=config.server.stream_token_s
        )
        self.public_url = PublicUrl(config.server)
        self.sites = Sites(config.server, self.public_url)
        self.ticker = Ticker(
            lateness=self.metrics.tick_lateness,
            max_sends=config.playout.max_tick_sends,
        )
        self.hub = DialogueHub(config.routes, limits=config.limits, stats=self.dialogue_stats, version=__version__)
        self.dialogues = RouteDialogues(
            config.routes,
            limits=config.limits,
            hub=self.hub,
            observers=self.observers,
            stats=self.dialogue_stats,
            version=__version__,
        )
        self.webrtc = WebRtc(
            config.webrtc,
            config.routes,
            config.limits,
            new_call_id=self.directory.new_call_id,
            check_room=self.directory.check_room,
            begin=self.accept_browser,
            on_report=lambda lost, jitter_s: self.metrics.rtp(lost=lost, jitter_s=jitter_s),
            trusted_proxies=config.server.trusted_proxies,
        )
        self.sip: SipBridge | None = None
        if config.sip is not None:
            self.sip = SipBridge(
                config.sip,
                begin=self.accept_sip,
                check_room=self.directory.check_room,
                on_report=lambda lost, jitter_s: self.metrics.rtp(lost=lost, jitter_s=jitter_s),
                on_rejected=lambda reason: self.metrics.call_rejected(reason=reason),
                new_call_id=self.directory.new_call_id,
                routes=config.routes,
            )
        self.audiosocket: AudioSocketServer | None = None
        if config.audiosocket is not None:
            expected = ExpectedCalls(limit=config.audiosocket.expected_calls, expiry_s=config.audiosocket.expected_s)
            self.audiosocket = AudioSocketServer(
                config.audiosocket,
                config.limits,
                expected,
                self.accept_audiosocket,
                on_rejected=lambda code: self.metrics.call_rejected(reason=code),
            )
        self.uplink = UplinkWorker(dict(config.routes), config.barge_in, recorder=self._recorder)
        self.services = Services(
            engine=engine,
            ticker=self.ticker,
            dialogues=BrowserDialogues(self.dialogues, config.routes, self.webrtc.browser, version=__version__),
            clips=Clips(config.clips),
            meter=self.metrics,
            playout=config.playout,
            start=StartPolicy(
                quantile=config.playout.start_quantile, max_delay_s=config.playout.max_start_delay_ms / 1000
            ),
            uplink=self.uplink,
            hearing={
                name: hearing(config.routes[name], recogniser, config.recogniser, config.barge_in)
                for name, recogniser in recognisers.items()
            },
        )
        self.usage = Usage()
        self.speech = Speech(engine, config.limits, self.usage)
        self.speech_socket = SpeechSocket(engine, config.limits, self.usage)
        self._calls: set[asyncio.Task[None]] = set()
        self._status: EngineStatus | None = None
        self.switches = Switches(
            self.carriers, config.server, self.tokens, lambda *stream: self.server.open_stream(*stream)
        )
        self.server = GatewayServer(
            config.server,
            config.limits,
            self._app(),
            self.carriers,
            accept=self.accept,
            authorise=self.authorise,
            sites=self.sites,
            call_apis=self.switches.call_apis,
        )

    def _recorder(self, call_id: str, route: str) -> Recorder | None:
        config = self.config.recording
        if not self.config.routes[route].recording or not config.folder:
            return None
        path = Path(config.folder) / f"{call_id}.wav"
        return Recorder(path, rate=8000, max_s=config.max_s, started=time.monotonic())

    def _app(self) -> web.Application:
        config = self.config
        auth = Authenticator(config.auth, config.server)
        secure = config.server.tls is not None or config.server.public_url.startswith("https://")
        app = make_app(
            auth=auth,
            health=Health(self.why_not_ready, self.health),
            calls=Calls(self.directory, self.observers, self.sip.outgoing if self.sip is not None else None),
            webhooks=Webhooks(self.public_url, self.carriers, config.routes, self.tokens, self.handoffs),
            hub=self.hub,
            limits=config.limits,
            metrics=self.exposition if config.metrics.enabled else None,
            version=__version__,
            sites=self.sites,
            call_origins=config.webrtc.allowed_origins if config.webrtc is not None else (),
            more=[
                *self.webrtc.routes(),
                *Left(self.handoffs).routes(),
                *AttachRoutes(self.switches.attach, config.routes).routes(),
                *(ExpectedRoutes(self.audiosocket, config.routes).routes() if self.audiosocket is not None else ()),
                *Pages(auth, secure=secure).routes(),
                RouteList(config.routes).route(),
                *self.speech.routes(),
                *self.speech_socket.routes(),
                *self.usage.routes(),
                *Voices(self.engine, config.limits).routes(),
                *Models(self.engine).routes(),
            ],
        )
        app.on_response_prepare.append(self.webrtc.add_cors)
        return app

    # --- calls -----------------------------------------------------------------------------------------------------

    def authorise(self, dialect: str, route: str, request: WSUpgradeRequest, peer: str) -> StreamToken | None:
        """Whether a media socket may open: the carrier's signature, else our token. Raises ``Rejected``."""
        if route not in self.config.routes:
            raise Rejected(f"no route {route[:40]!r}", status=404, code="unknown_route", param="route")
        self.directory.check_room()
        upgrade = Upgrade(
            public_url=self.public_url.of(peer, request.headers),
            target=request.path.decode("ascii", "replace"),
            headers={name.lower(): value for name, value in request.headers.items()},
            now=time.time(),
        )
        try:
            token = self.carriers[dialect].check_upgrade(self.tokens, route, upgrade)
        except Rejected as exc:
            if exc.code == "bad_signature" and self.carriers[dialect].carrier.proof.covers_address:
                self.public_url.tell_of_mismatch(dialect, peer, request.headers)
            raise
        if token is not None:
            self.directory.check_unspent(token)
        return token

    def accept(self, connection: MediaConnection, started: StreamStarted) -> Session:
        """A media stream began: make it a call and let it run."""
        route = self.config.routes[connection.route]
        token = connection.token
        if token is not None:
            token.check_call(started.custom_parameters.get(f"{PARAMETER_PREFIX}CallSid") or started.call_sid)
            self.directory.check_room()
            self.directory.spend(token, now=time.time())
        return self.start_call(connection.route, route, connection, started, transport=connection.dialect.name)

    def accept_browser(self, leg: WebRtcLeg) -> Session:
        """A browser's media can flow: make it a call and let it run."""
        # Only carriers say who calls: what a page claims under those names is left out.
        own = {name: value for name, value in leg.parameters.items() if not name.startswith(PARAMETER_PREFIX)}
        started = StreamStarted(
            stream_id=leg.call_id, inbound=leg.inbound, outbound=leg.outbound, custom_parameters=own
        )
        route = self.config.routes[leg.route]
        return self.start_call(leg.route, route, leg, started, transport="webrtc", call_id=leg.call_id)

    def accept_sip(self, call: SipCall) -> Session:
        """A call by SIP: make it a session and let it run; the leg rings until that is ready."""
        caller = call.caller
        told = {
            "CallerName": caller.name,
            "ForwardedFrom": caller.forwarded_from,
            "Direction": call.direction,
            "CallStatus": "in-progress" if call.direction == "outbound" else "",
        }
        started = StreamStarted(
            stream_id=call.call_sid,
            call_sid=call.call_sid,
            account_sid=call.trunk_name,
            from_=caller.from_,
            to=caller.to,
            inbound=call.inbound,
            outbound=call.outbound,
            custom_parameters={
                **caller.parameters,
                **{PARAMETER_PREFIX + name: value for name, value in told.items() if value},
            },
        )
        return self.start_call(
            call.route,
            self.config.routes[call.route],
            call,
            started,
            transport="sip",
            call_id=call.session_id,
        )

    def accept_audiosocket(self, leg: AudioSocketLeg, started: StreamStarted) -> Session:
        """A call came over AudioSocket: let it run."""
        self.directory.check_room()
        name = leg.expected.route
        return self.start_call(name, self.config.routes[name], leg, started, transport="audiosocket")

    def start_call(
        self,
        name: str,
        route: RouteConfig,
        leg: MediaLeg,
        started: StreamStarted,
        *,
        transport: str,
        call_id: str = "",
    ) -> Session:
        """Create and run a session; ``call_id`` where one was told to the peer before. Raises ``Rejected``."""
        call_id = call_id or self.directory.new_call_id()
        given = dict(started.custom_parameters)
        caller = {
            key.removeprefix(PARAMETER_PREFIX): given.pop(key)
            for key in list(given)
            if key.startswith(PARAMETER_PREFIX)
        }
        call = CallInfo(
            call_id=call_id,
            route=name,
            transport=transport,
            call_sid=caller.get("CallSid") or started.call_sid or f"CA{call_id[2:]}",
            account_sid=started.account_sid,
            parent_call_sid=caller.get("ParentCallSid", ""),
            from_=started.from_ or caller.get("From", ""),
            to=started.to or caller.get("To", ""),
            forwarded_from=caller.get("ForwardedFrom", ""),
            caller_name=caller.get("CallerName", ""),
            direction=caller.get("Direction", "inbound"),
            call_type=_CALL_TYPES.get(transport, "PSTN"),
            call_status=caller.get("CallStatus", "ringing").upper().replace("-", "_"),
            custom_parameters={**route.parameters, **given},
        )
        limits = self.config.limits
        defaults = turn_defaults(
            route,
            route.dialogue,
            self.config.playout,
            self.config.barge_in,
            turn_chars=limits.turn_chars,
            turns_queued=limits.turns_queued,
            hearing=self.services.hearing.get(name),
        )
        session = Session(call, leg, started.inbound, route, defaults, self.services)
        self.directory.add(session)
        task = asyncio.create_task(self._run(session), name=f"call {call_id}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return session

    async def _run(self, session: Session) -> None:
        self.metrics.call_started(transport=session.call.transport)
        outcome = "failed"
        try:
            reason = await session.run()
            outcome = "completed"
            log.info("call ended", extra={"call": session.call_id, "reason": reason})
        except Exception:  # a bug in one call ends that call only
            log.exception("call failed", extra={"call": session.call_id})
        finally:
            self.directory.remove(session)
            self.metrics.call_ended(transport=session.call.transport, outcome=outcome)
            if session.handoff is not None:
                self.handoffs.leave(session.call.transport, session.call.call_sid, session.handoff)

    # --- life ------------------------------------------------------------------------------------------------------

    def why_not_ready(self) -> str:
        """Empty when calls may come; otherwise what is missing."""
        if self.directory.draining:
            return "draining"
        if len(self.directory) >= self.directory.limit:
            return "full"
        if self._status is None or not self._status.ready:
            return "engine is not ready"
        return ""

    def health(self) -> HealthView:
        """What ``/v1/health`` shows."""
        status = self._status
        return HealthView(
            status=self.why_not_ready() or "ready",
            version=__version__,
            engine=status.engine if status else "",
            model=status.model if status else "",
            gpu=status.gpu if status else "",
            vllm=status.vllm if status else "",
            calls=len(self.directory),
            callsLimit=self.directory.limit,
            active=status.active if status else 0,
            queued=status.queued if status else 0,
        )

    async def exposition(self) -> bytes:
        """Our metrics and those of the engine that we started."""
        for route, lines in self.dialogue_stats.connected.items():
            self.metrics.dialogue_connected(route=route, lines=lines)
        self.metrics.dialogue_reconnects(total=self.dialogue_stats.reconnects)
        self.metrics.kept(tasks=len(asyncio.all_tasks()), sip=self.sip.kept if self.sip is not None else {})
        ours = self.metrics.exposition()
        try:
            return ours + await self.engine.metrics()
        except EngineError:
            return ours

    async def watch_engine(self) -> None:
        """Keep the engine's status fresh for readiness and health."""
        while True:
            try:
                self._status = await asyncio.wait_for(self.engine.status(), 2.0)
            except (EngineError, TimeoutError):
                self._status = None
            await asyncio.sleep(1.0 if self._status is not None and self._status.ready else 0.2)

    async def drain(self) -> None:
        """No new calls; live ones finish, bounded by ``server.drain_s``; then the rest is hung up.

        The listener stays: it answers new calls with 503, tells readiness, and lets lost managers back to live calls.
        """
        self.directory.draining = True
        if self.sip is not None:
            self.sip.drain()
        if self._calls:
            log.info("draining", extra={"calls": len(self._calls)})
            await asyncio.wait(self._calls, timeout=self.config.server.drain_s)
        for session in self.directory:
            session.end("drained", hang_up=True)
        if self._calls:
            await asyncio.wait(self._calls, timeout=5)


@asynccontextmanager
async def gateway(config: Config, engine: GrpcEngine) -> AsyncIterator[Gateway]:
    """A listening gateway on an engine; leaving drains nothing and closes everything."""
    async with AsyncExitStack() as stack:
        recognisers = await stack.enter_async_context(recognisers_for_gateway(config.routes, config.recogniser))
        made = Gateway(config, engine, recognisers)
        stack.callback(made.ticker.close)
        stack.callback(made.uplink.close)
        stack.push_async_callback(made.dialogues.aclose)
        stack.push_async_callback(made.services.clips.aclose)
        stack.push_async_callback(made.speech.aclose)
        stack.push_async_callback(made.webrtc.aclose)
        made.switches.start()
        stack.push_async_callback(made.switches.aclose)
        await made.server.start()
        stack.push_async_callback(made.server.aclose)
        if made.audiosocket is not None:
            await made.audiosocket.start()
            stack.push_async_callback(made.audiosocket.aclose)
        # Before the server, which waits for its requests: these never end by themselves.
        stack.callback(made.observers.close)
        stack.push_async_callback(made.hub.aclose)
        stack.push_async_callback(made.speech_socket.aclose)
        if made.sip is not None:
            await made.sip.start()
            stack.push_async_callback(made.sip.aclose)
        for work in (made.watch_engine(), collect_between_calls(lambda: len(made.directory))):
            stack.callback(asyncio.create_task(work).cancel)
        yield made


async def _serve(config: Config) -> int:
    from talkspurt.engines import engine_for_gateway

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    codes: list[int] = []

    def stop(code: int) -> None:
        codes.append(code)
        stopping.set()

    loop.add_signal_handler(signal.SIGTERM, stop, 0)
    loop.add_signal_handler(signal.SIGINT, stop, 130)
    async with engine_for_gateway(config.engine) as engine, gateway(config, engine) as made:
        while made.why_not_ready() == "engine is not ready" and not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), 0.05)
        keep_what_exists()
        host = config.server.host
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if config.server.tls else "http"
        print(f"talkspurt {__version__} is ready: {scheme}://{shown}:{made.server.port}/", flush=True)
        if "call" in config.routes and "twilio" in made.carriers:
            url = f"ws://{shown}:{made.server.port}/media/twilio/call"
            print(f'first call:  talkspurt call {url} --text "Hello, this is talkspurt." -o heard.wav', flush=True)
        if made.audiosocket is not None and config.audiosocket is not None:
            print(f"audiosocket: {config.audiosocket.host}:{made.audiosocket.port}", flush=True)
        if without := unheard(config.routes):
            print(f"without a recogniser: {', '.join(without)}. To speak with them: {HOW_TO_ADD}", flush=True)
        await stopping.wait()
        await made.drain()
    return codes[0]


def serve(config: Config) -> int:
    """Run the gateway until SIGTERM or SIGINT; returns the exit code."""
    if sys.version_info >= (3, 12):
        return uvloop.run(_serve(config))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))
