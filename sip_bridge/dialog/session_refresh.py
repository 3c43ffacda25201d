"""One call's session timer (RFC 4028): the interval, the refresher, the time of the next refresh, and the meaning of
its response. Pure: times are seconds of one monotonic clock.

The owner sends the refresh and ends the call.
"""

from __future__ import annotations

import enum

from sip_bridge.dialog.dialog import (
    MIN_SESSION_S,
    Refusal,
    SessionTimer,
    min_session_s,
    session_agreed,
    session_answer,
    session_offer,
)
from sip_bridge.errors import SipProtocolError
from sip_bridge.local import HeaderItems
from sip_bridge.message.sip import Request, Response


class Due(enum.Enum):
    """The action that is due."""

    REFRESH = "refresh"  # we are the refresher: refresh the session
    END = "end"  # no refresh came


class RefreshStep(enum.Enum):
    """The action after the response to a refresh."""

    GO_ON = "go on"  # the session is refreshed
    AGAIN = "again"  # refresh at once, in the way that the response demands
    LATER = "later"  # refused for now: ``tick`` says when to try again, until the session expires
    END = "end"  # the peer is gone


class SessionRefresh:
    """Keeps a session from expiring.

    Args:
        wanted_s: the interval that we ask for. 0: there is a timer only if the peer asks for one.
        shortest_s: the shortest interval that the peer may ask for.
    """

    def __init__(self, *, wanted_s: int, shortest_s: int) -> None:
        self.timer: SessionTimer | None = None
        """The agreed timer. None: the session does not expire."""
        self.peer_allows: frozenset[str] = frozenset()
        """The methods in the peer's Allow, in lower case."""
        self._wanted_s = wanted_s
        self._shortest_s = shortest_s
        self._peers_shortest_s = MIN_SESSION_S
        self._refresh_at: float | None = None
        self._end_at: float | None = None

    # --- what is agreed --------------------------------------------------------------------------------------------

    def offer(self) -> HeaderItems:
        """Return the headers of our INVITE."""
        return session_offer(self._wanted_s, self._peers_shortest_s) if self._wanted_s else ()

    def answer(self, request: Request) -> tuple[SessionTimer | None, list[tuple[str, str]]] | Refusal:
        """Answer an INVITE or UPDATE of the peer, as ``session_answer`` does."""
        return session_answer(request, wanted_s=self._wanted_s, min_s=self._shortest_s)

    def agree(self, timer: SessionTimer | None, *, now: float) -> None:
        """Set the agreed timer, and restart it at ``now``."""
        self.timer = timer
        self.stop()
        if timer is not None:
            self._refresh_at = timer.refresh_at(now) if timer.we_refresh else None
            self._end_at = timer.end_at(now)

    def lengthen(self, response: Response) -> bool:
        """Raise our shortest interval to the Min-SE of a 422. False: it was that long already.

        Raises:
            SipProtocolError: Min-SE cannot be read.
        """
        before, self._peers_shortest_s = self._peers_shortest_s, max(self._peers_shortest_s, min_session_s(response))
        return self._peers_shortest_s > before

    # --- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return the time of the next ``tick``. None: no timer runs."""
        return min((at for at in (self._refresh_at, self._end_at) if at is not None), default=None)

    def tick(self, *, now: float) -> Due | None:
        """Return the action that is due, once."""
        if self._end_at is not None and self._end_at <= now:
            self.stop()
            return Due.END
        if self._refresh_at is not None and self._refresh_at <= now:
            self._refresh_at = None
            return Due.REFRESH
        return None

    def later(self, seconds: float, *, now: float) -> None:
        """Postpone the refresh."""
        self._refresh_at = now + seconds

    def stop(self) -> None:
        """Stop both timers."""
        self._refresh_at = self._end_at = None

    # --- the refresh -----------------------------------------------------------------------------------------------

    @property
    def by_update(self) -> bool:
        """True: refresh by UPDATE, which needs no offer. False: by INVITE, which repeats the last offer."""
        return "update" in self.peer_allows

    def headers(self) -> HeaderItems:
        """Return the headers of our refresh."""
        assert self.timer
        interval_s = max(self.timer.interval_s, self._peers_shortest_s)
        return [("Session-Expires", f"{interval_s};refresher=uac"), ("Min-SE", str(self._peers_shortest_s))]

    def on_response(self, response: Response | None, *, now: float, wait_s: float) -> RefreshStep:
        """Handle the final response to our refresh. None: no response came.

        Args:
            wait_s: the pause before the next try if the peer refuses for now.

        Raises:
            SipProtocolError: the session is refreshed, but the new interval cannot be read.
        """
        if response is None or response.status in (408, 481):
            return RefreshStep.END
        if response.status < 300:
            self.agree(session_agreed(response), now=now)
            return RefreshStep.GO_ON
        if response.status in (405, 501) and response.cseq.method == "UPDATE":
            self.peer_allows = frozenset()  # the peer names UPDATE in Allow but does not support it
            return RefreshStep.AGAIN
        if response.status == 422 and self._lengthened(response):
            return RefreshStep.AGAIN
        self.later(wait_s, now=now)
        return RefreshStep.LATER

    def _lengthened(self, response: Response) -> bool:
        try:
            return self.lengthen(response)
        except SipProtocolError:
            return False
