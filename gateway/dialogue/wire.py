"""The dialogue protocol on the wire: JSON text to messages and back, with ConversationRelay's names. Pure.

Both directions are tables. Bad input raises one ``BadMessage``, which names the field, what arrived and what was
expected. Unknown fields are ignored. ``null`` in an optional field means the same as leaving the field out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.config import LimitsConfig
from gateway.errors import ProtocolError
from gateway.media.own_sound import SAMPLE_BYTES
from gateway.seams.end_cause import EndCause
from gateway.seams.messages import (
    Answered,
    Background,
    Beep,
    BothSilent,
    Call,
    Cancel,
    Caption,
    Commit,
    ConfigChange,
    Discard,
    Dtmf,
    End,
    Ended,
    Error,
    Expectable,
    ExpectedReply,
    Hints,
    HoldLeg,
    Inbound,
    Info,
    Interrupt,
    Interruptible,
    Join,
    Language,
    LanguageSettings,
    Leave,
    LegEvent,
    Mark,
    MarkReached,
    Mute,
    OfLeg,
    OnHangup,
    Outbound,
    Play,
    Prompt,
    Record,
    RecordState,
    ResumeLeg,
    RoomEvent,
    SendDigits,
    Sensitivity,
    Setup,
    Sound,
    Subscribe,
    Text,
    Transfer,
    TransferMode,
    TurnEvent,
    Warm,
    Withdrawn,
)
from gateway.seams.plain_text import may_need_cleaning, plain_json, read_json

NAME_CHARS = 256
"""Longest id, voice, language tag, mark name or run of digits, characters."""

SOURCE_CHARS = 4096
"""Longest clip address or transfer target, characters."""

LOOP_MAX = 1000
"""Number of plays for ``loop: 0``, and the highest ``loop`` (ConversationRelay, ``play``)."""

ECHO_CHARS = 1000
"""Most characters of a bad message that its error repeats."""

SAMPLE_RATES = (8000, 16000, 24000)

EXPECTED_DIGITS = 64
"""Most digits that ``expect`` may name."""

HINTS = 500
"""Most hints of one language. Each has at most ``NAME_CHARS`` characters."""

LANGUAGES = 50
"""Most languages that one ``language`` message declares."""

SPEECH_TIMEOUT_MS = (600, 5000)
"""Lowest and highest ``speechTimeout`` (ConversationRelay)."""

UNUSED_SETTINGS = frozenset(
    "profanityFilter eotThreshold eagerEotThreshold deepgramSmartFormat asrSmartFormat elevenlabsTextNormalization "
    "ttsTextNormalization ttsLanguageTextNormalization elevenlabsLanguageTextNormalization partialPromptOnHangup "
    "intelligenceService customerName includeInPrompt ttsProvider transcriptionProvider speechModel".split()
)
"""Settings of ConversationRelay that are accepted and have no effect here."""

_SNAKE = re.compile(r"_([a-z])")
_DIGITS = re.compile(r"[0-9A-D*#w]+")
_SESSION_ID = re.compile(r"VX[0-9a-f]{32}")
_SENSITIVITIES: Mapping[str, Sensitivity] = {"high": "high", "medium": "medium", "low": "low"}
_INTERRUPTIBLE: Mapping[object, Interruptible] = {
    True: "any",
    False: "none",
    "any": "any",
    "speech": "speech",
    "dtmf": "dtmf",
    "none": "none",
}


_EXPECTABLE: Mapping[object, Expectable] = {
    "email": "email",
    "name": "name",
    "yesNo": "yesNo",
    "date": "date",
    "any": "any",
}


class BadMessage(ProtocolError):
    """A message of the dialogue manager cannot be read. The error has the session and turn of the message, if
    readable."""

    def __init__(self, message: str, *, field: str = "", session_id: str = "", turn: str = "") -> None:
        super().__init__(message, field=field)
        self.session_id = session_id
        self.turn = turn


def _shown(value: object) -> str:
    """Return the value as JSON, shortened for an error message."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"


