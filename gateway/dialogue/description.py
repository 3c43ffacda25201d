"""The description of the dialogue protocol for readers and tools: ``docs/protocol.md``, JSON Schema and AsyncAPI. Pure.

Names, types and limits are those of ``gateway.seams.messages`` and ``gateway.dialogue.wire``; a test reads and writes
every message by this description. ``python -m gateway.dialogue.description docs`` writes the three documents.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from gateway.config import DialogueConfig, LimitsConfig
from gateway.dialogue import wire
from gateway.dialogue.line import REPLAY_MESSAGES
from gateway.seams import messages as m
from gateway.seams.end_cause import EndedBy

Json = dict[str, Any]

EXAMPLE_FIELDS = 4
"""Fewest fields of a message whose example is on the page. The schema has all examples."""
SHARED_FIELDS = 3
"""Fewest fields that two messages share before the page has them once."""

_LIMITS, _DIALOGUE = LimitsConfig(), DialogueConfig()
_NAME: Json = {"type": "string", "maxLength": wire.NAME_CHARS}
_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_INTERRUPTIBLE: Json = {"enum": ["any", "speech", "dtmf", "none", True, False]}
_MS: Json = {"type": "integer", "minimum": 0}


def _as_text(schema: Json) -> Json:
    """Allow a setting also as the text of an XML attribute."""
    return {"anyOf": [schema, {"type": "string"}]}


_SAID_FLAG = {"enum": [True, False, "true", "false"]}
_HINTS: Json = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _NAME, "maxItems": wire.HINTS}],
}


_DECISIONS: Json = {"anyOf": [_NAME, {"type": "array", "items": _NAME, "maxItems": wire.DECISIONS}]}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message on the wire."""

    name: str
    schema: Json
    text: str
    required: bool = False
    default: str = ""
    extension: bool = False
    """True if ConversationRelay does not have the field."""


@dataclass(frozen=True, slots=True)
class Message:
    """One type of message. The docstring of its dataclass explains its purpose."""

    kind: str
    message_class: type[Any]
    fields: tuple[Field, ...]
    example: Json
    extension: bool = False
    notes: str = ""


def _turn(text: str = "The manager's own id of the turn. A repeated id is an error.") -> Field:
    return Field("turn", _NAME, text, default="`t1`, `t2` ...", extension=True)


_CUTS = (
    Field("interruptible", _INTERRUPTIBLE, "Caller input that cuts this turn.", default="the route's"),
    Field("preemptible", _FLAG, "True: a later turn cuts this one.", default="the route's"),
)
_EXPECT = Field(
    "expect",
    {
        "anyOf": [
            {"enum": ["email", "name", "yesNo", "date", "any"]},
            {
                "type": "object",
                "required": ["digits"],
                "properties": {"digits": {"type": "integer", "minimum": 1, "maximum": wire.EXPECTED_DIGITS}},
            },
        ]
    },
    'The answer that the caller should give; an object names a count, `{"digits": 10}`. An unfinished answer is waited '
    "for, a complete one is not.",
    default="what the last question in the turn asks for",
    extension=True,
)
_COMMIT = Field("commit", _FLAG, "True: an interruption does not withdraw it.", default="false", extension=True)
_HEARD_WORD: Json = {
    "type": "object",
    "required": ["text", "atMs", "endMs", "timing"],
    "properties": {
        "text": {"type": "string"},
        "atMs": {"type": "integer"},
        "endMs": {"type": "integer"},
        "timing": {"enum": ["exact", "estimated"]},
    },
}
_LEG = Field("leg", _TEXT, "The leg: its session id. Empty: the caller.", extension=True)
_HANDOFF = Field("handoffData", {"type": ["string", "null"]}, "Passed through byte for byte. JSON has to be text here.")

