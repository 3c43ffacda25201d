"""Transfers by REFER (RFC 3515), by us and by the peer. Pure.

In a blind transfer, the peer calls the target. In an attended transfer, we already have a call with the target, named
by its id, and the peer's new call replaces it (RFC 3891).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from sip_bridge.dialog.dialog import Dialog, Refusal
from sip_bridge.dialog.effects import Effect, Follow, ReferOutcome, Respond
from sip_bridge.dialog.own_requests import OwnRequests
from sip_bridge.dialog.transaction import Key
from sip_bridge.local import HeaderItems
from sip_bridge.message.parameters import USER_TO_USER, user_to_user
from sip_bridge.message.referral import Referral, read_referral
from sip_bridge.message.sip import Request, Response, Uri, response_to

_MAX_REPORTS = 10
"""Most calls of one peer whose outcome is not reported yet."""

_LONGEST_RINGING_S = 180.0
"""Longest ringing that is waited for after the latest report of it, as for a proxy (RFC 3261 section 16.6, timer C)."""

_STATUS = re.compile(rb"\s*SIP/2\.0\s+([1-6][0-9]{2})(?:[ \t]+([^\r\n]*))?")


def refer_headers(
    target: Uri, by: Uri, handoff_data: str | None, replaced: Dialog | None = None
) -> list[tuple[str, str]]:
    """Return the headers of a REFER.

    Args:
        by: our address, for Referred-By.
        handoff_data: data for the target. It goes into a User-to-User header of the peer's new call, and into the REFER
            itself for peers that read it there. Data that is too long is left out.
        replaced: our dialog with the target, for an attended transfer.
    """
    handed = user_to_user(handoff_data) if handoff_data else []
    within = []
    if replaced:
        # The target reads this, and for it, its own tag is the to-tag (RFC 3891 section 3).
        name = f"{replaced.call_id};to-tag={replaced.remote.tag};from-tag={replaced.local.tag}"
        within.append(f"Replaces={quote(name, safe='')}")
    within += [f"{USER_TO_USER}={quote(value, safe='')}" for _, value in handed]
    headers = f"?{'&'.join(within)}" if within else ""
    return [("Refer-To", f"<{target}{headers}>"), ("Referred-By", f"<{by}>"), *handed]


def fragment_status(body: bytes) -> tuple[int, str] | None:
    """Return status and reason of a ``message/sipfrag`` body (RFC 3420). None: the body has no status line."""
    found = _STATUS.match(body)
    return (int(found.group(1)), (found.group(2) or b"").decode("utf-8", "replace").strip()) if found else None


class SipTransfers:
    """The transfers of one call; one transfer by us at a time.

    Args:
        requests: sends our REFER.
        effects: receives everything else.
        contact: our Contact header.
        follows: True if the peer may ask us to call someone.
        wait_s: longest wait for an outcome.
        on_over: called once when a transfer by us ends, with the problem (empty: success) and the status of
            ``Transferred``.
    """

    def __init__(
        self,
        requests: OwnRequests,
        effects: deque[Effect],
        contact: tuple[str, str],
        *,
        follows: bool,
        wait_s: float,
        on_over: Callable[[str, int], None],
    ) -> None:
        self.under_way = False
        """True while we wait for the outcome of our transfer."""
        self.allows: Callable[[Referral], bool] = lambda referral: True
        """Returns True if the calling policy allows a target. It is asked if no report could tell of a refusal."""
        self._requests = requests
        self._effects = effects
        self._contact = contact
        self._follows = follows
        self._wait_s = wait_s
        self._on_over = on_over
        self._give_up_at: float | None = None
        self._rings = False
        """True if the peer has reported ringing since the latest look at the time."""
        self._rang = False
        """True if the wait was made longer because the target rings."""
        self._count = 0
        self._waiting: Callable[[], None] | None = None
        """Sends the request that waits for the ACK of our 2xx."""
        self._is_counted = True
        """False while the latest REFER has no outcome that was counted."""
        self._referred = 0
        """Number of the peer's REFERs that were accepted."""
        self._reporting: set[str] = set()
        """Events of the peer's REFERs whose outcome it waits for."""

    # --- transfers by us -------------------------------------------------------------------------------------------

    def start(
        self,
        dialog: Dialog,
        target: Uri,
        replaced: Dialog | None,
        handoff_data: str | None,
        why: HeaderItems = (),
        waits: bool = False,
        *,
        now: float,
    ) -> None:
        """Ask the peer to call someone else in our place.

        Args:
            replaced: the dialog that the peer's new call replaces, for an attended transfer.
            why: Reason headers, which may stand in any request within a dialog (RFC 3326 section 2).
            waits: True if the request is sent by ``release``.
        """
        self.under_way = True
        self._rings = self._rang = False
        self._count += 1
        self._is_counted = False
        count = self._count
        self._give_up_at = now + self._wait_s
        headers = refer_headers(target, replace(dialog.local, params={}).uri, handoff_data, replaced)
        self._waiting = partial(
            self._requests.ask,
            dialog,
            "REFER",
            [self._contact, *headers, *why],
            b"",
            lambda answer, now: self._on_response(count, answer),
        )
        if not waits:
            self.release()

    def release(self) -> None:
        """Send the request that waits, if one does."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def deadline(self) -> float | None:
        """Return the time of the next ``tick``. None: no timer runs."""
        return self._give_up_at

    def tick(self, *, now: float) -> None:
        """End a transfer if the peer has reported no outcome for ``wait_s``. A target that rings gets more time: a
        bridge would call it a second time."""
        if self._give_up_at is None or self._give_up_at > now:
            return
        if self._rings:
            self._rings, self._rang = False, True
            self._give_up_at = now + _LONGEST_RINGING_S
        else:
            # A peer that is silent for so long has probably completed the transfer.
            self._over("", 0 if self._rang else 408)

    def stop(self) -> None:
        """Stop waiting, since the call is over."""
        self._give_up_at = None
        self._count_outcome("unknown")

    def on_notify(self, key: Key, notify: Request) -> Refusal | None:
        """Handle the peer's report on its new call."""
        if (notify.headers.get("Event") or "").partition(";")[0].strip().lower() != "refer":
            return Refusal(489, (("Allow-Events", "refer"),))
        if not self.under_way:
            return Refusal(481)
        self._effects.append(Respond(key, response_to(notify, 200)))
        found = fragment_status(notify.body)
        if found and found[0] >= 300:
            self._over(f"the target was not reached: {found[0]} {found[1]}".rstrip())
        elif found and found[0] >= 200:
            self._over("")
        elif found and found[0] > 100:
            self._rings = True
        elif (notify.headers.get("Subscription-State") or "").strip().lower().startswith("terminated"):
            self._over("the peer told no outcome")
        return None

    def _on_response(self, count: int, response: Response | None) -> None:
        if count != self._count:
            return  # the answer to an earlier REFER that was given up
        if response is None:
            self._over("the peer did not answer the REFER", 408)
        elif response.status >= 300:
            self._over(f"the peer refused the REFER: {response.status} {response.reason}", response.status)
        elif (response.headers.get("Refer-Sub") or "").strip().lower() == "false":
            self._over("")  # the peer will send no NOTIFY (RFC 4488)

    def _count_outcome(self, outcome: str) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._effects.append(ReferOutcome("sent", outcome))

    def _over(self, problem: str, status: int = 0) -> None:
        if self.under_way:
            refused = {0: "failed", 408: "unanswered"}.get(status, "refused")
            self._count_outcome(refused if problem or status else "completed")
            self.under_way = False
            self.stop()
            self._on_over(problem, status)

    # --- transfers by the peer -------------------------------------------------------------------------------------

    def on_refer(self, dialog: Dialog, key: Key, refer: Request) -> Refusal | None:
        """Handle the peer's request to call someone. Calls cost us money, so the trunk's settings must allow it.

        Raises:
            SipProtocolError: see ``read_referral``.
        """
        if not self._follows:
            return Refusal(603)
        referral = read_referral(refer, by=dialog.remote.uri)
        headers = [self._contact]
        if referral.wants_reports:
            if len(self._reporting) >= _MAX_REPORTS:
                return Refusal(503, (("Retry-After", "5"),))
            # RFC 3515 section 2.4.6: from the second REFER on, the number of the REFER tells them apart.
            event = f"refer;id={refer.cseq.number}" if self._referred else "refer"
            referral = replace(referral, event=event)
            self._reporting.add(event)
        elif not self.allows(referral):
            return Refusal(403)
        else:
            headers.append(("Refer-Sub", "false"))
        self._referred += 1
        self._effects.append(Respond(key, response_to(refer, 202, headers=headers)))
        self._effects.append(Follow(referral))
        return None

    def tell_referred(self, dialog: Dialog, referral: Referral, status: int, reason: str) -> None:
        """Tell the peer the outcome of a call that it requested (RFC 3515 section 2.4.4), if it wants to know."""
        event = referral.event
        if event not in self._reporting:
            return
        state = "active;expires=180"
        if status >= 200:
            state = "terminated;reason=noresource"
            self._reporting.discard(event)
        headers = [
            self._contact,
            ("Event", event),
            ("Subscription-State", state),
            ("Content-Type", "message/sipfrag;version=2.0"),
        ]
        self._requests.ask(
            dialog,
            "NOTIFY",
            headers,
            f"SIP/2.0 {status} {reason}\r\n".encode(),
            lambda response, now: self._on_notified(event, response),
        )

    def _on_notified(self, event: str, response: Response | None) -> None:
        """Stop reporting to a peer that does not wait for it any more (RFC 6665 section 4.2.2)."""
        if response is None or response.status in (404, 481, 489):
            self._reporting.discard(event)
