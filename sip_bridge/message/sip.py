"""SIP messages: reads bytes into frozen messages and writes them back (RFC 3261 sections 7, 18.3, 20, 25). Pure.

The form is read liberally (folded lines, bare LF, compact names, names in Latin-1). The parts that later layers rely on
are checked: the start line, the five headers that identify a message, and its length. Everything else is kept
unchanged.

Anyone on the network may send text, and it is read on the event loop that paces all calls. So the time to read a
message is linear in its length: no pattern has two adjacent repetitions that match the same characters.

The library aiosipua is not used: it skips header lines that it cannot read, cuts names at a quoted ``<``, loses the
text of URIs other than sip, and imports asyncio.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sip_bridge.errors import SipProtocolError

MAX_HEADER_BYTES = 64 * 1024
"""Bytes of the start line and the headers together."""

MAX_START_LINE = 2 * 1024
"""Characters. Real Request-URIs are much shorter."""

MAX_HEADER_LINE = 8 * 1024
"""Characters of one unfolded header. Some headers are long: the Record-Route of many proxies, a signed Identity (RFC
8224) and our own User-to-User (2 kB of data are 4 kB of hex)."""

MAX_HEADERS = 256
"""Most headers of a message, and most values of a list header. No request passes more than 70 hops (RFC 3261 section
20.22)."""
_MAX_LINES = 4 * MAX_HEADERS  # including folded lines; with more, even counting the headers takes milliseconds

MAX_BODY_BYTES = 1024 * 1024
BRANCH_MAGIC = "z9hG4bK"
"""Every branch of RFC 3261 begins with this (section 8.1.1.7). A branch without it comes from a peer of RFC 2543."""

PING = b"\r\n\r\n"
"""Keep-alive of a client on a stream (RFC 5626 section 3.5.1)."""

PONG = b"\r\n"

_COMPACT = {
    "a": "Accept-Contact",
    "b": "Referred-By",
    "c": "Content-Type",
    "e": "Content-Encoding",
    "f": "From",
    "i": "Call-ID",
    "k": "Supported",
    "l": "Content-Length",
    "m": "Contact",
    "o": "Event",
    "r": "Refer-To",
    "s": "Subject",
    "t": "To",
    "u": "Allow-Events",
    "v": "Via",
    "x": "Session-Expires",
}
"""Compact names of headers, from RFC 3261 section 7.3.3 and from the extensions."""

_LISTS = frozenset(
    "accept accept-encoding accept-language allow allow-events contact diversion history-info p-asserted-identity "
    "p-associated-uri p-preferred-identity path proxy-require record-route remote-party-id require route service-route "
    "supported unsupported via".split()
)
"""Headers whose commas separate values (section 7.3.1). Challenges and credentials are not among them."""

_UNIQUE = ("from", "to", "call-id", "cseq")

_TOKEN = re.compile(r"[A-Za-z0-9.!%*_+`'~-]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%A-Za-z]+\]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_ODD_PARTY = re.compile(r"([^<>]*)<(sips?):([^<>@]*)@([^<>@]*)>([^<>]*)", re.IGNORECASE)
"""Name, scheme, user, host and header parameters of an address that ``Address.parse`` may not read."""
_NOT_IN_URI = re.compile(r'[\s<>"]')
"""Characters that a URI must escape. Unescaped, they would change the start line of a request to that URI."""
_STATUS_LINE = re.compile(r"SIP/2\.0[ \t]+([1-6][0-9][0-9])(?:[ \t](.*))?", re.IGNORECASE)
_VERSION = re.compile(r"SIP/([0-9]+\.[0-9]+)", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(rb"\r?\n[ \t]+")

REASONS = {
    100: "Trying",
    180: "Ringing",
    181: "Call Is Being Forwarded",
    183: "Session Progress",
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    413: "Request Entity Too Large",
    415: "Unsupported Media Type",
    416: "Unsupported URI Scheme",
    420: "Bad Extension",
    422: "Session Interval Too Small",
    423: "Interval Too Brief",
    480: "Temporarily Unavailable",
    481: "Call/Transaction Does Not Exist",
    482: "Loop Detected",
    483: "Too Many Hops",
    486: "Busy Here",
    487: "Request Terminated",
    488: "Not Acceptable Here",
    489: "Bad Event",
    491: "Request Pending",
    500: "Server Internal Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "Version Not Supported",
    513: "Message Too Large",
    600: "Busy Everywhere",
    603: "Decline",
}
"""Reason phrases of RFC 3261 section 21."""

Params = Mapping[str, str | None]
"""Parameters in order, with names in lower case; None for a parameter without ``=``."""


def split_list(text: str, separator: str = ",") -> list[str]:
    """Split a text at the separators outside quoted strings and angle brackets. Empty parts are left out."""
    return [part for part in _cut(text, separator) if part]


def _cut(text: str, separator: str) -> list[str]:
    if separator not in text or ('"' not in text and "<" not in text):
        return [part.strip() for part in text.split(separator)]
    parts: list[str] = []
    start = 0
    quoted = escaped = bracketed = False
    for at, char in enumerate(text):
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char == "<":
            bracketed = True
        elif char == ">":
            bracketed = False
        elif char == separator and not bracketed:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return parts


def unquote(text: str) -> str:
    """Return the content of a quoted string; return any other text unchanged."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def quote(text: str) -> str:
    """Return the text as a quoted string (RFC 3261 section 25.1)."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_params(text: str) -> dict[str, str | None]:
    """Read ``;name=value`` parameters: names in lower case, values unchanged. Of two equal names, the first counts. A
    trailing semicolon is allowed.

    Raises:
        SipProtocolError: there is nothing between two semicolons.
    """
    params: dict[str, str | None] = {}
    *parts, last = _cut(text, ";")
    for part in [*parts, last] if last else parts:
        name, equals, value = part.partition("=")
        if not part:
            raise SipProtocolError(f"parameters are {text[:80]!r}, expected a parameter between two semicolons")
        params.setdefault(name.strip().lower(), value.strip() if equals else None)
    return params


def _format_params(params: Params) -> str:
    return "".join(f";{name}" if value is None else f";{name}={value}" for name, value in params.items())


def _host_port(text: str, where: str) -> tuple[str, int | None]:
    match = _HOST.match(text)
    rest = text[match.end() :].strip() if match else text
    if not match or (rest and not rest.startswith(":")):
        raise SipProtocolError(f"{where} is {text[:80]!r}, expected host or host:port")
    if not rest:
        return match.group(), None
    return match.group(), _number(rest[1:].strip(), 65535, f"{where} port")


def _number(text: str, largest: int, where: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or int(text) > largest:
        raise SipProtocolError(f"{where} is {text[:80]!r}, expected a number up to {largest}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Uri:
    """A URI (RFC 3261 section 19.1). In schemes other than sip and sips, everything after the colon is ``user``."""

    scheme: str
    user: str = ""
    host: str = ""
    port: int | None = None
    params: Params = field(default_factory=dict)
    headers: str = ""
    """The text after the question mark, still escaped."""

    @classmethod
    def parse(cls, text: str) -> Uri:
        """Read a URI.

        Raises:
            SipProtocolError: the text has no scheme, or is a sip URI without a readable host and port.
        """
        scheme, colon, rest = text.strip().partition(":")
        if not colon or not rest or not _SCHEME.fullmatch(scheme) or _NOT_IN_URI.search(rest):
            raise SipProtocolError(f"URI is {text[:80]!r}, expected scheme:address")
        scheme = scheme.lower()
        if scheme not in ("sip", "sips"):
            return cls(scheme, rest)
        # The user part may contain ; and ? unescaped, so it is cut off first. Some peers leave an @ in the headers.
        front, _, headers = rest.partition("?")
        if "@" in front:
            user, at, rest = front.rpartition("@")
        else:
            user, at, rest = rest.rpartition("@")
            rest, _, headers = rest.partition("?")
        address, _, params = rest.partition(";")
        host, port = _host_port(address.strip(), "URI host")
        if at and not user:
            raise SipProtocolError(f"URI is {text[:80]!r}, expected a user before the @")
        return cls(scheme, user, host.lower(), port, parse_params(params), headers)

    def __str__(self) -> str:
        if not self.host:
            return f"{self.scheme}:{self.user}"
        user = f"{self.user}@" if self.user else ""
        port = "" if self.port is None else f":{self.port}"
        headers = f"?{self.headers}" if self.headers else ""
        return f"{self.scheme}:{user}{self.host}{port}{_format_params(self.params)}{headers}"


@dataclass(frozen=True, slots=True)
class Address:
    """The value of From, To, Contact, Route, Refer-To ... (RFC 3261 section 20.10)."""

    uri: Uri
    display_name: str = ""
    params: Params = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read one address. Without angle brackets, all parameters belong to the header, not to the URI (section 20).

        Raises:
            SipProtocolError: unbalanced quotes or brackets, an unreadable URI, or a URI with a question mark and
                without brackets.
        """
        text = text.strip()
        name = ""
        rest = text
        if text.startswith('"'):
            # Possessive, because backtracking states would take 3.5 MB for 60 kB of backslashes.
            match = re.match(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', text, re.DOTALL)
            if not match:
                raise SipProtocolError(f"address is {text[:80]!r}, expected a closing quote")
            name, rest = unquote(match.group()), text[match.end() :].strip()
        elif "<" in text:
            name, _, rest = text.partition("<")
            name, rest = name.strip(), "<" + rest
        if rest.startswith("<"):
            inner, closed, tail = rest[1:].partition(">")
            if not closed or (tail.strip() and not tail.strip().startswith(";")):
                raise SipProtocolError(f"address is {text[:80]!r}, expected <URI> and ;parameters")
            return cls(Uri.parse(inner), name, parse_params(tail.strip()[1:]))
        uri, _, params = rest.partition(";")
        if "?" in uri:
            raise SipProtocolError(f"address is {text[:80]!r}, expected <> around a URI with a question mark")
        return cls(Uri.parse(uri), name, parse_params(params))

    @classmethod
    def party(cls, text: str) -> Address:
        """Read From, To or an identity. They only describe a party, so their user part may be empty (callers that hide
        their number: issue 3164 of meetecho/janus-gateway, issue 104 of ringcentral/ringcentral-web-phone) or have
        spaces, and their name may be quoted twice (issue 20 of erlnets/nksip).

        Raises:
            SipProtocolError: see ``parse``.
        """
        try:
            return cls.parse(text)
        except SipProtocolError:
            found = _ODD_PARTY.fullmatch(text.strip())
            if not found or found[1].count('"') % 2:
                raise
        name, scheme, user, host, params = found.groups()
        user = "".join(user.split())
        read = cls.parse(f"<{scheme}:{user}{'@' if user else ''}{host}>{params}")
        return replace(read, display_name=name.replace('"', "").strip())

    @property
    def tag(self) -> str:
        """The dialog's tag. Empty: there is none."""
        return self.params.get("tag") or ""

    def with_tag(self, tag: str) -> Address:
        """Return the same address with this tag."""
        return replace(self, params={**self.params, "tag": tag})

    def __str__(self) -> str:
        name = f"{quote(self.display_name)} " if self.display_name else ""
        return f"{name}<{self.uri}>{_format_params(self.params)}"


@dataclass(frozen=True, slots=True)
class Via:
    """One hop of a message: a Via value (RFC 3261 section 20.42)."""

    transport: str
    host: str
    port: int | None = None
    params: Params = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Via:
        """Read one Via value.

        Raises:
            SipProtocolError: the protocol is not SIP/2.0, or the address cannot be read.
        """
        sent, _, params = text.partition(";")
        protocol, *rest = (part.strip() for part in sent.split("/", 2))
        version, hop = rest if len(rest) == 2 else ("", "")
        transport, address = (hop.split(None, 1) + ["", ""])[:2]
        if (protocol.upper(), version) != ("SIP", "2.0") or not address or "/" in transport:
            raise SipProtocolError(f"Via is {text[:80]!r}, expected SIP/2.0/transport host")
        host, port = _host_port(address, "Via host")
        return cls(transport.upper(), host.lower(), port, parse_params(params))

    @property
    def branch(self) -> str:
        """The transaction's identifier. Empty: there is none."""
        return self.params.get("branch") or ""

    @property
    def sent_by(self) -> str:
        """Host and port as the sender wrote them; a missing port is the default port (section 17.2.3)."""
        return f"{self.host}:{self.port or (5061 if self.transport == 'TLS' else 5060)}"

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"SIP/2.0/{self.transport} {self.host}{port}{_format_params(self.params)}"


@dataclass(frozen=True, slots=True)
class CSeq:
    """Number and method of a request (RFC 3261 section 20.16)."""

    number: int
    method: str

    @classmethod
    def parse(cls, text: str) -> CSeq:
        """Read the header.

        Raises:
            SipProtocolError: the text is not ``number method``, or the number is 2**31 or more (section 8.1.1.5).
        """
        parts = text.split()
        if len(parts) != 2 or not _TOKEN.fullmatch(parts[1]):
            raise SipProtocolError(f"CSeq is {text[:80]!r}, expected number and method")
        return cls(_number(parts[0], 2**31 - 1, "CSeq number"), parts[1])

    def __str__(self) -> str:
        return f"{self.number} {self.method}"


def _has_nul(value: str) -> bool:
    """Return True if the value has a NUL other than an escaped one in a quoted string (section 25.1)."""
    return "\0" in value and "\0" in value.replace("\\\0", "")


class Headers:
    """Headers in order. Names are compared without case. Headers are immutable: ``replace`` and ``add`` return copies.

    Raises:
        ValueError: a name is not a token, or a value has a NUL or a line break, which would inject another header.
    """

    __slots__ = ("_index", "_items")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items = tuple(items)
        index: dict[str, list[str]] = {}
        for name, value in self._items:
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"header name is {name[:80]!r}, expected a token (RFC 3261 section 25.1)")
            if "\r" in value or "\n" in value or _has_nul(value):
                raise ValueError(f"value of header {name} has a line break or NUL")
            key = name.lower()
            index.setdefault(key, []).extend(split_list(value) if key in _LISTS else (value,))
        self._index = index

    def get(self, name: str) -> str | None:
        """Return the first value, or None."""
        values = self._index.get(name.lower())
        return values[0] if values else None

    def all(self, name: str) -> tuple[str, ...]:
        """Return every value. Headers that are lists are cut at their commas."""
        return tuple(self._index.get(name.lower(), ()))

    def tokens(self, name: str) -> frozenset[str]:
        """Return the values of Supported, Require, Allow ... in lower case."""
        return frozenset(value.lower() for value in self.all(name))

    def seconds(self, name: str) -> int:
        """Return the seconds in a header. 0: the header is missing or no number."""
        text = (self.get(name) or "").split(";")[0].split("(")[0].strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    def replace(self, name: str, *values: str) -> Headers:
        """Return a copy in which the header has these values, at its first position. Without values, the header is
        removed."""
        key = name.lower()
        items: list[tuple[str, str]] = []
        fresh = [(name, value) for value in values]
        for old, value in self._items:
            if old.lower() != key:
                items.append((old, value))
            else:
                items += fresh
                fresh = []
        return Headers(items + fresh)

    def add(self, name: str, *values: str) -> Headers:
        """Return a copy with these values after all others."""
        return Headers(self._items + tuple((name, value) for value in values))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._index

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._items == other._items

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Headers({self._items!r})"


