"""Status callbacks of carriers as events of a call. Pure.

The words are those of Twilio and its relatives (``CallStatus``), of Plivo and of Vonage (``status``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.carriers.placing import CODE_CHARS
from gateway.seams.messages import ProgressEvent
from gateway.seams.plain_text import plain

_EVENTS: Mapping[str, ProgressEvent] = {
    "queued": "queued",
    "initiated": "queued",
    "started": "queued",
    "ringing": "ringing",
    "ring": "ringing",
    "in-progress": "answered",
    "answered": "answered",
    "human": "answered",
    "machine": "answered",
    "busy": "busy",
    "no-answer": "noAnswer",
    "timeout": "noAnswer",
    "unanswered": "noAnswer",
    "rejected": "failed",
    "failed": "failed",
    "cancel": "canceled",
    "canceled": "canceled",
    "cancelled": "canceled",
    "completed": "completed",
}
_STATUS_FIELDS = ("CallStatus", "call_status", "status", "Event")
_SIP_FIELDS = ("SipResponseCode", "SipHangupCause", "sip_code")
_CODE_FIELDS = ("ErrorCode", "HangupCauseName", "HangupCause", "detail")
_SIP_STATUS = re.compile(r"[1-6][0-9]{2}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierStatus:
    """One status callback."""

    event: ProgressEvent
    sip_status: int | None = None
    """SIP status of the network. None: unknown."""
    code: str = ""
    """The carrier's code or word."""
    fails_stream: bool = False
    """True if only the media stream has failed; the call may continue."""


def read_status(form: Mapping[str, str]) -> CarrierStatus | None:
    """Return what a status callback says. None: nothing about the progress of a call."""
    if form.get("StreamEvent") == "stream-error":
        error = form.get("StreamErrorCode") or form.get("StreamError") or "stream-error"
        return CarrierStatus(event="failed", code=_code(error), fails_stream=True)
    if form.get("StreamEvent"):
        return None
    word = next((value for name in _STATUS_FIELDS if (value := form.get(name, "").lower()) in _EVENTS), "")
    who = form.get("AnsweredBy") or (word if word in ("human", "machine") else "")
    if who and word in ("", "in-progress", "answered", "human", "machine"):
        return CarrierStatus(event="answered", code=_code(who))
    if not word:
        return None
    sip = next((value for name in _SIP_FIELDS if _SIP_STATUS.fullmatch(value := form.get(name, ""))), "")
    code = next((value for name in _CODE_FIELDS if (value := form.get(name, ""))), "")
    if not code and word == "rejected":
        code = word
    return CarrierStatus(event=_EVENTS[word], sip_status=int(sip) if sip else None, code=_code(code))


def _code(text: str) -> str:
    """Return a carrier's word without characters that could be personal data: a code has no run of six digits."""
    return "" if re.search(r"\+?[0-9]{6}", text) else plain(text[:CODE_CHARS])
