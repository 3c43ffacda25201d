"""Checks JSON Web Tokens (RFC 7519) that another service has signed, for example an OpenID Connect provider.

The configuration names the accepted algorithms, never the token. ``none`` cannot be chosen, and a key serves only
algorithms of its own kind, so a public key cannot become the secret of an HMAC (RFC 8725, section 3.1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from gateway.config import SCOPES, JwtConfig, Scope
from gateway.credentials.watched_file import WatchedFile
from gateway.errors import CredentialsError, Rejected

_KINDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512"), ("RSA", "")),
    "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384"), "ES512": ("EC", "P-521"),
}  # fmt: skip
"""Type and curve of the public key for each algorithm (RFC 7518, sections 3.3 and 3.4)."""

LEEWAY_S = 30.0
"""Difference that the issuer's clock may have from ours, seconds."""

_RSA_BITS = 2048  # RFC 7518, section 3.3
_MAX_CHARS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of a token about its holder."""

    tenant: str
    scopes: tuple[Scope, ...]
    expires: float
    """Seconds since the epoch, leeway included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key of the file."""

    id: str | None
    kind: tuple[str, str]
    """Type and curve."""
    algorithm: str | None
    """The only algorithm of the key. None: any of its kind."""
    key: Any


def looks_like_one(token: str) -> bool:
    """Return True for the shape of a token: three parts, the first a JSON object in base64."""
    return token.startswith("eyJ") and token.count(".") == 2


class JsonWebTokens:
    """Checks tokens.

    Raises:
        CredentialsError: the file of public keys cannot be used.
    """

    def __init__(self, config: JwtConfig) -> None:
        self._config = config
        self._secret = config.secret.get_secret_value() if config.secret is not None else ""
        self._file = WatchedFile(Path(config.jwks_file), read_key_set) if config.jwks_file else None

    async def watch(self) -> None:
        """Reload changed public keys while the server runs, within two seconds."""
        if self._file is not None:
            await self._file.watch(lambda _: None)

    def check(self, token: str) -> Claims:
        """Return the claims of a token.

        Raises:
            Rejected: 401, the token is not trusted, not for this server, or not valid now.
        """
        if len(token) > _MAX_CHARS:
            raise _refused(f"it has {len(token)} characters, expected at most {_MAX_CHARS}")
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in config.algorithms:
                raise _refused(f"alg is {str(algorithm)[:20]!r}, expected {', '.join(config.algorithms)}")
            claims = jwt.decode(
                token,
                self._key(algorithm, header.get("kid")),
                algorithms=[algorithm],
                issuer=config.issuer,
                audience=config.audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise Rejected("the token has expired", status=401, code="expired_token") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise _refused(_why(exc)) from None
        return self._claims(claims)

    def _claims(self, claims: Mapping[str, Any]) -> Claims:
        name = self._config.tenant_claim
        tenant, scope = claims.get(name), claims.get("scope", "")
        if not (isinstance(tenant, str) and 0 < len(tenant) <= 200 and tenant.isprintable()):
            raise _refused(f"its claim {name!r} is not a tenant's name (auth.jwt.tenant_claim)")
        if not isinstance(scope, str):
            raise _refused("its claim 'scope' is not a text of names separated by spaces")
        held = scope.split(" ")
        return Claims(
            tenant=tenant,
            scopes=tuple(known for known in SCOPES if known in held),  # others are for other services
            expires=float(claims["exp"]) + LEEWAY_S,
        )

    def _key(self, algorithm: str, key_id: object) -> Any:
        if self._file is None:
            return self._secret
        fitting = [
            key
            for key in self._file.value
            if key.kind == _KINDS[algorithm] and key.algorithm in (None, algorithm) and key_id in (None, key.id)
        ]
        if len(fitting) != 1:
            named = "without kid" if key_id is None else f"kid {str(key_id)[:40]!r}"
            raise _refused(f"auth.jwt.jwks_file has {len(fitting)} keys for {algorithm} {named}, expected one")
        return fitting[0].key


def read_key_set(path: Path) -> tuple[PublicKey, ...]:
    """Return the public keys of a JWKS file (RFC 7517) that a supported algorithm can use.

    Raises:
        CredentialsError: the file cannot be read, has no such key, or has a forbidden one: a secret or private key, or
            an RSA key of less than 2048 bits.
    """
    try:
        members = json.loads(path.read_bytes())["keys"]
        if any("d" in member or "k" in member for member in members):
            raise CredentialsError(f"{path} has a private or secret key, expected public ones only")
        keys = tuple(key for member in members if (key := _public_key(member)) is not None)
    except OSError as exc:
        raise CredentialsError(f"{path} cannot be read: {exc.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as exc:
        raise CredentialsError(f"{path} is not a JWKS (RFC 7517): {type(exc).__name__}") from None
    if any(key.kind[0] == "RSA" and key.key.key_size < _RSA_BITS for key in keys):
        raise CredentialsError(f"{path} has an RSA key of less than {_RSA_BITS} bits")
    if not keys:
        raise CredentialsError(f"{path} has no RSA or EC key for signatures")
    return keys


def _public_key(member: Mapping[str, Any]) -> PublicKey | None:
    kind, algorithm = (member["kty"], member.get("crv", "")), member.get("alg")
    fitting = [name for name, wanted in _KINDS.items() if wanted == kind and algorithm in (None, name)]
    if not fitting or member.get("use", "sig") != "sig":
        return None
    return PublicKey(
        id=member.get("kid"), kind=kind, algorithm=algorithm, key=jwt.PyJWK(dict(member), algorithm=fitting[0]).key
    )


def _why(exc: Exception) -> str:
    """Return the reason without any text of the token: PyJWT quotes some claims."""
    reasons: Mapping[type[Exception], str] = {
        jwt.InvalidSignatureError: "its signature is not the issuer's",
        jwt.InvalidIssuerError: "its iss is not auth.jwt.issuer",
        jwt.InvalidAudienceError: "its aud is not auth.jwt.audience",
        jwt.ImmatureSignatureError: "it is not valid yet (nbf or iat)",
        jwt.MissingRequiredClaimError: "it lacks exp, iss or aud",
    }
    return next((why for kind, why in reasons.items() if isinstance(exc, kind)), "it cannot be read")


def _refused(why: str) -> Rejected:
    return Rejected(f"the token is not accepted: {why}", status=401, code="bad_token")