FROM_MANAGER: tuple[Message, ...] = (
    Message(
        "text",
        m.Text,
        (
            Field(
                "token",
                {"type": "string", "maxLength": _LIMITS.turn_chars},
                "Text to be spoken, verbatim; may be empty. A whole turn has at most `limits.turn_chars` characters.",
                required=True,
            ),
            Field("last", _FLAG, "Closes the turn.", default="false"),
            Field(
                "lang", _NAME, "BCP 47 tag of this turn's language; its first token counts.", default="the session's"
            ),
            *_CUTS,
            _turn(),
            Field("voice", _NAME, "Voice id.", default="the language's or the route's", extension=True),
            Field(
                "speed",
                {"type": "number", "minimum": 0.25, "maximum": 4},
                "Speaking rate.",
                default="1",
                extension=True,
            ),
            Field(
                "instruct",
                {"type": "string", "maxLength": _LIMITS.turn_chars},
                "Style, for models that take one.",
                extension=True,
            ),
            Field(
                "hold",
                _FLAG,
                "Synthesise ahead, unheard, until `commit` or `discard`.",
                default="false",
                extension=True,
            ),
            _EXPECT,
        ),
        {
            "type": "text",
            "token": 'Your order <break time="300ms"/> is on its way.',
            "last": True,
            "lang": "en-US",
            "interruptible": "speech",
            "preemptible": False,
            "turn": "answer-7",
            "voice": "heart",
            "speed": 1.1,
            "instruct": "cheerful",
            "hold": False,
            "expect": "email",
        },
    ),
    Message(
        "play",
        m.Play,
        (
            Field(
                "source",
                {"type": "string", "minLength": 1, "maxLength": wire.SOURCE_CHARS},
                "An https address, or a file under `clips.folder`: wav, mp3, ogg, opus.",
                required=True,
            ),
            Field(
                "loop",
                {"type": "integer", "minimum": 0, "maximum": wire.LOOP_MAX},
                f"How often it is played; 0: {wire.LOOP_MAX} times.",
                default="1",
            ),
            *_CUTS,
            _turn(),
            _EXPECT,
        ),
        {
            "type": "play",
            "source": "https://example.com/jingle.mp3",
            "loop": 2,
            "interruptible": False,
            "preemptible": True,
            "turn": "jingle",
            "expect": {"digits": 10},
        },
    ),
    Message(
        "sendDigits",
        m.SendDigits,
        (
            Field(
                "digits",
                {"type": "string", "pattern": "^[0-9A-D*#w]+$", "maxLength": wire.NAME_CHARS},
                "Keys; `w` waits half a second.",
                required=True,
            ),
        ),
        {"type": "sendDigits", "digits": "1w234#"},
    ),
    Message(
        "language",
        m.Language,
        (
            Field(
                "ttsLanguage",
                _NAME,
                "The language spoken from now on. If no voice speaks it, the answer is an `error` and nothing changes.",
            ),
            Field("transcriptionLanguage", _NAME, "The language recognised from now on."),
            Field(
                "code",
                _NAME,
                "The language that `voice` and `hints` are declared for.",
                default="`ttsLanguage`, for hints `transcriptionLanguage`",
            ),
            Field("voice", _NAME, "Voice of the language."),
            Field("hints", _HINTS, "Hints of the language."),
            Field(
                "languages",
                {
                    "type": "array",
                    "maxItems": wire.LANGUAGES,
                    "items": {
                        "type": "object",
                        "required": ["code"],
                        "properties": {"code": _NAME, "voice": _NAME, "hints": _HINTS},
                    },
                },
                "Several languages to declare, each with `code`.",
            ),
        ),
        {
            "type": "language",
            "ttsLanguage": "es-ES",
            "transcriptionLanguage": "es-ES",
            "code": "es-MX",
            "voice": "heart",
            "hints": "Sevilla, Jerez",
            "languages": [{"code": "it-IT", "voice": "heart"}],
        },
        notes="At least one of `ttsLanguage`, `transcriptionLanguage`, `code` and `languages` is needed.",
    ),
    Message(
        "config",
        m.ConfigChange,
        (
            Field("interruptible", _as_text(_INTERRUPTIBLE), "What cuts later turns."),
            Field("preemptible", _SAID_FLAG, "True: later turns may be preempted."),
            Field("dtmfDetection", _SAID_FLAG, "True: keys are reported and interrupt, from now on."),
            Field(
                "reportInputDuringAgentSpeech",
                _as_text(_INTERRUPTIBLE),
                "Input that is reported during a turn that it may not interrupt, from now on.",
            ),
            Field("partialPrompts", _SAID_FLAG, "True: partial prompts are sent, from the next utterance on."),
            Field(
                "speechTimeout",
                _as_text(
                    {"type": "integer", "minimum": wire.SPEECH_TIMEOUT_MS[0], "maximum": wire.SPEECH_TIMEOUT_MS[1]}
                ),
                "Least silence that ends what the caller says, milliseconds; the turn model may only lengthen it.",
            ),
            Field(
                "turnDetection",
                _SAID_FLAG,
                "False: only silence ends what the caller says. True: the route's turn model decides too, if it has "
                "one.",
            ),
            Field("ignoreBackchannel", _SAID_FLAG, "True: acknowledgements neither interrupt nor become prompts."),
            Field("echoPromptFiltering", _SAID_FLAG, "True: transcripts of the bot's own voice are dropped."),
            Field(
                "interruptSensitivity",
                {"enum": ["high", "medium", "low"]},
                "Evidence that speech over the bot's voice needs, from now on: a loud enough word (high), about 0.2 s "
                "of clear speech (medium), about 0.4 s (low).",
            ),
            Field(
                "backgroundNoiseReduction",
                _SAID_FLAG,
                "True: the VAD hears the caller without other voices and noise. Needs the route's "
                "`background_noise_reduction`.",
            ),
            Field("hints", _HINTS, "Expected phrases, from the next utterance on."),
        ),
        {
            "type": "config",
            "interruptible": "dtmf",
            "preemptible": True,
            "dtmfDetection": True,
            "reportInputDuringAgentSpeech": "any",
            "partialPrompts": True,
            "speechTimeout": 900,
            "turnDetection": False,
            "ignoreBackchannel": True,
            "echoPromptFiltering": True,
            "interruptSensitivity": "medium",
            "backgroundNoiseReduction": True,
            "hints": "talkspurt, jitter",
        },
        notes="Published sources show no example of this message (November 2026), so its shape is inferred. Settings "
        "may stand at the top level or one level down, under these names or the names of the route's keys "
        "(`dtmf_detection`), as JSON or as text. Unknown settings are ignored. A wrong value gives one `error`, and "
        "the message changes nothing. Accepted turns keep their settings. Twilio's other settings (`ttsProvider`, "
        "`profanityFilter` ...) are accepted without effect, and logged once.",
    ),
    Message(
        "hints",
        m.Hints,
        (
            Field(
                "hints",
                _HINTS,
                "Phrases as a list, or as text with commas. They replace earlier ones.",
                required=True,
            ),
            Field("language", _NAME, "The language of the phrases.", default="all without hints of their own"),
        ),
        {"type": "hints", "hints": ["Ulm", "Bad Ems"], "language": "de-DE"},
        notes="The shape is inferred, as that of `config`.",
    ),
    Message(
        "end",
        m.End,
        (_HANDOFF, _COMMIT),
        {"type": "end", "handoffData": '{"queue": "sales"}', "commit": True},
        notes="Queued speech is spoken first, unless `dialogue.end_drain` is off. With `dialogue.extensions`, an "
        "interruption by speech withdraws it (`withdrawn`).",
    ),
    Message(
        "cancel",
        m.Cancel,
        (Field("turn", _NAME, "The turn to cut.", default="all turns", extension=True),),
        {"type": "cancel", "turn": "answer-7"},
        extension=True,
    ),
    Message(
        "commit",
        m.Commit,
        (Field("turn", {**_NAME, "minLength": 1}, "A held turn.", required=True, extension=True),),
        {"type": "commit", "turn": "answer-7"},
        extension=True,
    ),
    Message(
        "discard",
        m.Discard,
        (Field("turn", {**_NAME, "minLength": 1}, "A turn.", required=True, extension=True),),
        {"type": "discard", "turn": "answer-7"},
        extension=True,
    ),
    Message(
        "mark",
        m.Mark,
        (Field("name", _NAME, "Comes back in `mark`.", required=True, extension=True),),
        {"type": "mark", "name": "after the greeting"},
        extension=True,
    ),
    Message(
        "subscribe",
        m.Subscribe,
        (
            Field("media", _FLAG, "True: send audio.", required=True, extension=True),
            Field("sampleRate", {"enum": list(wire.SAMPLE_RATES)}, "Hertz.", default="8000", extension=True),
        ),
        {"type": "subscribe", "media": True, "sampleRate": 16000},
        extension=True,
        notes="Each binary message is then 20 ms of s16le mono. On a multiplexed socket it begins with the 16 bytes "
        "that follow `VX` in the `sessionId`.",
    ),
    Message(
        "record",
        m.Record,
        (
            Field(
                "state",
                {"enum": ["start", "pause", "resume", "stop"]},
                "New state of the recording.",
                required=True,
                extension=True,
            ),
        ),
        {"type": "record", "state": "pause"},
        extension=True,
        notes="Without a recording, or after `stop`, the answer is an `error` with the code `not_recording`. If "
        "the file cannot be written, the gateway sends an `error` with the code `recording_lost`; the call continues. "
        "The states also hold for the copy that `start` begins (`siprec` of the route).",
    ),
    Message(
        "transfer",
        m.Transfer,
        (
            Field(
                "target",
                {"type": "string", "minLength": 1, "maxLength": wire.SOURCE_CHARS},
                "A number or SIP URI that `calling.allowed_targets` allows.",
                required=True,
                extension=True,
            ),
            Field("handoffData", {"type": ["string", "null"]}, "Passed through byte for byte.", extension=True),
            Field(
                "mode",
                {"enum": ["auto", "refer", "bridge"]},
                "`refer`: the peer or carrier calls the target. `bridge`: the gateway calls it, or the caller's "
                "carrier calls a number, and the gateway joins both calls. `auto`: the first; the second where the "
                "peer does not transfer (no REFER in its `Allow`; 405, 501, 603; no outcome within "
                "`sip.timeouts.transfer_s`).",
                default="auto",
                extension=True,
            ),
            Field(
                "ringTimeoutS",
                {"type": "number", "minimum": wire.RING_TIMEOUT_S[0], "maximum": wire.RING_TIMEOUT_S[1]},
                "Longest ringing of a bridge, seconds.",
                default="`sip.timeouts.answer_s`",
                extension=True,
            ),
            Field(
                "onHangup",
                {"enum": ["end", "return"]},
                "The call's course when the person of a bridge hangs up: it ends, or returns to the bot.",
                default="end",
                extension=True,
            ),
            Field(
                "warm",
                {
                    "type": ["object", "null"],
                    "required": ["briefing"],
                    "properties": {
                        "briefing": {"type": "string", "maxLength": _LIMITS.turn_chars},
                        "accept": _DECISIONS,
                        "decline": _DECISIONS,
                    },
                },
                "The person hears `briefing` alone, then accepts or declines. `accept` and `decline` are keys, or "
                "words with which their answer begins; a list has several. Defaults: `1` and `2`. It implies "
                "`bridge`; with `refer`, the peer (REFER with Replaces) or the carrier (a conference) joins the two "
                "after the acceptance, and the bridge stays if the peer refuses.",
                extension=True,
            ),
            Field(
                "acceptTimeoutS",
                {"type": "number", "minimum": wire.ACCEPT_TIMEOUT_S[0], "maximum": wire.ACCEPT_TIMEOUT_S[1]},
                "Longest wait for the decision after the briefing, seconds.",
                default="30",
                extension=True,
            ),
            _COMMIT,
        ),
        {
            "type": "transfer",
            "target": "+4930123456",
            "handoffData": "vip",
            "mode": "bridge",
            "ringTimeoutS": 25,
            "onHangup": "return",
            "warm": {"briefing": "Ms Ito asks about her invoice. Press one to take the call.", "accept": ["1", "yes"]},
            "acceptTimeoutS": 20,
            "commit": True,
        },
        extension=True,
        notes="Queued speech is spoken first, within `dialogue.transfer_wait_s` (30 s), unless a `cancel` or a key of "
        "the caller cuts it. An interruption by speech withdraws it with `dialogue.extensions` (`withdrawn`), and else "
        "only cuts the speech. A transfer that fails gives an `error`, and the call continues. In a bridge the bot "
        "hears both (`prompt` and `dtmf` with `leg`); `end` makes it leave, and the two go on.",
    ),
    Message(
        "leave",
        m.Leave,
        (
            Field(
                "leg",
                _TEXT,
                "The person's leg, or a leg of the room.",
                default="the second leg of the call, or in a named room the call itself",
                extension=True,
            ),
            Field("room", _TEXT, "A named room.", default="the room in which the call is, if any", extension=True),
        ),
        {"type": "leave", "leg": "VX00000000000000000000000000000002", "room": "team-7"},
        extension=True,
        notes="It works from the first `leg` event on: while the phone rings, in the briefing, and when both are "
        "joined. The answer is `leg` with `hangup`. In a named room, the leg leaves the room: one that was called for "
        "it ends, and a call is with its bot again.",
    ),
    Message(
        "join",
        m.Join,
        (
            Field("room", _TEXT, "Name of the room: letters, digits, `_`, `.`, `-`.", required=True, extension=True),
            Field("muted", {"type": "boolean"}, "Join without being heard.", default="false", extension=True),
        ),
        {"type": "join", "room": "team-7", "muted": False},
        extension=True,
        notes="All legs of a room hear each other, and each call's bot. The answer is `room` with `joined`, or an "
        "`error`.",
    ),
    Message(
        "mute",
        m.Mute,
        (
            Field("room", _TEXT, "A named room.", default="the room in which the call is", extension=True),
            Field("leg", _TEXT, "A leg of that room.", default="the call itself", extension=True),
            Field("muted", {"type": "boolean"}, "`false`: it is heard again.", default="true", extension=True),
        ),
        {"type": "mute", "room": "team-7", "leg": "VX00000000000000000000000000000002", "muted": False},
        extension=True,
    ),
    Message(
        "holdLeg",
        m.HoldLeg,
        (
            _LEG,
            Field(
                "source",
                {"type": ["string", "null"], "maxLength": wire.SOURCE_CHARS},
                "A clip, as of `play`. Empty: silence.",
                default="`routes.NAME.hold_clip`",
                extension=True,
            ),
        ),
        {"type": "holdLeg", "leg": "VX00000000000000000000000000000002", "source": "hold.wav"},
        extension=True,
        notes="Speech to a caller on hold waits.",
    ),
    Message(
        "resumeLeg",
        m.ResumeLeg,
        (_LEG,),
        {"type": "resumeLeg", "leg": "VX00000000000000000000000000000002"},
        extension=True,
    ),
    Message(
        "background",
        m.Background,
        (
            Field(
                "source",
                {"type": "string", "maxLength": wire.SOURCE_CHARS},
                "A clip, as of `play`.",
                required=True,
                extension=True,
            ),
            Field(
                "level",
                {"type": "number", "minimum": wire.LEVEL_DB[0], "maximum": wire.LEVEL_DB[1]},
                "Gain of the sound, decibels.",
                default="-20",
                extension=True,
            ),
            Field(
                "duck",
                {"type": "number", "minimum": wire.DUCK_DB[0], "maximum": wire.DUCK_DB[1]},
                "Attenuation while the bot speaks, decibels.",
                default="8",
                extension=True,
            ),
        ),
        {"type": "background", "source": "office.wav", "level": -24, "duck": 6},
        extension=True,
    ),
)

