"""Repeats our 2xx to an INVITE until its ACK comes (RFC 3261 section 13.3.1.4). Also over TCP, since a later hop may
use UDP. Pure: times are seconds of one monotonic clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sip_bridge.dialog.dialog import Dialog
from sip_bridge.dialog.effects import Effect, Respond
from sip_bridge.dialog.transaction import Key
from sip_bridge.message.sip import Request, Response


@dataclass(slots=True)
class Unacked:
    """A 2xx that waits for its ACK."""

    dialog: Dialog
    key: Key
    response: Response
    offers: bool
    """True: the 2xx carries our offer, so the answer is in the ACK."""
    pause_s: float
    repeat_at: float
    give_up_at: float


class AwaitedAck:
    """Repeats one 2xx at a time, and marks its dialog as having an open INVITE.

    Args:
        effects: receives the repetitions.
        t1_s, t2_s: T1 and T2 of RFC 3261.
    """

    def __init__(self, effects: deque[Effect], *, t1_s: float, t2_s: float) -> None:
        self._effects = effects
        self._t1_s = t1_s
        self._t2_s = t2_s
        self._unacked: Unacked | None = None

    def begin(self, dialog: Dialog, key: Key, response: Response, *, offers: bool, now: float) -> None:
        """Wait for the ACK of a 2xx that was just sent.

        Args:
            offers: True if the 2xx carries our offer.
        """
        self._unacked = Unacked(
            dialog, key, response, offers, self._t1_s, repeat_at=now + self._t1_s, give_up_at=now + 64 * self._t1_s
        )
        dialog.invited = True
        dialog.inviting = offers

    def take(self, ack: Request) -> Unacked | None:
        """Return the 2xx that the ACK acknowledges, and stop repeating it. None: no 2xx waits for this ACK."""
        waiting = self._unacked
        if waiting is None or waiting.response.cseq.number != ack.cseq.number:
            return None
        self._over(waiting)
        return waiting

    def deadline(self) -> float | None:
        """Return the time of the next ``tick``. None: nothing waits."""
        return min(self._unacked.repeat_at, self._unacked.give_up_at) if self._unacked else None

    def tick(self, *, now: float) -> bool:
        """Repeat the 2xx if due. True: no ACK came within 64*T1, and the wait is over."""
        waiting = self._unacked
        if waiting is None:
            return False
        if waiting.give_up_at <= now:
            self._over(waiting)
            return True
        if waiting.repeat_at <= now:
            self._effects.append(Respond(waiting.key, waiting.response))
            waiting.pause_s = min(2 * waiting.pause_s, self._t2_s)
            waiting.repeat_at = now + waiting.pause_s
        return False

    def stop(self) -> None:
        """Stop waiting, since the call is over."""
        self._unacked = None

    def _over(self, waiting: Unacked) -> None:
        self._unacked = None
        waiting.dialog.invited = waiting.dialog.inviting = False
