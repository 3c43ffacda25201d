"""All live calls of this process. ``LiveCalls`` creates a session for each incoming call, runs it, counts it and stores
its records at the end. It does not know which transport a call used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from gateway.call.defaults import turn_defaults
from gateway.call.directory import LocalDirectory
from gateway.call.handoff import Handoffs
from gateway.call.session import Services, Session
from gateway.call.transfers import NO_MANAGER
from gateway.config import BargeInConfig, LimitsConfig, RouteConfig
from gateway.errors import Rejected
from gateway.limits.limiter import Limiter
from gateway.metering.record import MeterRecord
from gateway.metering.store import Records
from gateway.seams.end_cause import EndCause
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import MediaLeg
from tts_engine.correlation import CORRELATION, remember_route

log = logging.getLogger(__name__)

_CLOSE_S = 5.0  # longest wait for the calls that the drain told to end


class CallMeter(Protocol):
    """Counts calls that start and end."""

    def call_started(self, *, transport: str) -> None: ...

    def call_ended(self, *, transport: str, outcome: str) -> None: ...
    def call_cause(self, cause: EndCause) -> None: ...


class LiveCalls:
    """Creates calls and owns their tasks."""

    def __init__(
        self,
        routes: Mapping[str, RouteConfig],
        barge_in: BargeInConfig,
        limits: LimitsConfig,
        services: Services,
        *,
        directory: LocalDirectory[Session],
        handoffs: Handoffs,
        meter: CallMeter,
        limiter: Limiter,
        tenants: Mapping[str, str],
        records: Records,
    ) -> None:
        self._records = records
        self._limiter = limiter
        self._tenants = tenants
        self._routes = routes
        self._services = services
        self._defaults = {
            name: turn_defaults(
                route,
                route.dialogue,
                services.playout,
                barge_in,
                turn_chars=limits.turn_chars,
                turns_queued=limits.turns_queued,
                hearing=services.hearing.get(name),
            )
            for name, route in routes.items()
        }
        self._directory = directory
        self._handoffs = handoffs
        self._meter = meter
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, incoming: IncomingCall, leg: MediaLeg) -> Session:
        """Create the session of a call and start it.

        Raises:
            Rejected: 503 if the limit of calls is reached or the process drains; 429 if the tenant's limit is reached.
        """
        self._directory.check_room()
        self._limiter.check_room(self._tenants[incoming.route], "calls")
        route = self._routes[incoming.route]
        call = incoming.accepted(incoming.call_id or self._directory.new_call_id(), route.parameters)
        session = Session(call, leg, incoming.inbound, route, self._defaults[incoming.route], self._services)
        self._directory.add(session)
        remember_route(call.call_id, incoming.route)
        record = session.metering.begun(self._tenants[incoming.route], numbers=self._records.keeps_numbers)
        session.wait_until_metered(self._records.begin(record, lambda: session.metering.so_far(record)))
        task = asyncio.create_task(self._run(session, record), name=f"call {call.call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return session

    async def _run(self, session: Session, begun: MeterRecord) -> None:
        CORRELATION.set(session.correlation)
        transport = session.call.transport
        log.info("call began", extra={"call": session.call_id, "route": session.call.route, "transport": transport})
        self._meter.call_started(transport=transport)
        outcome = "failed"
        counting: asyncio.Task[None] | None = None
        if self._limiter.is_limited(self._tenants[session.call.route], "calls"):
            counting = asyncio.create_task(self._count(session), name=f"count of call {session.call_id}")
            self._tasks.add(counting)
            counting.add_done_callback(self._tasks.discard)
        try:
            reason = await session.run()
            if reason != NO_MANAGER:
                outcome = "completed"
            log.info("call ended", extra={"call": session.call_id, "reason": reason})
        except Exception:  # a bug in one call ends that call only
            log.exception("call failed", extra={"call": session.call_id})
        finally:
            if counting is not None:
                counting.cancel()
            self._directory.remove(session)
            cause = session.ending.cause
            self._meter.call_ended(transport=transport, outcome=outcome)
            self._meter.call_cause(cause)
            self._records.end(session.metering.ended(begun, session.ending.reason, cause, failed=outcome == "failed"))
            if self._services.tracer is not None:
                self._services.tracer.call(session.traced(failed=outcome == "failed"))
            record = session.record(failed=outcome == "failed")
            if record is not None and self._services.call_log is not None:
                self._services.call_log.add(record)
            if session.ending.handoff is not None:
                self._handoffs.leave(transport, session.call.call_sid, session.ending.handoff)

    async def _count(self, session: Session) -> None:
        """Count the call against its tenant's limit while it lasts. The call starts without waiting for the count."""
        try:
            async with self._limiter.held(self._tenants[session.call.route], "calls", session.call_id):
                await asyncio.Event().wait()
        except Rejected as exc:  # calls on other gateways fill the tenant's limit
            log.info("call rejected", extra={"call": session.call_id, "why": exc.code})
            session.end(exc.code, hang_up=True)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new calls, give live calls ``timeout_s`` seconds to finish, then hang up the rest."""
        self._directory.draining = True
        if self._tasks:
            log.info("draining", extra={"calls": len(self._tasks)})
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for session in self._directory:
            session.end("drained", hang_up=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