_OF_LEG = "With extensions, it also comes from the person of a bridge, and then has their session id as `leg`."

_CAUSE = (
    Field(
        "by",
        {"type": "string", "enum": list(get_args(EndedBy))},
        "The party that ended the call. `caller`: the party on the phone. `agent`: the person of a bridge. Missing, "
        "like the fields below: unknown.",
        extension=True,
    ),
    Field("sipStatus", {"type": "integer", "minimum": 100, "maximum": 699}, "SIP status.", extension=True),
    Field("q850", {"type": "integer", "minimum": 1, "maximum": 127}, "Q.850 cause.", extension=True),
    Field("text", _TEXT, "The network's text.", extension=True),
)

_SETUP_TEXT = {
    "sessionId": "`VX` and 32 hex digits; also `callId` and `{id}` in REST.",
    "callSid": "The carrier's id of the call, or `CA` and the digits of `sessionId`.",
    "accountSid": "The carrier's account.",
    "parentCallSid": "The call that this one belongs to.",
    "from": "Who calls.",
    "to": "Who is called.",
    "forwardedFrom": "Who forwarded the call.",
    "callerName": "The caller's name.",
    "direction": "`inbound` or `outbound-api`.",
    "callType": "`PSTN`, `SIP` or `CLIENT`.",
    "callStatus": "`RINGING` or `IN_PROGRESS`.",
}

