"""Vonage's proof: a JWT on webhooks and media sockets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import jwt
from jwt.types import Options

from gateway.carriers.proof import Hook, Proof, Upgrade
from gateway.carriers.signatures import MAX_AGE_S, same
from gateway.carriers.vonage.settings import VonageConfig

_NO_CLOCK: Options = {"verify_aud": False, "verify_exp": False, "verify_iat": False, "verify_nbf": False}


def vonage_signed(secret: str, authorization: str, body: bytes | None, *, now: float) -> bool:
    """Check ``Authorization: Bearer <JWT>`` (HS256): it must be issued within ``MAX_AGE_S``, and ``payload_hash`` must
    match the body, if there is one."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return False
    try:
        # The token's times are checked below against ``now``.
        claims = jwt.decode(token, secret, algorithms=["HS256"], options={"require": ["iat"], **_NO_CLOCK})
        if abs(now - float(claims["iat"])) > MAX_AGE_S or float(claims.get("exp", now)) < now:
            return False
    except (jwt.InvalidTokenError, TypeError, ValueError):
        return False
    return not body or same(str(claims.get("payload_hash", "")).lower(), hashlib.sha256(body).hexdigest())


def _webhook(settings: VonageConfig, hook: Hook) -> bool | None:
    if settings.signature_secret is None:
        return None
    given = hook.headers.get("authorization", "")
    return vonage_signed(settings.signature_secret.get_secret_value(), given, hook.body, now=hook.now)


def _upgrade(settings: VonageConfig, upgrade: Upgrade) -> bool | None:
    secret, given = settings.signature_secret, upgrade.headers.get("authorization")
    if secret is None or given is None:
        return None
    return vonage_signed(secret.get_secret_value(), given, None, now=upgrade.now)


def _covered(headers: Mapping[str, str]) -> bytes:
    """Return the claims of the JWT, as they were signed."""
    token = headers.get("authorization", "").partition(" ")[2].strip()
    return token.rpartition(".")[0].encode(errors="replace")


PROOF = Proof(
    webhook=_webhook,
    covered=lambda hook: _covered(hook.headers),
    upgrade=_upgrade,
    upgrade_covered=lambda upgrade: _covered(upgrade.headers),
)
