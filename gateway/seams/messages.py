"""The dialogue protocol's messages, decoded once at the edge. Pure.

The wire format is that of Twilio's ConversationRelay. The docstrings mark our own fields and messages with ``+``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Interruptible = Literal["any", "speech", "dtmf", "none"]
RecordState = Literal["pause", "resume", "stop"]

# --- dialogue manager to gateway ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Tokens to be spoken. They are concatenated verbatim; ``last`` closes the turn."""

    token: str
    last: bool = False
    lang: str = ""
    interruptible: Interruptible | None = None
    preemptible: bool | None = None
    turn: str = ""  # +
    voice: str = ""  # +
    speed: float | None = None  # +
    instruct: str = ""  # +
    hold: bool = False  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """An audio file as a turn of its own. ``loop`` 0 means up to 1000 times."""

    source: str
    loop: int = 1
    interruptible: Interruptible | None = None
    preemptible: bool | None = None
    turn: str = ""  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDigits:
    """Tones, sent after the speech that was queued before them; ``w`` waits half a second."""

    digits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSettings:
    """How one language is spoken and recognised. Empty and None: as the route says."""

    code: str
    voice: str = ""
    hints: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Switches the session's languages; an empty field leaves a language unchanged. ``languages`` are declared, or
    declared anew, before that."""

    tts_language: str = ""
    transcription_language: str = ""
    languages: tuple[LanguageSettings, ...] = ()
    ignored: tuple[str, ...] = ()
    """Names of settings that we know of and have no use for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Changes settings of the session in mid-call. None leaves a setting unchanged."""

    interruptible: Interruptible | None = None
    preemptible: bool | None = None
    dtmf_detection: bool | None = None
    report_input_during_agent_speech: Interruptible | None = None
    partial_prompts: bool | None = None
    speech_timeout_ms: int | None = None
    """Silence that ends what the caller says."""
    ignore_backchannel: bool | None = None
    echo_prompt_filtering: bool | None = None
    hints: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    """Names of the settings that the message has, as on the wire."""
    ignored: tuple[str, ...] = ()
    """Names of settings that we know of and have no use for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Replaces the phrases that the recogniser should expect; ``language`` empty: in every language."""

    hints: tuple[str, ...]
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Ends the session; ``handoff_data`` is passed on byte for byte."""

    handoff_data: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """+ The manager cuts our speech: one turn, or all turns."""

    turn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """+ Speak a held turn."""

    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """+ Drop a held turn."""

    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """+ Tell the manager when everything before this mark has been played."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """+ Send the caller's audio to the manager as binary messages, or stop sending it."""

    media: bool
    sample_rate: int = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """+ Pauses the recording of the call (both sides are silence in the file), goes on with it, or ends it."""

    state: RecordState


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """+ Hand the call to a SIP URI or number."""

    target: str
    handoff_data: str | None = None


Inbound = (
    Text
    | Play
    | SendDigits
    | Language
    | Config
    | Hints
    | End
    | Cancel
    | Commit
    | Discard
    | Mark
    | Subscribe
    | Record
    | Transfer
)

# --- gateway to dialogue manager ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first message of a session. On the wire every field is always present."""

    session_id: str
    call_sid: str
    account_sid: str
    parent_call_sid: str
    from_: str
    to: str
    forwarded_from: str
    caller_name: str
    direction: str
    call_type: str
    call_status: str
    custom_parameters: Mapping[str, str]
    transport: str = ""  # +
    codec: str = ""  # +
    version: str = ""  # +
    resumed: bool = False  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the caller said."""

    voice_prompt: str
    lang: str
    last: bool
    continues: bool = False  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtmf:
    """The caller pressed a key."""

    digit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """The caller (or ``cancel``) cut our speech. The text is a verbatim prefix of the turn's tokens."""

    utterance_until_interrupt: str
    duration_until_interrupt_ms: int
    turn: str = ""  # +
    reason: str = ""  # +
    utterance_remaining: str = ""  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """What was wrong with one message, in one sentence; nothing else was lost."""

    description: str
    code: str = ""  # +
    turn: str = ""  # +
    field: str = ""  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """``agentSpeaking``, ``clientSpeaking``, ``tokensPlayed``, ``roundTripDelayMs``, ``configUpdated``; values are
    strings."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """+ ``accepted started finished interrupted failed``; ``data`` holds the event's own fields."""

    turn: str
    event: str
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """+ The next word of a turn, told when the word's sound begins. Captions are for browsers and observers, not for
    managers. The captions of a turn, joined, are verbatim what was heard of its tokens."""

    turn: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReached:
    """+ Everything before the mark was played, or (``cleared``) thrown away."""

    name: str
    cleared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """+ The call is over."""

    reason: str
    duration_ms: int


Outbound = Setup | Prompt | Dtmf | Interrupt | Error | Info | TurnEvent | Caption | MarkReached | Ended
