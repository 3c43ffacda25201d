"""The gateway's half of the configuration file. Every field: unit, default, trade-off."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    model_validator,
)

from gateway.seams.messages import Interruptible


def _beside_the_file(value: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    return str(Path(folder, value)) if folder and value else value


LocalPath = Annotated[str, AfterValidator(_beside_the_file), Field(json_schema_extra={"format": "path"})]
"""A file or folder; in a configuration file, relative to that file (validation context ``folder``)."""


def _as_number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


NUMBER = BeforeValidator(_as_number)
"""For a Literal of numbers, which would not take the file's scalars, since they come as text."""


def is_loopback(host: str) -> bool:
    """Whether an address, or a listener on ``host``, is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Section(BaseModel):
    """A section of the file: frozen, unknown keys are errors, docstrings are the reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TlsConfig(Section):
    """Certificate and key of the HTTP listener."""

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
    """What the outside calls us, e.g. `https://voice.example.com`; carriers sign this URL, webhooks answer with it.
    Empty: the address of each request, as `trusted_proxies` tell it."""
    origins: tuple[str, ...] = ()
    """Sites whose pages may open our WebSockets and send requests that change something, beside our own, e.g.
    `https://app.example.com`; `*`: all. Calls of browsers have `webrtc.allowed_origins`."""
    tls: TlsConfig | None = None
    """Serve TLS ourselves; leave out behind a proxy that does."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks whose `X-Forwarded-*` headers are believed."""
    workers: int = Field(1, ge=1, le=1)
    """Processes; one, until the directory that they share exists."""
    drain_s: float = Field(30.0, ge=0)
    """How long live calls may go on after SIGTERM. More loses fewer calls; less restarts sooner."""
    insecure: bool = False
    """Serve `/`, `/v1` and `/metrics` beyond loopback without `auth`. Only inside a trusted network, never with
    `public_url`."""
    stream_token_s: float = Field(60.0, gt=0)
    """Life of the signed token that a webhook puts into a stream address; it opens one call. Longer tolerates slow
    carriers."""
    stream_token_secret: SecretStr | None = Field(None, min_length=1)
    """Key of those tokens; needed with several instances behind one address. Default: random per process."""

    @property
    def is_local(self) -> bool:
        """Only this machine reaches us: a loopback listener, and no proxy that leads others to it."""
        return is_loopback(self.host) and not self.public_url and not self.trusted_proxies


class DialogueConfig(Section):
    """Who leads the dialogue of a route: `url` (we dial out), `script` (built in), or neither (they dial in)."""

    url: str = ""
    """WebSocket of the dialogue manager, `ws://` or `wss://`; one connection per call."""
    script: LocalPath = ""
    """YAML file of the built-in script dialogue."""
    headers: dict[str, str] = {}
    """Extra request headers of the dial-out."""
    auth_token: SecretStr | None = Field(None, min_length=1)
    """Signs the dial-out: `X-Twilio-Signature` over the URL as written here."""
    extensions: bool | None = None
    """Send our fields and messages beyond ConversationRelay. Default: on for dial-in and REST, off for dial-out."""
    reconnect: bool = True
    """Dial again when the line breaks (not after a close with 1000 or 1001)."""
    reconnect_first_s: float = Field(0.25, gt=0)
    """Pause before the first new attempt; doubles after each."""
    reconnect_max_s: float = Field(5.0, gt=0)
    """Longest pause between attempts."""
    give_up_s: float = Field(30.0, ge=0)
    """How long a call waits for its manager before it is ended."""
    connect_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for one attempt, name look-up and handshake together."""
    ping_s: float = Field(20.0, gt=0)
    """WebSocket ping interval; a peer silent for twice that is lost."""
    end_drain: bool = True
    """`end` lets queued speech finish first. Off: the call ends at once, as on Twilio."""
    stale_ms: int = Field(300, ge=0)
    """The tail of a token stream that was cut: after a digit, tokens are dropped for this long; after a cut by speech,
    as long as none comes later than this after the one before. More eats real answers, less speaks tails."""
    queue_messages: int = Field(256, ge=16)
    """Messages kept for a slow or reconnecting manager; the oldest caller audio goes first, then the line is lost."""

    @model_validator(mode="after")
    def _one_way(self) -> DialogueConfig:
        if self.url and self.script:
            raise ValueError("dialogue names both url and script; a route has one of them")
        if self.url and not self.url.startswith(("ws://", "wss://")):
            raise ValueError(f"dialogue.url is {self.url!r}, expected ws:// or wss://")
        return self


class RouteBargeIn(Section):
    """How a caller interrupts, on one route. Empty fields take the section `barge_in`."""

    min_speech_ms: int | None = Field(None, ge=32)
    """Speech that has to be heard before it cuts."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Speech probability of the VAD that counts as speech."""
    false_alarm_ms: int | None = Field(None, ge=0)
    """Caller speech shorter than this, or without a word where there is a recogniser, is a false alarm."""