TO_MANAGER: tuple[Message, ...] = (
    Message(
        "setup",
        m.Setup,
        (
            *(Field(name, _TEXT, text, required=True) for name, text in _SETUP_TEXT.items()),
            Field(
                "customParameters",
                {"type": "object", "additionalProperties": {"type": "string"}},
                "Parameters of the call, and `routes.NAME.parameters`.",
                required=True,
            ),
            Field("transport", _TEXT, "`twilio`, `sip`, `webrtc` ...", extension=True),
            Field("codec", _TEXT, "Encoding and rate of the line.", extension=True),
            Field("version", _TEXT, "Version of the gateway.", extension=True),
            Field(
                "resumed",
                _FLAG,
                "True: the session continues after a lost connection, and missed messages follow. True is sent "
                "without extensions too.",
                extension=True,
            ),
            Field(
                "audio",
                _TEXT,
                "Path of the call's [audio socket](raw-audio.md), for a route with `dialogue.audio`; else left out.",
                extension=True,
            ),
        ),
        {
            "type": "setup",
            "sessionId": "VX0123456789abcdef0123456789abcdef",
            "callSid": "CA0123456789abcdef0123456789abcdef",
            "accountSid": "AC1",
            "parentCallSid": "",
            "from": "+15550100",
            "to": "+15550199",
            "forwardedFrom": "",
            "callerName": "",
            "direction": "inbound",
            "callType": "PSTN",
            "callStatus": "RINGING",
            "customParameters": {"plan": "gold"},
            "transport": "twilio",
            "codec": "PCMU/8000",
            "version": "0.1.0",
            "resumed": False,
            "audio": "/v1/audio/VX0123456789abcdef0123456789abcdef",
        },
        notes="Fields without a + are always present; one that is unknown is empty.",
    ),
    Message(
        "prompt",
        m.Prompt,
        (
            Field(
                "voicePrompt",
                _TEXT,
                "The whole utterance so far. A later partial prompt may correct it.",
                required=True,
            ),
            Field("lang", _TEXT, "The recognised language.", required=True),
            Field("last", _FLAG, "False only where the route has `partial_prompts`.", required=True),
            Field(
                "continues",
                _FLAG,
                "True: the caller continued within 0.7 s after the previous final prompt, too soon to have understood "
                "an answer. Join the two prompts and answer both.",
                extension=True,
            ),
            Field(
                "likelyLast",
                _FLAG,
                "On partial prompts. True: the thought may be over. Prepare an answer with `hold`, and send `commit` "
                "or `discard` after the final prompt.",
                extension=True,
            ),
        ),
        {
            "type": "prompt",
            "voicePrompt": "Where is my order?",
            "lang": "en-US",
            "last": False,
            "continues": False,
            "likelyLast": True,
        },
        notes=f"Only where the route has a recogniser. {_OF_LEG}",
    ),
    Message(
        "dtmf",
        m.Dtmf,
        (Field("digit", {"enum": list("0123456789*#ABCD")}, "The key.", required=True),),
        {"type": "dtmf", "digit": "5"},
        notes=_OF_LEG,
    ),
    Message(
        "interrupt",
        m.Interrupt,
        (
            Field(
                "utteranceUntilInterrupt",
                _TEXT,
                "The part that was heard, up to and including the current word: a verbatim prefix of its tokens.",
                required=True,
            ),
            Field("durationUntilInterruptMs", _MS, "Milliseconds of the turn that were heard.", required=True),
            Field("turn", _TEXT, "The turn that was cut.", extension=True),
            Field("reason", {"enum": ["speech", "dtmf", "cancel"]}, "Cause of the cut.", extension=True),
            Field("utteranceRemaining", _TEXT, "The rest of its tokens.", extension=True),
        ),
        {
            "type": "interrupt",
            "utteranceUntilInterrupt": "Your order is",
            "durationUntilInterruptMs": 640,
            "turn": "t1",
            "reason": "speech",
            "utteranceRemaining": " on its way.",
        },
        notes="It is not sent for a preempted turn. The tokens of the cut stream that still come are dropped "
        f"(`dialogue.stale_ms`, {_DIALOGUE.stale_ms}).",
    ),
    Message(
        "error",
        m.Error,
        (
            Field("description", _TEXT, "The received value, the expected value, and the field.", required=True),
            Field(
                "code", _TEXT, "For programs, e.g. `invalid_message`, `unknown_turn`, `turn_too_long`.", extension=True
            ),
            Field("turn", _TEXT, "The turn concerned.", extension=True),
            Field("field", _TEXT, "The field concerned.", extension=True),
        ),
        {
            "type": "error",
            "description": "Invalid message received, code: 64107, {} (message.kind is missing)",
            "code": "invalid_message",
            "turn": "",
            "field": "type",
        },
        notes=f"The socket stays open. After {_LIMITS.errors_in_a_row} bad messages in a row "
        "(`limits.errors_in_a_row`) it is closed with 1007, and a dialled-out session ends.",
    ),
    Message(
        "info",
        m.Info,
        (
            Field(
                "name",
                {
                    "enum": [
                        "agentSpeaking",
                        "clientSpeaking",
                        "tokensPlayed",
                        "roundTripDelayMs",
                        "configUpdated",
                        "callerChanged",
                        "noWords",
                        "supervisor",
                    ]
                },
                "Kind of information.",
                required=True,
            ),
            Field(
                "value",
                _TEXT,
                "`agentSpeaking`, `clientSpeaking`: `on` or `off`. `tokensPlayed`: the text as heard. "
                "`configUpdated`: JSON text of what was changed (inferred). `callerChanged`: JSON text with `from` and "
                "`callerName` of the party that a PBX or carrier has connected instead (SIP). `noWords`: the turn that "
                "was cut. `supervisor`: `join`, `takeover` or `none`.",
                required=True,
            ),
            Field("turn", _TEXT, "The turn of `tokensPlayed`.", extension=True),
            Field(
                "words",
                {"type": "array", "items": _HEARD_WORD},
                "The words of `tokensPlayed`: `text`, `atMs` and `endMs` of the turn's sound, `timing` (`exact`, or "
                "`estimated` from the length of the clause).",
                extension=True,
            ),
        ),
        {
            "type": "info",
            "name": "tokensPlayed",
            "value": "On its way.",
            "turn": "t1",
            "words": [
                {"text": "On", "atMs": 0, "endMs": 140, "timing": "exact"},
                {"text": "its", "atMs": 140, "endMs": 310, "timing": "exact"},
                {"text": "way.", "atMs": 310, "endMs": 720, "timing": "exact"},
            ],
        },
        notes="`events` has `speaker-events`, `tokens-played`, `debugging`, `config-updated`, `caller-changed`. "
        "`roundTripDelayMs` is measured on the media path, and on a dialled socket with its keepalive pings. `noWords` "
        "(routes with a recogniser): no words have followed an `interrupt` by speech within 1 s after the sound that "
        "caused it. Nothing resumes by itself. `supervisor`: a supervisor talks with the caller (`join`), replaces the "
        "bot (`takeover`: what waits is dropped; later turns wait and are dropped at its end), or no longer does "
        "(`none`).",
    ),
    Message(
        "turn",
        m.TurnEvent,
        (
            Field("turn", _TEXT, "The turn.", required=True, extension=True),
            Field(
                "event",
                {"enum": ["accepted", "started", "finished", "interrupted", "failed"]},
                "Every accepted turn ends in exactly one of the last three.",
                required=True,
                extension=True,
            ),
        ),
        {"type": "turn", "turn": "t1", "event": "accepted"},
        extension=True,
        notes="`started` has `firstPacketMs` and `stages` ([milliseconds by stage](latency.md)), `finished` `audioMs` "
        "and `gaps`, `interrupted` `reason` and `heardMs`, `failed` `code` and `description`.",
    ),
    Message(
        "mark",
        m.MarkReached,
        (
            Field("name", _TEXT, "The manager's.", required=True, extension=True),
            Field("cleared", _FLAG, "True: the sound before it was discarded.", required=True, extension=True),
        ),
        {"type": "mark", "name": "after the greeting", "cleared": False},
        extension=True,
    ),
    Message(
        "caption",
        m.Caption,
        (
            Field("turn", _TEXT, "The turn.", required=True, extension=True),
            Field("text", _TEXT, "The next word, with the characters before it.", required=True, extension=True),
        ),
        {"type": "caption", "turn": "t1", "text": "Your"},
        extension=True,
    ),
    Message(
        "withdrawn",
        m.Withdrawn,
        (
            Field(
                "what", {"enum": ["end", "transfer"]}, "The message that has no effect.", required=True, extension=True
            ),
        ),
        {"type": "withdrawn", "what": "end"},
        extension=True,
        notes="All speech before it that speech may interrupt is cut, and the call continues. It follows the "
        "`interrupt`. `commit: true` prevents it; a key never withdraws anything.",
    ),
    Message(
        "silence",
        m.BothSilent,
        (Field("seconds", {"type": "number", "minimum": 0}, "Its length.", required=True, extension=True),),
        {"type": "silence", "seconds": 8.0},
        extension=True,
        notes="It is sent once for each silence. A key that the caller presses ends a silence.",
    ),
    Message(
        "room",
        m.RoomEvent,
        (
            Field("room", _TEXT, "Name of the room.", required=True, extension=True),
            Field("leg", _TEXT, "The leg's session id, also `{id}` in REST.", required=True, extension=True),
            Field(
                "event",
                {"enum": list(get_args(m.RoomEventName))},
                "`muted`: see the field `muted`. `speaking`: the leg is the loudest now; at most one a second.",
                required=True,
                extension=True,
            ),
            Field("muted", {"type": "boolean"}, "True: no one hears the leg.", required=True, extension=True),
        ),
        {
            "type": "room",
            "room": "team-7",
            "leg": "VX00000000000000000000000000000002",
            "event": "speaking",
            "muted": False,
        },
        extension=True,
        notes="Every call of the room gets the events of all its legs.",
    ),
    Message(
        "beep",
        m.Beep,
        (
            Field(
                "lengthMs",
                {"type": "integer", "minimum": 0},
                "Its length, milliseconds.",
                required=True,
                extension=True,
            ),
        ),
        {"type": "beep", "lengthMs": 410},
        extension=True,
        notes="It comes within 100 ms of its end. A tone that may be a ringing or busy tone comes later, when no "
        "cadence has followed.",
    ),
    Message(
        "answered",
        m.Answered,
        (
            Field("by", {"enum": list(get_args(m.AnsweredBy))}, "Who or what.", required=True, extension=True),
            Field(
                "confidence",
                {"type": "number", "minimum": 0, "maximum": 1},
                "An order, no measured probability.",
                required=True,
                extension=True,
            ),
            Field(
                "text",
                _TEXT,
                "Words of the latest utterance; empty without a recogniser.",
                required=True,
                extension=True,
            ),
            Field("waiting", _FLAG, "A person may still come.", required=True, extension=True),
        ),
        {"type": "answered", "by": "machine", "confidence": 0.95, "text": "Please leave a message", "waiting": False},
        extension=True,
        notes="A later one replaces it: words of a recording after a short greeting, a person after a queue or a "
        "screening assistant, the first words after a long silence.",
    ),
    Message(
        "leg",
        m.LegEvent,
        (
            Field("leg", _TEXT, "The leg's session id, also `{id}` in REST.", required=True, extension=True),
            Field(
                "event",
                {"enum": list(get_args(m.LegEventName))},
                "`answered`: both calls are joined, or with `warm` the briefing begins. `accepted`: the briefed person "
                "is joined. `hangup`: the person has hung up, or `leave` took them off. After `busy`, `noAnswer`, "
                "`declined`, `failed`, and a `hangup` in the briefing, an `error` follows and the call continues.",
                required=True,
                extension=True,
            ),
            *_CAUSE,
        ),
        {
            "type": "leg",
            "leg": "VX00000000000000000000000000000002",
            "event": "busy",
            "by": "caller",
            "sipStatus": 486,
            "q850": 17,
            "text": "Busy Here",
        },
        extension=True,
    ),
    Message(
        "call",
        m.Call,
        (
            Field(
                "event",
                {"enum": list(get_args(m.ProgressEvent))},
                "The event. The last five end the progress.",
                required=True,
                extension=True,
            ),
            Field("sipStatus", {"type": "integer", "minimum": 100, "maximum": 699}, "SIP status.", extension=True),
            Field("code", _TEXT, "The carrier's code, or who answered by the carrier's own detection.", extension=True),
        ),
        {"type": "call", "event": "failed", "sipStatus": 503, "code": "32009"},
        extension=True,
        notes="Observers get each event at its time. Of an incoming call, `failed` with a code may mean only its media "
        "stream, and the session continues.",
    ),
    Message(
        "ended",
        m.Ended,
        (
            Field("reason", _TEXT, "`hangup`, `end`, `transferred`, `drained` ...", required=True, extension=True),
            Field("durationMs", _MS, "Length of the call.", required=True, extension=True),
            *_CAUSE,
        ),
        {
            "type": "ended",
            "reason": "hangup",
            "durationMs": 61500,
            "by": "carrier",
            "sipStatus": 503,
            "q850": 38,
            "text": "Network out of order",
        },
        extension=True,
    ),
)