class _Message:
    headers: Headers
    body: bytes

    def _required(self, name: str) -> str:
        value = self.headers.get(name)
        if not value:
            raise SipProtocolError(f"message without {name}, expected one (RFC 3261 section 8.1.1)")
        return value

    @cached_property
    def via(self) -> Via:
        """The topmost hop."""
        return Via.parse(self._required("Via"))

    @cached_property
    def from_(self) -> Address:
        """The From header, which names the side that began the dialog."""
        return Address.party(self._required("From"))

    @cached_property
    def to(self) -> Address:
        """The To header, which names the original target of the request."""
        return Address.party(self._required("To"))

    @cached_property
    def call_id(self) -> str:
        """The Call-ID, which is compared byte by byte."""
        return self._required("Call-ID")

    @cached_property
    def cseq(self) -> CSeq:
        """Number and method of the request. A response repeats those of its request."""
        return CSeq.parse(self._required("CSeq"))

    @cached_property
    def contact(self) -> Address | None:
        """The first contact that can be read. None: there is none, or only ``*``."""
        values = self.headers.all("Contact")
        for value in values[:-1]:  # a name with a comma and without quotes makes two of one
            with contextlib.suppress(SipProtocolError):
                return Address.party(value)
        return Address.party(values[-1]) if values and values[-1] != "*" else None

    @property
    def content_type(self) -> str:
        """Media type in lower case, without parameters. Empty: the message names none."""
        return "".join((self.headers.get("Content-Type") or "").partition(";")[0].split()).lower()

    def _serialise(self, start_line: str) -> bytes:
        if "\r" in start_line or "\n" in start_line:
            raise ValueError("the start line has a line break")
        lines = [start_line]
        lines += (f"{name}: {value}" for name, value in self.headers if name.lower() != "content-length")
        lines += (f"Content-Length: {len(self.body)}", "", "")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + self.body


