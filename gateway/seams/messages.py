"""The dialogue protocol's messages, decoded once at the edge. Pure.

The wire format is that of Twilio's ConversationRelay. ``+`` marks fields and messages that this project adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.seams.end_cause import UNKNOWN, EndCause

Interruptible = Literal["any", "speech", "dtmf", "none"]
RecordState = Literal["start", "pause", "resume", "stop"]
TransferMode = Literal["auto", "refer", "bridge"]
OnHangup = Literal["end", "return"]

AnsweredBy = Literal["human", "machine", "screening", "ivr", "unknown"]

ProgressEvent = Literal["queued", "ringing", "early", "answered", "busy", "noAnswer", "failed", "canceled", "completed"]

Expectable = Literal["email", "name", "yesNo", "date", "any", "digits"]

Timing = Literal["exact", "estimated"]
"""Origin of a word's time: the voice's own durations, or an estimate from the length of its clause."""


def timing_of(exact: bool) -> Timing:
    """Return the name of a word's timing."""
    return "exact" if exact else "estimated"


# --- dialogue manager to gateway ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedReply:
    """+ The answer that the manager expects. ``digits`` is their number, for that kind only."""

    kind: Expectable
    digits: int = 0


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
    expect: ExpectedReply | None = None  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """An audio file as a separate turn."""

    source: str
    loop: int = 1
    interruptible: Interruptible | None = None
    preemptible: bool | None = None
    turn: str = ""  # +
    expect: ExpectedReply | None = None  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """+ Sound that the manager makes itself: a binary message of an audio socket."""

    pcm: bytes
    """s16le, mono, whole samples."""
    sample_rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDigits:
    """Touch tones, sent after the speech queued before them."""

    digits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSettings:
    """Voice and hints of one language. Empty and None: the route's values."""

    code: str
    voice: str = ""
    hints: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Switches the session's languages; an empty field leaves a language unchanged. ``languages`` are declared or
    redeclared first."""

    tts_language: str = ""
    transcription_language: str = ""
    languages: tuple[LanguageSettings, ...] = ()
    ignored: tuple[str, ...] = ()
    """Names of settings that are known and have no effect here."""


Sensitivity = Literal["high", "medium", "low"]
"""Readiness to take a sound over the bot's voice for an interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Changes settings during the call. A setting that is left out stays."""

    interruptible: Interruptible | None = None
    preemptible: bool | None = None
    dtmf_detection: bool | None = None
    report_input_during_agent_speech: Interruptible | None = None
    partial_prompts: bool | None = None
    speech_timeout_ms: int | None = None
    """Least silence that ends the caller's utterance."""
    turn_detection: bool | None = None
    """False: only silence ends the caller's utterance. True: the route's turn model, if any, decides too."""
    ignore_backchannel: bool | None = None
    echo_prompt_filtering: bool | None = None
    interrupt_sensitivity: Sensitivity | None = None
    background_noise_reduction: bool | None = None
    """Take other voices and noise from what the VAD hears."""
    hints: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()
    """Names of the settings in the message, as on the wire."""
    ignored: tuple[str, ...] = ()
    """Names of settings that are known and have no effect here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Replaces the phrases that the recogniser should expect; an empty ``language`` means every language."""

    hints: tuple[str, ...]
    language: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Ends the session."""

    handoff_data: str | None = None
    commit: bool = False  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """+ Cuts speech: one turn, or all turns."""

    turn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """+ Speaks a held turn."""

    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """+ Drops a held turn."""

    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """+ Requests a report when everything before this mark has been played."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """+ Starts or stops sending the caller's audio to the manager as binary messages."""

    media: bool
    sample_rate: int = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """+ Pauses the recording of the call (both sides are silent in the file), resumes it or ends it. ``start`` begins
    the copy to a session recording server."""

    state: RecordState


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """+ The bot speaks to the person before the caller does, and the person decides. Each entry is a key, or words with
    which the person's answer begins."""

    briefing: str
    accept: tuple[str, ...] = ("1",)
    decline: tuple[str, ...] = ("2",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """+ Transfers the call to a SIP URI or number."""

    target: str
    handoff_data: str | None = None
    commit: bool = False
    mode: TransferMode = "auto"
    ring_timeout_s: float | None = None
    """Longest ringing of the second leg of a bridge. None: ``sip.timeouts.answer_s``."""
    on_hangup: OnHangup = "end"
    """The call's course when the person of a bridge hangs up: it ends, or returns to the bot."""
    warm: Warm | None = None
    """Briefing of the person. None: both are joined at the answer."""
    accept_timeout_s: float | None = None
    """Longest wait for the person's decision after the briefing. None: 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """+ Takes a person off: their leg ends, and the caller is with the bot again."""

    leg: str = ""
    """The leg's session id. Empty: the second leg of this call; in a named room, this call."""
    room: str = ""
    """A named room. Empty: the one in which the call is, if it is in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """+ Lets the call into a named room. The room is made for its first leg."""

    room: str
    muted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mute:
    """+ Mutes a leg of the call's named room, or lets it be heard again."""

    room: str = ""
    """Empty: the room in which the call is."""
    leg: str = ""
    """The leg's session id. Empty: this call."""
    muted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLeg:
    """+ Puts a leg on hold: it hears a clip or silence, and no other leg hears it."""

    leg: str = ""
    """The leg's session id. Empty: the caller."""
    source: str | None = None
    """Clip, as of ``play``. None: the route's. Empty: silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeLeg:
    """+ Ends the hold of a leg."""

    leg: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """+ Plays a quiet sound under the bot's voice, again and again. An empty source ends it."""

    source: str
    level: float = -20.0
    """Gain of the sound, decibels."""
    duck: float = 8.0
    """Attenuation while the bot speaks, decibels."""


Inbound = (
    Text
    | Play
    | Sound
    | SendDigits
    | Language
    | ConfigChange
    | Hints
    | End
    | Cancel
    | Commit
    | Discard
    | Mark
    | Subscribe
    | Record
    | Transfer
    | Leave
    | Join
    | Mute
    | HoldLeg
    | ResumeLeg
    | Background
)

# --- gateway to dialogue manager ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first message of a session."""

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
    audio: str = ""  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Words of the caller."""

    voice_prompt: str
    lang: str
    last: bool
    continues: bool = False  # +
    likely_last: bool = False  # +
    typed_by: str = ""
    """The tenant whose client typed these words in the caller's place. Empty: the caller said them. Not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtmf:
    """A key that the caller pressed."""

    digit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """The caller (or ``cancel``) cut the speech."""

    utterance_until_interrupt: str
    duration_until_interrupt_ms: int
    turn: str = ""  # +
    reason: str = ""  # +
    utterance_remaining: str = ""  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One message was wrong; nothing else was lost."""

    description: str
    code: str = ""  # +
    turn: str = ""  # +
    field: str = ""  # +


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardWord:
    """+ A word that the caller has heard, wholly or partly. Times count from the first sound of its turn."""

    text: str
    at_ms: int
    end_ms: int
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """An event that the route's ``events`` asks for; values are strings. + ``noWords`` and + ``supervisor``."""

    name: str
    value: str
    turn: str = ""  # +
    """The turn of ``tokensPlayed``."""
    words: Sequence[HeardWord] = ()  # +
    """The words of ``tokensPlayed`` with their times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """+ Progress of a turn, with the fields of its event."""

    turn: str
    event: str
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """+ The next word of a turn, sent when the word's sound begins. Captions are for browsers and observers, not for
    managers. The joined captions of a turn are verbatim the heard part of its tokens."""

    turn: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReached:
    """+ Everything before the mark was played or discarded."""

    name: str
    cleared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """+ The caller's speech has interrupted the bot and withdrawn the manager's ``end`` or ``transfer``."""

    what: Literal["end", "transfer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BothSilent:
    """+ Neither the bot nor the caller has spoken for the route's ``no_input_s``."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OfLeg:
    """+ Words or a key of the person on the second leg. An application without extensions would take them for the
    caller's, so it does not get them."""

    leg: str
    message: Prompt | Dtmf


LegEventName = Literal["ringing", "answered", "accepted", "declined", "busy", "noAnswer", "machine", "failed", "hangup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegEvent:
    """+ Progress of the second leg of the call."""

    leg: str
    """The leg's session id, also ``{id}`` in REST."""
    event: LegEventName
    cause: EndCause = field(default=UNKNOWN, repr=False)  # its text may be anyone's: keep it out of logs


RoomEventName = Literal["joined", "left", "muted", "speaking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomEvent:
    """+ An event of the named room in which the call is."""

    room: str
    leg: str
    """The leg's session id."""
    event: RoomEventName
    muted: bool = False
    """True if no one hears the leg; ``muted`` also reports that it is heard again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """+ The progress of a call that the gateway has placed, or of an incoming one whose carrier sends status callbacks.

    The first events of a placed call come with ``setup``, because the manager is connected when the call is answered.
    """

    event: ProgressEvent
    sip_status: int | None = None
    code: str = ""
    past: bool = False
    """True if observers have had the event already; it is not sent to them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beep:
    """+ A recording tone of an outgoing call has ended: a machine records from now on."""

    length_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """+ Who or what has answered an outgoing call."""

    by: AnsweredBy
    confidence: float
    """0 to 1."""
    text: str
    """Words of the latest utterance. Empty without a recogniser."""
    waiting: bool
    """True if a person may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """+ The call is over."""

    reason: str
    duration_ms: int
    cause: EndCause = field(default=UNKNOWN, repr=False)  # its text may be anyone's: keep it out of logs


Outbound = (
    Setup
    | Prompt
    | Dtmf
    | Interrupt
    | Error
    | Info
    | TurnEvent
    | Caption
    | MarkReached
    | Withdrawn
    | BothSilent
    | OfLeg
    | LegEvent
    | RoomEvent
    | Call
    | Beep
    | Answered
    | Ended
)
