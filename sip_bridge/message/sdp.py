"""Session descriptions, and offers and answers for one audio stream (RFC 8866, RFC 3264, RFC 4568). Pure.

Codecs are matched by name, clock rate and channels, never by payload type, which each side chooses for itself. These
rules hold for every offer and answer, early ones, forks, late offers and changes in mid-call included:

* Sent is one codec. Our answer names one: that of the session if it is offered, which needs no conversion, else the
  current one, else the first in our order. After our offer it is the first one of the answer that we offered (RFC 3264
  sections 6.1 and 7), with the answer's payload type.
* Accepted is every audio codec that we offered or that the offer listed, from the moment on at which we send our
  description (RFC 3264 section 5.1), also with the peer's payload types if they are free. A payload type keeps its
  meaning for the whole call unless a later description changes it (section 8.3.2), so that packets under way are heard.
* Touch tones are sent with the clock of the codec if possible, and accepted with every payload type of either side.
* Each answer to an offer is read alone: that of another fork, or a 200 after early media, may choose anything that was
  offered (RFC 3261 section 13.2.2.4).

``Negotiation`` holds our side of one call: the open offer, the agreement and our keys.
"""

from __future__ import annotations

import base64
import binascii
import copy
import enum
import ipaddress
import itertools
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateway.seams.plain_text import plain_lines
from sip_bridge.errors import NotAcceptable, SipProtocolError
from voicecodecs.registry import AudioFormat, by_rtp_name

MAX_BYTES = 16 * 1024
MAX_MEDIA = 16
MAX_FORMATS = 64

_MEANS_NOTHING = re.compile("WSH=[0-9]+|KDR=0|-.*", re.IGNORECASE)
"""Session parameters of a crypto line that change nothing here: a hint, the default, and what may be ignored (RFC 4568
section 6.3)."""

SUITES: Mapping[str, int] = {
    "AEAD_AES_256_GCM": 44,
    "AEAD_AES_128_GCM": 28,
    "AES_CM_128_HMAC_SHA1_80": 30,
    "AES_CM_128_HMAC_SHA1_32": 30,
}
"""Supported SRTP suites, best first, with the length of master key and salt in bytes (RFC 4568 section 6.2, RFC
7714)."""

_OFFERED_SUITES = ("AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32")
"""Offers name only the suites that every PBX knows, because some PBXs reject unknown crypto lines."""

_PROTOCOLS = frozenset({"RTP/AVP", "RTP/AVPF", "RTP/SAVP", "RTP/SAVPF"})
_EVENTS = "TELEPHONE-EVENT"
_RTPMAP = re.compile(r"\s*([^/;\s]+)\s*(?:/\s*([^/;\s]*)\s*(?:/\s*([^/;\s]*))?)?")
"""Name, clock and channels of a codec. Some peers write more after them."""

_OTHER_NAMES = {
    **dict.fromkeys(("G711U", "G711MU", "G711ULAW", "ULAW", "MULAW"), "PCMU"),
    **dict.fromkeys(("G711A", "G711ALAW", "ALAW"), "PCMA"),
    "TELEPHONEEVENTS": _EVENTS,
}
"""Names that some peers write, without hyphens and dots."""


class Direction(enum.Enum):
    """The direction of audio, seen from the side that sends the description (RFC 8866 section 6.7)."""

    SENDRECV = "sendrecv"
    SENDONLY = "sendonly"
    RECVONLY = "recvonly"
    INACTIVE = "inactive"

    @classmethod
    def of(cls, *, sends: bool, receives: bool) -> Direction:
        """Return the direction of a side that does or does not send and receive."""
        if sends:
            return cls.SENDRECV if receives else cls.SENDONLY
        return cls.RECVONLY if receives else cls.INACTIVE

    @property
    def sends(self) -> bool:
        """True if that side sends audio."""
        return self in (Direction.SENDRECV, Direction.SENDONLY)

    @property
    def receives(self) -> bool:
        """True if that side wants to receive audio."""
        return self in (Direction.SENDRECV, Direction.RECVONLY)


