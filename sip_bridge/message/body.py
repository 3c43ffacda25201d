"""Reads message bodies: a session description (RFC 3264) or a touch tone. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

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
so each form is read in each type, and in each other type whose name has ``dtmf``."""

_KEY = r"[\"']?(0?[0-9]|1[0-5]|[A-D*#]|%23|%2A|star|asterisk|pound|hash)[\"']?(?:[;,& \t].*)?"
"""A key, and whatever follows it in its line."""

_SIGNAL = re.compile(
    rf"^[ \t]*(?:signal|digits?|dtmf|tone|key|event|d)[ \t]*[=:][ \t]*{_KEY}$", re.IGNORECASE | re.MULTILINE
)
"""``Signal=5`` of Cisco's dtmf-relay, and ``d=6`` of Nortel's digits."""

_ALONE = re.compile(rf"{_KEY}(?:\n.*)?", re.IGNORECASE | re.DOTALL)
"""The key alone, or in the first line."""

_WORDS = {"%23": "#", "%2A": "*", "STAR": "*", "ASTERISK": "*", "POUND": "#", "HASH": "#"}

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
    found = _part_of(message, lambda kind: kind == "application/sdp")
    if found is not None:
        return parse_sdp(found[1])
    raise SipProtocolError(f"body is {message.content_type[:60]!r}, expected application/sdp", status=415)


_Part: TypeAlias = tuple[str, bytes]
"""Media type in lower case, and body."""


def _part_of(message: Message, wants: Callable[[str], bool]) -> _Part | None:
    """Return the first part of a multipart body whose media type ``wants`` accepts. None: there is none."""
    if not message.content_type.startswith("multipart/"):
        return None
    text = (message.headers.get("Content-Type") or "").encode("utf-8", "surrogateescape")
    return _among_parts(text, message.body, wants)


def _among_parts(content_type: bytes, body: bytes, wants: Callable[[str], bool], depth: int = 0) -> _Part | None:
    """Return the wanted one among the parts of a multipart body (RFC 2046 section 5.1), or among those of a part.
    Some peers do not name the boundary; the body begins with it."""
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
        kind = "".join(found.group(1).partition(b";")[0].decode("latin-1").split()).lower() if found else ""
        if wants(kind):
            return kind, inner
        if kind.startswith("multipart/") and depth < _MAX_DEPTH:
            nested = _among_parts(found.group(1) if found else b"", inner, wants, depth + 1)
            if nested is not None:
                return nested
    return None


def _is_for_digits(content_type: str) -> bool:
    return content_type in DIGIT_TYPES or "dtmf" in content_type


def digit_of(info: Request) -> str | None:
    """Return the touch tone of an INFO: one of ``0-9A-D*#``. None: the INFO is empty, which peers send as a keep-alive,
    or tells of a hook flash.

    Accepted forms are ``Signal=5`` and ``d=5`` lines, the key alone or in the first line, and an event of RFC 4733. 10
    is ``*``, 11 is ``#``, and 12 to 15 are ``A`` to ``D``, as in RFC 4733 section 3.2. The body may be a part of a
    multipart body.

    Raises:
        SipProtocolError: 415 for a content type that is not for touch tones; 400 for a body without a digit.
    """
    kind, raw = _part_of(info, _is_for_digits) or (info.content_type, info.body)
    body = raw.strip(b"\0")
    if not body.strip():
        return None
    text = body.decode("latin-1").replace("\r", "\n").strip()
    if not _is_for_digits(kind) and (kind not in ("", "text/plain") or not _SIGNAL.search(text)):
        raise SipProtocolError(
            f"body of INFO is {info.content_type[:60]!r}, expected {' or '.join(DIGIT_TYPES)}", status=415
        )
    if kind.endswith("telephone-event") and is_key(raw):
        return DIGITS[raw[0]]
    found = _SIGNAL.search(text) or _ALONE.fullmatch(text)
    if found:
        key = _WORDS.get(found.group(1).upper(), found.group(1).upper())
        return DIGITS[int(key)] if key.isdigit() else key
    if _FLASH.search(text):
        return None
    raise SipProtocolError(f"body of INFO has {len(text)} characters and no digit, expected one of 0-9A-D*#")