class RouteConfig(Section):
    """What happens to a call. Attributes carry ConversationRelay's names."""

    dialogue: DialogueConfig = DialogueConfig()
    """Who leads the dialogue."""
    voice: str = ""
    """Voice id; empty is the engine's default."""
    language: str = "en-US"
    """BCP 47 tag of speech and, where nothing else is set, of recognition."""
    welcome_greeting: str = ""
    """Spoken before anything else."""
    welcome_greeting_interruptible: Interruptible | bool = "any"
    """What cuts the greeting: any, speech, dtmf, none."""
    interruptible: Interruptible | bool = "any"
    """What cuts a turn that does not say otherwise."""
    preemptible: bool = False
    """Whether a new turn cuts a turn that does not say otherwise."""
    dtmf_detection: bool = True
    """Off: keys are neither reported nor do they interrupt."""
    inband_dtmf: bool = False
    """Find keys in the caller's audio too, for peers that send no telephone events (G.711 only: other codecs bend the
    tones). Costs decoding all of the audio; speech may rarely be taken for a key."""
    partial_prompts: bool = False
    """Send prompts that are not final yet. Most applications answer every prompt: leave it off for them."""
    report_input_during_agent_speech: Interruptible = "none"
    """Which input is reported while a turn plays that it may not interrupt."""
    ignore_backchannel: bool = False
    """Short acknowledgements (mhm, yes) neither interrupt nor become a prompt; needs a recogniser."""
    hints: tuple[str, ...] = ()
    """Phrases that the recogniser should expect; the embedded one has no use for them."""
    events: tuple[Literal["speaker-events", "tokens-played", "debugging"], ...] = ()
    """Which `info` messages are sent: `agentSpeaking` and `clientSpeaking`; `tokensPlayed`; `roundTripDelayMs`, the way
    to the peer and back, of RTP by its reports, of a media WebSocket by a ping every 5 s (not of AudioSocket)."""
    fallback: str = ""
    """Spoken while the dialogue manager is lost."""
    recording: bool = False
    """Record this route's calls, see section `recording`."""
    recogniser: Literal["", "auto", "embedded", "external"] = ""
    """Recogniser that makes prompts of caller speech: empty for none, `embedded` (English, needs the extra
    `[recogniser]`), `external`, or `auto`: the embedded one where the extra is installed, else none."""
    barge_in: RouteBargeIn = RouteBargeIn()
    """Overrides of section `barge_in`."""
    parameters: dict[str, str] = {}
    """Custom parameters of calls that bring none of these names."""


class PlayoutConfig(Section):
    """How frames leave."""

    ptime_ms: int = Field(20, ge=10, le=60, multiple_of=10)
    """Audio per frame, milliseconds (RFC 8866 section 6.4)."""
    lead_ms: int = Field(100, ge=0, le=2000)
    """How far ahead of real time frames are sent where the peer buffers (Twilio). More survives network jitter; the
    caller's phone then holds more to be cleared, and a lost clear is heard for longer."""
    start_quantile: float = Field(0.98, gt=0, le=1)
    """Share of utterances that should play without a gap: the first frame waits as long as this share of the engine's
    recent utterances would have needed. Less starts sooner."""
    max_start_delay_ms: int = Field(400, ge=0)
    """Longest such wait."""
    buffer_s: float = Field(20.0, gt=0)
    """Most audio kept per call; a full buffer stops reading from the engine."""
    ahead_turns: int = Field(1, ge=0)
    """Turns behind the speaking one that are already synthesised. More hides the engine's delay between turns; a
    barge-in throws more work away."""
    held_turns: int = Field(4, ge=0)
    """Held turns per call that are synthesised ahead; one more is an error."""
    mark_timeout_s: float = Field(5.0, gt=0)
    """How long after its expected time a carrier's mark is waited for."""
    fade_ms: int = Field(5, ge=0, le=20)
    """Fade at a cut, where the codec has no state."""
    max_tick_sends: int = Field(50, ge=1)
    """Frames one call may send in one tick when it has fallen behind."""


