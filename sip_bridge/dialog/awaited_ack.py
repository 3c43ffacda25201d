"""Our 2xx to an INVITE until its ACK comes (RFC 3261 section 13.3.1.4): it is repeated, also over TCP, since
another hop may be by UDP. Pure: times are seconds of one monotonic clock.

The module does not know what the ACK means for the call, or what follows if none comes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sip_bridge.dialog.dialog import Dialog
from sip_bridge.dialog.effects import Effect, Respond
from sip_bridge.dialog.transaction import Key
from sip_bridge.message.sip import Request, Response


@dataclass(slots=True)
class Unacked:
    """A 2xx of ours that waits for its ACK."""

    dialog: Dialog
    key: Key
    response: Response
    offers: bool
    """True: the 2xx carries our offer, so the answer is in the ACK."""
    pause_s: float
    repeat_at: float
    give_up_at: float


class AwaitedAck:
    """Repeats the 2xx, and tells the dialog that an INVITE is open meanwhile: one at a time.

    Args:
        effects: where the repetitions go.
        t1_s, t2_s: T1 and T2 of RFC 3261.
    """

    def __init__(self, effects: deque[Effect], *, t1_s: float, t2_s: float) -> None:
        self._effects = effects
        self._t1_s = t1_s
        self._t2_s = t2_s
        self._unacked: Unacked | None = None

    def begin(self, dialog: Dialog, key: Key, response: Response, *, offers: bool, now: float) -> None:
        """Wait for the ACK of a 2xx that has just been sent.

        Args:
            offers: whether the 2xx carries our offer.
        """
        self._unacked = Unacked(
            dialog, key, response, offers, self._t1_s, repeat_at=now + self._t1_s, give_up_at=now + 64 * self._t1_s
        )
        dialog.invited = True
        dialog.inviting = offers

    def take(self, ack: Request) -> Unacked | None:
        """Return what the ACK acknowledges, which then waits no more. None: nothing that waits."""
        waiting = self._unacked
        if waiting is None or waiting.response.cseq.number != ack.cseq.number:
            return None
        self._over(waiting)
        return waiting

    def deadline(self) -> float | None:
        """Return when to call ``tick``. None: nothing is waited for."""
        return min(self._unacked.repeat_at, self._unacked.give_up_at) if self._unacked else None

    def tick(self, *, now: float) -> bool:
        """Repeat the 2xx if it is time. True: no ACK came for 64*T1, and none is awaited any more."""
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
        """Wait for nothing more, since the call is over."""
        self._unacked = None

    def _over(self, waiting: Unacked) -> None:
        self._unacked = None
        waiting.dialog.invited = waiting.dialog.inviting = False
