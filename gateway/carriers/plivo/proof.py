"""Plivo's proof for webhooks: ``X-Plivo-Signature-V3``. Its media sockets carry our token."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import parse_qsl, urlsplit

from gateway.carriers.plivo.settings import PlivoConfig
from gateway.carriers.proof import Hook, Proof
from gateway.carriers.signatures import Form, one_spelling, same

_NONCE = "x-plivo-signature-v3-nonce"


def plivo_signature(token: str, url: str, nonce: str, form: Form | None = None) -> str:
    """Compute ``X-Plivo-Signature-V3`` of a POST (``form`` is given, perhaps empty) or a GET (``form`` is None)."""
    message = _message(url, nonce, form)
    return base64.b64encode(hmac.new(token.encode(), message, hashlib.sha256).digest()).decode()


def _message(url: str, nonce: str, form: Form | None) -> bytes:
    parts = urlsplit(url)
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        query.setdefault(name, []).append(value)
    base = parts._replace(query="").geturl()
    pairs = "&".join(f"{name}={value}" for name in sorted(query) for value in sorted(query[name]))
    if pairs or form:
        base += "?" + pairs
    if form:
        base += ("." if pairs else "") + "".join(name + value for name in sorted(form) for value in sorted(form[name]))
    return f"{base}.{nonce}".encode("utf-8", "surrogateescape")


def plivo_signed(token: str, url: str, signatures: str, nonce: str, form: Form | None = None) -> bool:
    """Return True if one of the comma-separated signatures is Plivo's."""
    expected = plivo_signature(token, url, nonce, form)
    good = False
    for signature in signatures.split(","):
        good |= same(signature.strip(), expected)
    return good and bool(nonce)


def _webhook(settings: PlivoConfig, hook: Hook) -> bool | None:
    if settings.auth_token is None:
        return None
    if hook.body and not hook.form:  # the signature covers no other body
        return False
    # A subaccount's requests are signed with its own token, and in the second header with the main account's.
    names = ("x-plivo-signature-v3", "x-plivo-signature-ma-v3")
    signatures = ",".join(hook.headers[name] for name in names if name in hook.headers)
    nonce = hook.headers.get(_NONCE, "")
    return plivo_signed(settings.auth_token.get_secret_value(), hook.url, signatures, nonce, hook.form)


def _covered(hook: Hook) -> bytes:
    return _message(one_spelling(hook.url), hook.headers.get(_NONCE, ""), hook.form)


PROOF = Proof(webhook=_webhook, covered=_covered, address_header="X-Plivo-Signature-V3")