@dataclass(frozen=True)
class Request(_Message):
    """A request. ``uri`` is the received text, because digest and CANCEL need it unchanged."""

    method: str
    uri: str
    headers: Headers
    body: bytes = b""
    size: int = field(default=0, compare=False)
    """Length of a received request in bytes."""

    def serialise(self) -> bytes:
        """Return the message as bytes, with the correct Content-Length.

        Raises:
            ValueError: the start line has a line break.
        """
        return self._serialise(f"{self.method} {self.uri} SIP/2.0")


@dataclass(frozen=True)
class Response(_Message):
    """A response."""

    status: int
    reason: str
    headers: Headers
    body: bytes = b""

    def serialise(self) -> bytes:
        """Return the message as bytes, with the correct Content-Length.

        Raises:
            ValueError: the reason has a line break.
        """
        return self._serialise(f"SIP/2.0 {self.status} {self.reason}")


Message = Request | Response


class MalformedRequest(SipProtocolError):
    """A request that is readable only far enough to be answered. ``reply`` is the answer."""

    def __init__(self, why: SipProtocolError, request: Request) -> None:
        super().__init__(str(why), status=why.status)
        self.request = request
        self.reply = _reply_to_malformed(request, why.status)


def parse(data: bytes) -> Message:
    """Read one message: a datagram, or a message from ``MessageStream``.

    Bytes after the body are dropped, as section 18.3 demands for datagrams. Text that is not UTF-8 survives a round
    trip (``surrogateescape``).

    Raises:
        MalformedRequest: the request cannot be processed. The exception carries the answer.
        SipProtocolError: the data is not a SIP message.
    """
    head, body = _split_head(data.lstrip(b"\r\n"))
    count = max(head.count(b"\n"), head.count(b"\r"))
    if count > _MAX_LINES:
        raise SipProtocolError(f"message has {count} lines before its body, expected at most {_MAX_LINES}", status=513)
    lines = head.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start_line = lines[0].strip()
    if len(start_line) > MAX_START_LINE:
        raise SipProtocolError(f"start line has {len(start_line)} characters, expected at most {MAX_START_LINE}")
    status = _STATUS_LINE.fullmatch(start_line)
    words = start_line.split()
    version = _VERSION.fullmatch(words[-1]) if len(words) > 2 else None
    if not status and not version:
        raise SipProtocolError(f"start line is {start_line[:80]!r}, expected a SIP/2.0 request or status line")
    headers = _parse_headers(lines[1:])
    if status:
        response = Response(int(status.group(1)), status.group(2) or "", _without_odd_contact(headers), body)
        return replace(response, body=_checked(response))
    assert version
    message = Request(words[0], " ".join(words[1:-1]), headers, body, len(data))
    try:
        if version.group(1) != "2.0":
            raise SipProtocolError(f"version is SIP/{version.group(1)[:20]}, expected SIP/2.0", status=505)
        if not _TOKEN.fullmatch(message.method):
            raise SipProtocolError(f"method is {message.method[:80]!r}, expected a token")
        if _NOT_IN_URI.search(message.uri):
            raise SipProtocolError(f"Request-URI is {message.uri[:80]!r}, expected a bare URI")
        Uri.parse(message.uri)
        return replace(message, body=_checked(message))
    except SipProtocolError as error:
        raise MalformedRequest(error, message) from error


