"""SignalWire's proofs: signed webhooks, and a bearer token for media sockets."""

from __future__ import annotations

import base64
import hashlib
import hmac

from gateway.carriers.proof import Hook, Proof, bearer
from gateway.carriers.signalwire.settings import SignalWireConfig
from gateway.carriers.signatures import Form, same, spellings, twilio_message


def signalwire_signed(key: str, url: str, signature: str, form: Form | None = None) -> bool:
    """Check ``X-SignalWire-Signature``, which signs the same message as Twilio's. The hash is not published, so both
    likely ones are accepted."""
    good = False
    for spelling in spellings(url):
        message = twilio_message(spelling, form)
        good |= same(signature, base64.b64encode(hmac.new(key.encode(), message, hashlib.sha1).digest()).decode())
        good |= same(signature.lower(), hmac.new(key.encode(), message, hashlib.sha256).hexdigest())
    return good


def _webhook(settings: SignalWireConfig, hook: Hook) -> bool | None:
    if settings.signing_key is None:
        return None
    given = hook.headers.get("x-signalwire-signature", "")
    return signalwire_signed(settings.signing_key.get_secret_value(), hook.url, given, hook.form)


PROOF = Proof(
    webhook=_webhook,
    upgrade=lambda settings, upgrade: bearer(upgrade.headers.get("authorization"), settings.stream_token),
    address_header="X-SignalWire-Signature",
)