class _Fields:
    """The fields of one JSON object. Each method reads a field of one type, and raises ``ProtocolError``."""

    def __init__(self, kind: str, body: Mapping[str, Any], limits: LimitsConfig) -> None:
        self.kind = kind
        self.body = body
        self.limits = limits

    def bad(self, name: str, expected: str) -> ProtocolError:
        arrived = f"is {_shown(self.body[name])}" if name in self.body else "is missing"
        return ProtocolError(f"{self.kind}.{name} {arrived}, expected {expected}", field=name)

    def string(self, name: str, *, max_chars: int = NAME_CHARS, empty: bool = True) -> str:
        """Return a required string."""
        value = self.body.get(name)
        if not isinstance(value, str):
            raise self.bad(name, "a string")
        if not value and not empty:
            raise self.bad(name, "a string that is not empty")
        if len(value) > max_chars:
            raise ProtocolError(
                f"{self.kind}.{name} is {len(value)} characters, expected at most {max_chars}", field=name
            )
        return value

    def optional(self, name: str, *, max_chars: int = NAME_CHARS) -> str:
        return "" if self.body.get(name) is None else self.string(name, max_chars=max_chars)

    def handoff(self) -> str | None:
        value = self.body.get("handoffData")
        if value is not None and not isinstance(value, str):
            raise self.bad("handoffData", "a string (convert an object to JSON text first)")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.bad(name, "true or false")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.bad(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(name, f"a whole number from {low} to {high}")
        return value

    def interruptible(self) -> Interruptible | None:
        value = self.body.get("interruptible")
        if value is None:
            return None
        # The type is checked first: 1 == True in Python, and a list cannot be a key of the table.
        if not isinstance(value, bool | str) or value not in _INTERRUPTIBLE:
            raise self.bad("interruptible", "any, speech, dtmf, none, true or false")
        return _INTERRUPTIBLE[value]

    def expect(self) -> ExpectedReply | None:
        value = self.body.get("expect")
        if value is None:
            return None
        if isinstance(value, str) and value in _EXPECTABLE:
            return ExpectedReply(kind=_EXPECTABLE[value])
        digits = value.get("digits") if isinstance(value, dict) else None
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= EXPECTED_DIGITS:
            raise self.bad("expect", f"email, name, yesNo, date, any, or an object with digits, 1 to {EXPECTED_DIGITS}")
        return ExpectedReply(kind="digits", digits=digits)


def _text(f: _Fields) -> Text:
    return Text(
        token=f.string("token", max_chars=f.limits.turn_chars),
        last=bool(f.flag("last")),
        lang=f.optional("lang"),
        interruptible=f.interruptible(),
        preemptible=f.flag("preemptible"),
        turn=f.optional("turn"),
        voice=f.optional("voice"),
        speed=f.number("speed", 0.25, 4.0),
        instruct=f.optional("instruct", max_chars=f.limits.turn_chars),
        hold=bool(f.flag("hold")),
        expect=f.expect(),
    )


def _play(f: _Fields) -> Play:
    return Play(
        source=f.string("source", max_chars=SOURCE_CHARS, empty=False),
        loop=f.whole("loop", 0, LOOP_MAX, 1),
        interruptible=f.interruptible(),
        preemptible=f.flag("preemptible"),
        turn=f.optional("turn"),
        expect=f.expect(),
    )


def _send_digits(f: _Fields) -> SendDigits:
    digits = f.string("digits", empty=False)
    if not _DIGITS.fullmatch(digits):
        raise f.bad("digits", "only 0-9, A-D, *, # and w")
    return SendDigits(digits=digits)


def _language(f: _Fields) -> Language:
    """Read declared languages: a list of objects with ``code``, or settings next to the language that is switched
    to."""
    found = f.body.get("languages")
    if found is None:  # inferred: the list may have another name
        lists = [value for value in f.body.values() if isinstance(value, list)]
        found = next((value for value in lists if any(isinstance(each, dict) for each in value)), [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise f.bad("languages", "a list of objects with code")
    listed: list[dict[str, Any]] = found
    if len(listed) > LANGUAGES:
        raise ProtocolError(
            f"language.languages has {len(listed)} entries, expected at most {LANGUAGES}", field="languages"
        )
    declared, ignored = [], set[str]()
    for each in listed:
        one = _lenient(_Fields("language", each, f.limits))
        code = one.string("code", empty=False)
        declared.append(LanguageSettings(code=code, voice=one.optional("voice"), hints=_hint_list(one)))
        ignored |= UNUSED_SETTINGS & one.body.keys()
    f = _lenient(f)
    spoken, heard = f.optional("ttsLanguage"), f.optional("transcriptionLanguage")
    code, voice, hints = f.optional("code"), f.optional("voice"), _hint_list(f)
    if not (spoken or heard or code or declared):
        raise ProtocolError("language names neither ttsLanguage nor transcriptionLanguage", field="ttsLanguage")
    if voice and (code or spoken):
        declared.append(LanguageSettings(code=code or spoken, voice=voice, hints=hints))
    elif hints is not None and (code or heard or spoken):
        declared.append(LanguageSettings(code=code or heard or spoken, hints=hints))
    if voice and hints is not None and heard and not code and heard != spoken:
        declared.append(LanguageSettings(code=heard, hints=hints))
    return Language(
        tts_language=spoken,
        transcription_language=heard,
        languages=tuple(declared),
        ignored=tuple(sorted(ignored | set(_unused(f)))),
    )


def _lenient(f: _Fields) -> _Fields:
    """Return flattened fields of a message whose shape the published sources leave open (inferred). Settings stand at
    the top level, which wins, or one level down, under ConversationRelay's names or those of the route's keys. Null
    means not set."""
    levels = [*(value for value in f.body.values() if isinstance(value, dict)), f.body]
    flat = {
        _SNAKE.sub(lambda match: match[1].upper(), str(name)): value
        for level in levels
        for name, value in level.items()
        if value is not None and not isinstance(value, dict)
    }
    return _Fields(f.kind, flat, f.limits)


def _lenient_flag(f: _Fields, name: str) -> bool | None:
    """Read a flag in JSON or as the text of an XML attribute."""
    value = f.body.get(name)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return f.flag(name)


def _lenient_interruptible(f: _Fields, name: str) -> Interruptible | None:
    value = f.body.get(name)
    if value is None:
        return None
    word = {"true": True, "false": False}.get(value.lower(), value.lower()) if isinstance(value, str) else value
    if not isinstance(word, bool | str) or word not in _INTERRUPTIBLE:
        raise f.bad(name, "any, speech, dtmf, none, true or false")
    return _INTERRUPTIBLE[word]


def _sensitivity(f: _Fields) -> Sensitivity | None:
    value = f.body.get("interruptSensitivity")
    word = value.lower() if isinstance(value, str) else value
    if word is None:
        return None
    if isinstance(word, str) and word in _SENSITIVITIES:
        return _SENSITIVITIES[word]
    raise f.bad("interruptSensitivity", "high, medium or low")


def _speech_timeout(f: _Fields) -> int | None:
    value = f.body.get("speechTimeout")
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
    if number is None:
        return None
    low, high = SPEECH_TIMEOUT_MS
    if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
        raise f.bad("speechTimeout", f"milliseconds from {low} to {high}")
    return round(number)


def _hint_list(f: _Fields, name: str = "hints") -> tuple[str, ...] | None:
    """Read phrases from a list or a comma-separated string."""
    value = f.body.get(name)
    if value is None:
        return None
    phrases = value.split(",") if isinstance(value, str) else value
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise f.bad(name, "phrases separated by commas, or a list of strings")
    hints = tuple(filter(None, (phrase.strip() for phrase in phrases)))
    if len(hints) > HINTS or any(len(hint) > NAME_CHARS for hint in hints):
        raise f.bad(name, f"at most {HINTS} phrases of at most {NAME_CHARS} characters")
    return hints


_RECORD_STATES: Mapping[object, RecordState] = {
    "start": "start",
    "pause": "pause",
    "resume": "resume",
    "stop": "stop",
}


def _record(f: _Fields) -> Record:
    state = f.string("state")
    if state not in _RECORD_STATES:
        raise f.bad("state", "start, pause, resume or stop")
    return Record(state=_RECORD_STATES[state])


RING_TIMEOUT_S = (1.0, 600.0)
"""Lowest and highest ``ringTimeoutS``."""

ACCEPT_TIMEOUT_S = (1.0, 600.0)
"""Lowest and highest ``acceptTimeoutS``."""

DECISIONS = 16
"""Most keys and words of ``accept`` and of ``decline``."""

LEVEL_DB = (-60.0, 0.0)
"""Lowest and highest ``level`` of ``background``, decibels."""

DUCK_DB = (0.0, 60.0)
"""Lowest and highest ``duck``, decibels."""

_MODES: Mapping[str, TransferMode] = {"auto": "auto", "refer": "refer", "bridge": "bridge"}
_ON_HANGUP: Mapping[str, OnHangup] = {"end": "end", "return": "return"}


def _transfer(f: _Fields) -> Transfer:
    mode = "auto" if f.body.get("mode") is None else f.string("mode")
    on_hangup = "end" if f.body.get("onHangup") is None else f.string("onHangup")
    if mode not in _MODES:
        raise f.bad("mode", "auto, refer or bridge")
    if on_hangup not in _ON_HANGUP:
        raise f.bad("onHangup", "end or return")
    warm = _warm(f)
    return Transfer(
        target=f.string("target", max_chars=SOURCE_CHARS, empty=False),
        handoff_data=f.handoff(),
        commit=bool(f.flag("commit")),
        mode=_MODES[mode],
        ring_timeout_s=f.number("ringTimeoutS", *RING_TIMEOUT_S),
        on_hangup=_ON_HANGUP[on_hangup],
        warm=warm,
        accept_timeout_s=f.number("acceptTimeoutS", *ACCEPT_TIMEOUT_S),
    )


def _warm(f: _Fields) -> Warm | None:
    value = f.body.get("warm")
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("briefing") is None:
        raise f.bad("warm", "an object with briefing")
    one = _Fields("transfer.warm", value, f.limits)
    warm = Warm(
        briefing=one.string("briefing", max_chars=f.limits.turn_chars),
        accept=_decisions(one, "accept", "1"),
        decline=_decisions(one, "decline", "2"),
    )
    if not warm.accept:
        raise one.bad("accept", "at least one key or word")
    if set(warm.accept) & set(warm.decline):
        raise one.bad("decline", "keys and words that accept does not have")
    return warm


def _decisions(f: _Fields, name: str, default: str) -> tuple[str, ...]:
    """Read keys and words: one, or a list."""
    value = f.body.get(name)
    if value is None:
        return (default,)
    each = [value] if isinstance(value, str) else value
    if not isinstance(each, list) or not all(isinstance(one, str) and one.strip() for one in each):
        raise f.bad(name, "a key or words, or a list of them")
    if len(each) > DECISIONS or any(len(one) > NAME_CHARS for one in each):
        raise f.bad(name, f"at most {DECISIONS} entries of at most {NAME_CHARS} characters")
    return tuple(one.strip() for one in each)


def _hold_leg(f: _Fields) -> HoldLeg:
    given = f.body.get("source") is not None
    return HoldLeg(leg=f.optional("leg"), source=f.string("source", max_chars=SOURCE_CHARS) if given else None)


def _background(f: _Fields) -> Background:
    level_db, duck_db = f.number("level", *LEVEL_DB), f.number("duck", *DUCK_DB)
    return Background(
        source=f.string("source", max_chars=SOURCE_CHARS),
        level=-20.0 if level_db is None else level_db,
        duck=8.0 if duck_db is None else duck_db,
    )


_SETTINGS = (
    "interruptible preemptible dtmfDetection reportInputDuringAgentSpeech partialPrompts speechTimeout "
    "turnDetection ignoreBackchannel echoPromptFiltering interruptSensitivity backgroundNoiseReduction hints"
).split()


def _unused(f: _Fields) -> tuple[str, ...]:
    return tuple(sorted(UNUSED_SETTINGS & f.body.keys()))


def _config(f: _Fields) -> ConfigChange:
    f = _lenient(f)
    return ConfigChange(
        interruptible=_lenient_interruptible(f, "interruptible"),
        preemptible=_lenient_flag(f, "preemptible"),
        dtmf_detection=_lenient_flag(f, "dtmfDetection"),
        report_input_during_agent_speech=_lenient_interruptible(f, "reportInputDuringAgentSpeech"),
        partial_prompts=_lenient_flag(f, "partialPrompts"),
        speech_timeout_ms=_speech_timeout(f),
        turn_detection=_lenient_flag(f, "turnDetection"),
        ignore_backchannel=_lenient_flag(f, "ignoreBackchannel"),
        echo_prompt_filtering=_lenient_flag(f, "echoPromptFiltering"),
        interrupt_sensitivity=_sensitivity(f),
        background_noise_reduction=_lenient_flag(f, "backgroundNoiseReduction"),
        hints=_hint_list(f),
        names=tuple(name for name in _SETTINGS if name in f.body),
        ignored=_unused(f),
    )


def _hints(f: _Fields) -> Hints:
    f = _lenient(f)
    hints = _hint_list(f)
    if hints is None:
        raise f.bad("hints", "phrases separated by commas, or a list of strings")
    return Hints(hints=hints, language=f.optional("language") or f.optional("lang") or f.optional("code"))


def _subscribe(f: _Fields) -> Subscribe:
    media = f.flag("media")
    if media is None:
        raise f.bad("media", "true or false")
    rate = f.whole("sampleRate", 1, 1_000_000, 8000)
    if rate not in SAMPLE_RATES:
        raise f.bad("sampleRate", "8000, 16000 or 24000")
    return Subscribe(media=media, sample_rate=rate)


_READERS: Mapping[str, Callable[[_Fields], Inbound]] = {
    "text": _text,
    "play": _play,
    "sendDigits": _send_digits,
    "language": _language,
    "config": _config,
    "hints": _hints,
    "end": lambda f: End(handoff_data=f.handoff(), commit=bool(f.flag("commit"))),
    "cancel": lambda f: Cancel(turn=f.optional("turn")),
    "commit": lambda f: Commit(turn=f.string("turn", empty=False)),
    "discard": lambda f: Discard(turn=f.string("turn", empty=False)),
    "mark": lambda f: Mark(name=f.string("name")),
    "subscribe": _subscribe,
    "record": _record,
    "transfer": _transfer,
    "leave": lambda f: Leave(leg=f.optional("leg"), room=f.optional("room")),
    "join": lambda f: Join(room=f.string("room", empty=False), muted=bool(f.flag("muted"))),
    "mute": lambda f: Mute(room=f.optional("room"), leg=f.optional("leg"), muted=f.flag("muted") is not False),
    "holdLeg": _hold_leg,
    "resumeLeg": lambda f: ResumeLeg(leg=f.optional("leg")),
    "background": _background,
}


INBOUND_TYPES = tuple(_READERS)
"""Types of the messages that a dialogue manager sends."""

_AUDIO_READERS: Mapping[str, Callable[[_Fields], Inbound]] = {"clear": lambda f: Cancel(), **_READERS}
"""Readers of the messages on an audio socket, where ``clear`` drops all sound, as on carriers' media streams."""


def decode_sound(pcm: bytes, *, sample_rate: int) -> Sound:
    """Check one binary message of an audio socket.

    Raises:
        BadMessage: it is not whole samples. Nothing else is raised.
    """
    if len(pcm) % SAMPLE_BYTES:
        raise BadMessage(
            f"binary message is {len(pcm)} bytes, expected whole samples of s16le mono (an even number of bytes)"
        )
    return Sound(pcm=pcm, sample_rate=sample_rate)


def decode(text: str | bytes, *, limits: LimitsConfig, multiplexed: bool, audio: bool = False) -> tuple[str, Inbound]:
    """Parse one JSON message of a dialogue manager (bytes: UTF-8).

    Args:
        multiplexed: the socket serves many calls, and the message names its call.
        audio: the socket carries the call's audio.

    Returns:
        The ``sessionId`` and the message. Without ``multiplexed`` the id is empty, since the socket identifies the
        call.

    Raises:
        BadMessage: the message is bad. Nothing else is raised.
    """
    try:
        body = read_json(text)
        if may_need_cleaning(text):
            body = plain_json(body)
    except ValueError as exc:
        raise BadMessage(f"message of {len(text)} characters is not JSON ({exc}), expected one JSON object") from exc
    if not isinstance(body, dict):
        raise BadMessage(f"message is {_shown(body)}, expected one JSON object")
    turn = body.get("turn")
    session_id = body.get("sessionId")
    known = session_id if multiplexed and isinstance(session_id, str) else ""
    try:
        if multiplexed and not _SESSION_ID.fullmatch(known):
            raise _Fields("message", body, limits).bad("sessionId", "VX and 32 hex digits, as in setup")
        kind, readers = body.get("type"), _AUDIO_READERS if audio else _READERS
        if not isinstance(kind, str) or kind not in readers:
            raise _Fields("message", body, limits).bad("type", f"one of {', '.join(readers)}")
        return known, readers[kind](_Fields(kind, body, limits))
    except ProtocolError as exc:
        raise BadMessage(
            str(exc),
            field=exc.field,
            session_id=known[:NAME_CHARS],  # the error repeats both and must stay short
            turn=turn[:NAME_CHARS] if isinstance(turn, str) else "",
        ) from exc


# --- gateway to dialogue manager: (type, ConversationRelay's fields, extension fields); None: an extension message ---


def _setup(m: Setup) -> tuple[dict[str, object], dict[str, object]]:
    # ``resumed`` is an extension, but a second ``setup`` always has it: an application that does not know that the
    # session continues would greet the caller again. The first ``setup`` stays the same as ConversationRelay's.
    again: dict[str, object] = {"resumed": True} if m.resumed else {}
    return {
        "sessionId": m.session_id,
        "callSid": m.call_sid,
        "accountSid": m.account_sid,
        "parentCallSid": m.parent_call_sid,
        "from": m.from_,
        "to": m.to,
        "forwardedFrom": m.forwarded_from,
        "callerName": m.caller_name,
        "direction": m.direction,
        "callType": m.call_type,
        "callStatus": m.call_status,
        "customParameters": dict(m.custom_parameters),
        **again,
    }, {
        "transport": m.transport, "codec": m.codec, "version": m.version, "resumed": m.resumed,
        **({"audio": m.audio} if m.audio else {}),
    }  # fmt: skip


def _cause(cause: EndCause) -> dict[str, object]:
    known = {"by": cause.by, "sipStatus": cause.sip_status, "q850": cause.q850, "text": cause.text or None}
    return {name: value for name, value in known.items() if value is not None}


def _call_codes(message: Call) -> dict[str, object]:
    known = {"sipStatus": message.sip_status, "code": message.code or None}
    return {name: value for name, value in known.items() if value is not None}


_Split = tuple[dict[str, object] | None, dict[str, object]]


def _info(m: Info) -> _Split:
    body: dict[str, object] = {"name": m.name, "value": m.value}
    if m.name in ("noWords", "supervisor"):
        return None, body
    words = [{"text": w.text, "atMs": w.at_ms, "endMs": w.end_ms, "timing": w.timing} for w in m.words]
    return body, {"turn": m.turn, "words": words} if m.turn else {}


_WRITERS: Mapping[type[Any], tuple[str, Callable[[Any], _Split]]] = {
    Setup: ("setup", _setup),
    Prompt: (
        "prompt",
        lambda m: (
            {"voicePrompt": m.voice_prompt, "lang": m.lang, "last": m.last},
            {"continues": m.continues, **({} if m.last else {"likelyLast": m.likely_last})},
        ),
    ),
    Dtmf: ("dtmf", lambda m: ({"digit": m.digit}, {})),
    Interrupt: (
        "interrupt",
        lambda m: (
            {
                "utteranceUntilInterrupt": m.utterance_until_interrupt,
                "durationUntilInterruptMs": m.duration_until_interrupt_ms,
            },
            {"turn": m.turn, "reason": m.reason, "utteranceRemaining": m.utterance_remaining},
        ),
    ),
    Error: ("error", lambda m: ({"description": m.description}, {"code": m.code, "turn": m.turn, "field": m.field})),
    Info: ("info", _info),
    TurnEvent: ("turn", lambda m: (None, {"turn": m.turn, "event": m.event, **m.data})),
    Caption: ("caption", lambda m: (None, {"turn": m.turn, "text": m.text})),
    MarkReached: ("mark", lambda m: (None, {"name": m.name, "cleared": m.cleared})),
    Withdrawn: ("withdrawn", lambda m: (None, {"what": m.what})),
    BothSilent: ("silence", lambda m: (None, {"seconds": m.seconds})),
    LegEvent: ("leg", lambda m: (None, {"leg": m.leg, "event": m.event, **_cause(m.cause)})),
    RoomEvent: ("room", lambda m: (None, {"room": m.room, "leg": m.leg, "event": m.event, "muted": m.muted})),
    Call: ("call", lambda m: (None, {"event": m.event, **_call_codes(m)})),
    Beep: ("beep", lambda m: (None, {"lengthMs": round(m.length_s * 1000)})),
    Answered: (
        "answered",
        lambda m: (None, {"by": m.by, "confidence": m.confidence, "text": m.text, "waiting": m.waiting}),
    ),
    Ended: ("ended", lambda m: (None, {"reason": m.reason, "durationMs": m.duration_ms, **_cause(m.cause)})),
}


def encode(message: Outbound, *, extensions: bool, session_id: str = "") -> str | None:
    """Serialise one message for a dialogue manager.

    Args:
        extensions: include fields and messages beyond ConversationRelay.
        session_id: if set, the message names its call (for a multiplexed socket, and server-sent events).

    Returns:
        One JSON object. None: the whole message is an extension that the peer does not want.
    """
    if isinstance(message, OfLeg):
        kind, split = _WRITERS[type(message.message)]
        of_caller, extra = split(message.message)
        fields, extra = None, {**(of_caller or {}), **extra, "leg": message.leg}
    else:
        kind, split = _WRITERS[type(message)]
        fields, extra = split(message)
    if fields is None and not extensions:
        return None
    head = {"type": kind, "sessionId": session_id} if session_id else {"type": kind}
    return orjson.dumps({**head, **(fields or {}), **(extra if extensions else {})}).decode()


def audio_prefix(session_id: str) -> bytes:
    """Return the 16 bytes that identify a call before its audio on a multiplexed socket: the hex digits after
    ``VX``."""
    return bytes.fromhex(session_id.removeprefix("VX"))


def refusal(frame: str | bytes, reason: ProtocolError) -> Error:
    """Return the ``error`` that answers a bad message.

    The text begins like ConversationRelay's (code 64107 and the echoed message, recorded from Twilio), then says what
    was wrong with the message.
    """
    echo = frame if isinstance(frame, str) else f"<{len(frame)} bytes>"
    if len(echo) > ECHO_CHARS:
        echo = f"{echo[:ECHO_CHARS]}..."
    return Error(
        description=f"Invalid message received, code: 64107, {echo} ({reason})",
        code=reason.code,
        turn=reason.turn if isinstance(reason, BadMessage) else "",
        field=reason.field,
    )
