"""Twilio's proof: ``X-Twilio-Signature`` on webhooks and media sockets."""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qs, urlsplit

from gateway.carriers.proof import Hook, Proof, Upgrade
from gateway.carriers.signatures import Form, same, spellings, twilio_signature
from gateway.carriers.twilio.settings import TwilioConfig


def twilio_signed(token: str, url: str, signature: str, form: Form | None = None, body: bytes = b"") -> bool:
    """Return True if the signature is Twilio's, over any spelling of the URL that Twilio is known to sign.

    Spellings: with and without the default port, and for WebSocket upgrades (no form) with and without a trailing
    slash. A ``bodySHA256`` in the query stands for a JSON body, which must match the hash.
    """
    digest = parse_qs(urlsplit(url).query).get("bodySHA256")
    if digest is not None:
        if not same(digest[0].lower(), hashlib.sha256(body).hexdigest()):
            return False
        form = None
    good = False
    for spelling in spellings(url):
        good |= same(signature, twilio_signature(token, spelling, form))
    return good


def _webhook(settings: TwilioConfig, hook: Hook) -> bool | None:
    if settings.auth_token is None:
        return None
    given = hook.headers.get("x-twilio-signature", "")
    return twilio_signed(settings.auth_token.get_secret_value(), hook.url, given, hook.form, hook.body)


def _upgrade(settings: TwilioConfig, upgrade: Upgrade) -> bool | None:
    token, signature = settings.auth_token, upgrade.headers.get("x-twilio-signature")
    if token is None or signature is None:
        return None
    return twilio_signed(token.get_secret_value(), upgrade.url, signature)


PROOF = Proof(webhook=_webhook, upgrade=_upgrade, address_header="X-Twilio-Signature")
