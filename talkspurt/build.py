"""Makes running parts from a configuration. No other code names a concrete engine, transport or dialogue line."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.call.calls import LiveCalls
from gateway.call.directory import LocalDirectory, number_of
from gateway.call.expected import ExpectedCalls
from gateway.call.handoff import Handoffs
from gateway.call.hearing.listening import hearing
from gateway.call.known_voices import KnownVoices
from gateway.call.overload import LOOK_S, Overload
from gateway.call.session import Services, Session
from gateway.call_log.log import CallLog
from gateway.calling.policy import CallingPolicy
from gateway.clips.clips import Clips
from gateway.cluster.siblings import FIRST, Siblings
from gateway.config import TracingConfig
from gateway.dialogue.dialogues import RouteDialogues
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import DialogueStats
from gateway.dialogue.observers import Observers
from gateway.http.app import make_app
from gateway.http.call_api.attach import AttachRoutes
from gateway.http.call_api.calls import Calls, HandoffRoute
from gateway.http.call_api.ended_calls import EndedCalls
from gateway.http.call_api.expected import ExpectedRoutes
from gateway.http.call_api.listen import Listen
from gateway.http.call_api.route_list import RouteList
from gateway.http.exposition import Exposition
from gateway.http.health import Health
from gateway.http.pages import Pages
from gateway.http.request import rate_limit
from gateway.http.request.auth import Authenticator
from gateway.http.speech_api.models import Models
from gateway.http.speech_api.speech import SpeechRoutes
from gateway.http.speech_api.speech_socket import SpeechSocket
from gateway.http.speech_api.trial import Trials
from gateway.http.speech_api.usage import Usage
from gateway.http.speech_api.voices import Voices
from gateway.http.tokens import BrowserTokens
from gateway.http.webhooks import Webhooks
from gateway.limits.limiter import Limiter
from gateway.listener.audiosocket import AudioSocketServer, OtherWorkers
from gateway.listener.forwarded import PublicUrl
from gateway.listener.server import GatewayServer, raise_open_files
from gateway.listener.sites import Sites
from gateway.listener.stream_admission import StreamAdmission
from gateway.listener.stream_claims import StreamClaims
from gateway.media.playout import StartPolicy
from gateway.media.ticker import Ticker
from gateway.metering.store import Records
from gateway.metering.webhook import Webhook
from gateway.metrics import Metrics
from gateway.model_trial import ModelTrials
from gateway.principal import sole_tenant, tenants_of_routes, voices_of_routes
from gateway.seams.recogniser import Recogniser
from gateway.seams.shared_state import SharedState
from gateway.seams.sip_state import SipState
from gateway.seams.tracing import Tracer
from gateway.seams.turn_model import TurnModel
from gateway.switches import Switches
from gateway.tokens import STREAM_TOKEN_S, Tokens
from gateway.uplink.recorder import Recorder
from gateway.uplink.retention import delete_old
from gateway.uplink.worker import UplinkWorker
from gateway.webrtc.dialogue import BrowserDialogues
from gateway.webrtc.signalling import WebRtc
from sip_bridge.bridge import SipBridge
from sip_bridge.incoming import incoming_call
from sip_bridge.io.shared_address import SharedAddress
from talkspurt import __version__
from talkspurt.config.settings import Config
from talkspurt.prompts import with_greetings
from talkspurt.recognisers import recognisers_for_gateway, turn_model_for_gateway
from talkspurt.serving import StopSignal, greet, run
from tts_engine.service.client import GrpcEngine
from tts_engine.service.garbage import collect_between_calls, keep_what_exists, return_large_blocks
from tts_engine.supervision import SUPERVISOR, Need

if TYPE_CHECKING:
    from gateway.cluster.gateways import Gateways  # redis-py, of the extra [redis]

log = logging.getLogger(__name__)

CLAIMS_KEPT_S = 3600.0
"""Time for which other processes remember a stream token after its expiry, seconds."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The place of a gateway among the workers of one server."""

    siblings: Siblings
    shared: SharedState
    socket: Path
    """Socket on which the worker answers the others."""
    metrics: Callable[[], Awaitable[bytes]]
    """Returns the metrics of all workers."""
    sip: SharedAddress | None
    """The worker's part of the common SIP port."""
    sip_call: Callable[[str], Awaitable[dict[str, Any] | None] | None]
    """Asks the worker that has a SIP call for the call's description. None: no other worker has a call of this id."""
    announced: OtherWorkers
    """The announced AudioSocket calls of all workers."""


