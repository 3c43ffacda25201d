"""Places calls at carriers by REST. The carrier asks our webhook when the call is answered, as for an incoming call,
and reports its progress to the status webhook."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Mapping
from typing import Any
from urllib.parse import urlencode

from gateway.calling.policy import CallingPolicy
from gateway.carriers.call_status import CarrierStatus
from gateway.carriers.carrier import ConfiguredCarrier
from gateway.carriers.placing import CarrierOrder, Placing, call_sid_of, error_code_of
from gateway.errors import Rejected
from gateway.placing.api_client import ApiClient
from gateway.placing.progress import CallProgress
from gateway.seams.end_cause import EndCause
from gateway.seams.messages import Call, ProgressEvent
from gateway.seams.originate import FINAL_EVENTS, Attempt, AttemptState, CallOrder, no_progress
from tts_engine.correlation import remember_route

log = logging.getLogger(__name__)

PLACED = "placed"
"""Parameter of a webhook's address that names the placed call."""

SILENT_S = 600.0
"""A call of which the carrier reports nothing for this long is given up, unless it was answered, seconds."""

LONGEST_S = 24 * 3600.0
"""An answered call counts as over after this time, if its end was never reported, seconds. No carrier has longer
calls."""

_STATES: Mapping[ProgressEvent, AttemptState] = {
    "queued": "calling",
    "ringing": "ringing",
    "early": "early_media",
    "answered": "answered",
    "completed": "answered",
}
_REASONS: Mapping[ProgressEvent, str] = {"busy": "busy", "noAnswer": "no_answer", "canceled": "cancelled"}


