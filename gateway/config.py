"""Sections of the configuration that the gateway reads. The docstring of a field gives its unit and its trade-off."""

from __future__ import annotations

import base64
import importlib.util
import ipaddress
import os
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
    value = os.path.expanduser(value)
    return str(Path(folder, value)) if folder and value else value


# Paths are relative to the configuration file (validation context ``folder``). Its ``access`` says how each is checked
# before a start.
_LocalPath = Annotated[str, AfterValidator(_beside_the_file)]

FileToRead = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "file"})]
"""A file that has to be there at the start."""

FolderToRead = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "folder"})]
"""A folder that has to be there at the start."""

FolderToWrite = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "written"})]
"""A folder that is made where it is missing."""

FileOfKeys = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "keys"})]
"""A file that ``talkspurt keys`` may make after the start."""


def _as_number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


NUMBER = BeforeValidator(_as_number)
"""Turns the text of the file into a number, because a Literal of numbers does not take text."""


_SQLITE = "sqlite:///"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address, or a listener on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _scheme(url: str) -> str:
    """Return the part of an address that an error may show. The rest may hold a password or a key."""
    return urlsplit(url).scheme


def _of_scheme(url: str, *schemes: str) -> str:
    """Return an address, or nothing, unchanged.

    Raises:
        ValueError: it has another scheme, no host, or white space. The message names the scheme only.
    """
    parts = urlsplit(url)
    if url and (parts.scheme not in schemes or not parts.hostname or any(c.isspace() for c in url)):
        begins = " or ".join(f"{scheme}://" for scheme in schemes)
        what = f"the scheme {parts.scheme!r}" if "://" in url else "no scheme"
        raise ValueError(f"an address with {what}, expected {begins} and a host")
    return url


HttpUrl = Annotated[str, AfterValidator(lambda url: _of_scheme(url, "https", "http"))]
"""``https://`` or ``http://`` with a host, or empty."""

WebSocketUrl = Annotated[str, AfterValidator(lambda url: _of_scheme(url, "wss", "ws"))]
"""``wss://`` or ``ws://`` with a host, or empty."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


def _origin(value: str) -> str:
    """Return an origin in lower case, without the default port and path."""
    if value in ("*", "null"):
        return value
    parts = urlsplit(value.rstrip("/"))
    if not parts.scheme or not parts.hostname or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{value!r} is no origin, expected https://app.example.com, or * for all")
    return origin_of(value)


def origin_of(url: str) -> str:
    """Return the origin of an address as browsers write it (RFC 6454 section 6.2)."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    named = parts.port is not None and parts.port != _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if named else "")


Origin = Annotated[str, AfterValidator(_origin)]
"""An origin, `https://app.example.com`; `*`: all."""


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError as exc:
            raise ValueError(f"expected addresses or networks, 10.0.0.7 or 10.0.0.0/24; {exc}") from None
    return values


Networks = Annotated[tuple[str, ...], AfterValidator(_networks)]
"""Addresses or networks: `10.0.0.7`, `10.0.0.0/24`."""


