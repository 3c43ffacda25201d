"""``/healthz``, ``/readyz`` and ``/v1/health``: whether the process lives, whether calls may come, and what works."""

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

log = logging.getLogger(__name__)

SERVICE = "talkspurt"
"""What ``/healthz`` answers as ``service``, so that `talkspurt doctor` knows a server of ours."""

_ENGINE_ANSWERS_S = 2.0
_COME_AGAIN_S = 5
_LOOK_S, _LOOK_WHILE_NOT_READY_S = 1.0, 0.2


class HealthView(ApiModel):
    """The answer of ``/v1/health``."""

    status: str
    """``ok``, or what is missing; the answer's HTTP status is 503 then."""
    version: str
    engine: str
    model: str
    gpu: bool
    """True: the engine works on a GPU."""
    gpuName: str
    vllm: bool
    """Whether vLLM runs the language model."""
    vllmVersion: str
    calls: int
    callsLimit: int
    active: int
    """Utterances that the engine works on."""
    queued: int
    """Steps that wait in the engine."""
    registrations: list[RegistrationState]
    """``sip.registrations``: where we are registered, and each registrar's last answer."""
    trunks: list[TrunkState]
    """Trunks with ``ping_s``: whether their proxies answer."""
    databases: list[DatabaseState]
    """Databases that several gateways share (``postgres.url``). One that does not answer costs no call anything, so the
    status does not ask for it."""


class Health:
    """Liveness and readiness. ``watch`` keeps the engine's part fresh.

    Args:
        engine_status: asks the engine; raises ``EngineError``.
        sip: the state of the SIP side.
        databases: the state of those that several gateways share.
    """

    def __init__(
        self,
        directory: LocalDirectory[Session],
        engine_status: Callable[[], Awaitable[EngineStatus]],
        *,
        version: str,
        sip: Callable[[], SipState] = SipState,
        databases: Callable[[], Sequence[DatabaseState]] = tuple,
    ) -> None:
        self._directory = directory
        self._engine_status = engine_status
        self._version = version
        self._sip = sip
        self._databases = databases
        self._status: EngineStatus | None = None

    def why_not_ready(self) -> str:
        """What is missing before calls may come; empty if nothing is."""
        if self._directory.draining or self._directory.leaving:
            return "draining"
        if self._directory.overloaded:
            return "overloaded"
        if len(self._directory) >= self._directory.limit:
            return "full"
        return "" if self.engine_is_ready else "engine is not ready"

    @property
    def engine_is_ready(self) -> bool:
        """Whether the engine can speak."""
        return self._status is not None and self._status.ready

    async def watch(self) -> None:
        """Ask for the engine's status again and again, until cancelled. Log why there is none, each reason once."""
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
            await asyncio.sleep(_LOOK_S if self.engine_is_ready else _LOOK_WHILE_NOT_READY_S)

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
            databases=list(self._databases()),
        )
        return web.json_response(view.model_dump(), status=503 if why else 200)

    async def live(self, request: web.Request) -> web.Response:
        """Answer, to show that the process lives."""
        return web.json_response({"status": "ok", "service": SERVICE})

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200, or 503 while the process drains, is full or overloaded, or has no working engine."""
        why = self.why_not_ready()
        headers = {"Retry-After": str(_COME_AGAIN_S)} if why else {}
        return web.json_response({"status": why or "ready"}, status=503 if why else 200, headers=headers)
