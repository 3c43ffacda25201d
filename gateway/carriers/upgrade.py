"""Who may open a media socket: the carrier's own proof where it sends one, else the token of our webhook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import SecretStr

from gateway.carriers.signatures import basic_auth, genesys_signed, same, twilio_signed, vonage_signed
from gateway.carriers.tokens import StreamToken, StreamTokens
from gateway.config import CarriersConfig
from gateway.errors import Rejected


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


Proof = Callable[[CarriersConfig, Upgrade], bool | None]
"""True: proven. False: a wrong proof. None: none was given, or nothing is configured to check it with."""


def check_upgrade(
    carriers: CarriersConfig, tokens: StreamTokens, dialect: str, route: str, upgrade: Upgrade
) -> StreamToken | None:
    """The token of ours that the address holds; None where the carrier proves itself, or need not.

    Raises:
        Rejected: 403, there is neither.
    """
    if not carriers.of(dialect).verify:
        return None
    proven = _PROOFS[dialect](carriers, upgrade) if dialect in _PROOFS else None
    if proven:
        return None
    if proven is False:
        raise Rejected(
            f"{dialect}: the carrier's signature or credentials do not match", status=403, code="bad_signature"
        )
    path, _, query = upgrade.target.partition("?")
    parts = [part for part in path.split("/") if part]
    token = parts[3] if len(parts) > 3 else query.partition("token=")[2].partition("&")[0]
    return tokens.check(token, dialect, route, now=upgrade.now)


def _twilio(carriers: CarriersConfig, upgrade: Upgrade) -> bool | None:
    token, signature = carriers.twilio.auth_token, upgrade.headers.get("x-twilio-signature")
    if token is None or signature is None:
        return None
    return twilio_signed(token.get_secret_value(), upgrade.url, signature)


def _telnyx(carriers: CarriersConfig, upgrade: Upgrade) -> bool | None:
    token, given = carriers.telnyx.stream_token, upgrade.headers.get("x-telnyx-streaming-auth-token")
    return None if token is None or given is None else same(given, token.get_secret_value())


def _vonage(carriers: CarriersConfig, upgrade: Upgrade) -> bool | None:
    secret, given = carriers.vonage.signature_secret, upgrade.headers.get("authorization")
    if secret is None or given is None:
        return None
    return vonage_signed(secret.get_secret_value(), given, None, now=upgrade.now)


def _genesys(carriers: CarriersConfig, upgrade: Upgrade) -> bool | None:
    key, secret = carriers.genesys.api_key, carriers.genesys.client_secret
    if key is None:
        return None
    if secret is None:  # the integration has no client secret: its requests are not signed
        return same(upgrade.headers.get("x-api-key", ""), key.get_secret_value())
    return genesys_signed(
        key.get_secret_value(),
        secret.get_secret_value(),
        upgrade.target,
        upgrade.public_url.partition("://")[2].rstrip("/"),
        upgrade.headers,
        now=upgrade.now,
    )


def _credentials(upgrade: Upgrade, username: str, password: SecretStr | None) -> bool | None:
    given = upgrade.headers.get("authorization")
    if password is None or given is None:
        return None
    return same(given, basic_auth(username, password.get_secret_value()))


def _exotel(carriers: CarriersConfig, upgrade: Upgrade) -> bool | None:
    key = carriers.exotel.api_key
    return _credentials(upgrade, key.get_secret_value() if key else "", carriers.exotel.api_token)


def _bearer(upgrade: Upgrade, token: SecretStr | None) -> bool | None:
    given = upgrade.headers.get("authorization")
    return None if token is None or given is None else same(given, f"Bearer {token.get_secret_value()}")


_PROOFS: Mapping[str, Proof] = {
    "twilio": _twilio,
    "telnyx": _telnyx,
    "exotel": _exotel,
    "vonage": _vonage,
    "genesys": _genesys,
    "jambonz": lambda carriers, upgrade: _credentials(upgrade, carriers.jambonz.username, carriers.jambonz.password),
    "signalwire": lambda carriers, upgrade: _bearer(upgrade, carriers.signalwire.stream_token),
    "freeswitch": lambda carriers, upgrade: _bearer(upgrade, carriers.freeswitch.token),
    "freeswitch-fork": lambda carriers, upgrade: _credentials(
        upgrade, carriers.freeswitch_fork.username, carriers.freeswitch_fork.password
    ),
    "asterisk": lambda carriers, upgrade: _credentials(upgrade, carriers.asterisk.username, carriers.asterisk.password),
}
"""Dialect -> how its peer proves itself. The others have the token in the address that our webhook gave out."""