def schema_of(message: Message) -> Json:
    """Return the JSON Schema of one message."""
    properties: Json = {"type": {"const": message.kind}}
    for field in message.fields:
        properties[field.name] = {**field.schema, "description": field.text}
    return {
        "type": "object",
        "description": _purpose(message),
        "properties": properties,
        "required": ["type", *(field.name for field in message.fields if field.required)],
        "examples": [message.example],
    }


def _purpose(message: Message) -> str:
    doc = " ".join((message.message_class.__doc__ or "").split()).replace("``", "`").removeprefix("+ ")
    return f"{doc} {message.notes}".strip()


def _key(prefix: str, message: Message) -> str:
    return f"{prefix}{message.kind[0].upper()}{message.kind[1:]}"


def json_schema() -> Json:
    """Return one JSON Schema document: ``$defs`` has every message, ``fromManager`` and ``toManager`` the
    alternatives."""
    groups: Mapping[str, Sequence[Message]] = {"fromManager": FROM_MANAGER, "toManager": TO_MANAGER}
    defs: Json = {}
    for group, messages in groups.items():
        defs |= {_key(group, message): schema_of(message) for message in messages}
        defs[group] = {"oneOf": [{"$ref": f"#/$defs/{_key(group, message)}"} for message in messages]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "talkspurt's dialogue protocol",
        "description": "ConversationRelay with extensions; one JSON object a WebSocket text message.",
        "anyOf": [{"$ref": f"#/$defs/{group}"} for group in groups],
        "$defs": defs,
    }


