"""SignalWire's proofs: signed webhooks, and a bearer token for media sockets."""

from __future__ import annotations

import hashlib
import hmac

from gateway.carriers.proof import Hook, Proof, bearer
from gateway.carriers.signalwire.settings import SignalWireConfig
from gateway.carriers.signatures import Form, one_spelling, same, spellings, twilio_message, twilio_signature


def signalwire_signed(key: str, url: str, signature: str, form: Form | None = None, body: bytes = b"") -> bool:
    """Return True if the signature is SignalWire's.

    A cXML request (a form, or a GET) is signed as Twilio signs: base64 of HMAC-SHA1 over the URL and the sorted form. A
    JSON request has the lower-case hex of HMAC-SHA1 over the URL and the body. SignalWire's own validator:
    ``SignalWire::Security::WebhookValidator``.
    """
    good = False
    for spelling in spellings(url):
        good |= not body and same(signature, twilio_signature(key, spelling, form))
        good |= bool(body) and same(
            signature, hmac.new(key.encode(), spelling.encode() + body, hashlib.sha1).hexdigest()
        )
    return good


def _webhook(settings: SignalWireConfig, hook: Hook) -> bool | None:
    if settings.signing_key is None:
        return None
    given = hook.headers.get("x-signalwire-signature") or hook.headers.get("x-twilio-signature", "")
    body = b"" if hook.form else hook.body
    return signalwire_signed(settings.signing_key.get_secret_value(), hook.url, given, hook.form, body)


PROOF = Proof(
    webhook=_webhook,
    covered=lambda hook: twilio_message(one_spelling(hook.url), hook.form) + (b"" if hook.form else hook.body),
    upgrade=lambda settings, upgrade: bearer(upgrade.headers.get("authorization"), settings.stream_token),
    address_header="X-SignalWire-Signature",
)