class Section(BaseModel):
    """A section of the file. It is frozen, an unknown key is an error, and its docstrings make the reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TlsConfig(Section):
    """TLS of the HTTP listener. New files are taken within ten seconds, without a restart."""

    certificate: FileToRead
    """PEM file of the certificate chain."""
    key: FileToRead
    """PEM file of the private key."""


class ServerConfig(Section):
    """The HTTP listener: console, REST, metrics, dialogue and media WebSockets, speech API."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback, `/`, `/v1` and `/metrics` need `auth` or `insecure: true`."""
    port: int = Field(8080, ge=0, le=65535)
    """TCP port; 0 takes a free one and prints it."""
    public_url: HttpUrl = ""
    """Public address of this server, `https://voice.example.com`. Carriers sign it, and webhooks answer with it. Empty:
    the address of each request."""
    origins: tuple[Origin, ...] = ()
    """Other sites whose pages may open our WebSockets and send requests, `https://app.example.com`; `*`: all. Calls
    from browsers have `webrtc.allowed_origins`."""
    tls: TlsConfig | None = None
    """Serve TLS here. Leave it out behind a proxy that serves TLS."""
    trusted_proxies: Networks = ()
    """Addresses or networks whose `X-Forwarded-*` headers count."""
    workers: int = Field(1, ge=1, le=64)
    """Gateway processes behind the port, with one engine (`docs/scaling.md`). Each needs a core of its own."""
    drain_s: float = Field(30.0, ge=0)
    """Time for live calls to end after SIGTERM, seconds. More loses fewer calls; less restarts sooner."""
    drain_notice_s: float = Field(0.0, ge=0)
    """Time after SIGTERM in which `/readyz` answers 503 and new calls are still taken, seconds; then `drain_s`
    begins. Behind HAProxy or Envoy: a second more than their checks take (3 with our samples)."""
    insecure: bool = False
    """Serve `/`, `/v1` and `/metrics` beyond loopback without `auth`. For private networks only, never with
    `public_url`."""
    stream_token_secret: SecretStr | None = Field(None, min_length=1)
    """Key that signs stream tokens, those of `POST /v1/tokens`, and sign-ins. Needed for several instances and for
    sign-ins that outlive a restart. Default: random."""

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches us: the listener is on loopback, and no proxy leads others to it."""
        return is_loopback(self.host) and not self.public_url and not self.trusted_proxies


class DialogueConfig(Section):
    """The dialogue manager of a route: `url` (we dial out), `script` (built in), or neither (managers dial in)."""

    url: WebSocketUrl = ""
    """WebSocket of the dialogue manager, `ws://` or `wss://`; one connection per call."""
    script: FileToRead = ""
    """YAML file of the built-in script dialogue (`docs/script.md`)."""
    audio: bool = False
    """The manager makes its own sound: it opens `/v1/audio/{call}` for each announced call (`docs/raw-audio.md`)."""
    headers: dict[str, str] = {}
    """Extra request headers of the dial-out."""
    auth_token: SecretStr | None = Field(None, min_length=1)
    """Key that signs the dial-out: `X-Twilio-Signature` over `url` as written here."""
    extensions: bool | None = None
    """Send fields and messages beyond ConversationRelay, and let a caller who interrupts withdraw `end` and `transfer`.
    Default: on for dial-in, scripts and REST, off for dial-out."""
    reconnect: bool = True
    """Dial again when the connection breaks (not after a close with 1000 or 1001)."""
    give_up_s: float = Field(30.0, ge=0)
    """Longest wait of a call for its manager, seconds; then `fallback.transfer`, or the call ends."""
    ping_s: float = Field(20.0, gt=0)
    """WebSocket ping interval, seconds. A peer that is silent for twice as long counts as lost."""
    end_drain: bool = True
    """Let queued speech finish before `end` ends the call. Off: the call ends at once, as on Twilio."""
    transfer_wait_s: float = Field(30.0, ge=0)
    """Longest wait of `transfer` for the speech queued before it, seconds. 0: at once."""
    stale_ms: int = Field(300, ge=0)
    """Time in which the tail of an interrupted token stream is dropped, milliseconds. After a digit it runs once; after
    speech it restarts with each token. More may drop real answers; less may speak tails."""

    @model_validator(mode="after")
    def _one_way(self) -> DialogueConfig:
        if self.url and self.script:
            raise ValueError("dialogue names both url and script; a route has one of them")
        if self.audio and (self.url or self.script):
            raise ValueError("dialogue.audio excludes url and script: the manager opens the call's audio socket")
        return self

    @property
    def sends_extensions(self) -> bool:
        """True if the route's manager receives extensions."""
        return bool(self.extensions) if self.url else self.extensions is not False


class RouteBargeIn(Section):
    """Interruptions on one route. A key that is left out takes the value of section `barge_in`."""

    min_speech_ms: int | None = Field(None, ge=32)
    """See `barge_in.min_speech_ms`, milliseconds."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """See `barge_in.threshold`, a probability."""
    false_alarm_ms: int | None = Field(None, ge=0)
    """See `barge_in.false_alarm_ms`, milliseconds."""


def _target_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if (
            not re.fullmatch(r"(?:sips?:)?[A-Za-z0-9+*#%_.!~'()&=$-]*(?:@?[A-Za-z0-9*.:\[\]-]+)?", pattern)
            or not pattern
        ):
            raise ValueError(f"target pattern is {pattern!r}, expected a number (+49*), a name, or user@host")
    return patterns


TargetPatterns = Annotated[tuple[str, ...], AfterValidator(_target_patterns)]
"""Patterns of allowed targets; ``gateway.calling.targets.Patterns`` reads them."""


class CallingConfig(Section):
    """Allowed targets and caller ids of `transfer` (all transports) and of `POST /v1/calls`. Other targets are
    refused."""

    allowed_targets: TargetPatterns = ()
    """Targets that may be called: numbers (`+4930*`), extensions (`agent-7`), SIP addresses (`*@pbx.example`). `*`
    stands for any characters except `*` and `#`; `%2A` is a star. Without a port, any port. Empty:
    none. SIP calls may use `sip.allowed_targets` too."""
    denied_targets: TargetPatterns = ()
    """Exceptions from all allowed targets, in the same form. A number also excepts SIP addresses with that user."""
    caller_ids: TargetPatterns = ()
    """Numbers and SIP addresses that `POST /v1/calls` may name as `from`. Empty: only the trunk's own."""
    sip_headers: tuple[str, ...] = ("X-*",)
    """SIP headers that `POST /v1/calls` may set. A `*` ends a prefix. `P-Asserted-Identity` lets requests show any
    caller id, so list it only if you trust every key."""
    post_dial: bool = False
    """Allow keys to be pressed after the answer, or an extension, in a number (`+4930123,,7`, `;ext=7`). The result
    depends on the carrier."""
    international_prefixes: tuple[str, ...] = ("00",)
    """Prefixes that stand for `+` in a number. In North America: `011`."""
    bridge_identity: Literal["trunk", "caller"] = "trunk"
    """Number that the person of a bridged transfer sees. `trunk`: the trunk's own number. `caller`: the caller's, in
    From and `P-Asserted-Identity`, with the called number in `Diversion`; the carrier must allow it."""
    bridge_longest_s: float = Field(14_400.0, gt=0)
    """Longest time for which two calls are joined, seconds. It bounds the cost of a call that no one ends."""


