"""Transfers by REFER (RFC 3515): what we ask of the peer, and what the peer tells of the outcome. Pure.

In a blind transfer, the peer calls the target. In an attended transfer, we already have a call with the target, and the
peer's new call replaces it (RFC 3891); the id of that call names the target.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from sip_bridge.dialog import Dialog
from sip_bridge.message.parameters import USER_TO_USER, user_to_user
from sip_bridge.message.sip import Request, Response, Uri

_STATUS = re.compile(rb"\s*SIP/2\.0\s+([1-6][0-9]{2})(?:[ \t]+([^\r\n]*))?")


def refer_headers(
    target: Uri, by: Uri, handoff_data: str | None, replaced: Dialog | None = None
) -> list[tuple[str, str]]:
    """Return the headers of a REFER.

    Args:
        by: our address, as the one who transfers.
        handoff_data: data for the target. They go into a User-to-User header of the call that the peer makes, and into
            the REFER itself for peers that read them there. Data too long for a header are left out.
        replaced: our dialog with the target, for an attended transfer.
    """
    handed = user_to_user(handoff_data) if handoff_data else []
    within = []
    if replaced:
        # The target reads this, and for the target its own tag is the to-tag (RFC 3891 section 3).
        name = f"{replaced.call_id};to-tag={replaced.remote.tag};from-tag={replaced.local.tag}"
        within.append(f"Replaces={quote(name, safe='')}")
    within += [f"{USER_TO_USER}={quote(value, safe='')}" for _, value in handed]
    headers = f"?{'&'.join(within)}" if within else ""
    return [("Refer-To", f"<{target}{headers}>"), ("Referred-By", f"<{by}>"), *handed]


def fragment_status(body: bytes) -> tuple[int, str] | None:
    """Return status and reason of a ``message/sipfrag`` body (RFC 3420). None: the body has no status line."""
    found = _STATUS.match(body)
    return (int(found.group(1)), (found.group(2) or b"").decode("utf-8", "replace").strip()) if found else None


class Transfer:
    """One REFER of ours.

    Args:
        done: is told once how the transfer ended: an empty text means success, any other says what went wrong.
    """

    def __init__(self, done: Callable[[str], None]) -> None:
        self._done = done
        self._told = False

    def on_response(self, response: Response | None) -> None:
        """Take the peer's answer to the REFER. None: there is no answer."""
        if response is None:
            self._tell("the peer did not answer the REFER")
        elif response.status >= 300:
            self._tell(f"the peer refused the REFER: {response.status} {response.reason}")
        elif (response.headers.get("Refer-Sub") or "").strip().lower() == "false":
            self._tell("")  # the peer will tell nothing more (RFC 4488)

    def on_notify(self, notify: Request) -> None:
        """Take what the peer tells of its call."""
        found = fragment_status(notify.body)
        if found and found[0] >= 300:
            self._tell(f"the target was not reached: {found[0]} {found[1]}".rstrip())
        elif found and found[0] >= 200:
            self._tell("")
        elif (notify.headers.get("Subscription-State") or "").strip().lower().startswith("terminated"):
            self._tell("the peer told no outcome")

    def over(self, problem: str) -> None:
        """Note that the call, or the time for an outcome, has ended."""
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        if not self._told:
            self._told = True
            self._done(problem)
