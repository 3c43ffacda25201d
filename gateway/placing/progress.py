"""The progress of placed calls, by SIP and at carriers. The manager, the observers and the metrics are told, and, of a
call that no one answered, the call log."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.seams.call_record import CallLogSink, CallRecord, Progressed
from gateway.seams.end_cause import EndCause
from gateway.seams.messages import Call, Outbound, ProgressEvent
from gateway.seams.originate import FINAL_EVENTS, Attempt, ProgressStep

REMEMBERED = 1000
"""Number of placed calls that are over and can still be asked for."""

EVENTS = 20
"""Most events of a call; later ones are not kept, except the last one."""

_ORDER: dict[ProgressEvent, int] = {"queued": 0, "ringing": 1, "early": 2, "answered": 3}
"""Events that may follow each other. Callbacks overtake one another, so an earlier one that comes late says
nothing."""


class CallProgress:
    """Implements ``gateway.seams.originate.PlacedCalls``.

    Args:
        publish: passes a message of a call without a session to its observers: route, call id, message.
        forget: ends the subscriptions to one call.
        count: counts an event, by transport.
        call_log: receives the record of a call that no one answered. None: there is no log.
    """

    def __init__(
        self,
        publish: Callable[[str, str, Outbound], None],
        forget: Callable[[str], None],
        count: Callable[[str, str], None],
        call_log: CallLogSink | None,
    ) -> None:
        self._publish = publish
        self._forget = forget
        self._count = count
        self._call_log = call_log
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()
        self._managers: dict[str, Callable[[Outbound], None]] = {}
        self._by_token: dict[bytes, str] = {}

    def add(self, attempt: Attempt) -> None:
        """Follow a placed call from now on."""
        self._attempts[attempt.call_id] = attempt
        if attempt.token_id:
            self._by_token[attempt.token_id] = attempt.call_id
        self.tell(attempt, "queued")

    def get(self, call_id: str) -> Attempt | None:
        """Return a placed call, also for some time after its end."""
        return self._attempts.get(call_id)

    def of_token(self, token_id: bytes) -> Attempt | None:
        """Return the call whose stream has this token. None: no placed call of this process."""
        return self._attempts.get(self._by_token.get(token_id, ""))

    def find(self, transport: str, call_sid: str) -> Attempt | None:
        """Return a carrier's call by the carrier's id of it."""
        same = (each for each in self._attempts.values() if each.transport == transport and each.call_sid == call_sid)
        return next(same, None) if call_sid else None

    def tell(self, attempt: Attempt, event: ProgressEvent, *, sip_status: int | None = None, code: str = "") -> bool:
        """Report an event. False: it says nothing new, because it is late or was reported before."""
        last = attempt.events[-1] if attempt.events else None
        if last is not None:
            if last.event in FINAL_EVENTS or (last.event == event and (not code or last.code == code)):
                return False
            if event in _ORDER and _ORDER[event] < _ORDER[last.event]:
                return False
        progress = ProgressStep(event=event, sip_status=sip_status, code=code)
        if len(attempt.events) < EVENTS or event in FINAL_EVENTS:
            attempt.events.append(progress)
        self._count(attempt.transport, event)
        manager = self._managers.get(attempt.call_id)
        message = _message(progress)
        if manager is not None:
            manager(message)
        else:
            self._publish(attempt.route, attempt.call_id, message)
        if event in FINAL_EVENTS:
            self._ended(attempt, unanswered=manager is None)
        return True

    def _ended(self, attempt: Attempt, *, unanswered: bool) -> None:
        self._managers.pop(attempt.call_id, None)
        self._by_token.pop(attempt.token_id, None)
        self._over[attempt.call_id] = None
        while len(self._over) > REMEMBERED:
            oldest, _ = self._over.popitem(last=False)
            self._attempts.pop(oldest, None)
        if unanswered:
            self._forget(attempt.call_id)
            if self._call_log is not None and attempt.events[-1].event != "completed":
                self._call_log.add(_record(attempt))
        over, attempt.over = attempt.over, _nothing
        over()

    # --- the session's side ------------------------------------------------------------------------------------------

    def begun(self, call_id: str, tell: Callable[[Outbound], None]) -> None:
        """The session of a call exists. If the call was placed, its manager gets the events so far, and the later
        ones."""
        attempt = self._attempts.get(call_id)
        if attempt is None or (attempt.events and attempt.events[-1].event in FINAL_EVENTS):
            return
        for progress in attempt.events:
            tell(_message(progress, past=True))
        self._managers[call_id] = tell

    def has_session(self, call_id: str) -> bool:
        """Return True if the session of a placed call is in this process."""
        return call_id in self._managers

    def over(self, call_id: str, cause: EndCause) -> None:
        """The session of a call is about to end."""
        attempt = self._attempts.get(call_id)
        if attempt is not None and call_id in self._managers:
            attempt.cause = cause
            self.tell(attempt, "answered")
            self.tell(attempt, "completed", sip_status=cause.sip_status)


def _nothing() -> None:
    """Do nothing: the end of the call was handled."""


def _message(progress: ProgressStep, *, past: bool = False) -> Call:
    return Call(event=progress.event, sip_status=progress.sip_status, code=progress.code, past=past)


def _record(attempt: Attempt) -> CallRecord:
    """Return the record of a call that no one answered."""
    last = attempt.events[-1]
    return CallRecord(
        callId=attempt.call_id,
        callSid=attempt.call_sid or f"CA{attempt.call_id[2:]}",
        route=attempt.route,
        transport=attempt.transport,
        direction="outbound",
        from_=attempt.from_,
        to=attempt.to,
        startedAt=attempt.started_at,
        correlationId=attempt.joined_to or attempt.call_id,
        durationMs=round((time.monotonic() - attempt.begun) * 1000),
        reason=attempt.reason or last.event,
        endedBy=attempt.cause.by,
        sipStatus=attempt.cause.sip_status or last.sip_status,
        q850=attempt.cause.q850,
        endText=attempt.cause.text or None,
        outcome="unanswered",
        turns=0,
        gaps=0,
        gapMs=0,
        firstPacketMs=None,
        entries=[
            Progressed(
                atMs=round((each.at - attempt.begun) * 1000),
                event=each.event,
                sipStatus=each.sip_status,
                code=each.code,
            )
            for each in attempt.events
        ],
        entriesLost=0,
    )