def _without_odd_contact(headers: Headers) -> Headers:
    """Return the headers of a response without a Contact that cannot be read. The answer to a call is worth more."""
    try:
        _ = Response(200, "", headers).contact
    except SipProtocolError:
        return headers.replace("Contact")
    return headers


def _split_head(data: bytes) -> tuple[bytes, bytes]:
    match = _HEAD_END.search(data, 0, MAX_HEADER_BYTES + 4)
    if match:
        return data[: match.start()], data[match.end() :]
    if len(data) > MAX_HEADER_BYTES:
        raise SipProtocolError(f"headers do not end within {MAX_HEADER_BYTES} bytes", status=513)
    return data, b""


def _parse_headers(lines: list[str]) -> Headers:
    folded: list[list[str]] = []
    for line in lines:
        if line[:1] in (" ", "\t"):
            if not folded:
                raise SipProtocolError("a folded line follows the start line, expected a header")
            folded[-1].append(line.strip())
        elif line:
            folded.append([line])
    if len(folded) > MAX_HEADERS:
        raise SipProtocolError(f"message has {len(folded)} headers, expected at most {MAX_HEADERS}", status=513)
    items = []
    for line in map(" ".join, folded):
        name, colon, value = line.partition(":")
        if len(line) > MAX_HEADER_LINE:
            raise SipProtocolError(
                f"header {name[:40]!r} has {len(line)} characters, expected at most {MAX_HEADER_LINE}", status=513
            )
        name = name.rstrip()
        if not colon or not _TOKEN.fullmatch(name):
            raise SipProtocolError(f"header line begins {name[:40]!r}, expected name and colon")
        if _has_nul(value):
            raise SipProtocolError(f"header {name[:40]} has a NUL byte")
        items.append((_COMPACT.get(name.lower(), name), value.strip()))
    headers = Headers(items)
    longest = max(len(headers.all(name)) for name in _LISTS)
    if longest > MAX_HEADERS:
        raise SipProtocolError(f"a header has {longest} values, expected at most {MAX_HEADERS}", status=513)
    return headers


