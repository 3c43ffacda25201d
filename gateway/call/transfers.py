"""Transfers of a call to another party: on request of the manager, or to the fallback target when the manager is gone.

The peer transfers (REFER, or the carrier's next action), or the gateway calls the target and joins both calls
(``Bridge``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from gateway.call.after_turns import AfterTurns
from gateway.call.ending import CallEnd
from gateway.call.joined.bridge import Bridge
from gateway.call.outbox import Outbox
from gateway.call.stats import Meter
from gateway.call.turn_taking.instructions import Instructions
from gateway.call.turn_taking.turns import Turns
from gateway.config import RouteConfig
from gateway.errors import Rejected
from gateway.seams.calling import TransferPolicy
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import CallInfo, MediaLeg, TransferStart
from gateway.seams.messages import Error, Transfer

log = logging.getLogger(__name__)

NO_MANAGER = "dialogue_failed"
"""Reason of a call's end when its dialogue manager is gone. The carrier's next step needs it: the caller is still
waiting."""

_BRIDGED_STATUSES = frozenset({405, 408, 501, 603})
"""Statuses with which a peer refuses any transfer, or 408 if it tells no outcome in time."""


class Transfers:
    """The transfers of one call, one at a time. A transfer waits for speech, is under way, then ends.

    Args:
        outbox: tells the manager about failures.
        ending: ends the call.
        call: description of the call.
        leg: carries out the transfer.
        bridge: carries out the transfer where the leg does not.
        route: the call's route: longest wait for speech, fallback target.
        calling: decides which targets are allowed.
        meter: counts refusals.
        turns: the turns that a transfer waits for.
        clock: the time for ``turns``.
        instructions: completes the text of the turns before a transfer, and may withdraw it until it begins.
    """

    def __init__(
        self,
        outbox: Outbox,
        ending: CallEnd,
        call: CallInfo,
        leg: MediaLeg,
        route: RouteConfig,
        *,
        calling: TransferPolicy,
        meter: Meter,
        turns: Turns,
        instructions: Instructions,
        bridge: Bridge,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._bridge = bridge
        self._outbox = outbox
        self._ending = ending
        self._call = call
        self.leg = leg
        self._route = route
        self._calling = calling
        self._meter = meter
        self._turns = turns
        self._instructions = instructions
        self._message: Transfer | None = None
        """The transfer that waits for speech or is under way."""
        self._speech_wait = AfterTurns()
        """The wait for that speech."""
        self._has_manager = True
        """False: no dialogue manager is available any more."""
        self._fallback_tried = False
        """True if the transfer under way goes to the route's fallback target, which is tried once."""
        self._bridging = False
        """True while a person is called, or joined with the caller."""

    @property
    def pending(self) -> bool:
        """True if a transfer waits for speech or is under way."""
        return self._message is not None

    def begin(self, message: Transfer, now: float) -> None:
        """Transfer the call after the speech that is queued now. Report an error if that is not possible."""
        if self._message is not None:
            self._outbox.tell(
                Error(description="transfer: another transfer is under way", code="transfer_failed", field="type")
            )
            return
        try:
            target = self._calling.transfer(
                self._call,
                message.target,
                now=now,
                by_sip=self._may_bridge(message)
                and self._leg_calls_no_one(message)
                and self._bridge.reach.by_sip(message.target),
            )
        except Rejected as exc:
            self._refuse(exc)
            return
        self._message = replace(message, target=target)
        wait_s = self._route.dialogue.transfer_wait_s
        if not message.commit:
            self._instructions.departure.transfer_waits(self._drop)
        self._speech_wait.wait(self._instructions.complete_line(now) if wait_s else [], wait_s, self._start)

    def turn_ended(self) -> None:
        """Note that a turn of the call has ended."""
        self._speech_wait.turn_ended()

    def speech_complete(self, handoff_data: str | None) -> None:
        """End the call after the manager's ``end``, unless the end of a pending transfer decides."""
        if not self.pending and not self._bridge.without_bot:
            self._ending.leave("end", handoff_data)

    def ended(self, problem: str, status: int = 0) -> None:
        """The leg's transfer has ended; see ``CallEvents.on_transferred``."""
        if self._bridging:
            self._bridge.handed_over(problem, status)
            return
        if self._speech_wait.waits:
            return  # the report is about an earlier transfer
        message, self._message = self._message, None
        if message is None:
            return
        if status in _BRIDGED_STATUSES and self._may_bridge(message):
            self._begin_bridge(message)
            return
        if self._fallback_tried:
            if problem:
                log.warning(
                    "fallback transfer failed",
                    extra={"call": self._call.call_id, "route": self._call.route, "why": problem},
                )
            self._without_manager("" if problem else message.target)
        elif not problem:
            self._done(message)
        else:
            self._failed(Error(description=f"transfer: {problem}", code="transfer_failed", field="target"))

    # --- bridges (BridgeOwner) ---------------------------------------------------------------------------------------

    def _may_bridge(self, message: Transfer) -> bool:
        return (message.mode != "refer" or message.warm is not None) and self._bridge.possible

    def _leg_calls_no_one(self, message: Transfer) -> bool:
        """True if the gateway calls the target without asking the leg first."""
        return message.mode == "bridge" or message.warm is not None or self.leg.refuses_transfers

    def _begin_bridge(self, message: Transfer) -> None:
        self._message = message
        self._set_bridging(True)
        self._bridge.begin(message, by_operator=self._fallback_tried)

    def _set_bridging(self, bridging: bool) -> None:
        self._bridging = bridging
        self.accompany(self._bridge.without_bot)

    def bridge_failed(self, problem: str, code: str) -> None:
        """The person was not reached: the caller is with the bot again."""
        self._set_bridging(False)
        if self._fallback_tried:
            log.warning("fallback transfer failed", extra={"call": self._call.call_id, "why": code})
            self._without_manager()
        else:
            self._failed(Error(description=f"transfer: {problem}", code=code, field="target"))

    def bridge_over(self, cause: EndCause, *, returns: bool) -> None:
        """The person has hung up: the call ends, or the caller goes back to the bot."""
        self._set_bridging(False)
        message, self._message = self._message, None
        if returns and self._has_manager and not self._turns.closed:
            return
        if self._fallback_tried:
            self._without_manager()
        else:
            handoff_data = None if message is None else message.handoff_data
            self._ending.leave("transferred", handoff_data, cause=cause)

    def bridge_too_long(self) -> None:
        """Two people have been joined for the longest time: the call ends."""
        self._set_bridging(False)
        self._message = None
        self._ending.end("too_long", hang_up=True)

    def bridge_moved(self, conference: str) -> None:
        """The peer has joined the two, or the carrier does it in this conference."""
        self._set_bridging(False)
        message, self._message = self._message, None
        handoff_data = None if message is None else message.handoff_data
        self._ending.leave("transferred", handoff_data, conference=conference)

    def manager_gone(self) -> None:
        """No dialogue manager is available any more: once no transfer is pending, transfer the call to the route's
        fallback target, or end it for the carrier's next step."""
        self._has_manager = False
        if self._message is None and not self._bridge.without_bot:
            self._fall_back()

    def accompany(self, accompanied: bool) -> None:
        """Note whether a supervisor talks with the caller, so that no silence is over meanwhile."""
        self._turns.silence.accompany(accompanied or self._bridging, self._clock())

    @property
    def bot_has_left(self) -> bool:
        """True if no bot is left: its manager is gone, or has ended the session."""
        return not self._has_manager or (self._turns.ending is not None and self._turns.closed)

    def take_over_ends(self) -> None:
        """The caller is with the bot again, or the call ends if the bot has left meanwhile."""
        if self._message is not None:
            return
        if not self._has_manager:
            self._fall_back()
        else:
            self._end_if_alone()

    def close(self) -> None:
        """Stop waiting for speech."""
        self._speech_wait.cancel()

    def _drop(self) -> None:
        """The caller has withdrawn the transfer that waits for speech."""
        self._speech_wait.cancel()
        self._message = None

    def _start(self) -> None:
        self._instructions.departure.transfer_begins()
        message = self._message
        assert message is not None
        may_bridge = self._may_bridge(message)
        wanted = message.mode == "bridge" or message.warm is not None
        if wanted and not may_bridge:
            why = self._bridge.reach.missing or "this call is itself a second leg"
            self._not_supported(f"the gateway calls no one itself: {why}")
            return
        if message.mode == "refer" and wanted and not self._bridge.reach.may_hand_over(message.target):
            self._not_supported(
                "refer with warm needs a caller on SIP, or a number that the caller's carrier calls; bridge does not"
            )
            return
        if wanted or (may_bridge and self.leg.refuses_transfers):
            self._begin_bridge(message)
            return
        try:
            started = self.leg.transfer(message.target, message.handoff_data)
        except Rejected as exc:
            self._refuse(exc)
            return
        if started is TransferStart.HANDED_OVER:
            self._done(message)
        elif started is TransferStart.REFUSED and may_bridge:
            self._begin_bridge(message)
        elif started is TransferStart.REFUSED:
            description = f"transfer: the peer of a {self._call.transport} call cannot transfer it"
            if message.mode != "refer":
                description += "; with section sip configured, the gateway calls the target itself"
            self._failed(Error(description=description, code="not_supported", field="type"))

    def _not_supported(self, why: str) -> None:
        self._failed(Error(description=f"transfer: {why}", code="not_supported", field="mode"))

    def _refuse(self, why: Rejected) -> None:
        self._meter.call_rejected(why.code)
        log.info("transfer refused", extra={"call": self._call.call_id, "route": self._call.route, "why": why.code})
        self._failed(Error(description=f"transfer: {why}", code=why.code, field="target"))

    def _failed(self, error: Error) -> None:
        """Continue the call after a failed transfer: report the error, or fall back if the manager is gone."""
        self._message = None
        if not self._has_manager:
            self._fall_back()
            return
        self._outbox.tell(error)
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        ending = self._turns.ending
        # After the manager's ``end`` no manager controls the call.
        if ending is not None and self._turns.closed and not self._ending.decided:
            self._ending.leave("end", ending.handoff_data)

    def _done(self, message: Transfer) -> None:
        self._ending.leave("transferred", message.handoff_data, target=message.target)

    def _fall_back(self) -> None:
        target = self._route.fallback.transfer
        if target and not self._ending.decided:
            try:
                target = self._calling.fallback(self._call, target)
                started = TransferStart.REFUSED
                if not (self._bridge.possible and self.leg.refuses_transfers):
                    started = self.leg.transfer(target, reason=NO_MANAGER)
            except Rejected as exc:
                log.warning(
                    "fallback transfer refused",
                    extra={"call": self._call.call_id, "route": self._call.route, "why": exc.code},
                )
                started = TransferStart.REFUSED
            self._message, self._fallback_tried = Transfer(target=target), True
            if started is TransferStart.UNDER_WAY:
                return
            if started is TransferStart.REFUSED and self._bridge.possible:
                self._begin_bridge(self._message)
                return
            self._message = None
            target = target if started is TransferStart.HANDED_OVER else ""
        self._without_manager(target)

    def _without_manager(self, target: str = "") -> None:
        self._ending.leave(NO_MANAGER, None, target=target)
