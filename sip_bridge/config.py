"""Section ``sip`` of the configuration. Without the section there is no SIP. The docstring of every field gives its
unit
and its trade-off."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator

from gateway.config import LocalPath, Section, TargetPatterns
from sip_bridge.errors import ProtocolError
from sip_bridge.message.sip import Uri

CodecName = Literal["PCMU", "PCMA", "G722", "OPUS"]
SrtpPolicy = Literal["off", "optional", "preferred", "required"]
TrunkName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _sip_uri(text: str, where: str) -> str:
    try:
        uri = Uri.parse(text)
    except ProtocolError as error:
        raise ValueError(f"{where}: {error}") from None
    if uri.scheme not in ("sip", "sips"):
        raise ValueError(f"{where} is {text!r}, expected sip:host[:port][;transport=udp|tcp|tls]")
    return text


class SipTlsConfig(Section):
    """SIP over TLS. New files are taken within ten seconds, without a restart; what cannot be used is logged, and
    the old kept."""

    port: int = Field(5061, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    certificate: LocalPath
    """PEM file with the certificate chain that we show, as server and as client."""
    key: LocalPath
    """PEM file with the private key of `certificate`."""
    authorities: LocalPath = ""
    """PEM file of the authorities that we believe, for servers that we call and for certificates of trunks. Empty: we
    believe the system's authorities, and ask no peer for a certificate. An authority that leaves the file is believed
    until the next start."""


class TrunkConfig(Section):
    """A peer whose calls are taken. We know it by its address, by digest, by its TLS certificate (a trunk that sets
    several of these asks for all of them), or by a registration of ours."""

    addresses: tuple[str, ...] = ()
    """Source addresses or networks of the peer. Use them alone only where nobody can forge an address."""
    username: str = ""
    """User name for digest, both ways: callers must know it, and we answer challenges of `proxy` with it."""
    password: SecretStr | None = Field(None, min_length=1)
    """Password of that user, for digest both ways."""
    certificate_names: tuple[str, ...] = ()
    """Names (subject alternative, DNS or SIP URI host) one of which a TLS client certificate must carry."""
    route: str = "default"
    """Route of calls from this trunk."""
    numbers: dict[str, str] = {}
    """Routes by the user part of the Request-URI. A `*` at the end stands for anything that follows. The longest match
    counts; without a match the call takes `route`. `sip:2000@host` matches `"2000"` and `"20*"`."""
    headers: tuple[str, ...] = ("X-*",)
    """Headers of an INVITE that become custom parameters under their own names, and custom parameters of an outgoing
    call that become headers. A `*` at the end stands for anything that follows. Standard headers are never included."""
    codecs: tuple[CodecName, ...] = Field(("PCMU", "PCMA", "G722", "OPUS"), min_length=1)
    """Codecs that we speak, the preferred one first; our order decides. G722 and OPUS sound better and cost more time
    to encode."""
    srtp: SrtpPolicy = "optional"
    """`optional` takes what is offered (RTP/SAVP, or RTP/AVP with a key) and offers plain RTP; `preferred` offers
    RTP/AVP with a key, which some PBXs take for a fault; `required` offers RTP/SAVP and refuses plain RTP; `off`
    refuses RTP/SAVP. The key is secret only over TLS."""
    media: Literal["strict", "host", "any"] = "host"
    """Which RTP is accepted from another address than the peer named. `strict`: none. `host`: RTP from the host that
    signals. `any`: RTP from anybody within the first seconds (for phones behind address translators)."""
    early_media: bool = False
    """Speak before the call is answered (183): the caller hears the greeting, and the 200 follows at its end. Off: 180,
    then 200 as soon as the session can speak. For a call that we place: the session begins with the callee's early
    media, hears it, and is ready when the call is answered. Off: the session begins with the answer."""
    answer_at_once: bool = False
    """Answer before the dialogue manager is connected. This is for routes whose dialogue is led by REST alone."""
    max_calls: int = Field(0, ge=0)
    """Most live calls of this trunk; one more is answered with 503. 0: the trunk has no limit of its own."""
    proxy: str = ""
    """Where calls to this trunk are sent: `sip:host[:port][;transport=udp|tcp|tls]`. Empty: no call goes out by it."""
    from_uri: str = ""
    """From of outgoing calls that name no From. Empty: `username` (or `talkspurt`) at `sip.public_address`."""
    ping_s: float = Field(0.0, ge=0)
    """Interval of OPTIONS to `proxy`, seconds. While the proxy does not answer, outgoing calls fail at once. 0: no
    pings."""
    transfers: Literal["refuse", "follow"] = "refuse"
    """What we do with a REFER from this trunk. `follow` lets the peer send our call to whomever section
    `calling` and `allowed_targets` name."""

    @field_validator("addresses")
    @classmethod
    def _networks(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError:
                raise ValueError(f"trunk address is {address!r}, expected an IP address or network") from None
        return addresses

    @model_validator(mode="after")
    def _readable(self) -> TrunkConfig:
        if bool(self.username) != bool(self.password):
            raise ValueError("a trunk has username and password, or neither")
        for name in ("proxy", "from_uri"):
            if getattr(self, name):
                _sip_uri(getattr(self, name), f"trunk {name}")
        if self.ping_s and not self.proxy:
            raise ValueError("a trunk with ping_s needs a proxy")
        return self

    @property
    def asks_for_something(self) -> bool:
        """Whether the trunk asks callers for a proof. A trunk that asks for none is only for calls by a
        registration."""
        return bool(self.addresses or self.username or self.certificate_names)


class RegistrationConfig(Section):
    """A registrar that we register our address at."""

    registrar: str
    """`sip:host[:port][;transport=udp|tcp|tls]`."""
    username: str = Field(min_length=1)
    """Name of the account; it is also the user part of the address of record and of the contact."""
    password: SecretStr | None = Field(None, min_length=1)
    """Password of the account."""
    domain: str = ""
    """Domain of the address of record. Empty: the registrar's host."""
    realm: str = ""
    """Answer only challenges of this realm. Empty: of any realm."""
    trunk: str = ""
    """Trunk whose settings apply to calls by this registration. Such calls are taken only from the registrar's
    addresses and only to our contact. Empty: calls need a trunk that knows them."""
    expires_s: int = Field(600, ge=60)
    """Life of the registration that we ask for, seconds; the registrar may shorten it. Less finds a restarted registrar
    sooner; more costs less traffic."""
    retry_s: float = Field(30.0, gt=0)
    """Pause after a failed registration, seconds. It doubles with each failure, up to ten times this, and is varied at
    random by a factor of 0.5 to 1.5."""

    @field_validator("registrar")
    @classmethod
    def _uri(cls, registrar: str) -> str:
        return _sip_uri(registrar, "registration registrar")