class Gateway:
    """The parts of a gateway, put together."""

    def __init__(
        self,
        config: Config,
        engine: GrpcEngine,
        recognisers: Mapping[str, Recogniser],
        turn_model: TurnModel | None = None,
        place: WorkerPlace | None = None,
    ) -> None:
        index = place.siblings.index if place is not None else FIRST
        self._routes_elsewhere = place.siblings.routes_of if place is not None else None
        self.is_first = index == FIRST
        self.config = config
        self.engine = engine
        self.carriers = config.carriers.configured()
        self.metrics = Metrics(version=__version__, calls_limit=config.limits.calls)
        self.directory: LocalDirectory[Session] = LocalDirectory(
            limit=config.limits.calls, worker=index, gateway=number_of(config.directory.address)
        )
        self.overload = Overload(self.metrics.tick_lateness, limit_s=config.limits.tick_lateness_ms / 1000)
        shared = place.shared if place is not None else None
        self.gateways: Gateways | None = None
        redis = config.directory.redis_url
        if redis is not None:
            from gateway.cluster.gateways import Gateways
            from gateway.cluster.redis_state import RedisState  # redis-py, of the extra [redis]

            shared = RedisState(redis.get_secret_value(), timeout_s=config.directory.redis_timeout_s)
            if config.directory.address:
                self.gateways = Gateways(
                    redis.get_secret_value(),
                    config.directory.address,
                    timeout_s=config.directory.redis_timeout_s,
                    message_bytes=config.limits.message_bytes,
                )
        self.shared = shared
        self.handoffs = Handoffs(shared=shared)
        # A webhook that is repeated after its call asks for the same token, so tokens are remembered after their
        # expiry.
        self.claims = StreamClaims(self.directory, shared, keep_s=STREAM_TOKEN_S + CLAIMS_KEPT_S)
        self.observers = Observers(limits=config.limits)
        self.dialogue_stats = DialogueStats()
        secret = config.server.stream_token_secret
        self.tokens = Tokens(secret.get_secret_value() if secret else None, lifetime_s=STREAM_TOKEN_S)
        self.public_url = PublicUrl(config.server)
        self.sites = Sites(config.server, self.public_url)
        self.ticker = Ticker(
            lateness=self.metrics.tick_lateness,
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
            begin=lambda leg: self.calls.begin(leg.incoming(), leg),
            on_rejected=self.metrics.call_rejected,
            on_report=self.metrics.rtp,
            trusted_proxies=config.server.trusted_proxies,
        )
        self.calling = CallingPolicy(
            config.calling, config.routes, sip_targets=config.sip.allowed_targets if config.sip is not None else ()
        )
        self.sip: SipBridge | None = None
        if config.sip is not None:
            self.sip = SipBridge(
                config.sip,
                self.calling,
                begin=lambda call: self.calls.begin(incoming_call(call), call),
                check_room=self.directory.check_room,
                on_report=self.metrics.rtp,
                on_rejected=self.metrics.call_rejected,
                new_call_id=self.directory.new_call_id,
                routes=config.routes,
                ready=lambda: not self.health.why_not_ready(),
                shared=place.sip if place is not None else None,
                secret=self.tokens.nonce_key,
                elsewhere=place.sip_call if place is not None else None,
                frames_first=self.ticker.catch_up,
            )
        self.audiosocket: AudioSocketServer | None = None
        if config.audiosocket is not None:
            expected = ExpectedCalls(limit=config.audiosocket.expected_calls, expiry_s=config.audiosocket.expected_s)
            self.audiosocket = AudioSocketServer(
                config.audiosocket,
                config.limits,
                expected,
                lambda leg, call: self.calls.begin(call, leg),
                on_rejected=self.metrics.call_rejected,
                others=place.announced if place is not None else None,
            )
        sole = sole_tenant(config.auth.api_keys, config.routes)
        own_voices = voices_of_routes(sole, config.routes)
        self.limiter = Limiter(config.limits)
        self.known_voices = KnownVoices(engine.list_voices, own_voices)
        self.uplink = UplinkWorker(
            dict(config.routes), config.barge_in, recorder=self._recorder,
            on_recording_lost=self.metrics.recording_lost,
        )  # fmt: skip
        self.tracer = _tracer(config.tracing, self.ticker.now) if config.tracing is not None else None
        self.call_log: CallLog | None = None
        if config.calls.folder:
            lost = self.metrics.call_log_lost
            self.call_log = CallLog(config.calls, on_lost=lost, postgres=config.postgres, meter=self.metrics)
        self.trials = ModelTrials(self.metrics, leads=self.is_first)
        engine.on_model_failed = self.trials.error
        self.services = Services(
            engine=engine,
            trials=self.trials,
            ticker=self.ticker,
            dialogues=BrowserDialogues(self.dialogues, config.routes, self.webrtc.browser, version=__version__),
            clips=Clips(config.clips),
            meter=self.metrics,
            tracer=self.tracer,
            calling=self.calling,
            playout=config.playout,
            start=StartPolicy(
                quantile=config.playout.start_quantile, max_delay_s=config.playout.max_start_delay_ms / 1000
            ),
            voices=own_voices,
            uplink=self.uplink,
            call_log=self.call_log,
            voice_problem=self.known_voices.problem,
            hearing={
                name: hearing(config.routes[name], recogniser, config.recogniser, config.barge_in, turn_model)
                for name, recogniser in recognisers.items()
            },
        )
        self.records = Records(config.records, self.metrics, postgres=config.postgres)
        kept = (self.call_log, self.records)
        self.databases = [one.shared for one in kept if one is not None and one.shared is not None]
        self.records_webhook = (
            Webhook(config.records, self.records, self.metrics) if config.records.webhook_url else None
        )
        self.usage = Usage(self.records)
        self.speech = SpeechRoutes(engine, self.known_voices, config.limits, self.usage)
        self.speech_socket = SpeechSocket(engine, self.known_voices, config.limits, self.usage)
        self.calls = LiveCalls(
            config.routes,
            config.barge_in,
            config.limits,
            self.services,
            directory=self.directory,
            handoffs=self.handoffs,
            meter=self.metrics,
            limiter=self.limiter,
            tenants=tenants_of_routes(sole, config.routes),
            records=self.records,
        )
        self.health = Health(
            self.directory,
            engine.status,
            version=__version__,
            sip=self._sip_state,
            databases=lambda: [shared.state for shared in self.databases],
        )
        self.exposition = Exposition(
            self.metrics,
            self.dialogue_stats,
            lambda: self.sip.kept if self.sip is not None else {},
            self._sip_state,
            lambda: self._dropped(recognisers.values()),
            engine.metrics,
            lambda: engine.moves,
            lambda: engine.linked,
            place.metrics if place is not None else None,
        )
        self.switches = Switches(
            self.carriers, config.server, self.tokens, lambda *stream: self.server.open_stream(*stream)
        )
        admission = StreamAdmission(
            self.carriers, config.routes, self.tokens, self.directory, self.public_url, self.calls.begin, self.claims
        )
        self.auth = Authenticator(config.auth, config.server, config.routes, self.tokens, self.limiter)
        self.webhooks = Webhooks(
            self.public_url, self.carriers, config.routes, self.tokens, self.handoffs, self.claims.is_spent
        )
        self.app = self._app()
        if self.gateways is not None:
            self.app.middlewares.append(self.gateways.middleware())
        if place is not None:
            self.app.middlewares.append(place.siblings.middleware(self.directory.owner))
        self.server = GatewayServer(
            config.server,
            config.limits,
            self.app,
            self.carriers,
            accept=admission.accept,
            authorise=admission.check,
            sites=self.sites,
            call_apis=self.switches.call_apis,
            on_rejected=self.metrics.call_rejected,
            on_oddity=self.metrics.carrier_oddity,
            frames_first=self.ticker.catch_up,
        )

    def _recorder(self, call_id: str, route: str, rate: int) -> Recorder | None:
        config = self.config.recording
        if not self.config.routes[route].recording or not config.folder:
            return None
        path = Path(config.folder) / f"{call_id}.wav"
        rate = min(rate, config.max_sample_rate)
        return Recorder(path, rate=rate, max_s=config.max_s, started=time.monotonic(), key=config.key)

    def _dropped(self, recognisers: Iterable[Recogniser]) -> dict[str, int]:
        """Return the numbers of things dropped since the start, for ``Metrics.dropped``."""
        dialogue = self.dialogue_stats
        return {
            "dialogue_audio": dialogue.audio_dropped,
            "dialogue_bad": dialogue.bad_messages,
            "dialogue_late": dialogue.late_messages,
            "audio_utterance_full": sum(recogniser.dropped for recogniser in set(recognisers)),
            **{f"audio_{reason}": count for reason, count in self.uplink.dropped.items()},
            **{f"sip_{reason}": count for reason, count in (self.sip.dropped if self.sip else {}).items()},
        }

    def _sip_state(self) -> SipState:
        return self.sip.state if self.sip is not None else SipState()

    def _app(self) -> web.Application:
        config = self.config
        secure = config.server.tls is not None or config.server.public_url.startswith("https://")
        ended = EndedCalls(self.call_log, config.recording)
        app = make_app(
            auth=self.auth,
            health=self.health,
            calls=Calls(
                self.directory,
                self.observers,
                config.routes,
                ended,
                self.sip.outgoing if self.sip is not None else None,
            ),
            ended=ended,
            webhooks=self.webhooks,
            hub=self.hub,
            limits=config.limits,
            metrics=self.exposition if config.metrics.enabled else None,
            version=__version__,
            sites=self.sites,
            on_call_rejected=self.metrics.call_rejected,
            call_origins=config.webrtc.allowed_origins if config.webrtc is not None else (),
            more=[
                *self.webrtc.routes(),
                *HandoffRoute(self.handoffs).routes(),
                Listen(self.directory).route(),
                *AttachRoutes(self.switches.attach, config.routes, self.directory, self._routes_elsewhere).routes(),
                *(ExpectedRoutes(self.audiosocket, config.routes).routes() if self.audiosocket is not None else ()),
                *Pages(self.auth, secure=secure).routes(),
                RouteList(config.routes).route(),
                BrowserTokens(config.auth, config.routes, self.auth, self.directory).route(),
                *self.speech.routes(),
                *self.speech_socket.routes(),
                *self.usage.routes(),
                *Voices(self.engine, self.known_voices, config.limits).routes(),
                *Models(self.engine, self.trials).routes(),
                *Trials(self.engine, self.trials).routes(),
            ],
        )
        app.on_response_prepare.append(self.webrtc.add_cors)
        app.on_response_prepare.append(rate_limit.add)
        return app

    async def watch_load(self) -> None:
        """Refuse new calls while the process is overloaded, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            too_much = self.overload.look()
            if too_much != self.directory.overloaded:
                log.warning("frames are late, no new calls" if too_much else "frames are in time, calls may come",
                            extra={"calls": len(self.directory)})  # fmt: skip
            self.directory.overloaded = too_much

    async def drain(self) -> None:
        """Take no new calls after ``server.drain_notice_s``. Live calls may finish within ``server.drain_s``; then the
        remaining ones are hung up.

        The listener stays open: it answers new calls with 503, reports readiness, and lets dialogue managers reconnect
        to live calls.
        """
        self.directory.leaving = True
        await asyncio.sleep(self.config.server.drain_notice_s)
        if self.sip is not None:
            self.sip.drain()
        await self.calls.drain(self.config.server.drain_s)


def _tracer(config: TracingConfig, now: Callable[[], float]) -> Tracer:
    from gateway.tracing import OtelTracer  # the extra [otel], imported only if traces are configured

    return OtelTracer(config, version=__version__, now=now)


_FOR_CALLS = frozenset(("engine's health", "load"))
"""Background tasks without which calls cannot be admitted."""


@asynccontextmanager
async def gateway(config: Config, engine: GrpcEngine, place: WorkerPlace | None = None) -> AsyncIterator[Gateway]:
    """Yield a gateway that listens, with this engine. Leaving closes everything without draining.

    Args:
        place: the place among several workers. None: the gateway is alone, and listens itself.
    """
    async with AsyncExitStack() as stack:
        recognisers = await stack.enter_async_context(recognisers_for_gateway(config.routes, config.recogniser))
        turn_model = await stack.enter_async_context(
            turn_model_for_gateway(config.routes, config.recogniser.end_of_thought)
        )
        made = Gateway(config, engine, recognisers, turn_model, place)
        if made.tracer is not None:
            stack.push_async_callback(asyncio.to_thread, made.tracer.close)
        stack.callback(made.ticker.close)
        await made.records.start()
        stack.push_async_callback(made.records.aclose)
        if made.records_webhook is not None:
            stack.push_async_callback(made.records_webhook.aclose)
        stack.push_async_callback(made.limiter.aclose)
        stack.callback(made.uplink.close)
        if made.shared is not None:
            stack.push_async_callback(made.shared.aclose)
            stack.push_async_callback(made.handoffs.shared)
            stack.push_async_callback(made.claims.asked)
        if made.gateways is not None:
            stack.push_async_callback(made.gateways.aclose)
        if made.call_log is not None:
            made.call_log.start()
            stack.push_async_callback(made.call_log.aclose)
        stack.push_async_callback(made.dialogues.aclose)
        stack.push_async_callback(made.services.clips.aclose)
        stack.push_async_callback(made.speech.aclose)
        stack.push_async_callback(made.webrtc.aclose)
        made.switches.start()
        stack.push_async_callback(made.switches.aclose)
        stack.push_async_callback(made.webhooks.aclose)
        await made.server.start(siblings=place.socket if place is not None else None)
        stack.push_async_callback(made.server.aclose)
        if made.audiosocket is not None:
            if place is None:
                await made.audiosocket.start()
            stack.push_async_callback(made.audiosocket.aclose)
        # This closes before the server, which waits for its requests: requests of observers never end by themselves.
        stack.callback(made.observers.close)
        stack.push_async_callback(made.hub.aclose)
        stack.push_async_callback(made.speech_socket.aclose)
        if made.sip is not None:
            await made.sip.start()
            stack.push_async_callback(made.sip.aclose)
        return_large_blocks()
        # An answer to an HTTP request has an utterance, but no call.
        garbage = partial(collect_between_calls, lambda: max(len(made.directory), engine.utterances))
        watches: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("keys", made.auth.watch),
            ("shared limits", made.limiter.watch),
            ("records", made.records.watch),
            ("engine's health", made.health.watch),
            ("voices", made.known_voices.watch),
            ("garbage", garbage),
            ("load", made.watch_load),
            *(("database", database.watch) for database in made.databases),
        ]
        if made.gateways is not None:
            watches.append(("other gateways", made.gateways.watch))
        if made.records_webhook is not None:
            watches.append(("records webhook", made.records_webhook.run))
        recording = config.recording
        if recording.folder:
            await asyncio.to_thread(_make_folder, Path(recording.folder))
        if recording.folder and recording.keep_days is not None and made.is_first:
            old = partial(delete_old, Path(recording.folder), keep_days=recording.keep_days)
            watches.append(("old recordings", old))
        for name, watch in watches:
            need = Need.CALLS if name in _FOR_CALLS else Need.OTHER
            stack.push_async_callback(SUPERVISOR.task(name, watch, need=need).aclose)
        stack.push_async_callback(SUPERVISOR.task("pacer", made.ticker.watch, need=Need.PROCESS).aclose)
        yield made


def _make_folder(recordings: Path) -> None:
    try:
        recordings.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:  # only recordings fail, no call
        log.error("the folder of recordings cannot be made", extra={"why": str(exc)})


async def _serve(config: Config) -> int:
    from talkspurt.engines import engine_for_gateway

    stop = StopSignal()
    async with engine_for_gateway(with_greetings(config)) as engine, gateway(config, engine) as made:
        await stop.wait_or(lambda: made.health.engine_is_ready, look_s=0.05)
        keep_what_exists()
        audiosocket = made.audiosocket.port if made.audiosocket is not None else None
        sip = (made.sip.endpoint.port, made.sip.endpoint.tls_port) if made.sip is not None else None
        await greet(config, engine, made.server.port, audiosocket=audiosocket, sip=sip)
        await stop.wait()
        await made.drain()
    return stop.exit_code


def serve(config: Config) -> int:
    """Run the gateway until SIGTERM or SIGINT. Return the exit code."""
    raise_open_files()
    return run(_serve(config))
