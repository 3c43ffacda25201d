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
    r"^[ \t]*(?:signal|digit|dtmf|key|event|d)[ \t]*[=:][ \t]*[\"']?([0-9A-D*#]|1[0-5])[\"']?[ \t]*(?:[;,].*)?$",
    re.IGNORECASE | re.MULTILINE,
)
"""``Signal=5`` of Cisco's dtmf-relay, and ``d=6`` of Nortel's digits."""

_FLASH = re.compile(r"(?:^|[=:])[ \t]*(?:16|!|flash|hf|hookflash)[ \t]*$", re.IGNORECASE | re.MULTILINE)


def description_of(message: Message) -> SessionDescription | None:
    """Return the session description that a message carries, alone or in a multipart body. None: there is none.

    Raises:
        SipProtocolError: 415 for another kind of content; 400 for a description that cannot be read.
    """
    if not message.body.strip():
        return None
    if message.headers.get("Content-Encoding") not in (None, "identity"):
        raise SipProtocolError("body is compressed, expected it plain", status=415)
    # Some peers do not name the type.
    if message.content_type == "application/sdp" or (
        not message.content_type and re.match(rb"\s*v\s*=\s*0", message.body)
    ):
        return parse_sdp(message.body)
    if message.content_type.startswith("multipart/"):
        boundary = re.search(r'boundary="?([^";]+)', message.headers.get("Content-Type") or "", re.IGNORECASE)
        for part in (
            message.body.split(b"--" + boundary.group(1).encode("utf-8", "surrogateescape"))[1:] if boundary else ()
        ):
            head, _, body = part.replace(b"\r\n", b"\n").lstrip(b"\n").partition(b"\n\n")
            if re.search(rb"^content-type:\s*application/sdp", head, re.IGNORECASE | re.MULTILINE):
                return parse_sdp(body)
    raise SipProtocolError(f"body is {message.content_type[:60]!r}, expected application/sdp", status=415)


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
    if info.content_type not in DIGIT_TYPES:
        raise SipProtocolError(
            f"body of INFO is {info.content_type[:60]!r}, expected {' or '.join(DIGIT_TYPES)}", status=415
        )
    if info.content_type.endswith("telephone-event") and is_key(info.body):
        return DIGITS[info.body[0]]
    text = info.body.decode("latin-1").replace("\r", "\n").strip()
    found = _SIGNAL.search(text) or re.fullmatch(r"([0-9A-D*#]|1[0-5])", text, re.IGNORECASE)
    if found:
        key = found.group(1).upper()
        return DIGITS[int(key)] if key.isdigit() else key
    if _FLASH.search(text):
        return None
    raise SipProtocolError(f"body of INFO has {len(text)} characters and no digit, expected one of 0-9A-D*#")
