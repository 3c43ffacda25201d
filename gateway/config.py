"""The gateway's half of the configuration file. The docstring of every field gives its unit and its trade-off."""

from __future__ import annotations

import base64
import importlib.util
import ipaddress
import re
import string
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.seams.messages import Interruptible


def _beside_the_file(value: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    return str(Path(folder, value)) if folder and value else value


LocalPath = Annotated[str, AfterValidator(_beside_the_file), Field(json_schema_extra={"format": "path"})]
"""A file or folder. In a configuration file the path is relative to that file (validation context ``folder``)."""


def _as_number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


NUMBER = BeforeValidator(_as_number)
"""Makes a number of the text that the file's scalars come as, because a Literal of numbers does not take text."""


_SQLITE = "sqlite:///"


def is_loopback(host: str) -> bool:
    """Whether an address, or a listener on ``host``, is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _scheme(url: str) -> str:
    """Return the part of an address that an error may show. The rest may hold a password or a key."""
    return urlsplit(url).scheme


class Section(BaseModel):
    """A section of the file. It is frozen, an unknown key is an error, and the reference is made of the docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TlsConfig(Section):
    """Certificate and key of the HTTP listener. New files are taken within ten seconds, without a restart."""

    certificate: LocalPath
    """PEM file with the certificate chain."""
    key: LocalPath
    """PEM file with the private key."""


class ServerConfig(Section):
    """The one HTTP listener: console, REST, metrics, dialogue and media WebSockets, speech API."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback, `/`, `/v1` and `/metrics` need `auth` or `insecure: true`."""
    port: int = Field(8080, ge=0, le=65535)
    """TCP port; 0 takes a free one and prints it."""
    public_url: str = ""
    """The address under which the outside reaches us, e.g. `https://voice.example.com`. Carriers sign this URL, and
    webhooks answer with it. Empty: the address of each request, as `trusted_proxies` tell it."""
    origins: tuple[str, ...] = ()
    """Sites, in addition to our own, whose pages may open our WebSockets and send requests that change something, e.g.
    `https://app.example.com`; `*`: all. For calls from browsers `webrtc.allowed_origins` counts instead."""
    tls: TlsConfig | None = None
    """Serve TLS ourselves. Leave this section out behind a proxy that serves TLS."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks whose `X-Forwarded-*` headers are believed."""
    workers: int = Field(1, ge=1, le=64)
    """Number of gateway processes behind the port, with one engine, console and `/metrics` (`docs/scaling.md`). More
    carry more calls where each has a core beside those of the engine. With 1 there is one process."""
    drain_s: float = Field(30.0, ge=0)
    """How long live calls may go on after SIGTERM, seconds. More loses fewer calls; less restarts sooner."""
    drain_notice_s: float = Field(0.0, ge=0)
    """How long new calls are still taken after SIGTERM while `/readyz` answers 503 already, seconds; `drain_s` begins
    then. Behind HAProxy or Envoy set a second more than their checks take to notice (3 with our samples), else calls
    that they send meanwhile are refused. Alone, and behind Kamailio, which tries another gateway, it only delays."""
    insecure: bool = False
    """Serve `/`, `/v1` and `/metrics` beyond loopback without `auth`. Only inside a trusted network, never with
    `public_url`."""
    stream_token_s: float = Field(60.0, gt=0)
    """Life, in seconds, of the signed token that a webhook puts into a stream address; each token opens one call. More
    tolerates slow carriers."""
    stream_token_secret: SecretStr | None = Field(None, min_length=1)
    """Key that signs those tokens, those of `POST /v1/tokens`, and sign-ins to the console. Set it if several instances
    share one address, or if sign-ins should outlive a restart. Default: a random key per process."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches us: the listener is on loopback, and no proxy leads others to it."""
        return is_loopback(self.host) and not self.public_url and not self.trusted_proxies


class DialogueConfig(Section):
    """Who leads the dialogue of a route: `url` (we dial out), `script` (built in), or neither (managers dial in)."""

    url: str = ""
    """WebSocket of the dialogue manager, `ws://` or `wss://`; one connection per call."""
    script: LocalPath = ""
    """YAML file of the built-in script dialogue."""
    headers: dict[str, str] = {}
    """Extra request headers of the dial-out."""
    auth_token: SecretStr | None = Field(None, min_length=1)
    """Key that signs the dial-out: `X-Twilio-Signature` over `url` exactly as it is written here."""
    extensions: bool | None = None
    """Send our fields and messages beyond ConversationRelay. Default: on for dial-in and REST, off for dial-out."""
    reconnect: bool = True
    """Dial again when the connection breaks (not after a close with 1000 or 1001)."""
    reconnect_first_s: float = Field(0.25, gt=0)
    """Pause before the first new attempt, seconds. It doubles after each attempt, until a connection has lived for
    longer than `reconnect_max_s`."""
    reconnect_max_s: float = Field(5.0, gt=0)
    """Longest pause between attempts, seconds."""
    give_up_s: float = Field(30.0, ge=0)
    """How long a call waits for its manager before the call is ended, seconds."""
    connect_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for one attempt, name look-up and handshake together, seconds."""
    ping_s: float = Field(20.0, gt=0)
    """WebSocket ping interval, seconds. A peer that is silent for twice as long counts as lost."""
    end_drain: bool = True
    """Let queued speech finish before `end` ends the call. Off: the call ends at once, as on Twilio."""
    transfer_wait_s: float = Field(30.0, ge=0)
    """How long `transfer` waits for the speech that was queued before it, seconds. It goes sooner if the caller or
    `cancel` cuts that speech, and after this time whatever is still being said. 0: at once."""
    stale_ms: int = Field(300, ge=0)
    """How long the tail of an interrupted token stream is dropped, milliseconds. After a cut by a digit, tokens are
    dropped for this long. After a cut by speech, they are dropped until a pause between two tokens exceeds this. More
    may drop real answers; less may speak tails."""
    queue_messages: int = Field(256, ge=16)
    """Messages kept for a slow manager. When the queue is full, the oldest caller audio is dropped; if there is none,
    the connection counts as lost."""
    replay_messages: int = Field(500, ge=1)
    """Messages of a call kept while its manager is away, and sent in order behind the `setup` of the next connection.
    When there are more, the oldest are dropped. More lets longer outages pass without a loss; less spares a manager old
    news."""

    @model_validator(mode="after")
    def _one_way(self) -> DialogueConfig:
        if self.url and self.script:
            raise ValueError("dialogue names both url and script; a route has one of them")
        if self.url and not self.url.startswith(("ws://", "wss://")):
            raise ValueError(f"dialogue.url has the scheme {_scheme(self.url)!r}, expected ws:// or wss://")
        return self


class RouteBargeIn(Section):
    """How a caller interrupts on one route. A field that is left out takes the value of section `barge_in`."""

    min_speech_ms: int | None = Field(None, ge=32)
    """How much speech has to be heard before it cuts our voice, milliseconds."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Speech probability of the VAD that counts as speech."""
    false_alarm_ms: int | None = Field(None, ge=0)
    """Caller speech shorter than this, in milliseconds, is a false alarm; so is speech without a word where the route
    has a recogniser."""


def _target_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if (
            not re.fullmatch(r"(?:sips?:)?[A-Za-z0-9+*#%_.!~'()&=$-]*(?:@?[A-Za-z0-9*.:\[\]-]+)?", pattern)
            or not pattern
        ):
            raise ValueError(f"target pattern is {pattern!r}, expected a number (+49*), a name, or user@host")
    return patterns


TargetPatterns = Annotated[tuple[str, ...], AfterValidator(_target_patterns)]
"""Who may be called; ``gateway.calling.targets.Patterns`` reads them."""


class CallingConfig(Section):
    """Who may be called, as whom: by `transfer` on every transport, and by `POST /v1/calls`. What is not listed here is
    refused. How often: `calls_per_minute` and `calls_at_once` of a route, `calls_per_minute` and `concurrent_calls` of
    a key."""

    allowed_targets: TargetPatterns = ()
    """Numbers (`+4930*`, without separators), names of extensions (`agent-7`) and SIP addresses (`*@pbx.example`,
    `sip:pbx.example` for one without a user) that may be called. `*` stands for any further characters except `*` and
    `#`; `%2A` is the star of a service code (`%2A21#`). An address without a port allows any port of the host. Empty:
    nobody may be called. SIP calls may reach `sip.allowed_targets` too."""
    denied_targets: TargetPatterns = ()
    """Exceptions from all allowed targets, in the same form. A number here also excepts SIP addresses with this number
    as their user."""
    caller_ids: TargetPatterns = ()
    """Numbers and SIP addresses that `POST /v1/calls` may name as `from`, in the same form. Empty: only the trunk's own
    is shown."""
    sip_headers: tuple[str, ...] = ("X-*",)
    """SIP headers that `POST /v1/calls` may set, and that custom parameters of a call of ours may become. A `*` at the
    end stands for anything that follows. `P-Asserted-Identity` and its like let requests show any caller id, so list
    them only if you trust every key."""
    post_dial: bool = False
    """Let a number carry keys to be pressed after the answer, or an extension (`+4930123,,7`, `;ext=7`). What becomes
    of them depends on the carrier."""
    international_prefixes: tuple[str, ...] = ("00",)
    """What callers dial in place of `+`. A number that begins so is compared and dialled with `+`. In North America
    this is `011`."""


class RouteCalling(Section):
    """Whom the calls of one route may call, and how often."""

    allowed_targets: TargetPatterns | None = None
    """Who may be called on this route, in place of `calling.allowed_targets` and `sip.allowed_targets`. Default:
    those."""
    calls_per_minute: int = Field(300, gt=0)
    """Most transfers and placed calls of this route in a minute: a bucket of this many, which fills again within a
    minute. Less bounds what fraud can cost."""
    calls_at_once: int = Field(100, gt=0)
    """Most placed calls of this route that may go on at a time."""


LEXICON_WORDS, LEXICON_CHARS = 1000, 100


def _lexicon(words: dict[str, str]) -> dict[str, str]:
    if len(words) > LEXICON_WORDS:
        raise ValueError(f"lexicon has {len(words)} words, expected at most {LEXICON_WORDS}")
    for word, spoken in words.items():
        if not 0 < len(word) <= LEXICON_CHARS or word != word.strip():
            raise ValueError(f"lexicon word is {word!r}, expected 1 to {LEXICON_CHARS} characters without outer spaces")
        if not spoken.strip() or len(spoken) > LEXICON_CHARS:
            raise ValueError(f"lexicon[{word!r}] is {spoken!r}, expected 1 to {LEXICON_CHARS} characters")
    return words


class FallbackConfig(Section):
    """What becomes of a caller whose dialogue manager is lost. A text in the place of the section is its `text`."""

    text: str = ""
    """Spoken while the dialogue manager is lost and may come back (`dialogue.reconnect`, `give_up_s`)."""
    transfer: str = ""
    """Number or SIP address of the person or queue to whom the caller is put through when no dialogue manager can be
    had. It needs no entry in `calling.allowed_targets`. Empty, or where that fails: the call leaves us with the reason
    `dialogue_failed`, and what follows (`after_url`, a dialplan) decides. A browser's call just ends."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: object) -> object:
        return {"text": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        section = handler(schema)
        return {"description": section["description"], "anyOf": [{"type": "string"}, section]}


class RouteConfig(Section):
    """What happens to a call. The keys have the names of ConversationRelay's attributes."""

    tenant: str = ""
    """Tenant whose route this is. The route's calls, however they come, their events and what
    they leave behind are seen by this tenant's keys and by keys with the scope `admin` only. Empty: the only tenant's;
    if there are several tenants, no one's, so that only `admin` sees it."""

    dialogue: DialogueConfig = DialogueConfig()
    """Who leads the dialogue."""
    voice: str = ""
    """Voice id; empty is the engine's default."""
    language: str = "en-US"
    """BCP 47 tag of the language that is spoken and, where nothing else is set, recognised."""
    welcome_greeting: str = ""
    """Spoken before anything else."""
    welcome_greeting_interruptible: Interruptible | bool = "any"
    """What cuts the greeting: any, speech, dtmf, none."""
    interruptible: Interruptible | bool = "any"
    """What cuts a turn that brings no value of its own: any, speech, dtmf, none."""
    preemptible: bool = False
    """Whether a new turn cuts a turn that brings no value of its own."""
    dtmf_detection: bool = True
    """Whether keys are reported and interrupt. Off: they do neither."""
    inband_dtmf: bool = False
    """Find keys in the caller's audio too, for peers that send no telephone events (G.711 only: other codecs distort
    the tones). All of the audio then has to be decoded, and speech may rarely be taken for a key."""
    partial_prompts: bool = False
    """Send prompts that are not final yet. Leave this off for applications that answer every prompt, as most do."""
    report_input_during_agent_speech: Interruptible = "none"
    """Which input is reported while a turn plays that this input may not interrupt."""
    ignore_backchannel: bool = False
    """Let short acknowledgements (mhm, yes) neither interrupt nor become a prompt. This needs a recogniser."""
    echo_prompt_filtering: bool = False
    """Drop what the recogniser hears of our own voice: words that begin while we speak and are ours, in our order. It
    takes three words; a caller who repeats a sentence of ours over it is dropped too. This needs a recogniser."""
    hints: tuple[str, ...] = ()
    """Phrases that the recogniser should expect; the embedded one has no use for them."""
    events: tuple[Literal["speaker-events", "tokens-played", "debugging", "config-updated"], ...] = ()
    """Which `info` messages are sent. `speaker-events`: `agentSpeaking` and `clientSpeaking`. `tokens-played`:
    `tokensPlayed`. `debugging`: `roundTripDelayMs`, the time to the peer and back, which RTP measures by its reports
    and a media WebSocket by a ping every 5 s (AudioSocket does not measure it). `config-updated`:
    `configUpdated`, what `config`, `hints` and `language` have changed, as JSON text."""
    lexicon: Annotated[dict[str, str], AfterValidator(_lexicon)] = {}
    """Words and what is spoken in their place, e.g. `{nginx: engine x, SQL: sequel}`. A word in small letters is found
    in any case, another one only as it is written; neither is found inside another word. What the dialogue manager is
    told of heard text keeps the word as it was written."""
    fallback: FallbackConfig = FallbackConfig()
    """What becomes of the caller while the dialogue manager is lost, and when it is gone for good. A text is what is
    spoken meanwhile."""
    recording: bool = False
    """Record this route's calls, see section `recording`."""
    recogniser: Literal["", "auto", "embedded", "external"] = ""
    """Recogniser that makes prompts of caller speech. Empty: none. `embedded`: the built-in one (English, needs the
    extra `[recogniser]`). `external`: that of `recogniser.url`. `auto`: the embedded one if the extra is installed,
    else none."""
    end_of_thought: bool = True
    """Where the turn model is installed, let it say when the caller has finished; see `recogniser.end_of_thought`."""
    barge_in: RouteBargeIn = RouteBargeIn()
    """Values for this route that replace those of section `barge_in`."""
    calling: RouteCalling = RouteCalling()
    """Whom this route's calls may call, and how often; see section `calling`."""
    priority: int = Field(5, ge=0, le=9)
    """Whose turns go first where the engine has no place for all: those of the larger number. Speech over HTTP has its
    key's (`auth.api_keys`), 3 by default. A full engine gives one place of `engine.speech.admission.fair_every` to who
    has waited longest, so no priority is kept waiting for ever."""
    parameters: dict[str, str] = {}
    """Custom parameters that every call gets, unless the call itself brings a parameter of the same name."""


class PlayoutConfig(Section):
    """How frames are paced and sent."""

    ptime_ms: int = Field(20, ge=10, le=60, multiple_of=10)
    """Audio per frame, milliseconds (RFC 8866 section 6.4)."""
    lead_ms: int = Field(100, ge=0, le=2000)
    """How far ahead of real time frames are sent to a peer that buffers (Twilio), milliseconds. More survives network
    jitter, but the peer then holds more audio to be cleared, and a lost clear is heard for longer."""
    start_quantile: float = Field(0.98, gt=0, le=1)
    """Share of utterances that should play without a gap. The first frame waits as long as this share of the engine's
    recent utterances would have needed. Less starts sooner."""
    max_start_delay_ms: int = Field(400, ge=0)
    """Longest wait of the first frame, milliseconds."""
    buffer_s: float = Field(20.0, gt=0)
    """Most audio kept per call, seconds. While the buffer is full, no more is read from the engine."""
    ahead_turns: int = Field(1, ge=0)
    """Turns after the speaking one that are synthesised ahead. More hides the engine's delay between turns, but an
    interruption then throws more work away."""
    held_turns: int = Field(4, ge=0)
    """Held turns per call that are synthesised ahead; one more is an error."""
    mark_timeout_s: float = Field(5.0, gt=0)
    """How long after its expected time a carrier's mark is waited for, seconds."""
    fade_ms: int = Field(5, ge=0, le=20)
    """Length of the fade at a cut, milliseconds; only codecs without state can fade."""
    max_tick_sends: int = Field(50, ge=1)
    """Most frames that a call which has fallen behind sends in one tick."""


class BargeInConfig(Section):
    """How a caller who speaks over our voice interrupts it."""

    threshold: float = Field(0.4, gt=0, lt=1)
    """Speech probability of the VAD that counts as speech. Less finds soft beginnings sooner (at 0.5 some are found
    0.2 s later); more takes other sounds for speech less often."""
    min_speech_ms: int = Field(96, ge=32)
    """How much speech has to be heard before it cuts our voice, milliseconds. More ignores coughs and mhm; less cuts
    sooner."""
    pause_ms: int = Field(64, ge=0)
    """Our voice pauses when a sound over it that may be a word has lasted this long, milliseconds. If the sound proves
    to be a word, our voice is cut; if it proves to be a hum, our voice goes on when the hum has ended. 0: our voice
    goes on until that is clear, and words that begin like hums cut later."""
    min_silence_ms: int = Field(300, ge=32)
    """Silence that ends the caller's speech, milliseconds."""
    echo_correlation: float = Field(0.85, gt=0, le=1)
    """Caller audio that resembles what we sent by at least this much (normalised correlation, 0 to 1) counts as our own
    echo. Less recognises distorted echoes; too little takes callers for echoes."""
    max_hum_ms: int = Field(900, ge=0)
    """A hum over our speech (mhm) of up to this many milliseconds counts as agreement and does not cut. 0: hums cut
    like words."""
    false_alarm_ms: int = Field(0, ge=0)
    """Caller speech shorter than this, in milliseconds, is a false alarm: our voice pauses when the speech begins and
    goes on after it. The dialogue manager hears of a real interruption this much later. Where the route has a
    recogniser, the words decide: the first word makes an interruption, and without a word our voice goes on. 0: every
    confirmed onset of speech interrupts."""
    max_wait_ms: int = Field(4000, ge=0)
    """Longest time that a turn waits for a caller who is speaking, milliseconds. Only turns wait that speech may
    interrupt and that carry no id of the manager's. More lets callers finish longer sentences, but turns begin this
    much later where noise is taken for speech. 0: begin at once, over the caller."""


class EmbeddedRecogniserConfig(Section):
    """The embedded recogniser's own process."""

    partial_ms: int = Field(500, ge=100)
    """New speech between two partial results, milliseconds. Each result costs as much as a final one, about 0.05 s of a
    core."""
    nice: int = Field(1, ge=0, le=19)
    """How far the process is below the gateway in priority, as `nice` counts."""
    hang_s: float = Field(10.0, gt=0)
    """A process that does not answer for this many seconds is killed and started anew."""
    restart_backoff_s: float = Field(0.5, gt=0)
    """Pause before a dead process is started anew, seconds. While starting fails, the pause doubles each time, up to 32
    times this."""


class EndOfThoughtConfig(Section):
    """When a caller has finished a thought. Where the turn model is installed, it is asked once whenever the caller
    falls silent, for about 0.05 s of a core. It hears the voice's melody, no words, and knows 23 languages."""

    model: LocalPath = ""
    """File of the turn model, Smart Turn v3 in ONNX. Empty: that of the package `pipecat-ai`, if it is installed."""
    finished_ms: int = Field(288, ge=160)
    """Silence that ends an utterance after a finished thought, milliseconds. More answers fewer callers too early."""
    hesitating_ms: int = Field(1000, ge=100)
    """Silence that ends an utterance in the middle of a thought, milliseconds. More gives callers longer to find a
    word; it is also the wait where the model is wrong."""
    finished_from: float = Field(0.5, ge=0, le=1)
    """Probability from which a thought counts as finished. More answers fewer callers too early, and more of them
    late."""
    hesitating_below: float = Field(0.2, ge=0, le=1)
    """Probability below which the caller counts as hesitating. Between the two, `end_of_speech_ms` holds."""
    nice: int = Field(1, ge=0, le=19)
    """How far the model's thread is below the gateway in priority, as `nice` counts."""

    @model_validator(mode="after")
    def _ordered(self) -> EndOfThoughtConfig:
        if self.hesitating_below > self.finished_from:
            raise ValueError(
                f"recogniser.end_of_thought.hesitating_below is {self.hesitating_below:g}, expected at most "
                f"finished_from ({self.finished_from:g})"
            )
        return self


class RecogniserConfig(Section):
    """Caller speech to text, for routes with a `recogniser`."""

    end_of_speech_ms: int = Field(600, ge=100)
    """Silence after which the caller's words become a prompt, milliseconds. Less answers sooner; more lets callers
    think. With a turn model, `end_of_thought` shortens or lengthens it."""
    stall_ms: int = Field(600, ge=100)
    """Silence is counted in the caller's audio, so that a network that stands still for a moment ends no utterance.
    Audio that does not come for longer than this, in milliseconds, counts as silence. More bears longer stalls; less
    answers sooner on lines that send no silence."""
    max_utterance_s: float = Field(15.0, ge=1, le=60)
    """Longest utterance, seconds. If the caller speaks on, a prompt is made each time this has passed."""
    final_timeout_ms: int = Field(2000, ge=100)
    """Longest wait for the words of an utterance that is over, milliseconds. If they do not come, there is no prompt.
    """
    agreement_ms: int = Field(1000, ge=100)
    """With `ignore_backchannel`, a caller who speaks over us for longer than this, in milliseconds, interrupts whatever
    the words are."""
    backchannels: tuple[str, ...] = (
        *("mhm", "mm", "mmm", "hm", "hmm", "mm hmm", "uh huh", "aha", "ah", "oh", "yeah", "yep", "yes", "ok", "okay"),
        *("right", "sure", "i see", "got it", "all right", "alright", "great", "good", "fine", "exactly"),
    )
    """What counts as a short acknowledgement with `ignore_backchannel`, alone or several in a row. Write the phrases in
    lower case, without punctuation."""
    url: str = ""
    """WebSocket of the external recogniser, `ws://` or `wss://`; it has to speak Deepgram's `/v1/listen` protocol."""
    headers: dict[str, str] = {}
    """Request headers for the external recogniser, e.g. `Authorization: Token ${DEEPGRAM_API_KEY}`."""
    parameters: dict[str, str] = {}
    """Query parameters for the external recogniser, e.g. `model: nova-3`; one that we set too is replaced."""
    hints_parameter: str = "keyterm"
    """Query parameter that gets each of a route's `hints`."""
    connect_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for a connection, seconds."""
    keep_alive_s: float = Field(4.0, gt=0)
    """Silence after which `KeepAlive` is sent, seconds. Deepgram ends a connection that is silent for 10 s."""
    reconnect_first_s: float = Field(0.25, gt=0)
    """Pause before a lost connection is made anew, seconds; it doubles after each attempt."""
    reconnect_max_s: float = Field(5.0, gt=0)
    """Longest pause between attempts, seconds."""
    embedded: EmbeddedRecogniserConfig = EmbeddedRecogniserConfig()
    """The embedded recogniser's own process."""
    end_of_thought: EndOfThoughtConfig = EndOfThoughtConfig()
    """When an utterance is over before or after `end_of_speech_ms`."""

    @model_validator(mode="after")
    def _readable(self) -> RecogniserConfig:
        if self.url and not self.url.startswith(("ws://", "wss://")):
            raise ValueError(f"recogniser.url has the scheme {_scheme(self.url)!r}, expected ws:// or wss://")
        return self


class RecordingConfig(Section):
    """Stereo WAV files of calls: the left channel is the caller, the right one is the bot as the caller heard it."""

    folder: LocalPath = ""
    """Folder for recordings, made at the start if it is not there. Empty: no route records."""
    max_s: float = Field(3600.0, gt=0)
    """Longest recording, seconds."""
    max_rate: int = Field(48_000, ge=8000)
    """Highest sample rate, hertz. A recording has its line's: 8000 for mu-law and A-law, 16000 for G.722, 48000 for
    Opus. It takes 4 bytes a sample: 115, 230, 691 MB an hour. 16000 is enough for words."""
    hang_s: float = Field(10.0, gt=0)
    """Seconds for which the disk may not answer; then recordings that wait for it are given up. More survives longer
    stalls, and holds so much more sound in memory."""
    keep_days: int | None = Field(None, ge=1)
    """Days after which a recording is deleted, at start and once a day; other files there stay. Default: never."""
    encrypt: SecretStr | None = None
    """Key with which recordings are encrypted, 64 hexadecimal digits, from the environment: `${NAME}`; `openssl rand
    -hex 32` makes one. `talkspurt recording decrypt` opens them. Who loses the key loses the recordings. Default: not
    encrypted."""

    @property
    def key(self) -> bytes | None:
        """The key of ``encrypt``, 32 bytes. None: recordings are not encrypted."""
        return bytes.fromhex(self.encrypt.get_secret_value()) if self.encrypt is not None else None

    @model_validator(mode="after")
    def _key_is_whole(self) -> RecordingConfig:
        text = self.encrypt.get_secret_value() if self.encrypt is not None else "0" * 64
        if len(text) != 64 or not set(text) <= set(string.hexdigits):
            raise ValueError(f"recording.encrypt is {len(text)} characters, expected 64 hexadecimal digits")
        return self


class CallsConfig(Section):
    """The log of ended calls: numbers, times, waits, how each turn ended. `GET /v1/calls?ended=true` shows it."""

    folder: LocalPath = ""
    """Folder of the log, an SQLite database. Empty: ended calls are forgotten."""
    keep_days: int = Field(30, ge=1)
    """Days after which a call is deleted from the log."""
    max_calls: int = Field(100_000, ge=1)
    """Most calls in the log; beyond that the oldest are deleted. With text, a call of ten turns takes some 6 kB."""
    keep_text: bool = False
    """Whether the log keeps what was said, and the keys that were pressed. Tell callers where the law asks for it."""


class RecordsConfig(Section):
    """Records of calls and requests, one each: what tenants are billed by. `/v1/records` and `/v1/usage` show them."""

    database_url: str = ""
    """SQLite database of the records, `sqlite:////var/lib/talkspurt/records.sqlite3`; with three slashes the path is
    relative to this file. Empty: `/v1/usage` counts in memory and begins again with the process."""
    numbers: bool = False
    """Whether a record has the numbers of a call. Off, there is nothing in it of who called whom."""
    keep_days: int = Field(400, ge=1)
    """Days after which a record is deleted. Usage by day is kept for 400 days."""
    write_ahead_s: float = Field(5.0, gt=0)
    """How often what is known of live calls and requests is written, seconds. After a crash their records end with what
    was written last, so a call's length is short of the truth by this much at most. Less costs a sync of the disk each
    time."""

    begin_wait_s: float = Field(0.2, gt=0)
    """Longest wait of a call for the beginning of its record to be in the file, seconds. Before that the call is not
    answered and says nothing, so that a crash leaves no call without a record. It takes a millisecond or so, while
    the manager is connected. If the disk hangs, the first calls wait for this long, further ones do not wait, and all
    of them are counted. More waits for slower disks; less lets such a disk delay calls for less."""

    webhook_url: str = ""
    """Address to which each record of an ended call or request is sent, as JSON. Needs `database_url`, where records
    wait for it."""
    webhook_secret: SecretStr | None = None
    """Secret that signs them (Standard Webhooks): `whsec_` and the base64 of 24 to 64 random bytes. Several with spaces
    between them all sign, for the time in which a receiver changes over to a new one."""
    webhook_timeout_s: float = Field(10.0, gt=0)
    """How long the receiver may take to answer, seconds."""
    webhook_keep_hours: float = Field(72.0, gt=0)
    """Hours after which a record that the receiver has not taken is given up and counted. It stays in `/v1/records`."""
    webhook_pending: int = Field(100_000, ge=1)
    """Most records that wait for the receiver; beyond that the oldest are given up. One takes some 600 bytes."""

    @field_validator("webhook_url")
    @classmethod
    def _of_http(cls, url: str) -> str:
        if url:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
                raise ValueError("expected an address such as https://billing.example.com/calls, without a user")
        return url

    @field_validator("webhook_secret")
    @classmethod
    def _of_standard_webhooks(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            _webhook_keys(secret)
        return secret

    @model_validator(mode="after")
    def _complete(self) -> RecordsConfig:
        if self.webhook_url and not (self.database_url and self.webhook_secret):
            raise ValueError("webhook_url needs database_url, where records wait, and webhook_secret, which signs them")
        return self

    @property
    def webhook_keys(self) -> tuple[bytes, ...]:
        """The keys of ``webhook_secret``."""
        return _webhook_keys(self.webhook_secret) if self.webhook_secret is not None else ()

    @field_validator("database_url")
    @classmethod
    def _of_sqlite(cls, url: str, info: ValidationInfo) -> str:
        if not url:
            return url
        path = url.removeprefix(_SQLITE)
        if path in (url, ""):
            raise ValueError(f"expected {_SQLITE}PATH, other databases are not available")
        return _SQLITE + _beside_the_file(path, info)

    @property
    def path(self) -> str:
        """The database's file."""
        return self.database_url.removeprefix(_SQLITE)


class PostgresConfig(Section):
    """A PostgreSQL in which several gateways keep ended calls (`calls`) and records (`records`) together."""

    url: SecretStr | None = None
    """Address, `postgresql://USER:PASSWORD@HOST:5432/DATABASE`; with `?host=/run/postgresql` over the Unix socket in
    that folder. `?sslmode=`: `prefer` (TLS if the server has it), `disable`, `require`, `verify-full` (and its
    certificate is checked). Needs the extra `postgres`, and `calls.folder` or `records.database_url`, where what has
    ended waits. `calls.keep_days`, `calls.max_calls` and `records.keep_days` then count for the database."""
    timeout_s: float = Field(5.0, gt=0)
    """How long it may take to connect and to answer, seconds. More lets longer searches end; less finds a hung database
    sooner. Calls never wait for it."""
    move_every_s: float = Field(1.0, gt=0)
    """How often what has ended is moved there, seconds. Less shows it to the other gateways sooner."""
    max_waiting: int = Field(100_000, ge=1)
    """Most ended calls, and most records, that wait on the local disk while the database is away. Beyond that the
    oldest are given up and counted. A record takes some 300 bytes, a call with text some 6 kB."""

    @field_validator("url")
    @classmethod
    def _of_postgres(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url.get_secret_value())
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            known = options.keys() <= {"host", "sslmode"} and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or parts.scheme != "postgresql" or not (parts.hostname or options.get("host")):
            raise ValueError("expected postgresql://USER:PASSWORD@HOST:5432/DATABASE, maybe with ?host= and ?sslmode=")
        if not parts.username or not parts.path.strip("/"):
            raise ValueError("expected a user and a database: postgresql://USER:PASSWORD@HOST:5432/DATABASE")
        if options.get("sslmode", "prefer") not in ("disable", "prefer", "require", "verify-full"):
            raise ValueError("sslmode is unknown, expected disable, prefer, require or verify-full")
        if importlib.util.find_spec("pg8000") is None:
            raise ValueError("wants PostgreSQL's client: pip install 'talkspurt[postgres]'")
        return url


def _webhook_keys(secret: SecretStr) -> tuple[bytes, ...]:
    keys = []
    for each in secret.get_secret_value().split():
        try:
            key = base64.b64decode(each.removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not each.startswith("whsec_") or not 24 <= len(key) <= 64:
            raise ValueError("expected whsec_ and the base64 of 24 to 64 bytes: echo whsec_$(openssl rand -base64 32)")
        keys.append(key)
    if not keys:
        raise ValueError("expected whsec_ and the base64 of 24 to 64 bytes, got nothing")
    return tuple(keys)


class ClipsConfig(Section):
    """Sources of `play`."""

    folder: LocalPath = ""
    """Folder whose files may be played; empty: none."""
    fetch: bool = True
    """Fetch https sources. Only public addresses are fetched from, which is checked after name look-up and on every
    redirect."""
    max_bytes: int = Field(20_000_000, gt=0)
    """Largest clip, bytes."""
    timeout_s: float = Field(10.0, gt=0)
    """Longest fetch, seconds."""


Scope = Literal["speak", "calls", "read", "admin", "browser"]
"""What a key may do."""

SCOPES: tuple[Scope, ...] = get_args(Scope)


class KeyRights(Section):
    """Whose a key is, and what it may do."""

    tenant: str = Field("default", min_length=1)
    """Whose key this is. Tenants do not see each other's routes (`routes.NAME.tenant`), calls, events and usage."""
    scopes: tuple[Scope, ...] | None = None
    """What the key may do. `speak`: speech API, voices, models, usage. `calls`: place, lead, hear and end calls,
    `/v1/dialogue`. `read`: calls, events, routes. `browser`: calls from browsers, and tokens for them. `admin`:
    `/metrics`, `/v1/models/active`, and the routes of all tenants. Default: all of them; if there are several tenants,
    all but `admin`."""
    requests_per_minute: int = Field(600, gt=0)
    """Most requests with this key in any minute (a sliding window)."""
    concurrent_calls: int = Field(100, gt=0)
    """Most live calls placed with this key and speech requests of this key at a time, together, on all workers."""
    calls_per_minute: int = Field(60, gt=0)
    """Most calls that this key places in a minute, on all workers together: a bucket of this many, which fills again
    within a minute."""
    priority: int = Field(3, ge=0, le=9)
    """Whose speech over HTTP goes first where the engine has no place for all: that of the larger number. Turns of
    calls have their route's (`routes.NAME.priority`), 5 by default, whichever key has placed the call."""


class ApiKey(KeyRights):
    """A key and its tenant."""

    key: SecretStr = Field(min_length=1)
    """The key, from the environment: `${NAME}`."""


JwtAlgorithm = Literal["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]


class JwtConfig(Section):
    """JSON Web Tokens that another service signs, for example an OpenID Connect provider. A token says its tenant, its
    scopes (claim `scope`, names with spaces between) and its end (`exp`)."""

    issuer: str = Field(min_length=1)
    """What a token's `iss` has to be."""
    audience: str = Field(min_length=1)
    """What a token's `aud` has to be or hold."""
    algorithms: tuple[JwtAlgorithm, ...] = Field(min_length=1)
    """Signatures that count. `HS…` with `secret`; `RS…` and `ES…` with `jwks_file`; never both kinds."""
    jwks_file: LocalPath = ""
    """The issuer's public keys, a JWKS file. The server looks at it every second, and new keys count within two. Who
    fetches it from the issuer is yours to say: a timer with curl, for example."""
    secret: SecretStr | None = None
    """What an issuer of `HS…` signs with, from the environment; at least as many bytes as the hash has (32, 48, 64)."""
    tenant_claim: str = Field("tenant", min_length=1)
    """Claim with the name of the tenant."""
    leeway_s: float = Field(30.0, ge=0, le=300)
    """How far the issuer's clock may be from ours, seconds. A token is good for so much longer than it says."""

    @model_validator(mode="after")
    def _one_kind(self) -> JwtConfig:
        if bool(self.jwks_file) == (self.secret is not None):
            raise ValueError("set either jwks_file (RS, ES) or secret (HS)")
        for algorithm in self.algorithms:
            if algorithm.startswith("HS") != (self.secret is not None):
                raise ValueError(f"{algorithm} wants {'secret' if algorithm.startswith('HS') else 'jwks_file'}")
            wanted = int(algorithm[2:]) // 8
            if self.secret is not None and len(self.secret.get_secret_value().encode()) < wanted:
                raise ValueError(f"secret has less than the {wanted} bytes that {algorithm} wants")
        return self


class AuthConfig(Section):
    """Who may use `/`, `/v1` and `/metrics`."""

    api_keys: tuple[ApiKey, ...] = ()
    """Keys that are accepted as `Authorization: Bearer KEY`."""
    keys_file: LocalPath = ""
    """File with the keys that `talkspurt keys create` makes; it has their SHA-256 digests, not the keys. The server
    looks at it every second: a new or revoked key counts within two seconds. A file that is not there has no keys."""
    jwt: JwtConfig | None = None
    """JSON Web Tokens that are accepted as keys are. Without this section there are none."""
    token_s: int = Field(600, gt=0)
    """Life, in seconds, of a browser's token (`POST /v1/tokens`) that names none. A browser that lost its network needs
    the token again, so more lets long calls come back; less limits misuse of a token that got about."""
    token_max_s: int = Field(86_400, gt=0)
    """Longest life, in seconds, that a browser's token may name."""
    session_s: int = Field(43_200, gt=0)
    """How long a browser stays signed in to the pages, seconds."""
    failures_per_minute: float = Field(6.0, gt=0)
    """How many different unknown keys one address may send per minute, on average. Beyond that, each further new key
    from the address is answered with 429. Less makes guessing slower; more forgives mistyping. Behind a proxy set
    `server.trusted_proxies`, or all clients count as one address."""
    failures_burst: int = Field(20, gt=0)
    """How many unknown keys one address may send at once."""

    @property
    def required(self) -> bool:
        """Whether protected requests need a proof of who asks."""
        return bool(self.api_keys or self.keys_file or self.jwt)


class TenantLimits(Section):
    """What one tenant may use, by all its keys together. A limit that is left out is none."""

    requests_per_minute: int | None = Field(None, gt=0)
    """Most requests in any minute (a sliding window)."""
    characters_per_minute: int | None = Field(None, gt=0)
    """Most characters that the speech API takes in any minute (a sliding window). What a call speaks does not count."""
    calls_at_once: int | None = Field(None, gt=0)
    """Most live calls of the tenant's routes, however they came."""
    streams_at_once: int | None = Field(None, gt=0)
    """Most requests of the speech API that speak at a time."""


def _of_redis(url: SecretStr | None) -> SecretStr | None:
    if url is not None:
        if _scheme(url.get_secret_value()) not in ("redis", "rediss", "unix"):
            raise ValueError("expected an address that begins with redis://, rediss:// or unix://")
        if importlib.util.find_spec("redis") is None:
            raise ValueError("wants Redis' client: pip install 'talkspurt[redis]'")
    return url


class LimitsConfig(Section):
    """Bounds. What exceeds them is refused, never queued without end."""

    calls: int = Field(500, gt=0)
    """Most live calls of this process. One more is rejected; at the limit the readiness check answers 503."""
    tick_lateness_ms: int = 0
    """Take no new calls, and answer the readiness check with 503, while the 99th percentile of how late ticks of the
    frame timer were in the last five seconds is over this, milliseconds, until it is below the next smaller value. One
    of 5, 10, 20 and 50; 20 is one frame, which callers' jitter buffers still hide. Less keeps calls smoother; more lets
    more in. 0: never."""
    turn_chars: int = Field(20_000, gt=0)
    """Longest text of one turn, characters."""
    turns_queued: int = Field(64, gt=0)
    """Most turns that may wait in one call."""
    message_bytes: int = Field(1_000_000, gt=0)
    """Largest WebSocket message or REST body, bytes; reference audio of a voice has its own bound, `voice_bytes`."""
    voice_bytes: int = Field(12_000_000, gt=0)
    """Largest reference audio of a voice, bytes; 30 s of 48 kHz stereo float32 are 11.5 MB. The audio also has to fit
    into `engine.message_bytes`."""
    errors_in_a_row: int = Field(10, gt=0)
    """After this many bad dialogue messages in a row, the socket is closed with 1007."""
    setup_timeout_s: float = Field(10.0, gt=0)
    """Longest time from the opening of a media socket to its start message, seconds."""
    connections: int = Field(0, ge=0)
    """Most TCP connections of the HTTP listener. When one more comes, the connection that has been idle for longest is
    closed. 0: three quarters of the files that the system lets us open."""
    connections_per_address: int = Field(1000, gt=0)
    """Most sockets of one remote address."""
    idle_s: float = Field(75.0, gt=0)
    """How long an HTTP connection may stay open without a request, seconds. More saves regular clients a handshake."""
    body_s: float = Field(60.0, gt=0)
    """How long the body of a request may take, seconds. More lets slow clients upload long reference audio."""
    tenant: TenantLimits = TenantLimits()
    """What each tenant may use that `tenants` does not name."""
    tenants: dict[str, TenantLimits] = {}
    """What single tenants may use, by name. Such an entry counts as a whole: what it leaves out is not limited."""
    redis_url: SecretStr | None = None
    """Redis in which several gateways count their tenants' limits together, `redis://:PASSWORD@HOST:6379/0` or
    `rediss://` (TLS). Needs the extra `redis`. Without it each process counts for itself."""
    redis_timeout_s: float = Field(0.25, gt=0)
    """How long Redis may take to answer, seconds. Then it counts as gone for a second."""
    redis_outage: Literal["local", "refuse"] = "local"
    """What happens while Redis does not answer. `local`: each gateway limits by what it counted itself, so a tenant may
    get up to as many times its limit as there are gateways. `refuse`: whatever is limited is answered with 503."""

    _redis_can_be_asked = field_validator("redis_url")(_of_redis)

    @field_validator("tick_lateness_ms")
    @classmethod
    def _is_counted(cls, value: int) -> int:
        if value not in (0, 5, 10, 20, 50):  # bounds of the histogram of ticks
            raise ValueError(f"{value} is not counted, expected 0, 5, 10, 20 or 50")
        return value


class DirectoryConfig(Section):
    """What several gateways know together: which stream tokens have begun a call, and what ended calls left for the
    webhook `…/after` or a dialplan."""

    redis_url: SecretStr | None = None
    """Redis that all gateways share, `redis://:PASSWORD@HOST:6379/0` or `rediss://` (TLS). Needs the extra `redis`,
    and `server.stream_token_secret`, the same for all. Without it each gateway knows its own calls only. While Redis
    does not answer, calls begin and go on; what a call of another gateway left is answered with 503."""
    address: str = Field("", pattern=r"^$|^https?://[^/]+/?$")
    """Where the other gateways reach this one, e.g. `http://10.0.0.5:8080`; each has its own. Requests about a call of
    another gateway (`/v1/calls/{id}…`, WHIP) are then passed on to that one. Empty: they are answered with 404."""
    redis_timeout_s: float = Field(0.5, gt=0)
    """How long Redis may take to answer, seconds. More rides out a slow Redis; less answers 503 sooner."""

    _redis_can_be_asked = field_validator("redis_url")(_of_redis)


class IceServerConfig(Section):
    """A STUN or TURN server."""

    urls: tuple[str, ...] = Field(min_length=1)
    """`stun:host:port`, `turn:host:port?transport=udp`, `turns:...`."""
    username: str = ""
    """User at the TURN server. With `secret`, the user name that browsers get is the expiry time followed by this."""
    credential: SecretStr | None = Field(None, min_length=1)
    """Fixed password. Every browser is told it, so prefer `secret`."""
    secret: SecretStr | None = Field(None, min_length=1)
    """Secret shared with the TURN server. Credentials are made for each request and expire after `credential_s`."""

    @model_validator(mode="after")
    def _one_way(self) -> IceServerConfig:
        for url in self.urls:
            if not url.startswith(("stun:", "stuns:", "turn:", "turns:")):
                raise ValueError(f"ICE server is {url!r}, expected stun:, stuns:, turn: or turns:")
        if self.credential is not None and self.secret is not None:
            raise ValueError("an ICE server has a credential or a secret, not both")
        return self


class WebRtcConfig(Section):
    """Calls from browsers."""

    addresses: tuple[str, ...] = ()
    """Local addresses that media is received on. Empty: all addresses of this machine except loopback, or loopback if
    there are no others."""
    public_address: str = ""
    """IP address that browsers are told instead of the local ones, for a machine behind a one-to-one NAT (most clouds).
    """
    ports: str = ""
    """UDP ports for media, e.g. `40000-49999`; each call takes one on each address. Empty: any free port."""
    ice_servers: tuple[IceServerConfig, ...] = ()
    """STUN and TURN servers for browsers, which learn them from `GET /v1/webrtc/ice` and WHIP."""
    gather_from_servers: bool = False
    """Ask the first STUN and TURN server for addresses of our own too. Use this only if browsers cannot reach our
    ports, because each call then waits for those servers."""
    credential_s: int = Field(3600, ge=60)
    """Life of TURN credentials made from a `secret`, seconds. More survives long calls; less limits misuse."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may call, e.g. `https://www.example.com`; `*`: all."""
    calls_per_address: int = Field(50, gt=0)
    """Most live calls of one remote address."""
    connect_timeout_s: float = Field(15.0, gt=0)
    """Longest time from our answer until media flows, seconds; a call that takes longer is dropped."""
    lost_after_s: float = Field(10.0, gt=0)
    """A browser that sends nothing (no media, no report, no check) for this many seconds counts as lost. Less frees
    calls sooner; more rides out a bad network. Browsers check every 2 to 5 s."""
    restart_s: float = Field(15.0, ge=0)
    """How long a lost browser may come back to its call with a new offer, seconds."""
    lead_ms: int = Field(40, ge=0, le=200)
    """How far ahead of real time frames are sent, milliseconds, at most `playout.lead_ms`. A browser plays smoothly
    only when its jitter buffer has filled, and a lead fills the buffer at once. With less, the caller hears less of a
    turn after its cut."""
    data_channel: bool = True
    """Give a browser the data channel `talkspurt` of its call: captions, turns, its user's words. A browser that called
    with a token of scope `lead`, with an API key of scope `calls`, or where no keys are required, also leads the
    dialogue there: it sees everything and may say anything."""
    message_bytes: int = Field(65_536, ge=1024)
    """Largest message on the data channel, bytes."""

    @property
    def port_range(self) -> tuple[int, int] | None:
        """Lowest and highest port of `ports`; None if `ports` is empty."""
        low, _, high = self.ports.partition("-")
        return (int(low), int(high)) if self.ports else None

    @model_validator(mode="after")
    def _readable(self) -> WebRtcConfig:
        if self.ports:
            low, _, high = self.ports.partition("-")
            if not (low.isdigit() and high.isdigit() and 1024 <= int(low) <= int(high) <= 65535):
                raise ValueError(f"webrtc.ports is {self.ports!r}, expected LOW-HIGH within 1024-65535")
        for address in filter(None, (self.public_address, *self.addresses)):
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise ValueError(f"webrtc address is {address!r}, expected an IP address") from None
        return self


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as exc:
            raise ValueError(f"{value!r} is no address or network: {exc}") from None
    return values


Networks = Annotated[tuple[str, ...], AfterValidator(_networks)]
"""Addresses or networks, `10.0.0.7` or `10.0.0.0/24`."""


class AudioSocketConfig(Section):
    """Asterisk AudioSocket, which has a TCP listener of its own. Without this section there is no such listener."""

    host: str = "127.0.0.1"
    """Address to listen on. The protocol has neither keys nor TLS, so use it only in a private network."""
    port: int = Field(9092, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    allowed: Networks = ("127.0.0.0/8", "::1/128")
    """Addresses and networks of the Asterisk servers that may connect."""
    route: str = ""
    """Route of calls that nobody announced with `PUT /v1/calls/expected/{uuid}`. Empty: such calls are refused."""
    connections: int = Field(500, gt=0)
    """Most sockets at a time; one more is closed at once."""
    expected_calls: int = Field(10_000, gt=0)
    """Most announced calls that are waited for at a time; one more is answered with 503."""
    expected_s: float = Field(60.0, gt=0)
    """How long an announced call is waited for, seconds. More suits callers who still hear ringing."""
    first_audio_ms: int = Field(800, ge=0)
    """How long the first audio frame, which tells the sample rate, is waited for, milliseconds. A call without a frame
    by then has 8 kHz. Asterisk's `Answer` lets audio through half a second late. Less starts calls that send no audio
    sooner."""
    keepalive_ms: int = Field(1000, ge=100, le=1900)
    """When we have sent nothing for this many milliseconds, one frame of silence is sent, because Asterisk ends a call
    that gets nothing for 2000 ms."""


class MetricsConfig(Section):
    """Prometheus."""

    enabled: bool = True
    """Serve `/metrics`."""


class LogConfig(Section):
    """Logging; no caller audio, text or digits at any level."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is written."""
    json_lines: bool = False
    """One JSON object a line instead of text."""


class TracingConfig(Section):
    """One OpenTelemetry trace for each call, with the stages of each first packet as spans. Needs the extra
    `[otel]`."""

    endpoint: str = Field(pattern=r"^https?://[^\s]+$")
    """Where a collector takes traces by OTLP over HTTP, e.g. `http://127.0.0.1:4318/v1/traces`."""
    headers: dict[str, SecretStr] = {}
    """Headers of each request, e.g. a key of the collector's."""
    service_name: str = Field("talkspurt", min_length=1)
    """Name of this service in the traces."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the calls that are traced. A turn takes 0.2 ms of the event loop, and as long of the thread that sends.
    """
    queue_spans: int = Field(8192, ge=64)
    """How many spans may wait for the collector. While it is gone, what is over is dropped."""
    timeout_s: float = Field(10.0, gt=0)
    """Longest request to the collector, and longest wait for it at the end, seconds."""