def asyncapi(version: str) -> Json:
    """Return the AsyncAPI 3.0 document of ``/v1/dialogue`` and of a dial-out."""
    schemas = json_schema()["$defs"]
    sides = (("fromManager", FROM_MANAGER, "receive"), ("toManager", TO_MANAGER, "send"))
    channel: Json = {
        "address": "/v1/dialogue",
        "description": "Managers that dial in; dialled-out sockets carry the same messages without sessionId.",
        "messages": {},
    }
    operations: Json = {}
    parts: Json = {}
    for side, messages, action in sides:
        names = [_key(side, message) for message in messages]
        for name in names:
            parts[name] = {"contentType": "application/json", "payload": {"$ref": f"#/components/schemas/{name}"}}
            channel["messages"][name] = {"$ref": f"#/components/messages/{name}"}
        operations[side] = {
            "action": action,
            "channel": {"$ref": "#/channels/dialogue"},
            "messages": [{"$ref": f"#/channels/dialogue/messages/{name}"} for name in names],
        }
    audio = {
        "address": "/v1/audio/{call}",
        "description": "Raw audio of a call both ways; text messages are those of the dialogue, without sessionId.",
        "parameters": {"call": {"description": "sessionId of a call of a route with dialogue.audio"}},
        "bindings": {
            "ws": {"query": {"type": "object", "properties": {"sampleRate": {"enum": list(wire.SAMPLE_RATES)}}}}
        },
        "messages": {
            **channel["messages"],
            "sound": {"$ref": "#/components/messages/sound"},
            "clear": {"$ref": "#/components/messages/clear"},
        },
    }
    parts["sound"] = {"contentType": "application/octet-stream", "payload": {"type": "string", "format": "binary"}}
    parts["clear"] = {
        "contentType": "application/json",
        "payload": {"type": "object", "required": ["type"], "properties": {"type": {"const": "clear"}}},
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "talkspurt's dialogue protocol",
            "version": version,
            "description": "ConversationRelay with extensions. The application is the gateway.",
        },
        "channels": {"dialogue": channel, "audio": audio},
        "operations": operations,
        "components": {
            "messages": parts,
            "schemas": {name: schemas[name] for name in parts if name in schemas},
        },
    }


