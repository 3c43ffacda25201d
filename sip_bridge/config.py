"""Section ``sip`` of the configuration. The docstring of every field gives its unit and its trade-off."""

from __future__ import annotations

import ipaddress
from math import ceil
from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator

from gateway.config import FileToRead, Section, TargetPatterns
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.parameters import DidFrom
from sip_bridge.message.sip import Uri

CodecName = Literal["PCMU", "PCMA", "G722", "OPUS"]
SrtpPolicy = Literal["off", "optional", "preferred", "required"]
TrunkName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,) if value else ()


def _sip_uri(text: str, where: str) -> str:
    try:
        uri = Uri.parse(text)
    except SipProtocolError as error:
        raise ValueError(f"{where}: {error}") from None
    if uri.scheme not in ("sip", "sips"):
        raise ValueError(f"{where} is {text!r}, expected sip:host[:port][;transport=udp|tcp|tls]")
    return text


class SipTlsConfig(Section):
    """SIP over TLS. New files are taken within ten seconds without a restart. Files that cannot be used are logged, and
    the old ones stay in use."""

    port: int = Field(5061, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    certificate: FileToRead
    """PEM file of the certificate chain that we show as server and as client."""
    key: FileToRead
    """PEM file of the private key of `certificate`."""
    authorities: FileToRead = ""
    """PEM file of the authorities for the servers that we call and for certificates of trunks. Empty: the system's
    authorities, and no peer is asked for a certificate. An authority that leaves the file counts until a restart."""


class TrunkConfig(Section):
    """A peer whose calls are taken. The peer proves itself by address, digest, TLS certificate or our registration
    with it. A trunk with several of the first three asks for all of them."""

    addresses: tuple[str, ...] = ()
    """Source addresses or networks of the peer. Alone they are enough only where addresses cannot be forged."""
    username: str = ""
    """User name for digest: callers must know it, and we answer challenges of `proxy` with it."""
    password: SecretStr | None = Field(None, min_length=1)
    """Password of `username`."""
    certificate_names: tuple[str, ...] = ()
    """Names of which a TLS client certificate must carry one (subject alternative name: DNS, or host of a SIP URI)."""
    route: str = "default"
    """Route of calls from this trunk."""
    numbers: dict[str, str] = {}
    """Route by called number (see `did_from`), `"2000"` or `"20*"`. The longest match counts; without a match the call
    takes `route`."""
    did_from: DidFrom = "auto"
    """Place of the called number. `auto`: P-Called-Party-ID, else the Request-URI, or To if the Request-URI names our
    account."""
    headers: tuple[str, ...] = ("X-*",)
    """Headers that become custom parameters, and the reverse on our calls. A `*` ends a prefix. Standard headers never
    count."""
    codecs: tuple[CodecName, ...] = Field(("PCMU", "PCMA", "G722", "OPUS"), min_length=1)
    """Codecs, the preferred one first. G722 and OPUS sound better and cost more CPU time."""
    srtp: SrtpPolicy = "optional"
    """Media encryption. `optional` takes what is offered and offers plain RTP, `preferred` RTP/AVP with a key (some
    PBXs refuse it), `required` only RTP/SAVP. `off` refuses RTP/SAVP. The key is secret only over TLS."""
    media: Literal["strict", "host", "any"] = "host"
    """RTP from another address than the peer named: `strict` takes none, `host` that of the host that signals, `any` of
    any host in the first seconds (phones behind NAT)."""
    early_media: bool = False
    """Speak before the call is answered (183). On calls that we place: the session begins with early media instead of
    with the answer."""
    answer_at_once: bool = False
    """Answer before the dialogue manager is connected, for routes that REST alone leads."""
    max_calls: int = Field(0, ge=0)
    """Most live calls; one more is answered with 503. 0: no limit."""
    proxy: str | tuple[str, ...] = ""
    """Address for our calls, `sip:host[:port][;transport=udp|tcp|tls]`, or a list, the best first. A list is checked by
    OPTIONS; calls skip what does not answer. Empty: the registrars of the trunk's account, else no outgoing calls."""
    outbound_proxy: str | tuple[str, ...] = ""
    """Next hop of our calls, if it is not `proxy`; same form."""
    from_uri: str = ""
    """From of outgoing calls that name none. Empty: `username` (or `talkspurt`) at `sip.public_address`."""
    ping_s: float = Field(0.0, ge=0)
    """Interval of OPTIONS to `proxy`, seconds. While none answers, outgoing calls fail at once. 0: none, or 30 s for a
    list, without that effect."""
    transfers: Literal["refuse", "follow"] = "refuse"
    """Answer to a REFER of this trunk. `follow`: the peer may send our call to allowed targets."""

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
        for name in ("proxy", "outbound_proxy", "from_uri"):
            for each in _several(getattr(self, name)):
                _sip_uri(each, f"trunk {name}")
        if self.ping_s and not self.pinged:
            raise ValueError("a trunk with ping_s needs a proxy")
        return self

    @property
    def proxies(self) -> tuple[str, ...]:
        """The addresses of ``proxy``."""
        return _several(self.proxy)

    @property
    def outbound_proxies(self) -> tuple[str, ...]:
        """The addresses of ``outbound_proxy``."""
        return _several(self.outbound_proxy)

    @property
    def pinged(self) -> tuple[str, ...]:
        """The next hops that may be checked by OPTIONS."""
        return self.outbound_proxies or self.proxies

    @property
    def asks_for_something(self) -> bool:
        """True if the trunk asks callers for a proof. A trunk without one is only for calls by a registration."""
        return bool(self.addresses or self.username or self.certificate_names)


class RegistrationConfig(Section):
    """A registrar at which we register our address."""

    registrar: str | tuple[str, ...] = Field(min_length=1)
    """`sip:host[:port][;transport=udp|tcp|tls]`, or a list; each may call."""
    outbound_proxy: str = ""
    """Next hop of REGISTER, if not the registrar."""
    username: str = Field(min_length=1)
    """Name of the account, and user part of the address of record and of the contact."""
    password: SecretStr | None = Field(None, min_length=1)
    """Password of the account."""
    auth_username: str = ""
    """User name for digest. Empty: `username`."""
    domain: str = ""
    """Domain of the address of record. Empty: the registrar's host."""
    realm: str = ""
    """The only realm whose challenges we answer. Empty: any realm."""
    trunk: str = ""
    """Trunk of calls from the registrar's addresses; list others in its `addresses`. Without `username` it calls with
    this account. Empty: calls need a trunk that knows them."""
    expires_s: int = Field(600, ge=60)
    """Life of the registration, seconds; the registrar may shorten it. Less finds a restarted registrar sooner."""

    @property
    def address(self) -> str:
        """The address of record."""
        return f"sip:{self.username}@{self.domain or Uri.parse(self.registrars[0]).host}"

    @property
    def registrars(self) -> tuple[str, ...]:
        """The addresses of ``registrar``."""
        return _several(self.registrar)

    def at(self, registrar: str) -> RegistrationConfig:
        """Return the settings for one of the registrars."""
        return self.model_copy(update={"registrar": registrar})

    @model_validator(mode="after")
    def _readable(self) -> RegistrationConfig:
        for name in ("registrar", "outbound_proxy"):
            for each in _several(getattr(self, name)):
                _sip_uri(each, f"registration {name}")
        return self


class SipTimeouts(Section):
    """Waits of the SIP side, seconds."""

    t1_s: float = Field(0.5, gt=0)
    """T1 of RFC 3261, the estimate of a round trip. A transaction ends after 64 times this; T2 is eight times and T4
    ten times as long."""
    ready_s: float = Field(8.0, gt=0)
    """Longest wait for the dialogue manager before an INVITE is answered with 503. Keep it below the peer's own limit,
    often 10 s."""
    answer_s: float = Field(60.0, gt=0)
    """Longest ringing of an outgoing call."""
    media_s: float = Field(30.0, gt=0)
    """A call without a packet for this long is ended, except on hold. Peers that suppress silence need more."""
    session_s: int = Field(1800, ge=0)
    """Session interval that we ask for (RFC 4028); a peer that is gone is noticed after this. 0: only if the
    peer asks."""
    transfer_s: float = Field(32.0, gt=0)
    """Longest wait for the outcome of a transfer; then we hang up."""

    @property
    def t2_s(self) -> float:
        """T2 of RFC 3261, the longest pause between repetitions of a message, seconds: 4 with its T1 of 0.5."""
        return 8 * self.t1_s

    @property
    def t4_s(self) -> float:
        """T4 of RFC 3261, the longest life of a message in the network, seconds: 5 with its T1 of 0.5."""
        return 10 * self.t1_s


class SipLimits(Section):
    """Bounds for strangers and floods."""

    requests_per_s: float = Field(50.0, gt=0)
    """Requests outside known transactions per second and source address, on average, and four times as many at once;
    more are dropped. A call costs about three. Messages beyond four times this rate are dropped unread, 4 kB counting
    as one."""
    calls_per_s: float = Field(50.0, gt=0)
    """New calls per second and source address, on average, and twice as many at once; more are answered with 503."""
    connections: int = Field(1000, gt=0)
    """Most TCP and TLS connections."""
    transactions: int = Field(20_000, gt=0)
    """Most transactions; more get 503. Requests in dialogs have a tenth more room."""

    @property
    def burst(self) -> int:
        """Most requests at once per source address."""
        return ceil(4 * self.requests_per_s)

    @property
    def calls_burst(self) -> int:
        """Most new calls at once per source address."""
        return ceil(2 * self.calls_per_s)

    def share(self, workers: int) -> SipLimits:
        """Return the part of each of several workers, so that a source gets no more from all of them than from one."""
        return SipLimits(
            requests_per_s=self.requests_per_s / workers,
            calls_per_s=self.calls_per_s / workers,
            connections=-(-self.connections // workers),
            transactions=-(-self.transactions // workers),
        )


class SipConfig(Section):
    """Calls by SIP and RTP."""

    host: str = "127.0.0.1"
    """Address for SIP and media; `0.0.0.0` needs `public_address`."""
    port: int = Field(5060, ge=0, le=65535)
    """UDP and TCP port; 0 takes a free one and logs it."""
    tls: SipTlsConfig | None = None
    """SIP over TLS too."""
    public_address: str = ""
    """IP address at which peers reach us, for Contact, Via and session descriptions. Empty: `host`."""
    rtp_ports: str = "16384-32767"
    """UDP ports for media, two for each call. Workers (`server.workers`) share them equally."""
    trunks: dict[TrunkName, TrunkConfig] = {}
    """Peers that may call, by name; the first that knows a caller counts. Others get no answer, or a challenge if a
    trunk asks for a password."""
    registrations: tuple[RegistrationConfig, ...] = ()
    """Registrars at which we register."""
    allowed_targets: TargetPatterns = ()
    """Targets of SIP calls and REFERs beside `calling.allowed_targets`, in the same form: `sip:+4930*@pbx.example`. A
    number is also compared as the user at the trunk's `proxy`."""
    realm: str = "talkspurt"
    """Realm of our digest challenges."""
    user_to_user: bool = True
    """Pass `handoffData` of `end` and `transfer` on in a User-to-User header (RFC 7433, hex)."""
    timeouts: SipTimeouts = SipTimeouts()
    """Waits of the SIP side."""
    limits: SipLimits = SipLimits()
    """Bounds for strangers and floods."""

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

    def trunks_with_accounts(self) -> dict[str, TrunkConfig]:
        """Return the trunks with the settings of calls. A trunk without `username` has the account of its first
        registration, with which it calls but for which it does not ask callers."""
        found = dict(self.trunks)
        for each in reversed(self.registrations):
            if each.trunk and not self.trunks[each.trunk].username:
                account = {"username": each.auth_username or each.username, "password": each.password}
                if each.password is None:
                    account = {}
                trunk = self.trunks[each.trunk]
                found[each.trunk] = trunk.model_copy(update={**account, "from_uri": trunk.from_uri or each.address})
        return found

    @property
    def advertised(self) -> str:
        """The address that we write into messages: `public_address`, else `host`."""
        return self.public_address or self.host
