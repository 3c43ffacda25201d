"""Reads message bodies: a session description (RFC 3264) or a touch tone. Pure."""

from __future__ import annotations

import re

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sdp import SessionDescription
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Message, Request

SDP = ("Content-Type", "application/sdp")

DIGIT_TYPES = ("application/dtmf-relay", "application/dtmf")


def description_of(message: Message) -> SessionDescription | None:
    """Return the session description that a message carries, alone or in a multipart body. None: there is none.

    Raises:
        ProtocolError: 415 for another kind of content; 400 for a description that cannot be read.
    """
    if not message.body.strip():
        return None
    if message.headers.get("Content-Encoding") not in (None, "identity"):
        raise SipProtocolError("body is compressed, expected it plain", status=415)
    if message.content_type == "application/sdp":
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
    """Return the touch tone of an INFO: one of ``0-9A-D*#``. None: the INFO is empty; peers send those as keep-alives.

    Raises:
        ProtocolError: 415 for a content type outside ``DIGIT_TYPES``; 400 for a body without a digit.
    """
    text = info.body.decode("latin-1").strip()
    if not text:
        return None
    if info.content_type == "application/dtmf-relay":
        found = re.search(r"^signal\s*=\s*([0-9A-D*#])\s*$", text, re.IGNORECASE | re.MULTILINE)
    elif info.content_type == "application/dtmf":
        found = re.fullmatch(r"([0-9A-D*#])", text, re.IGNORECASE)
    else:
        raise SipProtocolError(
            f"body of INFO is {info.content_type[:60]!r}, expected {' or '.join(DIGIT_TYPES)}", status=415
        )
    if not found:
        raise SipProtocolError(f"body of INFO has {len(text)} characters and no digit, expected one of 0-9A-D*#")
    return found.group(1).upper()
