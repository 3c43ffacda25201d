"""Transfers by REFER (RFC 3515): what we ask of the peer, and what it tells of the outcome. Pure.

Blind: the peer calls the target. Attended: the target is somebody with whom we have a call already, which the peer's
new call replaces (RFC 3891); it is named by the id of that call.
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
    """Headers of a REFER.

    Args:
        by: who transfers.
        handoff_data: for the target, in a User-to-User header of the call that the peer makes, and in the REFER itself
            for peers that read it there. Left out where it is too long for a header.
        replaced: our dialog with the target, for an attended transfer.
    """
    handed = user_to_user(handoff_data) if handoff_data else []
    within = []
    if replaced:
        # As the target sees it: its own tag is the to-tag (RFC 3891 section 3).
        name = f"{replaced.call_id};to-tag={replaced.remote.tag};from-tag={replaced.local.tag}"
        within.append(f"Replaces={quote(name, safe='')}")
    within += [f"{USER_TO_USER}={quote(value, safe='')}" for _, value in handed]
    headers = f"?{'&'.join(within)}" if within else ""
    return [("Refer-To", f"<{target}{headers}>"), ("Referred-By", f"<{by}>"), *handed]


def fragment_status(body: bytes) -> tuple[int, str] | None:
    """Status and reason of a ``message/sipfrag`` body (RFC 3420); None: it has no status line."""
    found = _STATUS.match(body)
    return (int(found.group(1)), (found.group(2) or b"").decode("utf-8", "replace").strip()) if found else None


class Transfer:
    """One REFER of ours.

    Args:
        done: told once how it ended: nothing for success, else what went wrong.
    """

    def __init__(self, done: Callable[[str], None]) -> None:
        self._done = done
        self._told = False

    def on_response(self, response: Response | None) -> None:
        """The peer's answer to the REFER; None: there is none."""
        if response is None:
            self._tell("the peer did not answer the REFER")
        elif response.status >= 300:
            self._tell(f"the peer refused the REFER: {response.status} {response.reason}")
        elif (response.headers.get("Refer-Sub") or "").strip().lower() == "false":
            self._tell("")  # it will tell nothing more (RFC 4488)

    def on_notify(self, notify: Request) -> None:
        """What the peer tells of its call."""
        found = fragment_status(notify.body)
        if found and found[0] >= 300:
            self._tell(f"the target was not reached: {found[0]} {found[1]}".rstrip())
        elif found and found[0] >= 200:
            self._tell("")
        elif (notify.headers.get("Subscription-State") or "").strip().lower().startswith("terminated"):
            self._tell("the peer told no outcome")

    def over(self, problem: str) -> None:
        """The call has ended, or the time for the outcome."""
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        if not self._told:
            self._told = True
            self._done(problem)