class SipTimeouts(Section):
    """How long the SIP side waits, seconds."""

    t1: float = Field(0.5, gt=0)
    """Estimate of a round trip (RFC 3261 table 4). A transaction ends after 64 times this."""
    t2: float = Field(4.0, gt=0)
    """Longest pause between repetitions of a message."""
    t4: float = Field(5.0, gt=0)
    """How long a message may stay in the network."""
    ready: float = Field(8.0, gt=0)
    """Longest time from the INVITE to our answer. If the dialogue manager is not connected by then, the answer is 503.
    Keep this below the peer's own limit, which often is 10 s."""
    early_media: float = Field(30.0, gt=0)
    """Longest speech before the call is answered, for trunks with `early_media`."""
    answer: float = Field(60.0, gt=0)
    """How long an outgoing call may ring."""
    media: float = Field(30.0, gt=0)
    """A call is ended when no packet has come from the peer for this long, except on hold. Peers that suppress silence
    need more."""
    session: int = Field(1800, ge=0)
    """Session interval that we ask for (RFC 4028); a peer that is gone is noticed after this. 0: there is a session
    interval only if the peer asks for one."""
    session_min: int = Field(90, ge=90)
    """Shortest session interval that a peer may ask for; a shorter one is answered with 422."""
    transfer: float = Field(32.0, gt=0)
    """How long we wait for the outcome of a transfer; then the call is hung up."""


