"""``/healthz``, ``/readyz`` and ``/v1/health``: liveness, readiness, and the state of gateway and engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from gateway.call.directory import LocalDirectory
from gateway.call.session import Session
from gateway.http.request.routes import ApiModel
from gateway.postgres import DatabaseState
from gateway.seams.sip_state import RegistrationState, SipState, TrunkState
from tts_engine.api import EngineStatus
from tts_engine.errors import EngineError
from tts_engine.supervision import SUPERVISOR, SupervisedState

log = logging.getLogger(__name__)

SERVICE = "talkspurt"
"""Value of ``service`` in the answer of ``/healthz``, by which `talkspurt doctor` recognises a server."""

_ENGINE_ANSWERS_S = 2.0
_RETRY_AFTER_S = 5
_POLL_S, _POLL_NOT_READY_S = 1.0, 0.2


class HealthView(ApiModel):
    """The answer of ``/v1/health``."""

    status: str
    """``ok``, or the missing part; then the HTTP status is 503."""
    version: str
    engine: str
    model: str
    gpu: bool
    """True: the engine works on a GPU."""
    gpuName: str
    vllm: bool
    """True if vLLM runs the language model."""
    vllmVersion: str
    calls: int
    callsLimit: int
    active: int
    """Utterances in progress in the engine."""
    queued: int
    """Steps that wait in the engine."""
    registrations: list[RegistrationState]
    """``sip.registrations``: their state and each registrar's last answer."""
    trunks: list[TrunkState]
    """Trunks with ``ping_s`` or several proxies, their state and that of each proxy."""
    background: list[SupervisedState]
    """The long-lived tasks and threads of the process, and how often each was restarted."""
    databases: list[DatabaseState]
    """PostgreSQL and Redis (``postgres.url``, ``redis_url``), and files of this machine that cannot be written. Calls
    work without them, so they do not affect the status."""


class Health:
    """Liveness and readiness. ``watch`` keeps the engine's status current.

    Args:
        engine_status: returns the engine's status; raises ``EngineError``.
        sip: returns the state of the SIP side.
        databases: returns the state of the databases.
        starting: returns the name of a further part that calls of some route need and that is not ready; empty: none.
    """

    def __init__(
        self,
        directory: LocalDirectory[Session],
        engine_status: Callable[[], Awaitable[EngineStatus]],
        *,
        version: str,
        sip: Callable[[], SipState] = SipState,
        databases: Callable[[], Sequence[DatabaseState]] = tuple,
        starting: Callable[[], str] = str,
    ) -> None:
        self._directory = directory
        self._engine_status = engine_status
        self._version = version
        self._sip = sip
        self._databases = databases
        self._starting = starting
        self._status: EngineStatus | None = None

    def why_not_ready(self) -> str:
        """Return the reason why calls are refused; empty if they are accepted."""
        if self._directory.draining or self._directory.leaving:
            return "draining"
        if self._directory.overloaded:
            return "overloaded"
        if len(self._directory) >= self._directory.limit:
            return "full"
        if failing := SUPERVISOR.why_not_ready():
            return f"{failing} keeps failing"
        return f"{missing} is not ready" if (missing := self._missing()) else ""

    def _missing(self) -> str:
        return self._starting() if self.engine_is_ready else "engine"

    @property
    def engine_is_ready(self) -> bool:
        """True if the engine can speak."""
        return self._status is not None and self._status.ready

    @property
    def engine_load(self) -> tuple[int, int]:
        """The engine's utterances in progress and the steps that wait in it."""
        return (0, 0) if self._status is None else (self._status.active, self._status.queued)

    @property
    def all_is_ready(self) -> bool:
        """True if every part is ready that a call of any route needs."""
        return not self._missing()

    async def watch(self) -> None:
        """Poll the engine's status until cancelled. Log each new reason for its absence once."""
        logged = ""
        while True:
            try:
                async with asyncio.timeout(_ENGINE_ANSWERS_S):  # Python 3.11's wait_for can lose a cancellation
                    self._status = await self._engine_status()
                logged = ""
            except (EngineError, TimeoutError) as exc:
                self._status = None
                why = str(exc) or f"no answer within {_ENGINE_ANSWERS_S:g} s"
                if why != logged:
                    log.warning("the engine does not answer", extra={"error": why})
                logged = why
            await asyncio.sleep(_POLL_S if self.engine_is_ready else _POLL_NOT_READY_S)

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the state of gateway and engine."""
        status, sip, why = self._status, self._sip(), self.why_not_ready()
        view = HealthView(
            status=why or "ok",
            version=self._version,
            engine=status.engine if status else "",
            model=status.model if status else "",
            gpu=bool(status and status.gpu),
            gpuName=status.gpu if status else "",
            vllm=bool(status and status.vllm),
            vllmVersion=status.vllm if status else "",
            calls=len(self._directory),
            callsLimit=self._directory.limit,
            active=status.active if status else 0,
            queued=status.queued if status else 0,
            registrations=list(sip.registrations),
            trunks=list(sip.trunks),
            background=list(SUPERVISOR.states()),
            databases=list(self._databases()),
        )
        return web.json_response(view.model_dump(), status=503 if why else 200)

    async def live(self, request: web.Request) -> web.Response:
        """Answer, to show that the process is alive."""
        return web.json_response({"status": "ok", "service": SERVICE})

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200, or 503 while the process drains, is full or overloaded, or lacks a part that calls need."""
        why = self.why_not_ready()
        headers = {"Retry-After": str(_RETRY_AFTER_S)} if why else {}
        return web.json_response({"status": why or "ready"}, status=503 if why else 200, headers=headers)
