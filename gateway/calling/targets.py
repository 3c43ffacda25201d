"""Parsing, normalising and pattern matching of call targets. Pure.

One number has many spellings (``0049 30-12``, ``tel:%2B493012``). Patterns are compared with the normalised form that
is dialled later, because another spelling would evade a comparison with the text. No error contains a digit of the
target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from gateway.errors import ProtocolError

_SEPARATORS = re.compile(r"[ ().-]")
_HEAD = re.compile(r"[+0-9*# ().-]*")
_NUMBER = re.compile(r"\+[1-9][0-9]{0,14}|[0-9*#]{1,32}")  # ITU-T E.164: at most 15 digits, and none begins with 0
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_AFTER = re.compile(r"(?:[,;wWpPxX ]|ext=|postd=|[0-9*#A-Da-d])*")
_SIP = re.compile(
    r"(?:(?P<user>[^@]*)@)?(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<params>(?:;[A-Za-z]+=[A-Za-z]+)*)"
)
_USER = re.compile(r"[A-Za-z0-9_.!~*'()&=+$#/-]{0,64}")
_PARAMS = frozenset({"transport", "user"})
"""URI parameters that a target may have. Others (``maddr``, ``ttl``, ``method``) could redirect the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A call target. ``str()`` gives the form that is dialled."""

    kind: str
    """Kind of target with its article, for error messages, which must not contain the target."""
    user: str
    """A number, a name, or the user of a SIP address."""
    number: str = ""
    """The normalised number that ``user`` is or may be taken for."""
    after: str = ""
    """Keys to send after the answer, as written."""
    scheme: str = ""
    """``sip`` or ``sips``. Empty: a number or a name."""
    host: str = ""
    """Host of a SIP address, with its port if given."""
    params: str = ""

    def __str__(self) -> str:
        if not self.scheme:
            return self.user + self.after
        user = quote(self.user, safe="!~*'()&=+$/") + self.after
        return f"{self.scheme}:{user}{'@' if user else ''}{self.host}{self.params}"

    def names(self, domain: str) -> set[str]:
        """Return the names under which a pattern may allow this target.

        Args:
            domain: host at which numbers are users, with its port if it has one. Empty: none.
        """
        hosts = _with_and_without_port(self.host or domain)
        names = {f"{self.user}@{host}" for host in hosts}
        if not self.scheme or (self.number and self.number == self.user and domain in hosts):
            names.add(self.user)
        return names

    def aliases(self, domain: str) -> set[str]:
        """Return the names under which a pattern may deny this target: additionally the bare user, and the number that
        a switch may take the user for."""
        hosts = _with_and_without_port(self.host or domain)
        users = {self.user, self.number} - {""}
        return self.names(domain) | users | {f"{user}@{host}" for user in users for host in hosts}


def _with_and_without_port(host: str) -> set[str]:
    return {host, re.sub(r":[0-9]+$", "", host)} - {""}


def read_target(text: str, prefixes: Sequence[str] = ()) -> Target:
    """Parse a number, a ``tel``, ``sip`` or ``sips`` URI, or a name.

    Args:
        prefixes: international prefixes that may replace ``+``.

    Raises:
        ProtocolError: the text is not a target. The error begins with a verb and contains no digit.
    """
    scheme, colon, rest = text.strip().partition(":")
    scheme = scheme.lower()
    if colon and scheme in ("sip", "sips"):
        return _read_sip(scheme, rest, prefixes)
    if colon and scheme != "tel":
        raise _unreadable("has a scheme that is none of sip, sips and tel")
    plain = _decoded(rest if colon else text.strip())
    found = _read_number(plain, prefixes)
    if found is not None:
        number, after = found
        return Target(kind=_kind_of(number), user=number, number=number, after=after)
    if colon or not _NAME.fullmatch(plain):
        raise _unreadable("is neither a number nor a name nor a SIP address")
    return Target(kind="a name", user=plain)


def _read_sip(scheme: str, rest: str, prefixes: Sequence[str]) -> Target:
    found = _SIP.fullmatch(rest)
    if found is None:
        raise _unreadable("is not a plain SIP address, expected sip:user@host[:port][;transport=...]")
    user = _decoded(found["user"] or "")
    params = found["params"].lower()
    if not {param.partition("=")[0] for param in params.split(";")[1:]} <= _PARAMS:
        raise _unreadable("is a SIP address with parameters other than transport and user")
    number, after = _read_number(user, prefixes) or ("", "")
    if after:
        user = user[: -len(after)]
    if ";user=phone" in params:
        if not number:
            raise _unreadable("is a SIP address with user=phone and without a number")
        user = number
    if (found["user"] is not None and not user) or not _USER.fullmatch(user):
        raise _unreadable("is a SIP address whose user is empty or has characters that are not allowed in a user")
    port = f":{found['port']}" if found["port"] else ""
    host = found["host"].lower() + port
    return Target(
        kind="a SIP address", user=user, number=number, after=after, scheme=scheme, host=host, params=params
    )  # fmt: skip


def _read_number(text: str, prefixes: Sequence[str]) -> tuple[str, str] | None:
    """Return a normalised number and the keys to send after the answer. None: the text does not begin like a number."""
    head = _HEAD.match(text)
    assert head is not None
    number, after = _SEPARATORS.sub("", head.group()), text[head.end() :]
    if not number or (after and after[0] not in ",;wWpPxX&"):
        return None
    for prefix in prefixes:
        if number.startswith(prefix):
            number = f"+{number.removeprefix(prefix)}"
            break
    if not _NUMBER.fullmatch(number):
        raise _unreadable("is not a number: a + is followed by up to 15 digits, the first of them not zero")
    if not _AFTER.fullmatch(after):
        raise _unreadable("is a number followed by characters that are not keys")
    return number, after


def _kind_of(number: str) -> str:
    if number.startswith("+"):
        return "an international number"
    return "a service code" if re.search(r"[*#]", number) else "a national number"


def _decoded(text: str) -> str:
    """Decode percent-escapes once."""
    plain = unquote(text)
    if not (plain.isascii() and plain.isprintable()) or "%" in plain:
        raise _unreadable("has characters that neither a number nor a name may have")
    return plain


def _unreadable(what: str) -> ProtocolError:
    return ProtocolError(what, code="invalid_target")


class Patterns:
    """A list of target patterns.

    A pattern is a number or a name (``+4930*``, ``agent-7``) or a SIP address (``*@pbx.example``, ``sip:pbx.example``).
    ``*`` stands for any further characters: in a number or name except ``*`` and ``#``, in an address except ``@``.
    ``%2A`` is the star of a service code. A SIP pattern without a port matches any port of the host.
    """

    def __init__(self, patterns: Iterable[str], prefixes: Sequence[str] = ()) -> None:
        self._patterns = [_compiled(pattern, prefixes) for pattern in patterns]

    def match(self, names: Iterable[str]) -> bool:
        """Return True if a pattern matches one of the names."""
        return any(pattern.fullmatch(name) for name in names for pattern in self._patterns)


def _compiled(pattern: str, prefixes: Sequence[str]) -> re.Pattern[str]:
    bare = re.sub(r"^sips?:", "", pattern.strip(), flags=re.IGNORECASE)
    user, at, host = bare.rpartition("@")
    if not at and bare == pattern.strip():
        user, host = host, ""
        if _HEAD.fullmatch(user):
            user = _SEPARATORS.sub("", user)
        user = next((f"+{user.removeprefix(prefix)}" for prefix in prefixes if user.startswith(prefix)), user)
        return re.compile("[A-Za-z0-9+_.-]*".join(map(_literally, user.split("*"))))
    users = "(?!@)" * bool(user) + "[^@]*".join(map(_literally, user.split("*")))
    # A star in a host must not match an @: it would also match a user that the pattern does not allow.
    return re.compile(f"{users}@" + "[^@]*".join(map(_literally, host.lower().split("*"))))


def _literally(part: str) -> str:
    return re.escape(unquote(part))
