"""The metadata of a recording session (RFC 7865): who speaks in which stream. Pure."""

from __future__ import annotations

import base64
import datetime
import re
import uuid
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

TYPE = "application/rs-metadata+xml"
REQUEST_TYPE = "application/rs-metadata-request"
"""The body of a recorder that asks for the metadata again (RFC 7866 section 9.1)."""

_NAMESPACE = "urn:ietf:params:xml:ns:recording:1"
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def new_id() -> str:
    """Return a new identifier: a UUID in base64 (RFC 7865 section 6.1)."""
    return base64.b64encode(uuid.uuid4().bytes).decode()


@dataclass(frozen=True, slots=True)
class Participant:
    """A party of the call, and its stream."""

    aor: str
    """SIP URI."""
    name: str
    """Empty: it has none."""
    label: str
    """``a=label`` of the party's stream (RFC 4574)."""
    id: str = field(default_factory=new_id)
    stream_id: str = field(default_factory=new_id)


def metadata(session_id: str, began: datetime.datetime, participants: tuple[Participant, ...]) -> bytes:
    """Return the complete metadata of one call, in the order of elements of the schema (RFC 7865 section 9).

    Args:
        session_id: identifier of the call.
        began: the time at which the recording began, with its time zone.
        participants: the parties. Each sends one stream and receives the others.
    """
    at = f"<associate-time>{began.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}</associate-time>"
    call = f"session_id={quoteattr(session_id)}"
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<recording xmlns="{_NAMESPACE}">',
        "<datamode>complete</datamode>",
        f"<session {call}><start-time>{began.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}</start-time></session>",
    ]
    for each in participants:
        name = f"<name>{escape(_plain(each.name))}</name>" if each.name else ""
        aor = f"<nameID aor={quoteattr(_plain(each.aor))}>{name}</nameID>"
        lines.append(f'<participant participant_id="{each.id}">{aor}</participant>')
    lines += [
        f'<stream stream_id="{each.stream_id}" {call}><label>{each.label}</label></stream>' for each in participants
    ]
    lines.append(f"<sessionrecordingassoc {call}>{at}</sessionrecordingassoc>")
    lines += [
        f'<participantsessionassoc participant_id="{each.id}" {call}>{at}</participantsessionassoc>'
        for each in participants
    ]
    for each in participants:
        heard = "".join(f"<recv>{other.stream_id}</recv>" for other in participants if other is not each)
        lines.append(
            f'<participantstreamassoc participant_id="{each.id}"><send>{each.stream_id}</send>{heard}{at}'
            "</participantstreamassoc>"
        )
    return "\r\n".join([*lines, "</recording>", ""]).encode()


def _plain(text: str) -> str:
    return _NOT_IN_XML.sub("", text)
