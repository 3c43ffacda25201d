"""Puts a gateway together from its rooms (``talkspurt.rooms``), and runs it. No other code names a concrete engine,
transport or dialogue line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from gateway.call.overload import LOOK_S, Overload
from gateway.cluster.siblings import FIRST
from gateway.http.health import Health
from gateway.listener.server import raise_open_files
from gateway.media.ticker import Ticker
from gateway.metrics import Metrics
from gateway.postgres import DatabaseState
from gateway.seams.recogniser import Recogniser
from gateway.seams.turn_model import TurnModel
from gateway.tokens import STREAM_TOKEN_S, Tokens
from gateway.uplink.retention import delete_old
from talkspurt import __version__
from talkspurt.config.settings import Config
from talkspurt.prompts import with_greetings
from talkspurt.recognisers import recognisers_for_gateway, turn_model_for_gateway
from talkspurt.rooms import CallParts, DialogueParts, HttpParts, StateParts, StoreParts, TransportParts, WorkerPlace
from talkspurt.serving import StopSignal, greet, run
from tts_engine.service.client import GrpcEngine
from tts_engine.service.garbage import collect_between_calls, keep_what_exists, return_large_blocks
from tts_engine.supervision import SUPERVISOR, Need

log = logging.getLogger(__name__)


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
        self.config = config
        self.engine = engine
        self.is_first = place is None or place.siblings.index == FIRST
        self.metrics = Metrics(version=__version__, calls_limit=config.limits.calls)
        self.ticker = Ticker(lateness=self.metrics.tick_lateness)
        self.overload = Overload(self.metrics.tick_lateness, limit_s=config.limits.tick_lateness_ms / 1000)
        secret = config.server.stream_token_secret
        self.tokens = Tokens(secret.get_secret_value() if secret else None, lifetime_s=STREAM_TOKEN_S)
        self.state = StateParts(config, place)
        self.directory = self.state.directory
        self.dialogue = DialogueParts(config)
        self.stores = StoreParts(config, self.metrics.stores, self.ticker.now)
        self.call_parts = CallParts(
            config, engine, self.metrics, self.ticker, self.state, self.dialogue, self.stores,
            recognisers=recognisers, turn_model=turn_model, browser=lambda call_id: self.webrtc.browser(call_id),
            leads=self.is_first,
        )  # fmt: skip
        self.calls = self.call_parts.live
        transports = TransportParts(
            config, self.metrics, self.ticker, self.state, self.call_parts, self.tokens,
            ready=lambda: not self.health.why_not_ready(), place=place,
        )  # fmt: skip
        self.webrtc, self.sip, self.audiosocket = transports.webrtc, transports.sip, transports.audiosocket
        self.carriers = transports.carriers
        self.health = Health(
            self.directory,
            engine.status,
            version=__version__,
            sip=transports.sip_state,
            databases=self._databases,
            starting=lambda: "" if all(each.ready for each in recognisers.values()) else "recogniser",
        )
        self.http = HttpParts(
            config, engine, self.metrics, self.ticker, self.state, self.dialogue, self.stores, self.call_parts,
            transports, self.tokens, self.health, recognisers=recognisers, place=place,
        )  # fmt: skip
        self.app, self.server = self.http.app, self.http.server
        self.carriers.public_url = self._public_url

    def _databases(self) -> Sequence[DatabaseState]:
        redis = self.state.redis
        return [*self.stores.states(), *self.call_parts.limiter.databases, *((redis.state,) if redis else ())]

    def _public_url(self) -> str:
        """Return the address of the webhooks. Without ``server.public_url``, only this machine can reach them."""
        server = self.config.server
        port = self.server.port or server.port  # a worker has no port of its own
        return server.public_url or (f"http://127.0.0.1:{port}" if server.is_local else "")

    async def watch_load(self) -> None:
        """Refuse new calls while the process is overloaded, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            too_much = self.overload.look()
            if too_much != self.directory.overloaded:
                state = "late, no new calls" if too_much else "in time, calls may come"
                log.warning("the event loop is %s", state, extra={"calls": len(self.directory)})
            self.directory.overloaded = too_much

    async def drain(self) -> None:
        """Take no new calls after ``server.drain_notice_s``. Live calls may finish within ``server.drain_s``; then the
        remaining ones are hung up.

        The listener stays open: it answers new calls with 503, reports readiness, and lets dialogue managers reconnect
        to live calls.
        """
        self.directory.leaving = True
        if self.config.server.drain_notice_s:
            await asyncio.sleep(self.config.server.drain_notice_s)
        self.directory.draining = True  # without a notice, `/readyz` never says so while a call could still come
        if self.sip is not None:
            self.sip.drain()
        drain_s = self.config.server.drain_s
        await asyncio.gather(
            self.calls.drain(drain_s), self.server.passed.wait_ended(drain_s), self.http.room_door.wait_empty(drain_s)
        )


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
        if made.stores.tracer is not None:
            stack.push_async_callback(asyncio.to_thread, made.stores.tracer.close)
        stack.callback(made.ticker.close)
        await made.stores.records.start()
        stack.push_async_callback(made.stores.records.aclose)
        if made.stores.records_webhook is not None:
            stack.push_async_callback(made.stores.records_webhook.aclose)
        stack.push_async_callback(made.call_parts.limiter.aclose)
        stack.callback(made.call_parts.uplink.close)
        if made.state.shared is not None:
            stack.push_async_callback(made.state.shared.aclose)
            stack.push_async_callback(made.state.handoffs.shared)
            stack.push_async_callback(made.state.claims.asked)
        if made.state.gateways is not None:
            stack.push_async_callback(made.state.gateways.aclose)
        if made.stores.call_log is not None:
            made.stores.call_log.start()
            stack.push_async_callback(made.stores.call_log.aclose)
        stack.push_async_callback(made.dialogue.dialogues.aclose)
        stack.push_async_callback(made.call_parts.services.clips.aclose)
        stack.push_async_callback(made.http.speech.aclose)
        stack.push_async_callback(made.webrtc.aclose)
        made.http.switches.start()
        stack.push_async_callback(made.http.switches.aclose)
        stack.push_async_callback(made.http.webhooks.aclose)
        stack.push_async_callback(made.carriers.aclose)
        await made.server.start(siblings=place.socket if place is not None else None)
        stack.push_async_callback(made.server.aclose)
        if place is not None:
            await made.http.room_door.start(place.siblings.room_socket(place.siblings.index))
            stack.push_async_callback(made.http.room_door.aclose)
        if made.audiosocket is not None:
            if place is None:
                await made.audiosocket.start()
            stack.push_async_callback(made.audiosocket.aclose)
        # This closes before the server, which waits for its requests: requests of observers never end by themselves.
        stack.callback(made.dialogue.observers.close)
        stack.push_async_callback(made.dialogue.hub.aclose)
        stack.push_async_callback(made.http.speech_socket.aclose)
        if made.sip is not None:
            await made.sip.start()
            stack.push_async_callback(made.sip.aclose)
        return_large_blocks()
        # An answer to an HTTP request has an utterance, but no call; so has a room whose calls are in other workers.
        garbage = partial(
            collect_between_calls,
            lambda: max(len(made.directory), engine.utterances, len(made.http.room_door.visits)),
        )
        watches: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("keys", made.http.auth.watch),
            ("shared limits", made.call_parts.limiter.watch),
            ("records", made.stores.records.watch),
            ("engine's health", made.health.watch),
            ("voices", made.call_parts.known_voices.watch),
            ("garbage", garbage),
            ("load", made.watch_load),
            *(("database", database.watch) for database in made.stores.databases),
        ]
        if config.metrics.enabled:
            watches.append(("figures", made.http.history.watch))
        if made.state.redis is not None:
            watches.append(("Redis of the directory", made.state.redis.watch))
        if made.state.gateways is not None:
            watches.append(("other gateways", made.state.gateways.watch))
        if made.stores.records_webhook is not None:
            watches.append(("records webhook", made.stores.records_webhook.run))
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
        await stop.wait_or(lambda: made.health.all_is_ready, look_s=0.05)
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