class BargeInConfig(Section):
    """Caller speech over ours."""

    threshold: float = Field(0.4, gt=0, lt=1)
    """Speech probability of the VAD that counts as speech. Less finds soft beginnings sooner (at 0.5 some
    are found 0.2 s later); more takes less of what is no speech for it."""
    min_speech_ms: int = Field(96, ge=32)
    """Speech that has to be heard before it cuts. More ignores coughs and mhm; less cuts sooner."""
    pause_ms: int = Field(64, ge=0)
    """Sound over our speech that may be a word pauses us after this long, until it is clear whether it is one: a word
    cuts, a hum that ends is spoken on after. 0: speak on until it is clear; words that begin like hums cut later."""
    min_silence_ms: int = Field(300, ge=32)
    """Silence that ends the caller's speech."""
    echo_correlation: float = Field(0.85, gt=0, le=1)
    """Caller audio that resembles what we sent this much (normalised correlation, 0 to 1) is our own echo. Less takes
    distorted echoes for what they are; too little takes callers for echoes."""
    max_hum_ms: int = Field(900, ge=0)
    """A hum over our speech (mhm) up to this long is taken for agreement and does not cut; 0: hums cut like words."""
    false_alarm_ms: int = Field(0, ge=0)
    """Caller speech shorter than this is a false alarm: our voice pauses at its onset and goes on after it. The
    dialogue manager hears of an interruption this much later. Where the route has a recogniser the words decide: with
    the first one it is an interruption, without any our voice goes on. 0: every confirmed onset interrupts."""
    max_wait_ms: int = Field(4000, ge=0)
    """Longest wait of a turn for a caller who is speaking, where speech interrupts and the turn carries no id of the
    manager's. More lets callers finish longer sentences; where noise passes for speech, turns begin this much later.
    0: begin at once, over the caller."""


class EmbeddedRecogniserConfig(Section):
    """The embedded recogniser's own process."""

    partial_ms: int = Field(500, ge=100)
    """New speech between two partial results. Each costs as much as a final one: about 0.05 s of a core."""
    nice: int = Field(1, ge=0, le=19)
    """How far below the gateway in priority."""
    hang_s: float = Field(10.0, gt=0)
    """A process that does not answer for this long is killed and started anew."""
    restart_backoff_s: float = Field(0.5, gt=0)
    """Pause before a dead process is started anew; doubles, up to 32 times this, while that fails."""


