"""``talkspurt import-twiml`` writes the route that treats calls as a ``<ConversationRelay>`` of TwiML does.

Attributes: Twilio's documentation of ``<ConversationRelay>`` and the docstrings of its helper libraries. What has no
counterpart becomes a comment, so that nothing of the file is lost without a word.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import yaml

from talkspurt.cli import UsageError

MAX_BYTES = 256 * 1024
"""Largest file. Twilio itself takes 64 kB."""

_INPUT = {"true": "any", "false": "none", "any": "any", "speech": "speech", "dtmf": "dtmf", "none": "none"}
_EVENTS = ("speaker-events", "tokens-played", "debugging", "config-updated")
_UNFIT = re.compile(r"[^ -~\u00a0-\u2027\u202a-\ud7ff]+")
"""Characters that a comment of one line cannot have, or that YAML refuses."""


_NONE = "no effect here"
_FACT = re.compile(r"\s*(\+?[0-9]{7,15}|CA[0-9a-f]{32})")
_OF_ONE_CALL = "if this is of one call, write '{from}', '{to}' or '{callSid}', which each call fills in"

_HEAD = """\
# Made by `talkspurt import-twiml`. Merge this into your configuration, then run `talkspurt config check`.
#
# Before: export TWILIO_AUTH_TOKEN=...   the account's secret, from Twilio's console, Account info
# A call without Twilio, signed as Twilio signs. Set server.public_url to http://127.0.0.1:8080 for it:
#   TALKSPURT_CARRIER_SECRET=$TWILIO_AUTH_TOKEN talkspurt call ws://127.0.0.1:8080/media/twilio/default
"""


class TwimlError(ValueError):
    """The file is no TwiML with a ``<ConversationRelay>``, or a value is none that Twilio takes."""


def _one_of(allowed: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        known = allowed.get(text.strip().lower())
        if known is None:
            raise TwimlError(f"is {text[:40]!r}, expected one of {' '.join(allowed)}")
        return known

    return read


def _hints(text: str) -> list[str]:
    return [_plain(hint.strip()) for hint in text.split(",") if hint.strip()]


_boolean = _one_of({"true": True, "false": False})
_input = _one_of(_INPUT)

_ATTRIBUTES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "welcomeGreeting": ("welcome_greeting", str),
    "welcomeGreetingInterruptible": ("welcome_greeting_interruptible", _input),
    "interruptible": ("interruptible", _input),
    "interruptSensitivity": ("interrupt_sensitivity", _one_of({name: name for name in ("high", "medium", "low")})),
    "preemptible": ("preemptible", _boolean),
    "dtmfDetection": ("dtmf_detection", _boolean),
    "partialPrompts": ("partial_prompts", _boolean),
    "reportInputDuringAgentSpeech": ("report_input_during_agent_speech", _input),
    "ignoreBackchannel": ("ignore_backchannel", _boolean),
    "echoPromptFiltering": ("echo_prompt_filtering", _boolean),
    "backgroundNoiseReduction": ("background_noise_reduction", _boolean),
    "hints": ("hints", _hints),
}
"""Attribute -> key of the route, and how its value is read."""

_ELSEWHERE = {
    "voice": "voices have other names here: `talkspurt voices list`, then `voice` of the route or language",
    "ttsProvider": "the engine of section `engine` speaks",
    "transcriptionProvider": "`recogniser` of the route, and section `recogniser`",
    "speechModel": "`recogniser` of the route, and section `recogniser`",
    "applicationReconnect": "`dialogue.reconnect`, which is on unless you switch it off",
    "speechTimeout": "section `recogniser.end_of_thought`",
    "eotThreshold": "section `recogniser.end_of_thought`",
    "turnDetection": "`end_of_thought` of the route, which is on unless you switch it off",
}
"""Attributes without a key of the same meaning -> what does their work here."""


def convert(twiml: bytes) -> str:
    """Return the route as YAML, with a comment for each attribute that has no effect here.

    Raises:
        TwimlError: there is no ``<ConversationRelay>`` in it, or Twilio would refuse it.
    """
    relay, action = _relay(twiml)
    given = dict(relay.attrib)
    notes: list[str] = []
    url = given.pop("url", "")
    if not url.startswith(("ws://", "wss://")):
        raise TwimlError(f"url is {url[:80]!r}, expected ws:// or wss://")
    dialogue = {"url": _plain(url), "auth_token": "${TWILIO_AUTH_TOKEN}", "end_drain": False}
    # What Twilio does where the attribute is left out, and talkspurt does not.
    route: dict[str, Any] = {"dialogue": dialogue, "recogniser": "auto", "dtmf_detection": False}
    languages = [given.pop(name, "") for name in ("ttsLanguage", "language", "transcriptionLanguage")]
    if language := next(filter(None, languages), ""):
        route["language"] = _plain(language)
        notes += [f"language {other}: a call begins with one" for other in {*languages} - {"", language}]
    for name in given.keys() & _ATTRIBUTES.keys():
        key, read = _ATTRIBUTES[name]
        try:
            value = read(given.pop(name))
        except TwimlError as exc:
            raise TwimlError(f"{name} {exc}") from None
        route[key] = _plain(value) if isinstance(value, str) else value
    words = f"{given.pop('events', '')} {given.pop('debug', '')}".split()
    if events := [word for word in _EVENTS if word in words]:
        route["events"] = events
    notes += [f"event {word}: unknown here" for word in dict.fromkeys(words) if word not in _EVENTS]
    parameters = {each.get("name", ""): _plain(each.get("value", "")) for each in relay if each.tag == "Parameter"}
    if parameters:
        route["parameters"] = parameters
        notes += [f"<Parameter {name}>: {_OF_ONE_CALL}" for name, value in parameters.items() if _FACT.fullmatch(value)]
    notes += [f"{name}: {_ELSEWHERE.get(name, _NONE)}" for name in sorted(given)]
    for each in relay:
        if each.tag == "Language":
            told = dict(each.attrib)
            code, hints = _plain(told.pop("code", "").strip()), told.pop("hints", None)
            if not code:
                raise TwimlError("<Language> has no code")
            entry: dict[str, Any] = {"code": code}
            if hints is not None:
                entry["hints"] = _hints(hints)
            route.setdefault("languages", []).append(entry)
            notes += [f"<Language {code}> {name}={told[name]}: {_ELSEWHERE.get(name, _NONE)}" for name in sorted(told)]
        elif each.tag != "Parameter":
            notes.append(f"<{each.tag}>: no effect here")
    made: dict[str, Any] = {"routes": {"default": route}}
    if action.startswith(("http://", "https://")):
        made["carriers"] = {"twilio": {"auth_token": "${TWILIO_AUTH_TOKEN}", "after_url": _plain(action)}}
    elif action:
        notes.append(f"action {action}: write the whole address as `carriers.twilio.after_url`")
    return "".join(_written(made, notes))


def _written(made: Mapping[str, Any], notes: list[str]) -> Iterator[str]:
    yield _HEAD
    yield yaml.safe_dump(dict(made), sort_keys=False, allow_unicode=True, width=110)
    if notes:
        yield "\n# Without a key of the same meaning:\n"
        yield from (f"#   {_UNFIT.sub(' ', note)}\n" for note in notes)


def _relay(twiml: bytes) -> tuple[Element, str]:
    """Return the ``<ConversationRelay>`` and the ``action`` of its ``<Connect>``."""
    if len(twiml) > MAX_BYTES:
        raise TwimlError(f"the file has {len(twiml)} bytes, expected at most {MAX_BYTES}")
    if b"<!" in re.sub(rb"<!--.*?-->", b"", twiml, flags=re.DOTALL):
        raise TwimlError("the file has a document type, which TwiML does not have")  # nor entities that grow
    try:
        root = ElementTree.fromstring(twiml)
    except (ElementTree.ParseError, ValueError, LookupError) as exc:
        raise TwimlError(f"the file is not XML: {exc}") from None
    for connect in root.iter("Connect"):
        relay = connect.find("ConversationRelay")
        if relay is not None:
            return relay, connect.get("action", "")
    raise TwimlError("the file has no <Connect> with a <ConversationRelay>")


def _plain(text: str) -> str:
    """Return text so that the configuration takes it literally: its reader replaces ``${NAME}`` and ``$$``."""
    return text.replace("$", "$$")


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt import-twiml``."""
    try:
        twiml = sys.stdin.buffer.read(MAX_BYTES + 1) if str(args.file) == "-" else Path(args.file).read_bytes()
        text = convert(twiml)
    except (OSError, TwimlError) as exc:
        raise UsageError(f"{args.file}: {exc.strerror if isinstance(exc, OSError) else exc}") from None
    print(text, end="")
    return 0