class RouteCalling(Section):
    """Allowed targets of the calls of one route, and their number."""

    allowed_targets: TargetPatterns | None = None
    """Targets of this route, in place of `calling.allowed_targets` and `sip.allowed_targets`. Default: those."""
    calls_per_minute: int = Field(300, gt=0)
    """Most transfers and placed calls in a minute (a bucket that refills within a minute). It bounds fraud."""
    calls_at_once: int = Field(100, gt=0)
    """Most live placed calls."""


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
    """Treatment of a caller whose dialogue manager is lost. A text in the place of the section is its `text`."""

    text: str = ""
    """Spoken while the dialogue manager is lost and may come back."""
    transfer: str = ""
    """Number or SIP address for the caller when no dialogue manager can be had; it needs no entry in
    `calling.allowed_targets`. Empty, or if that fails: the call ends with the reason `dialogue_failed`, and `after_url`
    or the dialplan decides."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: object) -> object:
        return {"text": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        section = handler(schema)
        return {"description": section["description"], "anyOf": [{"type": "string"}, section]}


class AnswerConfig(Section):
    """Treatment of outgoing calls by who has answered (`docs/outgoing-calls.md`)."""

    wait: bool = False
    """Stay silent until a person has answered, or it is unknown who has (8 s of silence). Off: speak at once."""
    message: str = ""
    """Spoken to an answering machine after its recording tone; then the call ends. Empty: the manager decides."""
    screening: str = ""
    """Spoken to a screening assistant; the bot then waits for the person. Empty: the manager decides."""
    hang_up: tuple[Literal["machine", "screening", "ivr", "unknown"], ...] = ()
    """Answers that end the call at once."""

    @model_validator(mode="after")
    def _one_treatment(self) -> AnswerConfig:
        for by, text in (("machine", self.message), ("screening", self.screening)):
            if text and by in self.hang_up:
                name = "message" if by == "machine" else by
                raise ValueError(f"answer.hang_up has {by}, so answer.{name} would never be spoken")
        return self


class SiprecConfig(Section):
    """Copy of calls to a session recording server by SIP (SIPREC), one stream for each side."""

    recorder: str = ""
    """Address, `sip:host[:port][;transport=udp|tcp|tls]`; at the `proxy` of a trunk, with its account and `srtp`."""
    start: Literal["call", "message"] = "call"
    """Begin with the call, or at the message `record` with the state `start`."""

    @field_validator("recorder")
    @classmethod
    def _uri(cls, recorder: str) -> str:
        if recorder and not recorder.startswith(("sip:", "sips:")):
            raise ValueError(f"siprec.recorder is {recorder!r}, expected sip:host[:port][;transport=udp|tcp|tls]")
        return recorder


MOST_ROUTE_LANGUAGES = 50
"""Most languages of a route. A manager may declare as many again."""


class RouteLanguage(Section):
    """A language that the dialogue manager may switch to (TwiML's `<Language>`)."""

    code: str = Field(min_length=1, max_length=35)
    """BCP 47 tag."""
    voice: str = ""
    """Voice id of this language. Empty: the route's `voice`."""
    hints: tuple[str, ...] | None = None
    """Phrases that the recogniser should expect in this language. Default: the route's `hints`."""


class RouteConfig(Section):
    """Treatment of calls, by the route's name in the address. Keys are named as ConversationRelay's attributes."""

    tenant: str = ""
    """Tenant of this route, whose keys see its calls; keys with the scope `admin` see all. Empty: the only tenant; with
    several tenants, only `admin`."""

    dialogue: DialogueConfig = DialogueConfig()
    """The dialogue manager."""
    voice: str = ""
    """Voice id. Empty: the engine's default."""
    language: str = "en-US"
    """BCP 47 tag of the spoken and the recognised language."""
    languages: Annotated[tuple[RouteLanguage, ...], Field(max_length=MOST_ROUTE_LANGUAGES)] = ()
    """Further languages; the manager switches with the message `language`, or for one turn with `lang`."""
    welcome_greeting: str = ""
    """Spoken first."""
    welcome_greeting_interruptible: Interruptible | bool = "any"
    """Input that cuts the greeting."""
    interruptible: Interruptible | bool = "any"
    """Input that cuts a turn without a value of its own."""
    interrupt_sensitivity: Literal["high", "medium", "low"] = "high"
    """Speech that interrupts: a word (`high`), 0.2 s (`medium`) or 0.4 s (`low`) of clear speech."""
    background_noise_reduction: bool | None = None
    """Suppress other voices and noise before the VAD. Absent: the manager cannot switch it on. Needs a package."""
    preemptible: bool = False
    """Let a new turn cut a turn without a value of its own."""
    dtmf_detection: bool = True
    """Report keys, and let them interrupt."""
    inband_dtmf: bool = False
    """Find keys in the caller's audio too, for peers without telephone events. G.711 only; takes CPU time."""
    partial_prompts: bool = False
    """Send prompts that are not final. Off for applications that answer every prompt, as most do."""
    report_input_during_agent_speech: Interruptible = "none"
    """Input that is reported while a turn plays that this input may not interrupt."""
    ignore_backchannel: bool = False
    """Let short acknowledgements (mhm, yes) neither interrupt nor become a prompt. Needs a recogniser."""
    echo_prompt_filtering: bool = False
    """Drop prompts that repeat three or more words of our own speech. Needs a recogniser."""
    hints: tuple[str, ...] = ()
    """Phrases that the recogniser should expect; the embedded one ignores them."""
    events: tuple[Literal["speaker-events", "tokens-played", "debugging", "config-updated", "caller-changed"], ...] = ()
    """`info` messages to send: `speaker-events` (`agentSpeaking`, `clientSpeaking`), `tokens-played` (`tokensPlayed`),
    `debugging` (`roundTripDelayMs`), `config-updated` (`configUpdated`), `caller-changed` (`callerChanged`)."""
    lexicon: Annotated[dict[str, str], AfterValidator(_lexicon)] = {}
    """Words and their spoken form, `{nginx: engine x, SQL: sequel}`. Lower case matches any case; other words match as
    written; only whole words match."""
    fallback: FallbackConfig = FallbackConfig()
    """Treatment of the caller while the dialogue manager is lost, and when it is gone for good."""
    recording: bool = False
    """Record this route's calls (section `recording`)."""
    siprec: SiprecConfig = SiprecConfig()
    """Copy this route's calls to a session recording server."""
    recogniser: Literal["", "auto", "embedded", "whisper", "external"] = ""
    """Recogniser of caller speech. Empty: none. `embedded`: the built-in one (English, extra `[recogniser]`).
    `whisper`: the model in `recogniser.whisper.folder` (99 languages, extra `[whisper]`).
    `external`: that of `recogniser.url`. `auto`: the embedded one if it is installed."""
    end_of_thought: bool = True
    """Let the caller's words and the turn model find the end of a thought (`recogniser.end_of_thought`)."""
    barge_in: RouteBargeIn = RouteBargeIn()
    """Values that replace those of section `barge_in`."""
    calling: RouteCalling = RouteCalling()
    """Allowed targets of this route's calls, and their number."""
    answer: AnswerConfig = AnswerConfig()
    """Treatment of outgoing calls by who has answered."""
    no_input_s: float = Field(0.0, ge=0, le=600)
    """Silence of both sides after which the manager gets `silence`, and a script's `gather` asks again, seconds. 0: no
    message."""
    hold_clip: str = ""
    """Clip (as of `play`) for a leg that `holdLeg` puts on hold. Empty: silence."""
    bridge_keys: Literal["pass", "take"] = "pass"
    """Keys that are pressed while two calls are joined. `pass`: the other side gets them too. `take`: only the
    application."""
    priority: int = Field(5, ge=0, le=9)
    """Priority of turns when the engine is full; the larger number goes first. Speech over HTTP has its key's priority.
    One place of eight goes to the turn that has waited longest."""
    parameters: dict[str, str] = {}
    """Parameters of a call (`{from}`, `{to}`, `{callSid}` are filled in); its own win."""


class PlayoutConfig(Section):
    """Pacing of frames."""

    ptime_ms: int = Field(20, ge=10, le=60, multiple_of=10)
    """Audio per frame, milliseconds (RFC 8866 section 6.4)."""
    lead_ms: int = Field(100, ge=0, le=2000)
    """Audio sent ahead of real time to a peer that buffers (Twilio), milliseconds. More survives network jitter; less
    is heard after a lost clear."""
    held_turns: int = Field(4, ge=0)
    """Most held turns per call that are synthesised ahead; one more is an error."""
    mark_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for a carrier's mark after its expected time, seconds."""
    fade_ms: int = Field(5, ge=0, le=20)
    """Fade at a cut, milliseconds. 0: none."""


class BargeInConfig(Section):
    """Interruption by a caller who speaks over our voice."""

    threshold: float = Field(0.4, gt=0, lt=1)
    """Speech probability of the VAD that counts as speech. Less finds soft beginnings sooner (at 0.5 some are found
    0.2 s later); more takes fewer other sounds for speech."""
    min_speech_ms: int = Field(96, ge=32)
    """Speech that cuts our voice, milliseconds. More ignores coughs and mhm; less cuts sooner."""
    pause_ms: int = Field(64, ge=0)
    """Length of a doubtful sound after which our voice pauses, milliseconds. A word then cuts; after a hum our voice
    resumes. 0: no pause, and words that begin like hums cut later."""
    echo_correlation: float = Field(0.85, gt=0, le=1)
    """Resemblance of caller audio to ours that counts as our echo (normalised correlation, 0 to 1). Lower it if the bot
    interrupts itself; too low takes callers for echoes."""
    max_hum_ms: int = Field(900, ge=0)
    """Longest hum over our speech (mhm) that counts as agreement and does not cut, milliseconds. 0: hums cut."""
    false_alarm_ms: int = Field(0, ge=0)
    """Caller speech up to this length is a false alarm: our voice pauses and resumes, milliseconds. Interruptions are
    reported this much later. With a recogniser, only words interrupt (with 0 also 2 s of speech). 0: each onset."""
    max_wait_ms: int = Field(4000, ge=0)
    """Longest wait of a turn for a caller who is speaking, milliseconds; only for turns that speech may interrupt and
    that have no id. More lets callers finish; noise delays turns by as much. 0: begin at once."""


class EndOfThoughtConfig(Section):
    """The turn model, which hears from the melody whether a caller has finished. It is asked when the caller falls
    silent, takes 0.05 s of a core, and knows 23 languages."""

    model: FileToRead = ""
    """File of the turn model, Smart Turn v3 in ONNX. Empty: that of the package `pipecat-ai`, if installed."""
    finished_ms: int = Field(288, ge=160)
    """Silence that ends a finished thought, milliseconds. More answers fewer callers too early."""
    hesitating_ms: int = Field(1000, ge=100)
    """Silence that ends an unfinished thought, milliseconds. More gives callers time to find a word."""


class WhisperConfig(Section):
    """The Whisper model of routes with `recogniser: whisper`."""

    folder: FolderToRead = ""
    """Folder of a model that CTranslate2's converter has written."""
    detect_language: bool = False
    """Detect the language of each utterance, for callers of several languages; `prompt` names it in `lang`."""


class RecogniserConfig(Section):
    """Caller speech to text, for routes with a `recogniser`."""

    end_of_speech_ms: int = Field(600, ge=100)
    """Silence that ends the caller's utterance, milliseconds. Less answers sooner; more lets callers think. Words
    and turn model change it (`end_of_thought`)."""
    final_timeout_ms: int = Field(2000, ge=100)
    """Longest wait for the words of a finished utterance, milliseconds; then there is no prompt."""
    backchannels: tuple[str, ...] = ()
    """Acknowledgements besides the usual ones of the language (mhm, yes), alone or several in a row; lower case."""
    url: WebSocketUrl = ""
    """WebSocket of the external recogniser, `ws://` or `wss://`, with Deepgram's `/v1/listen` protocol."""
    headers: dict[str, str] = {}
    """Request headers for the external recogniser, `Authorization: Token ${DEEPGRAM_API_KEY}`."""
    parameters: dict[str, str] = {}
    """Query parameters for the external recogniser, `model: nova-3`. They replace the default ones."""
    hints_parameter: str = "keyterm"
    """Query parameter for each of a route's `hints`."""
    whisper: WhisperConfig = WhisperConfig()
    """Your Whisper model."""
    end_of_thought: EndOfThoughtConfig = EndOfThoughtConfig()
    """The turn model."""


class RecordingConfig(Section):
    """Stereo WAV files of calls: the caller on the left, the bot as the caller heard it on the right."""

    folder: FolderToWrite = ""
    """Folder for recordings. Empty: no route records."""
    max_s: float = Field(3600.0, gt=0)
    """Longest recording, seconds."""
    max_sample_rate: int = Field(48_000, ge=8000)
    """Highest sample rate, hertz. A recording has its line's: 8000 (G.711, 115 MB an hour), 16000 (G.722, 230) or 48000
    (Opus, 691)."""
    keep_days: int | None = Field(None, ge=1)
    """Days after which a recording is deleted. Default: never."""
    encrypt: SecretStr | None = None
    """Key that encrypts recordings, 64 hexadecimal digits (`openssl rand -hex 32`). `talkspurt recording decrypt` opens
    them. Without the key they are lost."""

    @property
    def key(self) -> bytes | None:
        """Key of ``encrypt``, 32 bytes. None: recordings are not encrypted."""
        return bytes.fromhex(self.encrypt.get_secret_value()) if self.encrypt is not None else None

    @model_validator(mode="after")
    def _key_is_whole(self) -> RecordingConfig:
        text = self.encrypt.get_secret_value() if self.encrypt is not None else "0" * 64
        if len(text) != 64 or not set(text) <= set(string.hexdigits):
            raise ValueError(f"recording.encrypt is {len(text)} characters, expected 64 hexadecimal digits")
        return self


class CallsConfig(Section):
    """The log of ended calls: numbers, times, waits, outcomes of turns. `GET /v1/calls?ended=true` shows it."""

    folder: FolderToWrite = ""
    """Folder of the log, an SQLite database. Empty: no log."""
    keep_days: int = Field(30, ge=1)
    """Days after which a call is deleted from the log."""
    max_calls: int = Field(100_000, ge=1)
    """Most calls in the log; the oldest go first. A call of ten turns with text takes 6 kB."""
    keep_text: bool = False
    """Keep spoken text and pressed keys. Tell callers where the law asks for it."""


class RecordsConfig(Section):
    """Records of calls and requests for billing. `/v1/records` and `/v1/usage` show them."""

    database_url: str = ""
    """SQLite database, `sqlite:////var/lib/talkspurt/records.sqlite3`; three slashes make the path relative to this
    file. Empty: `/v1/usage` counts in memory."""
    numbers: bool = False
    """Keep the numbers of a call in its record."""
    keep_days: int = Field(400, ge=1)
    """Days after which a record is deleted. Usage by day is kept for 400 days."""
    webhook_url: str = ""
    """Address that gets each record as JSON. Needs `database_url` and `webhook_secret`."""
    webhook_secret: SecretStr | None = None
    """Secret that signs records (Standard Webhooks): `whsec_` and the base64 of 24 to 64 random bytes. Several, with
    spaces between them, all sign, for a change of secrets."""
    webhook_keep_hours: float = Field(72.0, gt=0)
    """Hours after which an undelivered record is given up and counted. It stays in `/v1/records`."""

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
        """Keys of ``webhook_secret``."""
        return _webhook_keys(self.webhook_secret) if self.webhook_secret is not None else ()

    @field_validator("database_url")
    @classmethod
    def _of_sqlite(cls, url: str, info: ValidationInfo) -> str:
        if not url:
            return url
        path = url.removeprefix(_SQLITE)
        if path in (url, ""):
            raise ValueError(f"expected {_SQLITE}PATH; the section postgres names a PostgreSQL in its place")
        return _SQLITE + _beside_the_file(path, info)

    @property
    def path(self) -> str:
        """File of the database."""
        return self.database_url.removeprefix(_SQLITE)


class PostgresConfig(Section):
    """A PostgreSQL in which several gateways keep ended calls (`calls`) and records (`records`) together."""

    url: SecretStr | None = None
    """Address, `postgresql://USER:PASSWORD@HOST:5432/DATABASE`; `?host=/run/postgresql` for a Unix socket; `?sslmode=`
    `prefer`, `disable`, `require` or `verify-full`. Needs the extra `postgres`, and `calls.folder` or
    `records.database_url` as a waiting place. `keep_days` and `calls.max_calls` then count for the database."""
    timeout_s: float = Field(5.0, gt=0)
    """Longest wait for a connection or an answer, seconds. More lets longer searches end. Calls never wait for it."""

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

    folder: FolderToRead = ""
    """Folder whose files may be played. Empty: none."""
    fetch: bool = True
    """Fetch https sources, from public addresses only."""
    max_bytes: int = Field(20_000_000, gt=0)
    """Largest clip, bytes."""


Scope = Literal["speak", "calls", "supervise", "read", "admin", "browser"]
"""Permission of a key."""

SCOPES: tuple[Scope, ...] = get_args(Scope)


class KeyRights(Section):
    """Tenant, permissions and bounds of a key."""

    tenant: str = Field("default", min_length=1)
    """Tenant of the key. Tenants do not see each other's routes, calls, events and usage."""
    scopes: tuple[Scope, ...] | None = None
    """Permissions. `speak`: speech API, voices, models, usage. `calls`: place, lead, hear and end calls. `supervise`:
    join live calls. `read`: calls, events, routes. `browser`: calls from browsers, and tokens for them. `admin`:
    metrics, active model, all tenants' routes. Default: all; with several tenants, all but `admin`."""
    requests_per_minute: int = Field(600, gt=0)
    """Most requests in any minute (a sliding window)."""
    concurrent_calls: int = Field(100, gt=0)
    """Most live placed calls and speech requests together, on all workers."""
    calls_per_minute: int = Field(60, gt=0)
    """Most calls placed in a minute, on all workers (a bucket that refills within a minute)."""
    priority: int = Field(3, ge=0, le=9)
    """Priority of speech over HTTP when the engine is full; the larger number goes first. Turns of calls have their
    route's, 5 by default."""


class ApiKey(KeyRights):
    """A key and its tenant."""

    key: SecretStr = Field(min_length=1)
    """The key, from the environment: `${NAME}`."""


JwtAlgorithm = Literal["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]


class JwtConfig(Section):
    """JSON Web Tokens of another service, such as an OpenID Connect provider. A token has its tenant, its scopes (claim
    `scope`) and its end (`exp`). Clocks may differ by 30 s."""

    issuer: str = Field(min_length=1)
    """Expected `iss`."""
    audience: str = Field(min_length=1)
    """Expected `aud`, or one of several."""
    algorithms: tuple[JwtAlgorithm, ...] = Field(min_length=1)
    """Accepted signatures: `HS…` with `secret`, or `RS…` and `ES…` with `jwks_file`."""
    jwks_file: FileToRead = ""
    """JWKS file of the issuer's public keys. New keys count within two seconds. Fetch it with a timer and curl."""
    secret: SecretStr | None = None
    """Secret of an issuer that signs with `HS…`, at least as long as the hash (32, 48, 64 bytes)."""
    tenant_claim: str = Field("tenant", min_length=1)
    """Claim with the name of the tenant."""

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


TOKEN_MAX_S = 86_400
"""Longest life of a browser's token, seconds: a token that leaks is worthless after a day."""


class AuthConfig(Section):
    """Access to `/`, `/v1` and `/metrics`."""

    api_keys: tuple[ApiKey, ...] = ()
    """Keys, accepted as `Authorization: Bearer KEY`."""
    keys_file: FileOfKeys = ""
    """File of the keys that `talkspurt keys create` makes (SHA-256 digests). Changes count within two seconds."""
    jwt: JwtConfig | None = None
    """JSON Web Tokens that are accepted like keys."""
    token_s: int = Field(600, gt=0, le=TOKEN_MAX_S)
    """Default life of a browser's token (`POST /v1/tokens`), seconds. More lets calls come back after a network loss;
    less limits misuse."""
    session_s: int = Field(43_200, gt=0)
    """Life of a sign-in to the pages, seconds."""

    @property
    def required(self) -> bool:
        """True if protected requests need a key or a token."""
        return bool(self.api_keys or self.keys_file or self.jwt)


class TenantLimits(Section):
    """Bounds of one tenant, for all its keys together. A bound that is left out does not exist."""

    requests_per_minute: int | None = Field(None, gt=0)
    """Most requests in any minute."""
    characters_per_minute: int | None = Field(None, gt=0)
    """Most characters for the speech API in any minute. Speech of calls does not count."""
    calls_at_once: int | None = Field(None, gt=0)
    """Most live calls of the tenant's routes."""
    streams_at_once: int | None = Field(None, gt=0)
    """Most speaking requests of the speech API."""


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
    """Most live calls of this process; one more is rejected, and `/readyz` answers 503."""
    tick_lateness_ms: int = 0
    """Take no new calls while the event loop comes to one of 100 ticks of the frame timer in 5 s later than this,
    milliseconds: 5, 10, 20 (one frame) or 50. Less keeps calls smoother; more lets more in. 0: never."""
    turn_chars: int = Field(20_000, gt=0)
    """Longest text of one turn, characters."""
    turns_queued: int = Field(64, gt=0)
    """Most waiting turns of one call."""
    message_bytes: int = Field(1_000_000, gt=0)
    """Largest WebSocket message or REST body, bytes."""
    voice_bytes: int = Field(12_000_000, gt=0)
    """Largest reference audio of a voice, bytes; the engine takes at most 16 MiB. 30 s of 48 kHz stereo float32 are
    11.5 MB."""
    errors_in_a_row: int = Field(10, gt=0)
    """Bad dialogue messages in a row after which the socket is closed with 1007."""
    setup_timeout_s: float = Field(10.0, gt=0)
    """Longest time from the opening of a media socket to its start message, seconds."""
    connections: int = Field(0, ge=0)
    """Most TCP connections of the HTTP listener; one more closes the longest idle one. 0: three quarters of the files
    that the system allows."""
    connections_per_address: int = Field(1000, gt=0)
    """Most sockets of one remote address."""
    requests_per_s: float = Field(200.0, gt=0)
    """HTTP requests of one client's address per second, on average; five times as many at once. More get 429 and are
    closed. Streams and `/healthz` are not counted. Behind a proxy set `server.trusted_proxies`."""
    idle_s: float = Field(75.0, gt=0)
    """Longest idle time of an HTTP connection, seconds."""
    tenant: TenantLimits = TenantLimits()
    """Bounds of each tenant that `tenants` does not name."""
    tenants: dict[str, TenantLimits] = {}
    """Bounds of single tenants, by name. An entry replaces `tenant` as a whole."""
    redis_url: SecretStr | None = None
    """Redis in which several gateways count tenants together, `redis://:PASSWORD@HOST:6379/0` or `rediss://` (TLS).
    Needs the extra `redis`. Without it each process counts for itself."""
    redis_timeout_s: float = Field(0.25, gt=0)
    """Longest wait for Redis, seconds; then Redis counts as gone for a second."""
    redis_outage: Literal["local", "refuse"] = "local"
    """Behaviour while Redis does not answer. `local`: each gateway counts for itself, so a tenant may get its limit at
    each. `refuse`: limited requests get 503."""

    _redis_can_be_asked = field_validator("redis_url")(_of_redis)

    @field_validator("tick_lateness_ms")
    @classmethod
    def _is_counted(cls, value: int) -> int:
        if value not in (0, 5, 10, 20, 50):  # bounds of the histogram of ticks
            raise ValueError(f"{value} is not counted, expected 0, 5, 10, 20 or 50")
        return value


class DirectoryConfig(Section):
    """Knowledge that several gateways share: spent stream tokens, and what ended calls left for `…/after` or a
    dialplan."""

    redis_url: SecretStr | None = None
    """Redis of all gateways, `redis://:PASSWORD@HOST:6379/0` or `rediss://` (TLS). Needs the extra `redis`, and the
    same `server.stream_token_secret` everywhere. While it does not answer, calls continue, and requests about what
    another gateway's call left get 503."""
    address: HttpUrl = ""
    """Address at which the other gateways reach this one, `http://10.0.0.5:8080`. They pass on requests about its
    calls. Empty: such requests get 404."""
    redis_timeout_s: float = Field(0.5, gt=0)
    """Longest wait for Redis, seconds. More rides out a slow Redis; less answers 503 sooner."""

    _redis_can_be_asked = field_validator("redis_url")(_of_redis)


class IceServerConfig(Section):
    """A STUN or TURN server."""

    urls: tuple[str, ...] = Field(min_length=1)
    """`stun:host:port`, `turn:host:port?transport=udp`, `turns:...`."""
    username: str = ""
    """User at the TURN server. With `secret`, browsers get the expiry time and this."""
    credential: SecretStr | None = Field(None, min_length=1)
    """Fixed password. Every browser gets it, so prefer `secret`."""
    secret: SecretStr | None = Field(None, min_length=1)
    """Secret shared with the TURN server, for credentials that expire after an hour."""

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
    """Local addresses for media. Empty: all except loopback, or loopback if there are no others."""
    public_address: str = ""
    """IP address for browsers in place of the local ones, behind a one-to-one NAT (most clouds)."""
    ports: str = ""
    """UDP ports for media, `40000-49999`; each call takes one on each address. Empty: any free port."""
    ice_servers: tuple[IceServerConfig, ...] = ()
    """STUN and TURN servers for browsers, which get them from `GET /v1/webrtc/ice` and WHIP."""
    gather_from_servers: bool = False
    """Ask the first STUN and TURN server for our own addresses too. Only if browsers cannot reach our ports; each call
    then waits for those servers."""
    allowed_origins: tuple[Origin, ...] = ()
    """Other sites whose pages may call, `https://www.example.com`; `*`: all."""
    calls_per_address: int = Field(50, gt=0)
    """Most live calls of one remote address."""
    lost_after_s: float = Field(10.0, gt=0)
    """A browser that sends nothing for this long counts as lost, seconds. Less frees calls sooner; more rides out a bad
    network. Browsers check every 2 to 5 s."""
    restart_s: float = Field(15.0, ge=0)
    """Time for a lost browser to come back with a new offer, seconds."""
    lead_ms: int = Field(40, ge=0, le=200)
    """Audio sent ahead of real time, milliseconds, at most `playout.lead_ms`. It fills the browser's jitter buffer;
    with less, the caller hears less after a cut."""
    data_channel: bool = True
    """Give browsers the data channel `talkspurt`: captions, turns, recognised words. A browser with a token of scope
    `lead`, with a key of scope `calls`, or where no keys are required, also leads the dialogue there."""

    @property
    def port_range(self) -> tuple[int, int] | None:
        """Lowest and highest port of `ports`. None: any port."""
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


class AudioSocketConfig(Section):
    """The TCP listener for Asterisk AudioSocket. Without this section there is none."""

    host: str = "127.0.0.1"
    """Address to listen on. The protocol has no keys and no TLS: private networks only."""
    port: int = Field(9092, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    allowed: Networks = ("127.0.0.0/8", "::1/128")
    """Addresses and networks of the Asterisk servers."""
    route: str = ""
    """Route of calls that were not announced with `PUT /v1/calls/expected/{uuid}`. Empty: such calls are refused."""
    connections: int = Field(500, gt=0)
    """Most sockets; one more is closed at once."""
    expected_s: float = Field(60.0, gt=0)
    """Longest wait for an announced call, seconds. More suits callers who still hear ringing."""


class MetricsConfig(Section):
    """Prometheus."""

    enabled: bool = True
    """Serve `/metrics`."""


class LogConfig(Section):
    """Logging. No level shows caller audio, text or digits."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is written."""
    json_lines: bool = False
    """Write one JSON object a line instead of text."""


class TracingConfig(Section):
    """OpenTelemetry traces: one for each call, with the stages of first packets. Needs the extra `[otel]`."""

    endpoint: HttpUrl = Field(min_length=1)
    """Collector's address for OTLP over HTTP, `http://127.0.0.1:4318/v1/traces`."""
    headers: dict[str, SecretStr] = {}
    """Headers of each request, such as a key."""
    service_name: str = Field("talkspurt", min_length=1)
    """Name of this service in the traces."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the calls that are traced. A turn costs 0.2 ms of the event loop."""