class RecogniserConfig(Section):
    """Caller speech to text, for routes with a `recogniser`."""

    end_of_speech_ms: int = Field(600, ge=100)
    """Silence after which what the caller said becomes a prompt. Less answers sooner; more lets callers think."""
    max_utterance_s: float = Field(15.0, ge=1, le=60)
    """Longest utterance; a caller who speaks on is given a prompt this often."""
    final_timeout_ms: int = Field(2000, ge=100)
    """Longest wait for the words of an utterance that is over; without them there is no prompt."""
    agreement_ms: int = Field(1000, ge=100)
    """With `ignore_backchannel`: a caller who speaks over us for longer than this wants the floor, whatever the words.
    """
    backchannels: tuple[str, ...] = (
        *("mhm", "mm", "mmm", "hm", "hmm", "mm hmm", "uh huh", "aha", "ah", "oh", "yeah", "yep", "yes", "ok", "okay"),
        *("right", "sure", "i see", "got it", "all right", "alright", "great", "good", "fine", "exactly"),
    )
    """What counts as a short acknowledgement with `ignore_backchannel`, alone or several in a row; lower case, without
    punctuation."""
    url: str = ""
    """The external recogniser's WebSocket, `ws://` or `wss://`, with Deepgram's `/v1/listen` protocol."""
    headers: dict[str, str] = {}
    """Its request headers, e.g. `Authorization: Token ${DEEPGRAM_API_KEY}`."""
    parameters: dict[str, str] = {}
    """Its query parameters, added to or instead of ours, e.g. `model: nova-3`."""
    hints_parameter: str = "keyterm"
    """Query parameter that gets each of a route's `hints`."""
    connect_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for a connection."""
    keep_alive_s: float = Field(4.0, gt=0)
    """Silence after which `KeepAlive` is sent; Deepgram ends a connection that is silent for 10 s."""
    reconnect_first_s: float = Field(0.25, gt=0)
    """Pause before a lost connection is made anew; doubles after each attempt."""
    reconnect_max_s: float = Field(5.0, gt=0)
    """Longest such pause."""
    embedded: EmbeddedRecogniserConfig = EmbeddedRecogniserConfig()
    """The embedded recogniser's own process."""

    @model_validator(mode="after")
    def _readable(self) -> RecogniserConfig:
        if self.url and not self.url.startswith(("ws://", "wss://")):
            raise ValueError(f"recogniser.url is {self.url!r}, expected ws:// or wss://")
        return self


class RecordingConfig(Section):
    """Stereo WAV of calls: left the caller, right the bot as heard."""

    folder: LocalPath = ""
    """Where recordings go; empty switches recording off for all routes."""
    max_s: float = Field(3600.0, gt=0)
    """Longest recording."""


class ClipsConfig(Section):
    """Sources of `play`."""

    folder: LocalPath = ""
    """Folder whose files may be played; empty: none."""
    fetch: bool = True
    """Fetch https sources; only public addresses, checked after name look-up and on every redirect."""
    max_bytes: int = Field(20_000_000, gt=0)
    """Largest clip."""
    timeout_s: float = Field(10.0, gt=0)
    """Longest fetch."""


class ApiKey(Section):
    """A key and its tenant."""

    key: SecretStr = Field(min_length=1)
    """The key, from the environment: `${NAME}`."""
    tenant: str = "default"
    """Name under which usage is counted."""
    requests_per_minute: int = Field(600, gt=0)
    """Sliding window."""
    concurrent_calls: int = Field(100, gt=0)
    """Live calls and speech requests at a time."""


class AuthConfig(Section):
    """Who may use `/`, `/v1` and `/metrics`."""

    api_keys: tuple[ApiKey, ...] = ()
    """`Authorization: Bearer KEY`."""
    failures_per_minute: float = Field(6.0, gt=0)
    """Different unknown keys that one address may send, on average; over that each key that is new from there is
    answered 429. Less makes guessing slower; more forgives mistyping. Behind a proxy set `server.trusted_proxies`, or
    all callers are one address."""
    failures_burst: int = Field(20, gt=0)
    """How many of them it may send at once."""


class LimitsConfig(Section):
    """Bounds; what is over them is refused, never queued without end."""

    calls: int = Field(500, gt=0)
    """Live calls of this process; one more is rejected and readiness turns 503."""
    turn_chars: int = Field(20_000, gt=0)
    """Longest text of one turn."""
    turns_queued: int = Field(64, gt=0)
    """Turns waiting per call."""
    message_bytes: int = Field(1_000_000, gt=0)
    """Largest WebSocket message or REST body; reference audio of a voice has its own bound."""
    voice_bytes: int = Field(12_000_000, gt=0)
    """Largest reference audio of a voice: 30 s of 48 kHz stereo float32 are 11.5 MB. It has to fit into
    `engine.message_bytes`."""
    errors_in_a_row: int = Field(10, gt=0)
    """Bad dialogue messages in a row that close the socket with 1007."""
    setup_timeout_s: float = Field(10.0, gt=0)
    """From the media socket's opening to its start message."""
    connections: int = Field(0, ge=0)
    """TCP connections of the HTTP listener; where there are as many, the one that is idle for longest makes room. 0:
    three quarters of the files that the system lets us open."""
    connections_per_address: int = Field(1000, gt=0)
    """Sockets of one remote address."""
    idle_s: float = Field(75.0, gt=0)
    """How long an HTTP connection may stay open without a request. Longer saves regular clients a handshake."""
    body_s: float = Field(60.0, gt=0)
    """How long the body of a request may take. Longer lets slow clients upload long reference audio."""