def _checked(message: Message) -> bytes:
    """Parse everything that later layers rely on. Return the body, cut to its declared length."""
    for name in _UNIQUE:
        if len(message.headers.all(name)) > 1:
            raise SipProtocolError(f"message with several {name} headers, expected one")
    _ = message.via, message.from_, message.to, message.call_id, message.contact
    if isinstance(message, Request) and message.cseq.method != message.method:
        raise SipProtocolError(f"CSeq method is {message.cseq.method[:40]}, expected {message.method[:40]}")
    _ = message.cseq
    declared = set(message.headers.all("Content-Length"))
    if not declared:
        return message.body
    if len(declared) > 1:
        raise SipProtocolError("message with several Content-Length headers, expected one")
    length = _number(declared.pop(), MAX_BODY_BYTES, "Content-Length")
    if length > len(message.body):
        raise SipProtocolError(f"body has {len(message.body)} bytes, expected {length} as its Content-Length says")
    return message.body[:length]


def _reply_to_malformed(request: Request, status: int) -> Response | None:
    """Return the answer, with the headers of section 8.2.6 copied unread; the sender needs only its Via. None: the
    request has no Via, or is an ACK."""
    if request.method == "ACK" or "Via" not in request.headers:
        return None
    kept = [(name, value) for name, value in request.headers if name.lower() in ("via", *_UNIQUE)]
    return Response(status, REASONS[status], Headers(kept))


