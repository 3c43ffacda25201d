"""Twilio's proof: ``X-Twilio-Signature`` on webhooks and media sockets."""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qs, urlsplit

from gateway.carriers.proof import Hook, Proof, Upgrade
from gateway.carriers.signatures import Form, one_spelling, same, spellings, twilio_message, twilio_signature
from gateway.carriers.twilio.settings import TwilioConfig

_SETTINGS_HEADER = "x-twilio-webhooks-signature-settings"


def twilio_signed(
    token: str, url: str, signature: str, form: Form | None = None, body: bytes = b"", *, hashed_by: str = "sha1"
) -> bool:
    """Return True if the signature is Twilio's, over any spelling of the URL that Twilio is known to sign.

    Spellings: with and without the port, and for WebSocket upgrades (no form) with and without a trailing slash. A
    ``bodySHA256`` in the query stands for a JSON body, which must match the hash.
    """
    digest = parse_qs(urlsplit(url).query).get("bodySHA256")
    if digest is not None:
        if not same(digest[0].lower(), hashlib.sha256(body).hexdigest()):
            return False
        form = None
    elif body and not form:  # the signature covers no other body
        return False
    good = False
    for spelling in spellings(url):
        good |= same(signature, twilio_signature(token, spelling, form, digest=hashed_by))
    return good


def _webhook(settings: TwilioConfig, hook: Hook) -> bool | None:
    # A Webhooks Rule of the account lets Twilio sign with a shared key and HMAC-SHA256 instead.
    stated = hook.headers.get(_SETTINGS_HEADER)
    secret = settings.auth_token if stated is None else settings.shared_key
    if secret is None:
        return None if settings.auth_token is None else False
    hashed_by = "sha256" if stated is not None and "HMAC_SHA256" in stated.upper() else "sha1"
    given = hook.headers.get("x-twilio-signature", "")
    return twilio_signed(secret.get_secret_value(), hook.url, given, hook.form, hook.body, hashed_by=hashed_by)


def _upgrade(settings: TwilioConfig, upgrade: Upgrade) -> bool | None:
    token, signature = settings.auth_token, upgrade.headers.get("x-twilio-signature")
    if token is None or signature is None:
        return None
    return twilio_signed(token.get_secret_value(), upgrade.url, signature)


def _covered(hook: Hook) -> bytes:
    has_hash = "bodySHA256" in parse_qs(urlsplit(hook.url).query)
    return twilio_message(one_spelling(hook.url), None if has_hash else hook.form)


PROOF = Proof(webhook=_webhook, covered=_covered, upgrade=_upgrade, address_header="X-Twilio-Signature")
