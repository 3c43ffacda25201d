"""The table of recorded calls for reviewers: the parts of a call that matter, and a digest of every line."""

from __future__ import annotations

import hashlib
import json
import re

from tests.sip_bridge.virtual_bridge import FAR, SCENE, US

_MESSAGE = re.compile(r"-> (\S+) ([^|]*[^| ])(?: \| ([^|]*[^| ]))?(?: \| (.*))?")
_ROUTINE = ("Via", "To", "CSeq", "Allow", "Supported", "Allow-Events", "Referred-By", "X-Case", "Content-Type")
"""Headers that the table leaves out. The digest covers them."""
_OUR_CONTACT = f"Contact: <sip:talkspurt@{US[0]}:{US[1]}>"
_ROUTINE_SDP = re.compile(r"[vst]=|a=(rtpmap|fmtp|ptime):|c=IN IP4 127\.0\.0\.1$")
_SDP_NAMES = re.compile(r"^[am]=|^o=- A\d+ (?=\d)| IN IP4 127\.0\.0\.1$")
_CREDENTIALS = re.compile(r"\b(cnonce|response|username|realm|uri|algorithm|nc|qop|opaque)=(\"[^\"]*\"|[^,;]*),? ?")


def digest(calls: object) -> str:
    """Return a digest of all lines of some calls."""
    return hashlib.sha256(json.dumps(calls).encode()).hexdigest()[:16]


def table(scene: str, calls: dict[str, list[str]]) -> str:
    """Return a scene's part of ``calls.txt``.

    A paragraph names the variants that read alike and gives one digest of every line of their calls, then what the peer
    receives and what the bridge tells the session and the media. Times count from the beginning of the scene.
    """
    variants: dict[tuple[str, ...], list[str]] = {}
    for variant, lines in calls.items():
        variants.setdefault(tuple(_story(lines)), []).append(variant)
    parts = []
    for story, names in variants.items():
        label = "; ".join(names) if len(variants) > 1 else "all"
        parts.append("\n".join([f"{label}: {digest([calls[name] for name in names])}", *story]))
    return "\n".join([f"## {scene}", *parts]) + "\n"


def set_up(lines: list[str]) -> list[str]:
    """Return the lines of a call before its scene begins."""
    at = next((at for at, line in enumerate(lines) if line.endswith(SCENE)), len(lines))
    return lines[:at]


def _story(lines: list[str]) -> list[str]:
    """Return the events after a call is set up: each message to the peer, and all that is told between two messages.

    A message that is sent again stands once, with all its times.
    """
    events: list[tuple[str, str, list[str]]] = []
    began = 0.0
    for line in lines:
        at, _, what = line.partition(" ")
        when = f"{float(at) - began:.3f}"
        if what == SCENE:
            began = float(at)
            events.clear()
        elif what.startswith(("<-", "kept {}")):
            continue
        elif message := _MESSAGE.fullmatch(what):
            text = _message(*message.groups(""))
            if events and events[-1][1] == text:
                events[-1][2].append(when)
            else:
                events.append(("peer", text, [when]))
        elif events and events[-1][0] == "told" and events[-1][2] == [when]:
            events[-1] = ("told", f"{events[-1][1]}; {what.rstrip()}", [when])
        else:
            events.append(("told", what.rstrip(), [when]))
    return [f"  {to} {', '.join(times)} {text}" for to, text, times in events]


def _message(to: str, first: str, headers: str, body: str) -> str:
    """Return the parts of a message that matter."""
    if first.isdecimal():
        first += f" {headers.rpartition('CSeq: ')[2].split(';')[0].split()[-1]}"
    first = first.removesuffix(f" sip:ann@{FAR[0]}:{FAR[1]}")
    if to != f"{FAR[0]}:{FAR[1]}":
        first += f" to {to}"
    parts = [
        _CREDENTIALS.sub("", header).rstrip(" ,")
        for header in headers.split("; ")
        if header.partition(":")[0] not in _ROUTINE and header != _OUR_CONTACT
    ]
    if body:
        kept = [line for line in re.split(r" (?=[a-z]=)", body) if not _ROUTINE_SDP.match(line)]
        parts.append(f"[{' '.join(_SDP_NAMES.sub('', line) for line in kept)}]")
    return "; ".join([first, *parts])