_BEFORE = """# The dialogue protocol

<!-- Written by `python -m gateway.dialogue.description docs`; change gateway/dialogue/description.py. -->

A **dialogue manager** is your program, for example a language-model agent. It exchanges JSON objects with the gateway,
one per WebSocket text message; `type` names the message. The format is that of Twilio's ConversationRelay, so an
application written for that works unchanged. A **+** marks extensions; **(r)** marks a required field. A manager's
names, ids, language tags and digits have at most %(name)d characters.

[protocol.schema.json](protocol.schema.json) (JSON Schema 2020-12) and [asyncapi.yaml](asyncapi.yaml) (AsyncAPI 3.0)
have an example of every message. `talkspurt conformance URL` [tests your application](#is-my-application-right).

## Two ways to connect

* **The gateway dials out** to the route's `dialogue.url`, one WebSocket per call. `X-Twilio-Signature` signs the
  address if `dialogue.auth_token` is set. The gateway sends messages and fields marked + only if `dialogue.extensions`
  is on. It always accepts them. The environment may name a proxy (`https_proxy`, `http_proxy`, `socks_proxy`,
  `no_proxy`); loopback addresses are dialled without one.
* **The manager dials in** to `WS /v1/dialogue?route=NAME`: one socket for many calls. Every message in both directions
  then has `sessionId`, and extensions are on. Several sockets of one route share its calls in turn.

A manager that makes its own sound also opens `WS /v1/audio/{call}`; see [raw audio](raw-audio.md).

Over REST, `POST /v1/calls/{id}/messages` takes any message below, and `GET /v1/calls/{id}/events` sends those of the
gateway.

## A lost connection

A close with 1000 or 1001 means the same as `end`. After any other end the gateway reconnects (`dialogue.reconnect`) for
at most `dialogue.give_up_s` and speaks the route's `fallback.text` meanwhile. Then the caller goes to
`fallback.transfer`.

The new connection begins with `setup`: the same `sessionId`, and `resumed: true`. The messages that the manager had
not read follow in order, the newest %(replay)d. Caller audio is not kept. A WebSocket ping after each batch tells the
gateway what was read (libraries answer pings themselves); without the answer, the last batch is sent again. If the
manager closes abnormally within 1 s of the same message twice, this message is skipped. The log and the page of the
call name it by its `type` and its number.

## Turns

A turn is the tokens up to and including the one with `last: true`. Speech begins when the first clause can be spoken. A
new turn waits for the previous one, unless that is `preemptible`. An interrupt closes the turn that is spoken and drops
what was accepted before the caller's first sound or key. Tokens after it begin a new turn.

SSML in tokens is spoken or dropped and never read aloud, even if a tag is split over tokens:

* `break` pauses for its `time` (10 s at most) or `strength`. `sub` speaks its alias.
* `prosody` changes `rate` and `volume` (`x-soft`, `50%%`, `+6dB`), and `pitch` (`+2st`) of the embedded and espeak
  voices. The text inside is spoken as a clause of its own.
* `lang` speaks its content in the language of `xml:lang`, if the turn's voice speaks it. If no voice is named, a voice
  of that language speaks.
* `phoneme` (`ipa`, `x-sampa`, `cmu-arpabet`) is for the embedded voice and for Kokoro, except Mandarin and Japanese.
  Other voices read the word.
* `say-as` spells `characters`, `digits` and `telephone`, reads `cardinal`, `ordinal`, `date` (with `format`),
  `duration`, `currency`, `unit` and `fraction` as such, and leaves out `expletive`.
* Every other well-formed tag, also of HTML or a vendor, is dropped and its content is spoken. `emphasis` and `voice`
  change nothing, and `audio` plays nothing. The content of `<think>`, `<thinking>`, `<thought>` and
  `<reasoning>` is not spoken.

`&amp;` and similar are characters. A `<` that begins no tag is text. The route's `lexicon` replaces words by their
spoken forms. Heard text counts the tokens as they were sent, tags included.

"""

