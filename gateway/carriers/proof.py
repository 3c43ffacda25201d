"""How a carrier proves that a request is its own: the requests as values, and what several carriers' proofs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from pydantic import SecretStr

from gateway.carriers.settings import S
from gateway.carriers.signatures import basic_auth, same


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook request, as far as signatures cover it."""

    url: str
    """The public one, as configured at the carrier."""
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
    """What the outside calls us, ``http(s)://host[:port]``."""
    target: str
    """Path and query as requested."""
    headers: Mapping[str, str]
    """Names in lower case."""
    now: float
    """Seconds since the epoch."""

    @property
    def url(self) -> str:
        """The address as the carrier knows it."""
        return self.public_url.rstrip("/").replace("http", "ws", 1) + self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Generic[S]):
    """One carrier's proofs. True: proven. False: a wrong proof. None: none was given, or nothing is configured to check
    one with.
    """

    webhook: Callable[[S, Hook], bool | None] = lambda settings, hook: None
    """Of a request for call control; where a secret is configured, one without a proof is wrong."""
    upgrade: Callable[[S, Upgrade], bool | None] = lambda settings, upgrade: None
    """Of a media socket; one without a proof may still hold a token of ours."""
    address_header: str = ""
    """The header with a signature that covers the address that the carrier called, scheme and host included. Empty: the
    carrier signs no address."""


def credentials(given: str | None, username: str, password: SecretStr | None) -> bool | None:
    """Whether ``Authorization`` holds these (RFC 7617); None: no such header is given, or no password to check."""
    return None if password is None or given is None else same(given, basic_auth(username, password.get_secret_value()))


def bearer(given: str | None, token: SecretStr | None) -> bool | None:
    """Whether ``Authorization`` holds this token (RFC 6750); None: no such header is given, or no token to check."""
    return None if token is None or given is None else same(given, f"Bearer {token.get_secret_value()}")