@dataclass(frozen=True, slots=True)
class Codec:
    """One format of a media description."""

    payload_type: int
    name: str
    """RTP encoding name in upper case: PCMU, OPUS, TELEPHONE-EVENT ..."""
    clock_hz: int
    channels: int = 1
    fmtp: str = ""

    def same(self, other: Codec) -> bool:
        """Return True if both are the same codec, regardless of payload type."""
        return (self.name, self.clock_hz, self.channels) == (other.name, other.clock_hz, other.channels)


KNOWN: Mapping[str, Codec] = {
    "PCMU": Codec(0, "PCMU", 8000),
    "PCMA": Codec(8, "PCMA", 8000),
    "G722": Codec(9, "G722", 8000),  # sampled at 16000 Hz; the RTP clock is 8000 by history (RFC 3551 section 4.5.2)
    "OPUS": Codec(107, "OPUS", 48000, 2, "minptime=10;useinbandfec=1"),  # always says 2 channels (RFC 7587 section 7)
}
"""The supported codecs, with the payload types used in our offers."""

_STATIC = {codec.payload_type: codec for codec in KNOWN.values() if codec.payload_type < 96} | {
    13: Codec(13, "CN", 8000)
}
_NOISE = "CN"
_OUR_NOISE = Codec(13, _NOISE, 8000)
"""Comfort noise (RFC 3389) for codecs with a clock of 8000 Hz."""

_OUR_EVENTS = {8000: Codec(101, _EVENTS, 8000, 1, "0-15"), 48000: Codec(102, _EVENTS, 48000, 1, "0-15")}


@dataclass(frozen=True, slots=True)
class Crypto:
    """One usable ``a=crypto`` line (RFC 4568 section 9.1)."""

    tag: int
    suite: str
    key: bytes
    """Master key and salt. They protect the packets of the side that sends this line."""

    def __repr__(self) -> str:
        return f"Crypto({self.tag}, {self.suite})"  # a key does not belong in a log


@dataclass(frozen=True, slots=True)
class Media:
    """One ``m=`` section."""

    kind: str
    port: int
    protocol: str
    formats: tuple[str, ...]
    host: str = ""
    other_hosts: tuple[str, ...] = ()
    """The addresses of further ``c=`` lines. Only multicast has them, but some peers name one of each family."""
    codecs: tuple[Codec, ...] = ()
    direction: Direction = Direction.SENDRECV
    ptime_ms: int | None = None
    maxptime_ms: int | None = None
    cryptos: tuple[Crypto, ...] = ()
    rtcp_mux: bool = False
    rtcp_port: int | None = None
    """None: RTCP uses the port after ``port``, or ``port`` itself with rtcp-mux."""


@dataclass(frozen=True, slots=True)
class SessionDescription:
    """A session description, reduced to what the media needs."""

    media: tuple[Media, ...]