class SipLimits(Section):
    """What strangers and floods may cost."""

    requests_per_s: float = Field(50.0, gt=0)
    """Requests outside known transactions that one source address may send per second, on average; more are dropped
    without an answer. A trunk of many calls needs more, since each call costs about three. Messages of any kind beyond
    four times this rate (every 4 kB of a longer message count as one more) are dropped unread, and a connection that
    brings more is closed."""
    burst: int = Field(200, gt=0)
    """Requests that one source address may send at once."""
    calls_per_s: float = Field(50.0, gt=0)
    """New calls per second of one source address, on average; more are answered with 503."""
    calls_burst: int = Field(100, gt=0)
    """New calls that one source address may begin at once."""
    connections: int = Field(1000, gt=0)
    """Most TCP and TLS connections at a time."""
    idle_s: float = Field(600.0, gt=0)
    """A connection that is silent for this many seconds is closed."""
    transactions: int = Field(20_000, gt=0)
    """Most transactions kept; a request beyond them is answered with 503. Requests in dialogs find a tenth more room,
    and the CANCEL of an INVITE that is kept finds room always."""

    def share(self, workers: int) -> SipLimits:
        """Return the part of each of several workers, so that a source gets no more from all of them than from one."""
        return SipLimits(
            requests_per_s=self.requests_per_s / workers,
            burst=-(-self.burst // workers),
            calls_per_s=self.calls_per_s / workers,
            calls_burst=-(-self.calls_burst // workers),
            connections=-(-self.connections // workers),
            idle_s=self.idle_s,
            transactions=-(-self.transactions // workers),
        )


class SipConfig(Section):
    """Calls by SIP and RTP."""

    host: str = "127.0.0.1"
    """Address to listen on and to receive media on; `0.0.0.0` needs `public_address`."""
    port: int = Field(5060, ge=0, le=65535)
    """UDP and TCP port; 0 takes a free one and logs it."""
    tls: SipTlsConfig | None = None
    """Listen for SIP over TLS too."""
    public_address: str = ""
    """IP address that peers can reach us at, of the same family as `host`; we write it into Contact, Via and session
    descriptions. Empty: `host`."""
    rtp_ports: str = "16384-32767"
    """UDP ports for media. Each call takes two, so half the number of ports is the most calls. Several workers
    (`server.workers`) have equal parts of it."""
    trunks: dict[TrunkName, TrunkConfig] = {}
    """Who may call, by name. The first trunk that knows a caller counts. A request that no trunk knows is not answered,
    or is challenged if a trunk asks for a password."""
    registrations: tuple[RegistrationConfig, ...] = ()
    """Registrars that we register at."""
    allowed_targets: TargetPatterns = ()
    """Where SIP calls and REFERs may go, in addition to `calling.allowed_targets` and in the same form, e.g.
    `sip:+4930*@pbx.example` or `*@pbx.example`. A number is also compared as the user at the trunk's `proxy`."""
    realm: str = "talkspurt"
    """Realm of our digest challenges."""
    user_to_user: bool = True
    """Pass `handoffData` of `end` and `transfer` on in a User-to-User header (RFC 7433, hex)."""
    timeouts: SipTimeouts = SipTimeouts()
    """How long the SIP side waits."""
    limits: SipLimits = SipLimits()
    """What strangers and floods may cost."""

    @model_validator(mode="after")
    def _usable(self) -> SipConfig:
        for name in ("host", "public_address"):
            value = getattr(self, name)
            if value:
                try:
                    ipaddress.ip_address(value)
                except ValueError:
                    raise ValueError(f"sip.{name} is {value!r}, expected an IP address") from None
        if not self.public_address and ipaddress.ip_address(self.host).is_unspecified:
            raise ValueError(f"sip.host is {self.host}: set sip.public_address, or peers cannot know where we are")
        ours, told = ipaddress.ip_address(self.host).version, ipaddress.ip_address(self.advertised).version
        if ours != told:  # the media sockets are of one family: what peers send to the other never comes
            raise ValueError(
                f"sip.host {self.host} is IPv{ours} and sip.public_address {self.public_address} IPv{told}, expected "
                f"both of one family: {'0.0.0.0' if told == 4 else '::'} listens on all addresses of IPv{told}"
            )
        low, _, high = self.rtp_ports.partition("-")
        if not (low.isdigit() and high.isdigit() and 1024 <= int(low) < int(high) <= 65535):
            raise ValueError(f"sip.rtp_ports is {self.rtp_ports!r}, expected LOW-HIGH within 1024-65535")
        for registration in self.registrations:
            if registration.trunk and registration.trunk not in self.trunks:
                raise ValueError(f"sip.registrations names trunk {registration.trunk!r}, which sip.trunks lacks")
        by_registration = {registration.trunk for registration in self.registrations}
        for name, trunk in self.trunks.items():
            if not trunk.asks_for_something and name not in by_registration:
                raise ValueError(
                    f"sip.trunks.{name} needs addresses, a username with password, certificate_names, or a "
                    "registration that names it: who may call?"
                )
        return self

    @property
    def rtp_range(self) -> tuple[int, int]:
        """Lowest and highest port of `rtp_ports`."""
        low, _, high = self.rtp_ports.partition("-")
        return int(low), int(high)

    @property
    def advertised(self) -> str:
        """The address that we write into messages: `public_address`, else `host`."""
        return self.public_address or self.host
