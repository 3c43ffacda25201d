"""The parts of a gateway, room by room. Each class builds one room from the configuration and the rooms before it, and
names the room's concrete classes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aiohttp import web

from gateway.call.calls import LiveCalls
from gateway.call.directory import LocalDirectory, number_of
from gateway.call.expected import EXPECTED_CALLS, ExpectedCalls
from gateway.call.handoff import Handoffs
from gateway.call.hearing.listening import hearing
from gateway.call.joined.bridge import JoiningPolicy
from gateway.call.joined.conferences import Conference, Conferences
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.known_voices import KnownVoices
from gateway.call.session import Services, Session
from gateway.call_log.log import CallLog
from gateway.calling.policy import CallingPolicy
from gateway.clips.clips import Clips
from gateway.cluster.far_rooms import LinkedRooms
from gateway.cluster.outage_state import OutageState
from gateway.cluster.room_door import RoomDoor
from gateway.cluster.room_link import Drops
from gateway.cluster.siblings import FIRST, Siblings
from gateway.config import TracingConfig
from gateway.dialogue.dialogues import RouteDialogues
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import DialogueStats
from gateway.dialogue.observers import Observers
from gateway.http import api_page
from gateway.http.app import DESCRIPTION, make_app
from gateway.http.call_api.attach import AttachRoutes
from gateway.http.call_api.calls import Calls, HandoffRoute
from gateway.http.call_api.ended_calls import EndedCalls
from gateway.http.call_api.expected import ExpectedRoutes
from gateway.http.call_api.listen import Listen
from gateway.http.call_api.recording_files import RecordingFiles
from gateway.http.call_api.room_recordings import RoomRecordings
from gateway.http.call_api.rooms import Rooms
from gateway.http.call_api.route_list import RouteList
from gateway.http.call_api.supervise import Supervise
from gateway.http.exposition import Exposition
from gateway.http.health import Health
from gateway.http.key_list import KeyList
from gateway.http.metrics_history import MetricsHistory
from gateway.http.pages import Pages
from gateway.http.request import rate_limit, request_rate
from gateway.http.request.auth import Authenticator
from gateway.http.speech_api.models import Models
from gateway.http.speech_api.speech import SpeechRoutes
from gateway.http.speech_api.speech_socket import SpeechSocket
from gateway.http.speech_api.transcription import Transcriptions
from gateway.http.speech_api.trial import Trials
from gateway.http.speech_api.usage import Usage
from gateway.http.speech_api.voices import Voices
from gateway.http.tokens import BrowserTokens
from gateway.http.webhooks import Webhooks
from gateway.limits.limiter import Limiter
from gateway.listener.audiosocket import AudioSocketServer, OtherWorkers
from gateway.listener.forwarded import PublicUrl
from gateway.listener.passed_streams import PassedStreams
from gateway.listener.server import GatewayServer
from gateway.listener.sites import Sites
from gateway.listener.stream_admission import StreamAdmission
from gateway.listener.stream_claims import StreamClaims
from gateway.media.playout import START_DELAY_S, START_QUANTILE, StartPolicy
from gateway.media.ticker import Ticker
from gateway.metering.store import Records
from gateway.metering.webhook import Webhook
from gateway.metrics import Metrics
from gateway.model_trial import ModelTrials
from gateway.placing.carrier_calls import CarrierCalls
from gateway.placing.originators import Originators
from gateway.placing.progress import CallProgress
from gateway.postgres import DatabaseState
from gateway.principal import sole_tenant, tenants_of_routes, voices_of_routes
from gateway.seams.messages import Call
from gateway.seams.recogniser import Recogniser
from gateway.seams.shared_state import SharedState
from gateway.seams.sip_state import SipState
from gateway.seams.tracing import Tracer
from gateway.seams.turn_model import TurnModel
from gateway.sqlite import FileFault
from gateway.store_metrics import StoreMetrics
from gateway.switches import Switches
from gateway.tokens import STREAM_TOKEN_S, Tokens
from gateway.uplink.recorder import Recorder
from gateway.uplink.room_recorder import RATE_HZ, RoomRecorder
from gateway.uplink.worker import UplinkWorker
from gateway.webrtc.dialogue import BrowserDialogue, BrowserDialogues
from gateway.webrtc.signalling import WebRtc
from sip_bridge.bridge import SipBridge
from sip_bridge.incoming import incoming_call
from sip_bridge.io.shared_address import SharedAddress
from talkspurt import __version__
from talkspurt.config.settings import Config
from talkspurt.recognisers import chosen, suppressing_network
from tts_engine.service.client import GrpcEngine

if TYPE_CHECKING:
    from gateway.cluster.gateways import Gateways  # redis-py, of the extra [redis]
    from gateway.redis_connection import SharedRedis

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


class StateParts:
    """The calls of this process, and what several processes know of calls."""

    def __init__(self, config: Config, place: WorkerPlace | None) -> None:
        self.directory: LocalDirectory[Session] = LocalDirectory(
            limit=config.limits.calls,
            worker=place.siblings.index if place is not None else FIRST,
            gateway=number_of(config.directory.address),
        )
        self.shared = place.shared if place is not None else None
        self.redis: SharedRedis | None = None
        self.gateways: Gateways | None = None
        redis = config.directory.redis_url
        if redis is not None:
            from gateway.cluster.gateways import Gateways
            from gateway.cluster.redis_state import RedisState  # redis-py, of the extra [redis]

            state = RedisState(redis.get_secret_value(), timeout_s=config.directory.redis_timeout_s)
            self.shared, self.redis = state, state.link
            if config.directory.address:
                self.gateways = Gateways(
                    redis.get_secret_value(),
                    config.directory.address,
                    timeout_s=config.directory.redis_timeout_s,
                    message_bytes=config.limits.message_bytes,
                )
        self.handoffs = Handoffs(shared=self.shared)
        # A webhook that is repeated after its call asks for the same token, so tokens are remembered after their
        # expiry.
        self.claims = StreamClaims(self.directory, self.shared, keep_s=STREAM_TOKEN_S + CLAIMS_KEPT_S)


class DialogueParts:
    """The lines to dialogue managers."""

    def __init__(self, config: Config) -> None:
        self.observers = Observers(limits=config.limits)
        self.stats = DialogueStats()
        self.hub = DialogueHub(config.routes, limits=config.limits, stats=self.stats, version=__version__)
        self.dialogues = RouteDialogues(
            config.routes,
            limits=config.limits,
            hub=self.hub,
            observers=self.observers,
            stats=self.stats,
            version=__version__,
        )


class StoreParts:
    """The stores of calls: records, the call log and traces."""

    def __init__(self, config: Config, metrics: StoreMetrics, now: Callable[[], float]) -> None:
        self.tracer = _tracer(config.tracing, now) if config.tracing is not None else None
        self.call_log: CallLog | None = None
        if config.calls.folder:
            lost = metrics.call_log_lost
            self.call_log = CallLog(config.calls, on_lost=lost, postgres=config.postgres, meter=metrics)
        self.records = Records(config.records, metrics, postgres=config.postgres)
        kept = (self.call_log, self.records)
        self.databases = [one.shared for one in kept if one is not None and one.shared is not None]
        self._files: tuple[tuple[Literal["callsFile", "recordsFile"], FileFault], ...] = (
            ("recordsFile", self.records.fault),
            *((("callsFile", self.call_log.fault),) if self.call_log is not None else ()),
        )
        self.records_webhook = Webhook(config.records, self.records, metrics) if config.records.webhook_url else None

    def states(self) -> Sequence[DatabaseState]:
        """Return the state of PostgreSQL, and of the files that cannot be written."""
        files = [DatabaseState(of=of, answers=False, why=fault.why) for of, fault in self._files if fault.why]
        return [*(database.state for database in self.databases), *files]


def _tracer(config: TracingConfig, now: Callable[[], float]) -> Tracer:
    from gateway.tracing import OtelTracer  # the extra [otel], imported only if traces are configured

    return OtelTracer(config, version=__version__, now=now)


class CallParts:
    """The parts that a call needs, and the live calls.

    Args:
        browser: returns a call's browser by call id; see ``BrowserDialogues``.
    """

    def __init__(
        self,
        config: Config,
        engine: GrpcEngine,
        metrics: Metrics,
        ticker: Ticker,
        state: StateParts,
        dialogue: DialogueParts,
        stores: StoreParts,
        *,
        recognisers: Mapping[str, Recogniser],
        turn_model: TurnModel | None,
        browser: Callable[[str], BrowserDialogue | None],
        leads: bool,
    ) -> None:
        self._config = config
        self.turn_model = turn_model
        self.calling = CallingPolicy(
            config.calling, config.routes, sip_targets=config.sip.allowed_targets if config.sip is not None else ()
        )
        sole = sole_tenant(config.auth.api_keys, config.routes)
        own_voices = voices_of_routes(sole, config.routes)
        self.limiter = Limiter(config.limits)
        self.known_voices = KnownVoices(engine.list_voices, own_voices)
        self.uplink = UplinkWorker(
            dict(config.routes),
            config.barge_in,
            recorder=self._recorder,
            on_recording_lost=metrics.stores.recording_lost,
            suppressing=suppressing_network(config.routes),
        )
        self.trials = ModelTrials(metrics, leads=leads)
        observers = dialogue.observers
        self.placed = CallProgress(observers.publish, observers.forget, metrics.call_event, stores.call_log)
        engine.on_model_failed = self.trials.error
        self.second_legs = SecondLegs(BrowserDialogues(dialogue.dialogues, config.routes, browser, version=__version__))
        tenants = tenants_of_routes(sole, config.routes)
        self.conferences = Conferences(
            self.second_legs, ticker, tenants, tape=self._room_recorder, counted=metrics.rooms
        )
        self.services = Services(
            conferences=self.conferences,
            engine=engine,
            trials=self.trials,
            ticker=ticker,
            dialogues=self.second_legs,
            second_legs=self.second_legs,
            clips=Clips(
                config.clips, tenants=tenants_of_routes(sole_tenant(config.auth.api_keys, config.routes), config.routes)
            ),
            meter=metrics,
            tracer=stores.tracer,
            calling=self.calling,
            playout=config.playout,
            start=StartPolicy(quantile=START_QUANTILE, max_delay_s=START_DELAY_S),
            voices=own_voices,
            uplink=self.uplink,
            call_log=stores.call_log,
            placed=self.placed,
            voice_problem=self.known_voices.problem,
            joining={
                name: JoiningPolicy(
                    shows_caller=config.calling.bridge_identity == "caller",
                    longest_s=config.calling.bridge_longest_s,
                    passes_keys=route.bridge_keys == "pass",
                    hold_clip=route.hold_clip,
                )
                for name, route in config.routes.items()
            },
            hearing={
                name: hearing(config.routes[name], recogniser, config.recogniser, config.barge_in, turn_model)
                for name, recogniser in recognisers.items()
            },
        )
        self.live = LiveCalls(
            config.routes,
            config.barge_in,
            config.limits,
            self.services,
            directory=state.directory,
            handoffs=state.handoffs,
            meter=metrics,
            limiter=self.limiter,
            tenants=tenants_of_routes(sole, config.routes),
            records=stores.records,
        )

    def _recorder(self, call_id: str, route: str, rate: int) -> Recorder | None:
        config = self._config.recording
        if not self._config.routes[route].recording or not config.folder:
            return None
        path = Path(config.folder) / f"{call_id}.wav"
        rate = min(rate, config.max_sample_rate)
        return Recorder(path, rate=rate, max_s=config.max_s, started=time.monotonic(), key=config.key)

    def _room_recorder(self, room: Conference, route: str) -> RoomRecorder | None:
        config = self._config.recording
        if not self._config.routes[route].recording or not config.folder:
            return None
        return RoomRecorder(
            Path(config.folder) / f"{room.correlation_id}.wav",
            self.uplink.recordings,
            room=room.name,
            tenant=room.tenant,
            rate=min(RATE_HZ, config.max_sample_rate),
            max_s=config.max_s,
            started=time.monotonic(),
            key=config.key,
            on_lost=self.uplink.on_recording_lost,
        )


class TransportParts:
    """The transports that bring calls, except for the carriers' WebSockets.

    Args:
        ready: returns True if the gateway takes calls.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        ticker: Ticker,
        state: StateParts,
        calls: CallParts,
        tokens: Tokens,
        *,
        ready: Callable[[], bool],
        place: WorkerPlace | None,
    ) -> None:
        directory, begin = state.directory, calls.live.begin

        def new_call() -> tuple[str, bytes]:
            token_id = tokens.fresh_id()
            return directory.new_call_id(token_id), token_id

        def on_incoming(transport: str, call_sid: str, message: Call) -> None:
            for session in directory:
                if (session.call.transport, session.call.call_sid) == (transport, call_sid):
                    metrics.call_event(transport, message.event)
                    session.outbox.tell(message)

        self.carriers = CarrierCalls(
            config.carriers.configured(),
            calls.calling,
            calls.placed,
            new_call=new_call,
            routes=config.routes,
            check_room=directory.check_room,
            on_failed=metrics.call_rejected,
            on_cause=metrics.call_cause,
            on_incoming=on_incoming,
        )
        calls.second_legs.carriers = self.carriers
        self.webrtc = WebRtc(
            config.webrtc,
            config.routes,
            config.limits,
            new_call_id=directory.new_call_id,
            check_room=directory.check_room,
            begin=lambda leg: begin(leg.incoming(), leg),
            on_rejected=metrics.call_rejected,
            on_report=metrics.rtp,
            trusted_proxies=config.server.trusted_proxies,
        )
        self.sip: SipBridge | None = None
        if config.sip is not None:
            self.sip = SipBridge(
                config.sip,
                calls.calling,
                begin=lambda call: begin(incoming_call(call), call),
                check_room=directory.check_room,
                on_report=metrics.rtp,
                on_rejected=metrics.call_rejected,
                on_cause=metrics.call_cause,
                on_refer=metrics.sip.refer,
                placed=calls.placed,
                new_call_id=directory.new_call_id,
                routes=config.routes,
                ready=ready,
                shared=place.sip if place is not None else None,
                # A worker keeps the counts of its own nonces. At another worker they are stale, which costs a peer one
                # more challenge. A peer of several gateways may answer at another gateway than asked.
                secret=tokens.nonce_key(directory.worker) if config.directory.redis_url else b"",
                elsewhere=place.sip_call if place is not None else None,
                frames_first=ticker.catch_up,
                on_recording_lost=metrics.stores.recording_lost,
            )
            calls.services.session_recording = self.sip.recordings
            calls.second_legs.originator = self.sip.outgoing
        self.audiosocket: AudioSocketServer | None = None
        if config.audiosocket is not None:
            expected = ExpectedCalls(limit=EXPECTED_CALLS, expiry_s=config.audiosocket.expected_s)
            self.audiosocket = AudioSocketServer(
                config.audiosocket,
                config.limits,
                expected,
                lambda leg, call: begin(call, leg),
                on_rejected=metrics.call_rejected,
                others=place.announced if place is not None else None,
            )

    def sip_state(self) -> SipState:
        """Return the state of the SIP trunks."""
        return self.sip.state if self.sip is not None else SipState()