class MessageStream:
    """Splits a TCP or TLS stream into messages (section 18.3). After an error, the stream must be closed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        """Number of bytes at the front that were searched. The end of the headers does not begin within them."""
        self._wanted = 0
        """Length of the first message in bytes. 0: its headers have not ended yet."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take received bytes. Yield whole messages for ``parse``, and ``PING`` for a keep-alive that expects ``PONG``.

        Raises:
            SipProtocolError: headers or body exceed their limits, or Content-Length is not a number or has two
                different values.
        """
        self._buffer += data
        while True:
            if self._buffer.startswith(PING):
                del self._buffer[:4]
                yield PING
                continue
            if self._buffer.startswith(b"\n"):
                self._buffer = self._buffer.lstrip(b"\n")
                continue
            if self._buffer.startswith(b"\r\n") and len(self._buffer) > 3:  # three bytes may still become a ping
                del self._buffer[:2]
                continue
            if not self._wanted:
                match = _HEAD_END.search(self._buffer, self._searched, MAX_HEADER_BYTES + 4)
                if not match or match.start() == 0:
                    if len(self._buffer) > MAX_HEADER_BYTES:
                        raise SipProtocolError(f"headers do not end within {MAX_HEADER_BYTES} bytes", status=513)
                    self._searched = max(0, len(self._buffer) - 3)
                    return
                self._wanted = match.end() + _declared_length(bytes(self._buffer[: match.start()]))
            if len(self._buffer) < self._wanted:
                return
            message = bytes(self._buffer[: self._wanted])
            del self._buffer[: self._wanted]
            self._searched = self._wanted = 0
            yield message


def _declared_length(head: bytes) -> int:
    """Return the Content-Length of these headers. 0: there is none."""
    lengths = set()
    for line in _FOLD.sub(b" ", head).splitlines()[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.rstrip().lower() in (b"content-length", b"l"):
            lengths.add(_number(value.strip().decode("latin-1"), MAX_BODY_BYTES, "Content-Length"))
    if len(lengths) > 1:
        raise SipProtocolError("message with several Content-Length headers, expected one")
    return max(lengths, default=0)


def response_to(
    request: Request,
    status: int,
    *,
    to_tag: str = "",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    reason: str = "",
) -> Response:
    """Make a response with the headers that it must copy (RFC 3261 section 8.2.6.2). A response that can create a
    dialog also copies Record-Route.

    Args:
        to_tag: our tag, for a request without a To tag. A 100 needs no tag.
        reason: replaces the usual phrase.
    """
    to = request.headers.get("To") or ""
    if to_tag and not request.to.tag:
        to = f"{to};tag={to_tag}" if "<" in to else str(request.to.with_tag(to_tag))
    copied = [("Via", via) for via in request.headers.all("Via")]
    if 100 < status < 300:
        copied += [("Record-Route", route) for route in request.headers.all("Record-Route")]
    copied += [
        ("From", request.headers.get("From") or ""),
        ("To", to),
        ("Call-ID", request.call_id),
        ("CSeq", str(request.cseq)),
    ]
    return Response(status, reason or REASONS.get(status, "Unknown"), Headers([*copied, *headers]), body)


def note_source(request: Request, host: str, port: int) -> Request:
    """Write the real source of a request into its topmost Via (RFC 3261 section 18.2.1, RFC 3581 section 4)."""
    params = dict(request.via.params)
    if "rport" in params:
        params["rport"] = str(port)
    if "rport" in params or request.via.host.strip("[]") != host:
        params["received"] = host
    if params == request.via.params:
        return request
    below = request.headers.all("Via")[1:]
    top = str(replace(request.via, params=params))
    return replace(request, headers=request.headers.replace("Via", top, *below))