def _number(text: str, largest: int, where: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > largest:
        raise SipProtocolError(f"SDP {where} is {text[:40]!r}, expected a number up to {largest}")
    return int(text)


class _Section:
    """The lines of the session or of one media description."""

    def __init__(self, media: str = "") -> None:
        self.media = media
        self.hosts: list[str] = []
        self.attributes: dict[str, list[str]] = {}

    def first(self, name: str) -> str | None:
        values = self.attributes.get(name)
        return values[0] if values else None

    def direction(self) -> Direction | None:
        return next((direction for direction in Direction if direction.value in self.attributes), None)


def parse(body: bytes) -> SessionDescription:
    """Read a session description. Unknown lines and attributes are skipped. What is not well-formed is read where its
    meaning is clear: white space anywhere, missing or odd ``o=``, ``s=`` and ``t=``, and a missing ``c=`` if ``o=``
    has an IP address. Only the audio that is not refused must be whole: switches name disabled media without formats
    (issue 1233 of pjsip/pjproject, issue 305 of versatica/JsSIP).

    Raises:
        SipProtocolError: ``v=0`` is missing, the audio has no address, its port cannot be read, or something is too
            long. The message names it.
    """
    if len(body) > MAX_BYTES:
        raise SipProtocolError(f"SDP has {len(body)} bytes, expected at most {MAX_BYTES}", status=513)
    session = _Section()
    sections = [session]
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").strip("\ufeff\0 \t\n")
    text = plain_lines(text)
    origin = ""
    first, _, rest = text.partition("\n")
    if "".join(first.split()).lower() != "v=0":
        raise SipProtocolError(f"SDP begins {first[:40]!r}, expected v=0")
    for line in rest.split("\n"):
        kind, equals, value = (part.strip() for part in line.partition("="))
        match kind.lower():
            case "o":
                origin = (value.split() or [""])[-1]
            case "m" if equals:
                sections.append(_Section(value))
            case "c":
                parts = value.split()
                address = parts[min(2, len(parts) - 1)].partition("/")[0] if parts else ""
                if _is_address(address) or (len(parts) > 2 and re.fullmatch(r"[A-Za-z0-9.:_-]+", address)):
                    sections[-1].hosts.append(address)
            case "a":
                name, _, about = value.partition(":")
                sections[-1].attributes.setdefault(name.strip().lower(), []).append(about.strip())
    if not session.hosts and _is_address(origin):
        session.hosts.append(origin)
    if len(sections) - 1 > MAX_MEDIA:
        raise SipProtocolError(f"SDP has {len(sections) - 1} media descriptions, expected at most {MAX_MEDIA}")
    return SessionDescription(tuple(_media(section, session) for section in sections[1:]))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _media(section: _Section, session: _Section) -> Media:
    parts = section.media.replace(",", " ").split()
    if len(parts) < 3 or len(parts) - 3 > MAX_FORMATS:
        raise SipProtocolError(
            f"SDP media is {section.media[:40]!r}, expected kind, port, protocol and up to 64 formats"
        )
    kind, written, protocol = parts[0].lower(), parts[1].partition("/")[0], parts[2]
    if kind != "audio" or protocol.upper() not in _PROTOCOLS:
        known = re.fullmatch("[0-9]{1,5}", written) and int(written) < 65536
        return Media(kind, int(written) if known else 0, protocol, tuple(parts[3:]))
    port = _number(written, 65535, "media port")
    hosts = section.hosts or session.hosts
    if not hosts and port:
        raise SipProtocolError("SDP without c= for its audio, expected one (RFC 8866 section 5.7)")
    ptime, maxptime = section.first("ptime"), section.first("maxptime")
    rtcp = (section.first("rtcp") or "").split()
    return replace(
        Media(kind, port, protocol, tuple(parts[3:])),
        host=hosts[0] if hosts else "",
        other_hosts=tuple(hosts[1:]),
        codecs=_codecs(section, parts[3:]),
        direction=section.direction() or session.direction() or Direction.SENDRECV,
        # Some peers write 20.0. A ptime is only a preference, so an unreadable one is ignored.
        ptime_ms=int(ptime) if ptime and re.fullmatch("[0-9]{1,4}", ptime) else None,
        maxptime_ms=int(maxptime) if maxptime and re.fullmatch("[0-9]{1,4}", maxptime) else None,
        cryptos=tuple(crypto for line in section.attributes.get("crypto", ()) if (crypto := _crypto(line))),
        rtcp_mux="rtcp-mux" in section.attributes,
        rtcp_port=int(rtcp[0]) if rtcp and re.fullmatch("[0-9]{1,5}", rtcp[0]) and int(rtcp[0]) < 65536 else None,
    )


def _by_format(section: _Section, name: str) -> dict[str, str]:
    """Return an attribute's values by format. The first of two counts."""
    split = (line.split(None, 1) for line in reversed(section.attributes.get(name, ())))
    return {parts[0]: parts[1].strip() for parts in split if len(parts) == 2}


def _codecs(section: _Section, formats: Sequence[str]) -> tuple[Codec, ...]:
    maps, fmtps = _by_format(section, "rtpmap"), _by_format(section, "fmtp")
    codecs = []
    for text in formats:
        if not (text.isascii() and text.isdigit()) or len(text) > 3 or int(text) > 127:
            continue
        codec = _mapped(int(text), maps[text]) if text in maps else _STATIC.get(int(text))
        if codec is not None:
            codecs.append(replace(codec, fmtp=fmtps.get(text, "")))
    return tuple(codecs)


def _mapped(payload_type: int, mapped: str) -> Codec | None:
    """Read the value of an ``a=rtpmap``. None: it has no meaning.

    Two names have one meaning whatever follows them: ``opus`` always has a clock of 48000 Hz and two channels (RFC 7587
    section 7), and G722 always one of 8000 Hz (RFC 3551 section 4.5.2), although some peers write 16000.
    """
    found = _RTPMAP.match(mapped.upper())
    if not found:
        return None
    name, *rest = (part for part in found.groups() if part is not None)
    name = _OTHER_NAMES.get(name.replace("-", "").replace(".", ""), name)
    if name in ("OPUS", "G722"):
        return replace(KNOWN[name], payload_type=payload_type)
    usual = KNOWN.get(name) or _STATIC.get(payload_type)
    clock = rest[0] if rest else str(usual.clock_hz) if usual and usual.name == name else ""
    if name == _EVENTS and not clock:
        clock = "8000"
    if not name or not re.fullmatch("[0-9]{1,7}", clock):
        return None
    channels = int(rest[1]) if len(rest) > 1 and re.fullmatch("[1-9][0-9]?", rest[1]) else 1
    return Codec(payload_type, name, int(clock), channels)


def _crypto(line: str) -> Crypto | None:
    """Read a crypto line. None: the line is valid but unusable (another suite, session parameters, or a key with an
    MKI)."""
    parts = line.split()
    if len(parts) < 3 or not parts[0].isdigit() or len(parts[0]) > 9 or parts[1].upper() not in SUITES:
        return None
    suite = parts[1].upper()
    if not all(_MEANS_NOTHING.fullmatch(parameter) for parameter in parts[3:]):
        return None
    method, _, params = parts[2].partition(":")
    encoded, *rest = params.split("|")
    # A lifetime after the key is accepted. A master key identifier (with a colon) would be in every packet, and libsrtp
    # is not told to expect one, so such a key is not used.
    if method.lower() != "inline" or any(":" in more for more in rest):
        return None
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return Crypto(int(parts[0]), suite, key) if len(key) == SUITES[suite] else None


@dataclass(frozen=True, slots=True)
class Agreed:
    """The result of an offer and its answer, seen from our side."""

    codec: Codec
    """The codec with the peer's payload type, used for sending."""
    receive_type: int
    """Our payload type of the same codec, which the peer should send."""
    receives: Mapping[int, Codec]
    """Accepted codecs and touch tones by payload type."""
    events: Codec | None
    """Touch tones (RFC 4733) with the peer's payload type. None: the peer takes no touch tones."""
    events_receive_type: int | None
    noise_type: int | None
    """Payload type of comfort noise (RFC 3389) in both directions. None: silence is sent as audio or not at all."""
    host: str
    port: int
    rtcp_port: int
    """The peer's port for RTCP. With rtcp-mux this is ``port``."""
    direction: Direction
    """Our direction."""
    ptime_ms: int
    """Length of our frames: the peer's preference if possible."""
    send_crypto: Crypto | None = None
    receive_crypto: Crypto | None = None

    @property
    def sent_format(self) -> AudioFormat:
        """The audio format that we send."""
        return _format(self.codec, self.ptime_ms)

    @property
    def received_formats(self) -> Mapping[int, AudioFormat]:
        """The accepted audio formats by payload type. Their frames may have any length."""
        return {number: _format(codec, 20) for number, codec in self.receives.items() if codec.name != _EVENTS}

    @property
    def received_events(self) -> Mapping[int, int]:
        """The clocks of accepted touch tones by payload type, Hz."""
        return {number: codec.clock_hz for number, codec in self.receives.items() if codec.name == _EVENTS}

    @property
    def on_hold(self) -> bool:
        """True if the peer does not want to hear us now. RTCP reports continue."""
        return not self.direction.sends


def _format(codec: Codec, ptime_ms: int) -> AudioFormat:
    channels = f"/{codec.channels}" if codec.channels > 1 else ""
    return by_rtp_name(f"{codec.name}/{codec.clock_hz}{channels}", ptime_ms=ptime_ms)


@dataclass(frozen=True, slots=True)
class _Offer:
    codecs: Sequence[Codec]
    cryptos: Sequence[Crypto]
    wish: Direction
    best_effort: bool
    """True if the peer may decline the keys."""


class Negotiation:
    """The offers and answers of one call.

    An unchanged description keeps its version, which marks a session refresh (RFC 3264 section 8).

    Args:
        host: address that the peer can reach.
        peer_host: address that the peer signals from. Only a peer on this machine may name a loopback address.
        port: our RTP port. RTCP uses the next one, unless the peer wants both on one port.
        codecs: names out of ``KNOWN``, best first.
        srtp: ``off`` refuses RTP/SAVP, ``optional`` accepts either and offers plain RTP, ``preferred`` offers keys that
            the peer may decline (best effort), ``required`` refuses plain RTP.
        ptime_ms: length of our frames if the peer prefers none that is possible.
        random_bytes: source of keys and of the session id.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        peer_host: str = "",
        codecs: Sequence[str] = ("PCMU", "PCMA", "G722", "OPUS"),
        srtp: Literal["off", "optional", "preferred", "required"] = "optional",
        ptime_ms: int = 20,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        unknown = [name for name in codecs if name not in KNOWN]
        if unknown or not codecs:
            raise ValueError(f"codecs are {list(codecs)}, expected some of {', '.join(KNOWN)}")
        self.agreed: Agreed | None = None
        """The current agreement. A failed negotiation does not change it."""
        self.preferred: Codec | None = None
        """The codec of the call's session. None: it has not begun."""
        self._host = host
        self._port = port
        # An IPv6 socket reports the address of an IPv4 peer as a mapped one.
        near = (each.removeprefix("::ffff:") for each in (host, peer_host))
        self._on_loopback = any(each == "::1" or each.startswith("127.") for each in near)
        self._codecs = [KNOWN[name] for name in codecs]
        self._srtp = srtp
        self._ptime_ms = ptime_ms
        self._random_bytes = random_bytes
        self._session_id = int.from_bytes(random_bytes(7), "big")
        self._version = 0
        self._last_description = ""
        self._keys: dict[str, bytes] = {}
        self._offer: _Offer | None = None
        self._protocol = ""
        """The agreed profile, which later offers repeat: some peers combine RTP/AVP with keys and refuse a change."""

    @property
    def offering(self) -> bool:
        """True while our offer waits for its answer."""
        return self._offer is not None

    def answer(self, offer: SessionDescription, *, wish: Direction = Direction.SENDRECV) -> bytes:
        """Answer an offer, and set ``agreed`` to the result.

        Args:
            wish: the direction that we want. The answer follows it as far as the offer allows.

        Raises:
            NotAcceptable: the offer has no usable audio. The message says what was offered; nothing changed.
            RuntimeError: our own offer is open. The dialog has to resolve this glare (491).
        """
        if self.offering:
            raise RuntimeError("answer() while our own offer is open")
        at, media, codec, theirs = self._acceptable(offer)
        ours = Crypto(theirs.tag, theirs.suite, self._key(theirs.suite)) if theirs else None
        events = _events(media, codec.clock_hz)
        noise = _noise(media, codec.clock_hz)
        self.agreed = self._agree(
            media,
            codec,
            events,
            noise,
            receive_type=codec.payload_type,
            events_receive_type=events.payload_type if events else None,
            receives=self._usable(media.codecs),
            wish=wish,
            ours=ours,
            theirs=theirs,
        )
        # The answer has exactly one codec, so that a peer has no reason to switch. The codec keeps the payload type of
        # the offer (RFC 3264 section 6.1).
        audio = self._audio(
            media.protocol,
            [codec] + ([noise] if noise else []) + ([replace(events, fmtp="0-15")] if events else []),
            self.agreed.direction,
            [ours] if ours else [],
            media.rtcp_mux,
        )
        sections = [
            audio if index == at else [f"m={other.kind} 0 {other.protocol} {' '.join(other.formats) or '0'}"]
            for index, other in enumerate(offer.media)
        ]
        return self._describe(sections)

    def offer(self, *, wish: Direction = Direction.SENDRECV, refresh: bool = False) -> bytes:
        """Make an offer for an outgoing call, or for the 200 to an INVITE without an offer.

        Args:
            refresh: True: offer only the agreement again, for a re-INVITE that changes nothing.
        """
        agreed = self.agreed
        if agreed and refresh:
            codecs = [replace(agreed.codec, payload_type=agreed.receive_type)]
            if agreed.noise_type is not None:
                codecs.append(_OUR_NOISE)
            if agreed.events and agreed.events_receive_type is not None:
                codecs.append(replace(agreed.events, payload_type=agreed.events_receive_type, fmtp="0-15"))
        else:
            clocks = sorted({codec.clock_hz for codec in self._codecs})
            noise = [_OUR_NOISE] if _OUR_NOISE.clock_hz in clocks else []
            events = [_OUR_EVENTS[clock_hz] for clock_hz in clocks]
            numbered = self._numbered([*self._wanted, *events])
            codecs = [codec for codec in numbered if codec.name != _EVENTS] + noise
            codecs += [codec for codec in numbered if codec.name == _EVENTS]
        if agreed:
            suites = [agreed.send_crypto.suite] if agreed.send_crypto else []
            protocol = self._protocol
        else:
            suites = list(_OFFERED_SUITES) if self._srtp in ("preferred", "required") else []
            protocol = "RTP/SAVP" if self._srtp == "required" else "RTP/AVP"
        cryptos = [Crypto(tag, suite, self._key(suite)) for tag, suite in enumerate(suites, 1)]
        # Once keys are agreed, plain RTP is refused.
        best_effort = self._srtp == "preferred" and not (agreed and agreed.send_crypto)
        self._offer = _Offer(codecs, cryptos, wish, best_effort)
        return self._describe([self._audio(protocol, codecs, wish, cryptos, False)])

    def accept(self, answer: SessionDescription) -> Agreed:
        """Accept the answer to our offer.

        Raises:
            NotAcceptable: the answer refuses the audio, takes nothing that was offered, or names an address that cannot
                be sent to. The agreement stays as it was.
            RuntimeError: nothing was offered.
        """
        if self._offer is None:
            raise RuntimeError("accept() without an offer")
        offered, self._offer = self._offer, None
        media, codec = self._chosen(answer, offered.codecs)
        media = self._reachable(media)
        ours = theirs = None
        if offered.cryptos and not (offered.best_effort and not media.cryptos):
            pairs = [(mine, line) for mine in offered.cryptos for line in media.cryptos]
            matching = [(mine, line) for mine, line in pairs if (mine.tag, mine.suite) == (line.tag, line.suite)]
            if not matching:
                raise NotAcceptable("answer takes none of the SRTP suites offered")
            ours, theirs = matching[0]
        numbers = {(codec.name, codec.clock_hz): codec.payload_type for codec in offered.codecs}
        events = _events(media, codec.clock_hz)
        self.agreed = self._agree(
            media,
            codec,
            events,
            _noise(media, codec.clock_hz),
            receive_type=numbers.get((codec.name, codec.clock_hz), codec.payload_type),
            events_receive_type=numbers.get((events.name, events.clock_hz)) if events else None,
            receives={**self._usable(media.codecs), **self._usable(offered.codecs)},
            wish=offered.wish,
            ours=ours,
            theirs=theirs,
        )
        return self.agreed

    def fork(self) -> Negotiation:
        """Return a copy for one of several callees, each of which answers the open offer for itself."""
        return copy.copy(self)

    def adopt(self, fork: Negotiation) -> None:
        """Continue as the copy of the callee that has answered the call."""
        self.__dict__.update(fork.__dict__, preferred=self.preferred)

    def withdraw(self) -> None:
        """Drop our open offer, which was refused (488, 491 ...). The earlier agreement still holds."""
        self._offer = None

    def _acceptable(self, offer: SessionDescription) -> tuple[int, Media, Codec, Crypto | None]:
        """Return the first section with a usable address and encryption. Some offers have one section with encryption
        and one without."""
        refused: NotAcceptable | None = None
        for at, media, codec in self._choices(offer):
            try:
                return at, self._reachable(media), codec, self._their_crypto(media)
            except NotAcceptable as error:
                refused = refused or error
        raise refused or self._nothing_common(offer)

    def _chosen(self, answer: SessionDescription, offered: Sequence[Codec]) -> tuple[Media, Codec]:
        """Return the audio section of an answer, and its first codec that we offered (RFC 3264 section 7)."""
        ours = {str(codec.payload_type): codec for codec in offered}
        for media in answer.media:
            if media.kind != "audio" or not media.port or media.protocol.upper() not in _PROTOCOLS:
                continue
            named = {str(codec.payload_type): codec for codec in media.codecs}
            # A payload type without a=rtpmap has the meaning that our offer gave it.
            codecs = tuple(codec for text in media.formats if (codec := named.get(text) or ours.get(text)))
            for codec in codecs:
                if codec.name in KNOWN and any(codec.same(each) for each in offered):
                    return replace(media, codecs=codecs), codec
        raise self._nothing_common(answer)

    def _choices(self, description: SessionDescription) -> Iterator[tuple[int, Media, Codec]]:
        """Yield each audio section that has a usable codec, with the codec that is first in our order."""
        for at, media in enumerate(description.media):
            if media.kind == "audio" and media.port and media.protocol.upper() in _PROTOCOLS:
                found = (theirs for ours in self._wanted for theirs in media.codecs if ours.same(theirs))
                for codec in itertools.islice(found, 1):
                    yield at, media, codec

    @property
    def _wanted(self) -> Sequence[Codec]:
        """Our codecs, those of the session and of the current agreement first."""
        if self.agreed is None:
            return self._codecs
        wanted = [replace(self.agreed.codec, payload_type=self.agreed.receive_type)]
        if self.preferred and not self.preferred.same(wanted[0]):
            wanted.insert(0, self.preferred)
        return [*wanted, *(codec for codec in self._codecs if not any(codec.same(other) for other in wanted))]

    def _numbered(self, codecs: Sequence[Codec]) -> list[Codec]:
        """Return codecs with the payload types that they have in this call. A new one takes its usual payload type,
        or a free one."""
        known = dict(self.agreed.receives) if self.agreed else {}
        result = []
        for codec in codecs:
            numbers = [number for number, other in known.items() if codec.same(other)]
            free = [n for n in (codec.payload_type, *range(96, 128)) if n not in known]
            if codec.payload_type not in numbers:
                if not numbers and not free:
                    continue  # all dynamic payload types have another meaning in this call
                codec = replace(codec, payload_type=(numbers or free)[0])
            known[codec.payload_type] = codec
            result.append(codec)
        return result

    def _usable(self, codecs: Sequence[Codec]) -> dict[int, Codec]:
        """Return the codecs and touch tones that can be received, by payload type. The first of two counts."""
        return {
            codec.payload_type: codec
            for codec in reversed(codecs)
            if (codec.name == _EVENTS and codec.clock_hz in _OUR_EVENTS) or any(codec.same(c) for c in self._codecs)
        }

    def _nothing_common(self, description: SessionDescription) -> NotAcceptable:
        offered = "; ".join(
            f"{media.kind} {media.protocol} {'refused' if not media.port else ' '.join(c.name for c in media.codecs)}"
            for media in description.media
        )
        ours = ", ".join(codec.name for codec in self._wanted)
        return NotAcceptable(f"no common codec: got {offered[:200] or 'no media'}, expected audio in one of {ours}")

    def _reachable(self, media: Media) -> Media:
        """Return the section with its first address that can be used, in the form that our socket takes.

        Raises:
            NotAcceptable: the address is a name, which would need a look-up while calls are paced; is of the other
                family; is multicast or broadcast; or is a loopback address, which a remote peer must not name.
        """
        refused: NotAcceptable | None = None
        for host in (media.host, *media.other_hosts):
            try:
                return replace(media, host=self._usable_host(host))
            except NotAcceptable as error:
                refused = refused or error
        assert refused
        raise refused

    def _usable_host(self, host: str) -> str:
        ours = 6 if ":" in self._host else 4
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise NotAcceptable(f"audio is at {host[:60]!r}, expected an IP address") from None
        plain = getattr(address, "ipv4_mapped", None) or address
        if plain.is_unspecified:
            return host  # on hold; see ``_agree``
        if plain.version == ours:
            address = plain
        of_many = plain.is_multicast or (plain.version == 4 and plain.is_reserved)
        if address.version != ours or of_many or (plain.is_loopback and not self._on_loopback):
            raise NotAcceptable(f"audio is at {host[:60]}, expected an IPv{ours} address of one reachable host")
        return str(address)

    def _their_crypto(self, media: Media) -> Crypto | None:
        secure = "SAVP" in media.protocol.upper()
        usable = sorted(media.cryptos, key=lambda crypto: (list(SUITES).index(crypto.suite), crypto.tag))
        if self._srtp == "off":
            if secure:
                raise NotAcceptable(f"offer is {media.protocol}, expected RTP/AVP: SRTP is off")
            return None
        if not usable and (secure or self._srtp == "required"):
            raise NotAcceptable(f"{media.protocol} without a usable crypto line, expected one of {', '.join(SUITES)}")
        return usable[0] if usable else None

    def _key(self, suite: str) -> bytes:
        """Return our key for a suite. It stays the same for the whole call, so that a refresh does not restart the
        stream."""
        if suite not in self._keys:
            self._keys[suite] = self._random_bytes(SUITES[suite])
        return self._keys[suite]

    def _agree(
        self,
        media: Media,
        codec: Codec,
        events: Codec | None,
        noise: Codec | None,
        *,
        receive_type: int,
        events_receive_type: int | None,
        receives: Mapping[int, Codec],
        wish: Direction,
        ours: Crypto | None,
        theirs: Crypto | None,
    ) -> Agreed:
        self._protocol = media.protocol
        # The unspecified address is the old way to put a call on hold (RFC 3264 section 8.4).
        hears = media.direction.receives and media.host not in ("0.0.0.0", "::")
        direction = Direction.of(sends=wish.sends and hears, receives=wish.receives and media.direction.sends)
        return Agreed(
            codec=codec,
            receive_type=receive_type,
            receives={**(self.agreed.receives if self.agreed else {}), **receives},
            events=events,
            events_receive_type=events_receive_type,
            noise_type=noise.payload_type if noise else None,
            host=media.host,
            port=media.port,
            rtcp_port=media.rtcp_port or (media.port if media.rtcp_mux else media.port + 1),
            direction=direction,
            ptime_ms=self._ptime(media, codec),
            send_crypto=ours,
            receive_crypto=theirs,
        )

    def _ptime(self, media: Media, codec: Codec) -> int:
        possible = [10, 20, 40, 60] if codec.name == "OPUS" else [10, 20, 30, 40, 50, 60]
        longest = media.maxptime_ms or max(possible)
        current = self.agreed.ptime_ms if self.agreed else None
        for wanted in (media.ptime_ms, current, self._ptime_ms):
            if wanted in possible and wanted <= longest:
                return wanted
        return max((ptime for ptime in possible if ptime <= longest), default=self._ptime_ms)

    def _audio(
        self, protocol: str, codecs: Sequence[Codec], direction: Direction, cryptos: Sequence[Crypto], mux: bool
    ) -> list[str]:
        numbers = " ".join(str(codec.payload_type) for codec in codecs)
        lines = [f"m=audio {self._port} {protocol} {numbers}"]
        for codec in codecs:
            name = codec.name.lower() if codec.name in ("OPUS", _EVENTS) else codec.name
            channels = f"/{codec.channels}" if codec.channels > 1 else ""
            lines.append(f"a=rtpmap:{codec.payload_type} {name}/{codec.clock_hz}{channels}")
            fmtp = KNOWN[codec.name].fmtp if codec.name in KNOWN else codec.fmtp
            if fmtp:
                lines.append(f"a=fmtp:{codec.payload_type} {fmtp}")
        lines.append(f"a=ptime:{self._ptime_ms}")
        lines += [f"a=crypto:{c.tag} {c.suite} inline:{base64.b64encode(c.key).decode()}" for c in cryptos]
        if mux:
            lines.append("a=rtcp-mux")
        lines.append(f"a={direction.value}")
        return lines

    def _describe(self, sections: Sequence[Sequence[str]]) -> bytes:
        family = "IP6" if ":" in self._host else "IP4"
        rest = "\r\n".join(
            ["s=-", f"c=IN {family} {self._host}", "t=0 0", *(line for section in sections for line in section), ""]
        )
        if rest != self._last_description:
            self._last_description = rest
            self._version += 1
        origin = f"o=- {self._session_id} {self._version} IN {family} {self._host}"
        return f"v=0\r\n{origin}\r\n{rest}".encode()


def _events(media: Media, clock_hz: int) -> Codec | None:
    """Find touch tones with the codec's clock (RFC 4733 section 2.1), else with any known clock."""
    found = [codec for codec in media.codecs if codec.name == _EVENTS and codec.clock_hz in _OUR_EVENTS]
    return min(found, key=lambda codec: codec.clock_hz != clock_hz, default=None)


def _noise(media: Media, clock_hz: int) -> Codec | None:
    """Find comfort noise with its static payload type, if the codec has the same clock (RFC 3389 section 4)."""
    return _OUR_NOISE if clock_hz == _OUR_NOISE.clock_hz and _OUR_NOISE in media.codecs else None