class HttpParts:
    """The HTTP application, and the listener that serves it and the carriers' WebSockets."""

    def __init__(
        self,
        config: Config,
        engine: GrpcEngine,
        metrics: Metrics,
        ticker: Ticker,
        state: StateParts,
        dialogue: DialogueParts,
        stores: StoreParts,
        calls: CallParts,
        transports: TransportParts,
        tokens: Tokens,
        health: Health,
        *,
        recognisers: Mapping[str, Recogniser],
        place: WorkerPlace | None,
    ) -> None:
        carriers = config.carriers.configured()
        public_url = PublicUrl(config.server)
        sites = Sites(config.server, public_url)
        self.auth = Authenticator(config.auth, config.server, config.routes, tokens, calls.limiter)
        self.usage = Usage(stores.records)
        self.speech = SpeechRoutes(engine, calls.known_voices, config.limits, self.usage)
        self.speech_socket = SpeechSocket(engine, calls.known_voices, config.limits, self.usage)
        self.switches = Switches(carriers, config.server, tokens, lambda *stream: self.server.open_stream(*stream))
        by_route = {route: (chosen(config.routes[route]), recogniser) for route, recogniser in recognisers.items()}
        sip = transports.sip
        looks = {} if calls.turn_model is None else calls.turn_model.dropped
        room_drops = Drops()

        def dropped() -> dict[str, int]:
            """Return the numbers of things dropped since the start, for ``Metrics.dropped``."""
            return {
                "dialogue_audio": dialogue.stats.audio_dropped,
                "dialogue_bad": dialogue.stats.bad_messages,
                "dialogue_late": dialogue.stats.late_messages,
                "room_late": room_drops.sounds,
                "audio_utterance_full": sum(recogniser.dropped for recogniser in set(recognisers.values())),
                **{f"audio_{reason}": count for reason, count in calls.uplink.dropped.items()},
                **{f"sip_{reason}": count for reason, count in (sip.dropped if sip else {}).items()},
                **{f"turn_model_{reason}": count for reason, count in looks.items()},
            }

        self.exposition = Exposition(
            metrics,
            dialogue.stats,
            lambda: sip.kept if sip is not None else {},
            transports.sip_state,
            dropped,
            engine.metrics,
            lambda: engine.moves,
            lambda: engine.linked,
            place.metrics if place is not None else None,
        )
        self.history = MetricsHistory(self.exposition, lambda: health.engine_load, clock=ticker.now)
        self.webhooks = Webhooks(
            public_url,
            sites,
            carriers,
            config.routes,
            tokens,
            state.handoffs,
            state.claims,
            OutageState(state.shared),
            transports.carriers,
        )
        files = RecordingFiles(config.recording)
        ended = EndedCalls(stores.call_log, files)
        secure = config.server.tls is not None or config.server.public_url.startswith("https://")
        routes_elsewhere = place.siblings.routes_of if place is not None else None
        self.room_door = RoomDoor(calls.conferences, now=ticker.now, drops=room_drops)
        if place is not None:
            calls.conferences.far = LinkedRooms(place.siblings, now=ticker.now, drops=room_drops)
        audiosocket, directory = transports.audiosocket, state.directory
        pages = Pages(self.auth, secure=secure)
        transcriptions = Transcriptions(by_route, config.recogniser)
        self.app: web.Application = make_app(
            auth=self.auth,
            health=health,
            calls=Calls(
                directory,
                dialogue.observers,
                config.routes,
                ended,
                Originators(sip.outgoing if sip is not None else None, transports.carriers),
            ),
            ended=ended,
            webhooks=self.webhooks,
            hub=dialogue.hub,
            audio=dialogue.dialogues.audio,
            limits=config.limits,
            metrics=self.exposition if config.metrics.enabled else None,
            version=__version__,
            sites=sites,
            on_call_rejected=metrics.call_rejected,
            call_origins=config.webrtc.allowed_origins if config.webrtc is not None else (),
            more=[
                *transports.webrtc.routes(),
                *HandoffRoute(state.handoffs).routes(),
                Listen(directory).route(),
                *Supervise(directory, transports.webrtc.answer_joining).routes(),
                *Rooms(calls.conferences, directory, config.routes, transports.webrtc.answer_joining).routes(),
                *RoomRecordings(files, calls.conferences, config.routes).routes(),
                *AttachRoutes(self.switches.attach, config.routes, directory, routes_elsewhere).routes(),
                *(ExpectedRoutes(audiosocket, config.routes).routes() if audiosocket is not None else ()),
                *pages.routes(),
                RouteList(config.routes).route(),
                KeyList(self.auth).route(),
                BrowserTokens(config.auth, config.routes, self.auth, directory).route(),
                *self.speech.routes(),
                *self.speech_socket.routes(),
                *transcriptions.routes(),
                *self.usage.routes(),
                *([self.history.route()] if config.metrics.enabled else []),
                *Voices(engine, calls.known_voices, config.limits, transcriptions).routes(),
                *Models(engine, calls.trials).routes(),
                *Trials(engine, calls.trials).routes(),
            ],
        )
        described = self.app[DESCRIPTION]
        pages.publish("/docs", api_page.page(described))
        self.app.on_response_prepare.append(transports.webrtc.add_cors)
        self.app.on_response_prepare.append(rate_limit.add)
        if state.gateways is not None:
            self.app.middlewares.append(state.gateways.middleware())
        if place is not None:
            self.app.middlewares.append(place.siblings.middleware(directory.owner))
        admission = StreamAdmission(
            carriers,
            config.routes,
            tokens,
            directory,
            public_url,
            calls.live.begin,
            state.claims,
            calls.placed.of_token,
        )
        self.server = GatewayServer(
            config.server,
            config.limits,
            self.app,
            carriers,
            accept=admission.accept,
            authorise=admission.check,
            sites=sites,
            call_apis=self.switches.call_apis,
            on_rejected=metrics.call_rejected,
            on_oddity=metrics.carrier_oddity,
            frames_first=ticker.catch_up,
            passed=None
            if place is None
            else PassedStreams(partial(place.siblings.socket_of_call, owner=directory.owner)),
        )
        # After the listener's own middleware, which tracks the connections, and before all others.
        within_rate = request_rate.within(self.server.rate, now=self.server.now, on_rejected=metrics.call_rejected)
        self.app.middlewares.insert(1, within_rate)
