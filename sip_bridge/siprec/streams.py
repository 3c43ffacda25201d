"""Offers and answers for the labelled streams of a recording session (RFC 7866 section 7.1, RFC 4574). Pure.

Each stream has a ``Negotiation`` of its own. Its description has one audio section; a recording session's has them all.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from sip_bridge.errors import NotAcceptable
from sip_bridge.message.sdp import Agreed, Direction, Negotiation, SessionDescription
from sip_bridge.siprec.metadata import TYPE

LABELS = ("1", "2")
"""Labels of the streams: that of the party on the phone, and ours."""


def joined(descriptions: Sequence[bytes]) -> bytes:
    """Return one description with the labelled audio of all descriptions. The session's lines are those of the
    first."""
    sections = []
    for label, description in zip(LABELS, descriptions, strict=True):
        start = description.index(b"m=")
        sections.append(description[start:] + f"a=label:{label}\r\n".encode())
    return descriptions[0][: descriptions[0].index(b"m=")] + b"".join(sections)


def offer(negotiations: Sequence[Negotiation], *, wish: Direction, refresh: bool = False) -> bytes:
    """Offer all streams."""
    return joined([each.offer(wish=wish, refresh=refresh and each.agreed is not None) for each in negotiations])


def accept(negotiations: Sequence[Negotiation], answer: SessionDescription) -> list[Agreed | None]:
    """Take the answer to ``offer``. None: the recorder refuses this stream.

    Raises:
        NotAcceptable: it refuses all streams.
    """
    agreed: list[Agreed | None] = []
    refused = NotAcceptable("answer has no audio")
    for at, negotiation in enumerate(negotiations):
        try:
            agreed.append(negotiation.accept(SessionDescription(answer.media[at : at + 1])))
        except NotAcceptable as error:
            negotiation.withdraw()
            agreed.append(None)
            refused = error
    if not any(agreed):
        raise refused
    return agreed


def answer(negotiations: Sequence[Negotiation], offered: SessionDescription, *, wish: Direction) -> bytes:
    """Answer a recorder's offer, which may change the addresses and directions of the streams.

    Raises:
        NotAcceptable: the offer has other streams than ours, or one that cannot be sent.
    """
    if len(offered.media) != len(negotiations):
        raise NotAcceptable(f"offer has {len(offered.media)} streams, expected {len(negotiations)}")
    for media, negotiation in zip(offered.media, negotiations, strict=True):
        if not media.port and negotiation.agreed is not None:
            raise NotAcceptable("offer ends a stream")
    parts = []
    for media, negotiation in zip(offered.media, negotiations, strict=True):
        if media.port:
            parts.append(negotiation.answer(SessionDescription((media,)), wish=wish))
        else:
            parts.append(re.sub(rb"m=audio [0-9]+", b"m=audio 0", negotiation.offer(wish=wish)))
            negotiation.withdraw()
    return joined(parts)


def body(description: bytes, metadata: bytes) -> tuple[tuple[str, str], bytes]:
    """Return the header Content-Type and the body of an INVITE with a description and its metadata (RFC 7866 section
    9.1)."""
    boundary = f"recording-{secrets.token_hex(8)}"
    parts = [
        f"--{boundary}\r\nContent-Type: application/sdp\r\n\r\n".encode(),
        description,
        f"\r\n--{boundary}\r\nContent-Type: {TYPE}\r\nContent-Disposition: recording-session\r\n\r\n".encode(),
        metadata,
        f"\r\n--{boundary}--\r\n".encode(),
    ]
    return ("Content-Type", f"multipart/mixed;boundary={boundary}"), b"".join(parts)
