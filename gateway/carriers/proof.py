"""Carriers' proofs that a request is theirs: the requests as values, and checks that several carriers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from pydantic import SecretStr

from gateway.carriers.settings import S
from gateway.carriers.signatures import basic_auth, same


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook request, reduced to the parts that signatures cover."""

    url: str
    """The public address, as configured at the carrier."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    form: Mapping[str, Sequence[str]] | None
    """Parameters of a form body; None: a GET."""
    now: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request for a media socket."""

    public_url: str
    """Our public address, ``http(s)://host[:port]``."""
    target: str
    """Path and query as requested."""
    headers: Mapping[str, str]
    """Names in lower case."""
    now: float
    """Seconds since the epoch."""

    @property
    def url(self) -> str:
        """The stream's address as the carrier knows it."""
        return self.public_url.rstrip("/").replace("http", "ws", 1) + self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Generic[S]):
    """One carrier's checks. True: proven. False: a wrong proof. None: there is no proof, or no secret to check it
    with."""

    webhook: Callable[[S, Hook], bool | None] = lambda settings, hook: None
    """Checks a call-control webhook. If a secret is configured, a missing proof is False."""
    covered: Callable[[Hook], bytes] = lambda hook: b""
    """Returns what a webhook's signature covers, in one form however the request spells it. Empty: nothing of this
    request, so a copy cannot be told from a new one."""
    upgrade: Callable[[S, Upgrade], bool | None] = lambda settings, upgrade: None
    """Checks a request for a media socket. If it has no proof, it may still have our token."""
    upgrade_covered: Callable[[Upgrade], bytes] = lambda upgrade: b""
    """Returns what makes a signed upgrade unique. Empty: nothing does; only our token in the address is good once."""
    address_header: str = ""
    """The header with a signature over the called address, including scheme and host. Empty: the carrier signs no
    address."""


def credentials(given: str | None, username: str, password: SecretStr | None) -> bool | None:
    """Check ``Authorization`` against these (RFC 7617). None: the header is missing, or there is no password to
    check."""
    return None if password is None or given is None else same(given, basic_auth(username, password.get_secret_value()))


def bearer(given: str | None, token: SecretStr | None) -> bool | None:
    """Check ``Authorization`` against this token (RFC 6750). None: the header is missing, or there is no token to
    check."""
    return None if token is None or given is None else same(given, f"Bearer {token.get_secret_value()}")
