"""The engine's own process, seen from inside: it listens, warms up, serves, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import prometheus_client
import uvloop

from tts_engine import metrics
from tts_engine.api import SpeechEngine
from tts_engine.config import EngineConfig, is_local
from tts_engine.errors import EngineError
from tts_engine.service.child import die_with, yield_cpu
from tts_engine.service.garbage import collect_between_calls, keep_what_exists
from tts_engine.service.metrics_port import MetricsPort
from tts_engine.service.server import SpeechServer
from tts_engine.supervision import SUPERVISOR, SupervisedTask, start_threads

log = logging.getLogger(__name__)

NICE = 1
"""Niceness of the engine below the gateway. With 0, frames are sent later. With 5, a burst of 50 turns on two cores
started twice as late and had gaps (measured)."""

EngineFactory = Callable[[EngineConfig], Awaitable[SpeechEngine]]
"""Makes an engine that is warm: its first request runs at full speed."""

_LOOK_S = 0.5
"""Time between two checks of the engine's readiness, seconds."""


def run(config: EngineConfig, factory: EngineFactory) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        Exit code: 0 after a drain; 1 if the engine broke for good, so that a supervisor starts another process.

    Raises:
        EngineError, OSError: the engine could not be started.
    """
    return uvloop.run(_serve(config, factory))


def run_child(config: EngineConfig, factory: EngineFactory, *, parent_pid: int) -> int:
    """Serve like ``run``, as a child of the gateway: at lower priority, and no longer than the gateway lives."""
    die_with(parent_pid)
    yield_cpu(NICE)
    try:
        return uvloop.run(_serve(config, factory))
    except (EngineError, OSError) as exc:
        log.error("the engine did not start", extra={"error": str(exc)})
        return 1


async def _serve(config: EngineConfig, factory: EngineFactory) -> int:
    await start_threads()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    server = SpeechServer(config)
    await server.start()
    scraped = serve_metrics(config, lambda: server.serves)
    starting = asyncio.create_task(_start(config, factory))
    collecting: SupervisedTask | None = None
    code = 0
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            engine = await starting
            collecting = SUPERVISOR.task("garbage", partial(collect_between_calls, lambda: server.utterances))
            await server.serve(engine)
            log.info("engine serves", extra={"address": server.address, "engine": config.kind})
            code = await _until_stopped(stopping, engine)
            if code == 0:
                cut_short = await server.drain()
                log.info("engine drained", extra={"cut_short": cut_short})
    finally:
        starting.cancel()
        stopping.cancel()
        if collecting is not None:
            collecting.cancel()
        await server.aclose()
        if starting.done() and not starting.cancelled() and not starting.exception():
            await starting.result().aclose()
        if scraped is not None:
            scraped.shutdown()
            scraped.server_close()
    return code


def serve_metrics(config: EngineConfig, ready: Callable[[], bool] = lambda: True) -> MetricsPort | None:
    """Serve the engine's own ``/metrics`` in threads, if the configuration wants it, and ``/readyz``, which answers
    503 unless ``ready()``. Beyond loopback they are HTTPS, and the client has to show a certificate, unless
    ``metrics_insecure``."""
    if config.metrics_port is None:
        return None
    tls: ssl.SSLContext | None = None
    if config.tls is not None and not (config.metrics_insecure or is_local(f"{config.metrics_host}:0")):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(config.tls.certificate, config.tls.key)
        tls.load_verify_locations(config.tls.client_ca)
        tls.verify_mode = ssl.CERT_REQUIRED
    exposition = prometheus_client.make_wsgi_app(metrics.REGISTRY)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] != "/readyz":
            return exposition(environ, start_response)
        start_response("200 OK" if ready() else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ready\n" if ready() else b"not ready\n"]

    server = MetricsPort(config.metrics_host, config.metrics_port, answer, tls)
    SUPERVISOR.thread("metrics port", server.serve_forever)
    return server


async def _until_stopped(stopping: asyncio.Task[bool], engine: SpeechEngine) -> int:
    """Wait for the signal, or until the engine is no longer ready: after a CUDA error, no step of this process works.

    Returns:
        0 if the signal came, else 1.
    """
    while (status := await engine.status()).ready:
        await asyncio.wait({stopping}, timeout=_LOOK_S)
        if stopping.done():
            return 0
    log.error("engine broke", extra={"model": status.model, "detail": status.detail})
    return 1


async def _start(config: EngineConfig, factory: EngineFactory) -> SpeechEngine:
    engine = await factory(config)
    keep_what_exists()
    return engine
