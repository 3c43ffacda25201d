"""Telnyx's proofs: Ed25519 signatures on webhooks, and a token for media sockets."""

from __future__ import annotations

import base64

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.carriers.proof import Hook, Proof, Upgrade
from gateway.carriers.signatures import MAX_AGE_S, same
from gateway.carriers.telnyx.settings import TelnyxConfig


def telnyx_signed(public_key: str, timestamp: str, signature: str, body: bytes, *, now: float) -> bool:
    """Check ``telnyx-signature-ed25519`` over ``timestamp|body``. The timestamp must be within ``MAX_AGE_S`` of now.

    Raises:
        ValueError: ``public_key`` is not base64 of 32 bytes.
    """
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key))
    try:
        if abs(now - int(timestamp)) > MAX_AGE_S:
            return False
        key.verify(base64.b64decode(signature, validate=True), timestamp.encode() + b"|" + body)
    except (InvalidSignature, ValueError):
        return False
    return True


def _webhook(settings: TelnyxConfig, hook: Hook) -> bool | None:
    if not settings.public_key:
        return None
    stamp, signature = hook.headers.get("telnyx-timestamp", ""), hook.headers.get("telnyx-signature-ed25519", "")
    return telnyx_signed(settings.public_key, stamp, signature, hook.body, now=hook.now)


def _upgrade(settings: TelnyxConfig, upgrade: Upgrade) -> bool | None:
    token, given = settings.stream_token, upgrade.headers.get("x-telnyx-streaming-auth-token")
    return None if token is None or given is None else same(given, token.get_secret_value())


PROOF = Proof(
    webhook=_webhook,
    covered=lambda hook: f"{hook.headers.get('telnyx-timestamp', '')}|".encode(errors="replace") + hook.body,
    upgrade=_upgrade,
)
