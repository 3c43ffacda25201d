"""Reads message bodies: a session description (RFC 3264) or a touch tone. Pure."""

from __future__ import annotations

import re

from gateway.media.dtmf import DIGITS, is_key
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sdp import SessionDescription
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Message, Request

SDP = ("Content-Type", "application/sdp")

DIGIT_TYPES = (
    "application/dtmf-relay",
    "application/dtmf",
    "application/telephone-event",
    "audio/telephone-event",
    "application/vnd.nortelnetworks.digits",
)
"""Types of INFO bodies that carry a touch tone. No RFC defines them. Peers mix the types and the forms of their bodies,
so each form is read in each type."""

_SIGNAL = re.compile(
    r"^[ \t]*(?:signal|digit|dtmf|key|event|d)[ \t]*[=:][ \t]*[\"']?([0-9A-D*#]|1[0-5])[\"']?(?:[;, \t].*)?$",
    re.IGNORECASE | re.MULTILINE,
)
"""``Signal=5`` of Cisco's dtmf-relay, and ``d=6`` of Nortel's digits."""

_BOUNDARY = re.compile(rb"boundary\s*=\s*\"?([^\";]+)", re.IGNORECASE)
_PART_TYPE = re.compile(rb"^(?:content-type|c)[ \t]*:[ \t]*([^\n]+)", re.IGNORECASE | re.MULTILINE)
_MAX_DEPTH = 2

_FLASH = re.compile(r"(?:^|[=:])[ \t]*(?:16|!|flash|hf|hookflash)[ \t]*$", re.IGNORECASE | re.MULTILINE)


def description_of(message: Message) -> SessionDescription | None:
    """Return the session description that a message carries, alone or in a multipart body. None: there is none.

    Raises:
        SipProtocolError: 415 for another kind of content; 400 for a description that cannot be read.
    """
    if not message.body.strip():
        return None
    if (message.headers.get("Content-Encoding") or "identity").lower() != "identity":
        raise SipProtocolError("body is compressed, expected it plain", status=415)
    # Some peers do not name the type.
    if message.content_type == "application/sdp" or (
        not message.content_type and re.match(rb"\s*v\s*=\s*0", message.body)
    ):
        return parse_sdp(message.body)
    if message.content_type.startswith("multipart/"):
        text = (message.headers.get("Content-Type") or "").encode("utf-8", "surrogateescape")
        found = _among_parts(text, message.body)
        if found is not None:
            return parse_sdp(found)
    raise SipProtocolError(f"body is {message.content_type[:60]!r}, expected application/sdp", status=415)


def _among_parts(content_type: bytes, body: bytes, depth: int = 0) -> bytes | None:
    """Return the session description among the parts of a multipart body (RFC 2046 section 5.1), or among those of a
    part. None: there is none. Some peers do not name the boundary; the body begins with it."""
    boundary = _BOUNDARY.search(content_type)
    if boundary:
        mark = b"--" + boundary.group(1).strip()
    elif begin := re.match(rb"\s*(--[^\s]+)", body):
        mark = begin.group(1)
    else:
        return None
    for part in body.split(mark)[1:]:
        head, _, inner = part.replace(b"\r\n", b"\n").lstrip(b"\n").partition(b"\n\n")
        found = _PART_TYPE.search(head)
        kind = found.group(1).lower() if found else b""
        if kind.startswith(b"application/sdp"):
            return inner
        if kind.startswith(b"multipart/") and depth < _MAX_DEPTH:
            nested = _among_parts(found.group(1) if found else b"", inner, depth + 1)
            if nested is not None:
                return nested
    return None


def digit_of(info: Request) -> str | None:
    """Return the touch tone of an INFO: one of ``0-9A-D*#``. None: the INFO is empty, which peers send as a keep-alive,
    or tells of a hook flash.

    Accepted forms are ``Signal=5`` and ``d=5`` lines, the key alone, and an event of RFC 4733. 10 is ``*``, 11 is
    ``#``, and 12 to 15 are ``A`` to ``D``, as in RFC 4733 section 3.2.

    Raises:
        SipProtocolError: 415 for a content type outside ``DIGIT_TYPES``; 400 for a body without a digit.
    """
    if not info.body.strip():
        return None
    text = info.body.decode("latin-1").replace("\r", "\n").strip()
    if info.content_type not in DIGIT_TYPES and (info.content_type or not _SIGNAL.search(text)):
        raise SipProtocolError(
            f"body of INFO is {info.content_type[:60]!r}, expected {' or '.join(DIGIT_TYPES)}", status=415
        )
    if info.content_type.endswith("telephone-event") and is_key(info.body):
        return DIGITS[info.body[0]]
    found = _SIGNAL.search(text) or re.fullmatch(r"([0-9A-D*#]|1[0-5])", text, re.IGNORECASE)
    if found:
        key = found.group(1).upper()
        return DIGITS[int(key)] if key.isdigit() else key
    if _FLASH.search(text):
        return None
    raise SipProtocolError(f"body of INFO has {len(text)} characters and no digit, expected one of 0-9A-D*#")