class IceServerConfig(Section):
    """A STUN or TURN server."""

    urls: tuple[str, ...] = Field(min_length=1)
    """`stun:host:port`, `turn:host:port?transport=udp`, `turns:...`."""
    username: str = ""
    """User at the TURN server; with `secret`, appended to the time that heads the user name."""
    credential: SecretStr | None = Field(None, min_length=1)
    """Fixed password. Browsers are told it: prefer `secret`."""
    secret: SecretStr | None = Field(None, min_length=1)
    """Secret shared with the TURN server: credentials are made per request and end after `credential_s`."""

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
    """Local addresses that media is received on; empty: all of this machine's but loopback, else loopback."""
    public_address: str = ""
    """IP address that browsers are told instead: this machine is behind a one-to-one NAT (most clouds)."""
    ports: str = ""
    """UDP ports for media, e.g. `40000-49999`, one per call and address; empty: any free one."""
    ice_servers: tuple[IceServerConfig, ...] = ()
    """STUN and TURN servers for browsers, told by `GET /v1/webrtc/ice` and WHIP."""
    gather_from_servers: bool = False
    """Ask the first STUN and TURN server for addresses of our own too. Only where browsers cannot reach our ports: each
    call then waits for those servers."""
    credential_s: int = Field(3600, ge=60)
    """Life of TURN credentials made from a `secret`. Longer survives long calls; shorter limits misuse."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may call, e.g. `https://www.example.com`; `*`: all."""
    calls_per_address: int = Field(50, gt=0)
    """Live calls of one remote address."""
    connect_timeout_s: float = Field(15.0, gt=0)
    """From our answer to flowing media; a call that takes longer is dropped."""
    lost_after_s: float = Field(10.0, gt=0)
    """Silence of a browser (no media, no report, no check) that counts as lost. Less frees calls sooner; more rides
    out a bad network. Browsers check every 2 to 5 s."""
    restart_s: float = Field(15.0, ge=0)
    """How long a lost browser may come back with a new offer for its call."""
    lead_ms: int = Field(40, ge=0, le=200)
    """How far ahead of real time frames are sent, at most `playout.lead_ms`. A browser plays on smoothly only once its
    jitter buffer has filled: with a lead that is at once. Less is heard of a cut turn without one."""
    data_channel: bool = True
    """Let a browser join its call's dialogue on the data channel `talkspurt`: it hears everything and may say anything.
    Off for phones whose callers must not."""
    message_bytes: int = Field(65_536, ge=1024)
    """Largest message on the data channel."""

    @property
    def port_range(self) -> tuple[int, int] | None:
        """Lowest and highest of `ports`."""
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
    """Asterisk AudioSocket, a TCP listener of its own; leave the section out and there is none."""

    host: str = "127.0.0.1"
    """Address to listen on. The protocol has neither keys nor TLS: a private network only."""
    port: int = Field(9092, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    allowed: Networks = ("127.0.0.0/8", "::1/128")
    """Addresses and networks of the Asterisk servers that may connect."""
    route: str = ""
    """Route of calls that nobody announced with `PUT /v1/calls/expected/{uuid}`; empty: they are refused."""
    connections: int = Field(500, gt=0)
    """Sockets at a time; one more is closed at once."""
    expected_calls: int = Field(10_000, gt=0)
    """Announced calls that are waited for at a time; one more is answered with 503."""
    expected_s: float = Field(60.0, gt=0)
    """How long an announced call is waited for. Longer suits callers who still hear ringing."""
    first_audio_ms: int = Field(800, ge=0)
    """The first audio frame tells the rate; a call that sends none for this long speaks 8 kHz. Asterisk's `Answer` lets
    audio through half a second late; less starts mute callers sooner."""
    keepalive_ms: int = Field(1000, ge=100, le=1900)
    """Silence of ours after which one frame of it is sent: Asterisk ends a call that hears nothing for 2000 ms."""


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