class CarrierCalls:
    """Places calls at carriers; implements ``gateway.seams.originate.Originator``.

    Args:
        new_call: returns a new call id and the id of its stream token.
        check_room: raises ``Rejected`` if there is no room for a call.
        on_failed: takes the reason of each call that was not answered, for the metric.
        on_cause: takes the cause of each of them.
        on_incoming: takes the report of a status callback about a call that was not placed here: transport, the
            carrier's id of the call, message.
    """

    def __init__(
        self,
        carriers: Mapping[str, ConfiguredCarrier],
        calling: CallingPolicy,
        placed: CallProgress,
        *,
        new_call: Callable[[], tuple[str, bytes]],
        routes: Container[str],
        check_room: Callable[[], None],
        on_failed: Callable[[str], None],
        on_cause: Callable[[EndCause], None],
        on_incoming: Callable[[str, str, Call], None] = lambda transport, call_sid, message: None,
    ) -> None:
        self._carriers = carriers
        self._calling = calling
        self._placed = placed
        self.public_url: Callable[[], str] = lambda: ""
        """Returns our public scheme and authority. Empty: carriers cannot reach our webhooks."""
        self._new_call = new_call
        self._routes = routes
        self._check_room = check_room
        self._on_failed = on_failed
        self._on_cause = on_cause
        self._on_incoming = on_incoming
        self._client = ApiClient()
        self._under_way: dict[str, Attempt] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def missing(self, transport: str) -> str:
        """Return what is not configured for second legs of a carrier's calls. Empty: they can be placed."""
        if transport not in self._carriers:
            return f"a {transport} call has no carrier"
        try:
            self._carrier(transport)
        except Rejected as exc:
            return str(exc)
        return "" if self.public_url() else "server.public_url is not set"

    async def place(self, order: CallOrder) -> Attempt:
        """Place a call; see ``Originator``."""
        if order.route not in self._routes:
            raise Rejected(f"no route {order.route[:40]!r}", status=404, code="unknown_route", param="route")
        carrier, placing = self._carrier(order.carrier)
        if order.trunk or order.headers:
            wrong = "trunk" if order.trunk else "headers"
            raise Rejected(f"{wrong} is for calls by SIP only", status=422, code="invalid_body", param=wrong)
        if not self.public_url():
            raise Rejected(
                "server.public_url is not set, so the carrier cannot reach the webhook", status=503,
                code="not_configured", param="carrier",
            )  # fmt: skip
        self._check_room()
        now = asyncio.get_running_loop().time()
        allowed = self._calling.place(order, transport=order.carrier, domain="", now=now)
        call_id, token_id = self._new_call()
        remember_route(call_id, order.route)
        second = order.second_leg
        attempt = Attempt(
            call_id=call_id,
            route=order.route,
            transport=order.carrier,
            to=allowed.target,
            from_=allowed.from_ or self._calling.default_caller_id or ("" if second is None else second.own_number),
            token_id=token_id,
            joined_to="" if second is None else second.joined_to,
            on_progress=no_progress if second is None else second.on_progress,
            custom_parameters=dict(order.custom_parameters),
        )

        def over() -> None:
            self._under_way.pop(call_id, None)
            self._unwatch(attempt)
            allowed.over()

        attempt.over = over
        if not attempt.from_:
            allowed.over()
            raise Rejected(
                "from is missing, and calling.caller_ids has no whole number to stand for it", status=422,
                code="invalid_body", param="from",
            )  # fmt: skip
        self._under_way[call_id] = attempt
        self._placed.add(attempt)
        self._watch(attempt, SILENT_S)
        self._start(self._order(carrier, placing, attempt), f"order {call_id}")
        return attempt

    def attempt(self, call_id: str) -> Attempt | None:
        """Return an attempt; see ``Originator``."""
        found = self._placed.get(call_id)
        if found is None or found.transport not in self._carriers or found.events[-1].event == "completed":
            return None  # a completed call is in the call log
        return found

    def under_way(self) -> list[Attempt]:
        """Return the attempts that are not answered yet; see ``Originator``."""
        return [each for each in self._under_way.values() if each.state != "answered"]

    def cancel(self, call_id: str) -> bool:
        """Cancel an attempt; see ``Originator``."""
        attempt = self._under_way.get(call_id)
        if attempt is None or self._placed.has_session(call_id):
            return False  # the end of the session ends the call
        attempt.cause = EndCause(by="manager")
        self._hang_up(attempt)
        self._tell(attempt, "canceled")
        return True

    def answered(self, call_id: str, *, transport: str, route: str, call_sid: str) -> Attempt | None:
        """Report that the carrier has asked the webhook of a placed call, which means that the call was answered.

        Returns:
            The placed call. None: this process knows no such call, so the webhook is answered as for an incoming one.

        Raises:
            Rejected: 410 if the call was given up or is another one.
        """
        attempt = self._under_way.get(call_id)
        if attempt is None and self._placed.get(call_id) is None:
            return None
        if attempt is None or attempt.transport != transport or attempt.route != route:
            raise Rejected("this placed call is over", status=410, code="call_over")
        attempt.call_sid = attempt.call_sid or call_sid
        self._tell(attempt, "answered")
        return attempt

    def reported(self, call_id: str, transport: str, call_sid: str, status: CarrierStatus) -> None:
        """Take a status callback."""
        attempt = self._under_way.get(call_id) or self._placed.find(transport, call_sid)
        if attempt is None and not call_id and call_sid:
            message = Call(event=status.event, sip_status=status.sip_status, code=status.code)
            self._on_incoming(transport, call_sid, message)
        if attempt is None or attempt.transport != transport:
            return
        attempt.call_sid = attempt.call_sid or call_sid
        if status.sip_status is not None:
            attempt.status = status.sip_status
        self._tell(attempt, status.event, sip_status=status.sip_status, code=status.code)

    async def aclose(self) -> None:
        """Cancel every call that is not answered, and close the client when the requests have ended."""
        for attempt in self.under_way():
            attempt.cause = EndCause(by="gateway")
            self._hang_up(attempt)
            self._tell(attempt, "canceled")
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    # --- the order ---------------------------------------------------------------------------------------------------

    def _carrier(self, name: str) -> tuple[ConfiguredCarrier, Placing[Any]]:
        carrier = self._carriers.get(name)
        placing = None if carrier is None else carrier.vendor.placing
        if carrier is None:
            raise Rejected(
                f"carrier {name[:40]!r} is not configured", status=404, code="unknown_carrier", param="carrier"
            )
        if placing is None:
            raise Rejected(
                f"calls cannot be placed at {name} by REST", status=422, code="invalid_body", param="carrier"
            )
        if missing := placing.missing(carrier.settings):
            keys = ", ".join(f"carriers.{carrier.vendor.key}.{key}" for key in missing)
            raise Rejected(f"not set: {keys}", status=503, code="not_configured", param="carrier")
        return carrier, placing

    async def _order(self, carrier: ConfiguredCarrier, placing: Placing[Any], attempt: Attempt) -> None:
        hook = f"{self.public_url().rstrip('/')}/webhooks/{carrier.vendor.name}/{attempt.route}"
        query = urlencode({PLACED: attempt.call_id})
        order = CarrierOrder(
            to=attempt.to,
            from_=attempt.from_,
            answer_url=f"{hook}?{query}",
            status_url=f"{hook}/status?{query}",
            now=time.time(),
        )
        answer = await self._client.send(placing.place(carrier.settings, order), idempotent=False)
        call_sid = call_sid_of(answer.body, placing.sid_field)
        attempt.call_sid = attempt.call_sid or call_sid
        if answer.good:
            log.info("call ordered", extra={"call": attempt.call_id, "carrier": attempt.transport})
            if attempt.call_id not in self._under_way:  # it was cancelled meanwhile
                await self._end(carrier, placing, attempt)
            return
        if answer.status == 0 and answer.why != "ClientConnectorError":
            # The order may have been carried out. Callbacks would tell; without any the call is given up later.
            log.warning("no answer to an order", extra={"call": attempt.call_id, "why": answer.why})
            return
        code = error_code_of(answer.body) or (f"HTTP {answer.status}" if answer.status else answer.why)
        log.warning("call refused by the carrier", extra={"call": attempt.call_id, "why": code})
        attempt.reason = "refused" if answer.status else "unreachable"
        attempt.cause = EndCause(by="carrier" if answer.status else "gateway")
        self._tell(attempt, "failed", code=code)

    def _hang_up(self, attempt: Attempt) -> None:
        if attempt.call_sid:
            carrier, placing = self._carrier(attempt.transport)
            self._start(self._end(carrier, placing, attempt), f"hang up {attempt.call_id}")

    async def _end(self, carrier: ConfiguredCarrier, placing: Placing[Any], attempt: Attempt) -> None:
        if not attempt.call_sid:
            return
        request = placing.hang_up(carrier.settings, attempt.call_sid, time.time())
        answer = await self._client.send(request, idempotent=True)
        if not answer.good and answer.status != 404:  # 404: the call is over
            why = answer.why or f"HTTP {answer.status}"
            log.warning("carrier did not end a call", extra={"call": attempt.call_id, "why": why})

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- progress ----------------------------------------------------------------------------------------------------

    def _tell(self, attempt: Attempt, event: ProgressEvent, *, sip_status: int | None = None, code: str = "") -> None:
        before = attempt.events[-1].event if attempt.events else "queued"
        if before in FINAL_EVENTS:
            return
        answered = before == "answered"
        if event in FINAL_EVENTS and event != "completed":
            attempt.reason = attempt.reason or _REASONS.get(event, "refused")
            by = attempt.cause.by or ("carrier" if event == "failed" else "caller")
            attempt.cause = EndCause(by=by, sip_status=sip_status)
            attempt.state = "failed"
        elif event not in FINAL_EVENTS:
            attempt.state = _STATES[event] if not answered else "answered"
        if not self._placed.tell(attempt, event, sip_status=sip_status, code=code):
            return
        if event not in FINAL_EVENTS:
            self._watch(attempt, LONGEST_S if event == "answered" else SILENT_S)
        on_progress = attempt.on_progress
        if event in FINAL_EVENTS:
            attempt.on_progress = no_progress
        if event in FINAL_EVENTS and attempt.state == "failed":
            self._on_failed(attempt.reason)
            self._on_cause(attempt.cause)
            log.info("call not answered", extra={"call": attempt.call_id, "event": event, "code": code})
        on_progress(attempt)

    def _watch(self, attempt: Attempt, seconds: float) -> None:
        self._unwatch(attempt)
        loop = asyncio.get_running_loop()
        self._timers[attempt.call_id] = loop.call_later(seconds, self._silent, attempt)

    def _unwatch(self, attempt: Attempt) -> None:
        timer = self._timers.pop(attempt.call_id, None)
        if timer is not None:
            timer.cancel()

    def _silent(self, attempt: Attempt) -> None:
        """Give up a call of which the carrier reports nothing."""
        if attempt.state == "answered":
            self._tell(attempt, "completed", code="no_status")
            return
        attempt.reason = "no_status"
        attempt.cause = EndCause(by="gateway")
        self._hang_up(attempt)
        self._tell(attempt, "failed", code="no_status")