_AFTER = """## Is my application right?

`talkspurt conformance ws://127.0.0.1:8081/relay` plays the gateway against an application that is dialled, and reports
its mistakes. Each check is a session of its own, without extensions but `resumed`.

| check | sent | expected |
|---|---|---|
| `setup` | `setup` | the socket stays open; the last token of a greeting has `last: true` |
| `prompt` | a `prompt` with `last: true` | an answer with `last: true` at its end, begins within 2 s (else a warning) |
| `partial prompt` | a `prompt` with `last: false` | no answer (else a warning) |
| `dtmf` | a key | the socket stays open |
| `interrupt` | during an answer `interrupt`, then a `prompt` | no token of that answer after 0.5 s; the next answer |
| `unknown messages` | an unknown type, `info`, `error`, then a `prompt` | an answer |
| `reconnect` | a cut; `setup` with `resumed: true`, a `prompt` | an answer; no second greeting (else a warning) |
| `end` | a close with 1000 | a close frame (else a warning) |
| `messages` | | all messages of all sessions can be read |

A failed check makes the exit code 1; a warning does not. A check is skipped if the application gives no occasion for
it, for example no answer that is long enough to interrupt; `--prompt` and `--long-prompt` are the caller's words.
`--wait` (10 s) bounds each wait. `--quiet` (1.5 s) is the time to listen for a greeting, and for messages that should
not come. `--sign-with ENV` signs the request as `dialogue.auth_token` does, `--header` adds to it, and `--json` prints
one object.

## Differences from ConversationRelay

| what | ConversationRelay | here |
|---|---|---|
| a lost socket | ends the session, unless `applicationReconnect` | reconnects (`dialogue.reconnect`) |
| `utteranceUntilInterrupt` | of the segment that was spoken | of the whole turn, a verbatim prefix |
| tokens after an interrupt by speech | spoken | dropped while they flow without a pause (`dialogue.stale_ms`) |
| `end` | at once | after the speech before it (`dialogue.end_drain`) |
| a second `setup` | never | after a reconnect, with `resumed: true` |
| `interruptSensitivity` | `high` (default), `medium`, `low` | as Twilio; the thresholds are ours |
| `break`, `phoneme`, `prosody` | as the provider can | pauses of `engine.speech.pauses`; the content is spoken |
| dial-in, `cancel`, `commit`, `discard`, `mark`, `subscribe`, `record`, `transfer`, `silence` | missing | extensions |
"""


def page() -> str:
    """Return ``docs/protocol.md``."""
    parts = [_BEFORE % {"replay": REPLAY_MESSAGES, "name": wire.NAME_CHARS}]
    for title, messages in (("From the manager", FROM_MANAGER), ("From the gateway", TO_MANAGER)):
        parts.append(f"## {title}\n\n")
        parts += [_section(message, messages[:at]) for at, message in enumerate(messages)]
    parts.append(_AFTER)
    return "".join(parts)


def _section(message: Message, earlier: Sequence[Message]) -> str:
    """Return a message's part of the page. Fields of an earlier message have a link to it."""
    other, shared = max(
        ((each, _shared(message, each)) for each in earlier), key=lambda pair: len(pair[1]), default=(message, [])
    )
    if len(shared) < SHARED_FIELDS:
        shared = []
    rows = "".join(
        f"* {_named(message, field)}: {_shape(field.schema)}"
        f"{' **(r)**' if field.required else f', default {field.default}' if field.default else ''}. {field.text}\n"
        for field in message.fields
        if field not in shared
    )
    names = ", ".join(_named(message, field) for field in shared)
    anchor = f"{'-' if other.extension else ''}{other.kind.lower()}"
    told = f"* {names}: as in [`{other.kind}`](#{anchor}).\n" if shared else ""
    head = f"### {'+ ' if message.extension else ''}`{message.kind}`\n\n{_purpose(message)}\n\n{rows}{told}\n"
    if len(message.fields) - len(shared) < EXAMPLE_FIELDS:
        return head
    return f"{head}```json\n{json.dumps(message.example, ensure_ascii=False)}\n```\n\n"


def _shared(message: Message, other: Message) -> list[Field]:
    return [field for field in message.fields if field in other.fields]


def _named(message: Message, field: Field) -> str:
    return f"{'+ ' if field.extension and not message.extension else ''}`{field.name}`"


def _shape(schema: Json) -> str:
    """Describe in words what a schema allows."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_shape(each) for each in schema["anyOf"]))
    if "enum" in schema:
        values = [json.dumps(value) if isinstance(value, bool) else str(value) for value in schema["enum"]]
        return ", ".join(f"`{value}`" for value in dict.fromkeys(values))
    kinds: list[str] = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    names: dict[str, str] = {"string": "text", "boolean": "true or false", "integer": "whole number", "array": "list"}
    words = " or ".join(names.get(kind, kind) for kind in kinds)
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is not None:
        words += f", {low} to {high}"
    if schema.get("maxLength", wire.NAME_CHARS) != wire.NAME_CHARS:  # the head of the page says that one
        words += f", at most {schema['maxLength']} characters"
    if "maxItems" in schema:
        words += f", at most {schema['maxItems']}"
    return words


def documents(version: str) -> Mapping[str, str]:
    """Return the three documents by file name. AsyncAPI is written as JSON, which is also YAML."""
    return {
        "protocol.md": page(),
        "protocol.schema.json": json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n",
        "asyncapi.yaml": json.dumps(asyncapi(version), indent=1, ensure_ascii=False) + "\n",
    }


if __name__ == "__main__":
    from importlib.metadata import version

    for name, text in documents(version("talkspurt")).items():
        (Path(sys.argv[1]) / name).write_text(text)
