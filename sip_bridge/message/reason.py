"""Reads the cause of a call's end from BYE, CANCEL and final answers: their Reason headers (RFC 3326), and the status
of an answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gateway.seams.end_cause import EndCause, EndedBy
from gateway.seams.plain_text import plain
from sip_bridge.message.sip import Request, Response, split_list

_TEXT_CHARS = 128
"""Most characters of a text that are kept."""

_NETWORK_CAUSES = range(32, 127)
"""Q.850 causes of the network: resources, services, messages, protocol. Lower ones are normal events, and 127 says
nothing."""

_CALLEE_STATUSES = (486, 600, 603, 607)
"""Statuses that the called party decides: busy, declined, and unwanted (RFC 8197)."""


def read_reasons(values: Iterable[str]) -> EndCause:
    """Return status, Q.850 cause and text of Reason headers. The first value of each protocol counts; an unreadable one
    is ignored. The text of Q.850 is preferred, since switches write it for people."""
    found: dict[str, tuple[int, str]] = {}
    for reason in (each for value in values for each in split_list(value)):
        protocol, _, rest = reason.partition(";")
        fields = split_list(rest, ";")
        named = {name.strip().lower(): _unquoted(text.strip()) for name, _, text in (f.partition("=") for f in fields)}
        kind = protocol.strip().lower().replace(".", "")
        code = named.get("cause", "")
        allowed = {"sip": range(100, 700), "q850": range(1, 128)}.get(kind)
        if allowed and code.isascii() and code.isdigit() and len(code) < 4 and int(code) in allowed:
            found.setdefault(kind, (int(code), plain(named.get("text", "")).strip()[:_TEXT_CHARS]))
    status, status_text = found.get("sip", (None, ""))
    q850, text = found.get("q850", (None, ""))
    return EndCause(sip_status=status, q850=q850, text=text or status_text)


def cause_of_request(request: Request) -> EndCause:
    """Return the cause of a BYE or CANCEL. The network ended the call if the Reason shows a fault, else the party."""
    cause = read_reasons(request.headers.all("Reason"))
    status = cause.sip_status or 0
    if cause.q850 is not None:
        failed = cause.q850 in _NETWORK_CAUSES
    else:
        failed = status == 408 or 500 <= status < 600
    return replace(cause, by="carrier" if failed else "caller")


def cause_of_answer(response: Response) -> EndCause:
    """Return the cause of a failed INVITE. The status is that of the answer; without a text in a Reason, the reason
    phrase is the text."""
    cause = read_reasons(response.headers.all("Reason"))
    by: EndedBy = "caller" if response.status in _CALLEE_STATUSES else "carrier"
    text = cause.text or plain(response.reason).strip()[:_TEXT_CHARS]
    return replace(cause, by=by, sip_status=response.status, text=text)


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text
