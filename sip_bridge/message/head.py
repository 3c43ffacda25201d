"""Reads the three values of a SIP message that identify its worker. Pure.

A dispatcher reads every message, including those of strangers. So ``read_head`` is much cheaper than ``parse`` and
raises nothing. For every message that ``parse`` accepts, both read the same values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import MAX_HEADER_BYTES, Address, Via, split_list

_END = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(r"\n[ \t]+")
_WANTED = re.compile(r"^(via|v|to|t|call-id|i|replaces)[^\S\n]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_OUR_TAG = re.compile(r";\s*to-tag\s*=\s*([^\s;]+)", re.IGNORECASE)
_NAMES = {"v": "via", "t": "to", "i": "call-id"}


@dataclass(frozen=True, slots=True)
class Head:
    """The values of a message that name its transaction and its dialog."""

    method: str
    """The method of a request. Empty: the message is a response."""
    call_id: str
    """Without whitespace. Empty: the message has none."""
    ours: str
    """The identifier that this server made: the To tag of a request, the topmost branch of a response. Empty: none can
    be read."""
    replaced: str = ""
    """Our tag in the dialog that a new call replaces (RFC 3891). Empty: it replaces none."""


def read_head(data: bytes) -> Head | None:
    """Read a datagram or a message from ``MessageStream``. None: it is not a SIP message."""
    data = data.lstrip(b"\r\n")
    end = _END.search(data, 0, MAX_HEADER_BYTES + 4)
    if end is None and len(data) > MAX_HEADER_BYTES:
        return None
    text = data[: end.start() if end else len(data)].decode("utf-8", "surrogateescape")
    text = _FOLD.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
    start, _, lines = text.partition("\n")
    words = start.split()
    if not words or not (words[0].upper().startswith("SIP/") or words[-1].upper().startswith("SIP/")):
        return None
    method = "" if words[0].upper().startswith("SIP/") else words[0]
    values: dict[str, str] = {}
    for name, value in _WANTED.findall(lines):
        name = _NAMES.get(name.lower(), name.lower())
        if name in values or (name == "via" and method):
            continue
        if value := next(iter(split_list(value)), "") if name == "via" else value.strip():
            values[name] = value
    try:
        ours = Address.parse(values.get("to", "")).tag if method else Via.parse(values.get("via", "")).branch
    except SipProtocolError:
        ours = ""
    replaced = _OUR_TAG.search(values.get("replaces", "")) if method == "INVITE" and not ours else None
    return Head(method, "".join(values.get("call-id", "").split()), ours, replaced[1] if replaced else "")
