"""jambonz's proofs: signed webhooks, and basic authentication for media sockets."""

from __future__ import annotations

import hashlib
import hmac

from gateway.carriers.jambonz.settings import JambonzConfig
from gateway.carriers.proof import Hook, Proof, credentials
from gateway.carriers.signatures import MAX_AGE_S, same


def jambonz_signed(secret: str, header: str, body: bytes, *, now: float) -> bool:
    """Check ``Jambonz-Signature: t=<seconds>,v1=<hex>``: HMAC-SHA256 over ``t.body``. jambonz does not document the
    details."""
    fields = dict(pair.strip().partition("=")[::2] for pair in header.split(","))
    try:
        if abs(now - int(fields["t"])) > MAX_AGE_S:
            return False
    except (KeyError, ValueError):
        return False
    expected = hmac.new(secret.encode(), fields["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    return same(fields.get("v1", "").lower(), expected)


def _webhook(settings: JambonzConfig, hook: Hook) -> bool | None:
    if settings.webhook_secret is None:
        return None
    given = hook.headers.get("jambonz-signature", "")
    return jambonz_signed(settings.webhook_secret.get_secret_value(), given, hook.body, now=hook.now)


def _covered(hook: Hook) -> bytes:
    pairs = dict(pair.strip().partition("=")[::2] for pair in hook.headers.get("jambonz-signature", "").split(","))
    return pairs.get("t", "").encode(errors="replace") + b"." + hook.body


PROOF = Proof(
    webhook=_webhook,
    covered=_covered,
    upgrade=lambda settings, upgrade: credentials(
        upgrade.headers.get("authorization"), settings.username, settings.password
    ),
)
