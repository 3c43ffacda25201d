"""Carriers' request signatures. Pure: strings in, yes or no out; constant-time comparison; times are epoch seconds."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qs, parse_qsl, urlsplit

import jwt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jwt.types import Options

MAX_AGE_S = 300.0
"""How old a signed webhook may be (Telnyx's own bound; taken for the JWTs of Vonage too)."""

SIGNS_ADDRESS = frozenset({"twilio", "signalwire", "plivo", "genesys"})
"""Dialects whose signatures cover the address that the carrier called, scheme and host included."""

Form = Mapping[str, Sequence[str]]
"""Form parameters: all values of a name."""


def same(given: str, expected: str) -> bool:
    """Equal texts, compared in constant time."""
    # Bytes: two strings cannot be compared where one is not ASCII, and a header may hold anything.
    return hmac.compare_digest(given.encode(errors="backslashreplace"), expected.encode(errors="backslashreplace"))


def twilio_signature(token: str, url: str, form: Form | None = None) -> str:
    """``X-Twilio-Signature``: base64 of HMAC-SHA1 over the URL and the sorted form (Twilio, *Webhooks security*).

    Args:
        token: the account's auth token.
        url: exactly as configured at Twilio: scheme, host, port if written, path, query.
        form: body parameters; several values of a name: the distinct ones, sorted.
    """
    return base64.b64encode(hmac.new(token.encode(), _twilio_message(url, form), hashlib.sha1).digest()).decode()


def _twilio_message(url: str, form: Form | None) -> bytes:
    message = url
    for name in sorted(form or {}):
        for value in sorted(set((form or {})[name])):
            message += name + value
    return message.encode()


def twilio_signed(token: str, url: str, signature: str, form: Form | None = None, body: bytes = b"") -> bool:
    """Whether the signature is Twilio's, over any spelling of the URL that Twilio is known to sign.

    With and without the default port; for WebSocket upgrades (no form) also with and without a trailing slash. A
    ``bodySHA256`` in the query stands for a JSON body, which then has to match it.
    """
    digest = parse_qs(urlsplit(url).query).get("bodySHA256")
    if digest is not None:
        if not same(digest[0].lower(), hashlib.sha256(body).hexdigest()):
            return False
        form = None
    good = False
    for spelling in _spellings(url):
        good |= same(signature, twilio_signature(token, spelling, form))
    return good


def signalwire_signed(key: str, url: str, signature: str, form: Form | None = None) -> bool:
    """``X-SignalWire-Signature``: over Twilio's message. Its hash is not published, so both that are likely count."""
    good = False
    for spelling in _spellings(url):
        message = _twilio_message(spelling, form)
        good |= same(signature, base64.b64encode(hmac.new(key.encode(), message, hashlib.sha1).digest()).decode())
        good |= same(signature.lower(), hmac.new(key.encode(), message, hashlib.sha256).hexdigest())
    return good


def telnyx_signed(public_key: str, timestamp: str, signature: str, body: bytes, *, now: float) -> bool:
    """``telnyx-signature-ed25519`` over ``timestamp|body``, not older (or newer) than ``MAX_AGE_S``.

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


def plivo_signature(token: str, url: str, nonce: str, form: Form | None = None) -> str:
    """``X-Plivo-Signature-V3`` of a POST (``form`` given, perhaps empty) or a GET (``form`` None)."""
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
    digest = hmac.new(token.encode(), f"{base}.{nonce}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def plivo_signed(token: str, url: str, signatures: str, nonce: str, form: Form | None = None) -> bool:
    """Whether one of the comma-separated signatures is Plivo's."""
    expected = plivo_signature(token, url, nonce, form)
    good = False
    for signature in signatures.split(","):
        good |= same(signature.strip(), expected)
    return good and bool(nonce)


_NO_CLOCK: Options = {"verify_aud": False, "verify_exp": False, "verify_iat": False, "verify_nbf": False}


def vonage_signed(secret: str, authorization: str, body: bytes | None, *, now: float) -> bool:
    """``Authorization: Bearer <JWT>``, HS256; with a body also its ``payload_hash``; issued within ``MAX_AGE_S``."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return False
    try:
        # Times are checked below, against ``now``.
        claims = jwt.decode(token, secret, algorithms=["HS256"], options={"require": ["iat"], **_NO_CLOCK})
        if abs(now - float(claims["iat"])) > MAX_AGE_S or float(claims.get("exp", now)) < now:
            return False
    except (jwt.InvalidTokenError, TypeError, ValueError):
        return False
    return not body or same(str(claims.get("payload_hash", "")).lower(), hashlib.sha256(body).hexdigest())


def basic_auth(username: str, password: str) -> str:
    """The value of ``Authorization`` for these (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def jambonz_signed(secret: str, header: str, body: bytes, *, now: float) -> bool:
    """``Jambonz-Signature: t=<seconds>,v1=<hex>``: HMAC-SHA256 over ``t.body``; not documented in detail."""
    fields = dict(pair.strip().partition("=")[::2] for pair in header.split(","))
    try:
        if abs(now - int(fields["t"])) > MAX_AGE_S:
            return False
    except (KeyError, ValueError):
        return False
    expected = hmac.new(secret.encode(), fields["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    return same(fields.get("v1", "").lower(), expected)


_GENESYS_COVERED = {
    "@request-target",
    "@authority",
    "audiohook-organization-id",
    "audiohook-session-id",
    "audiohook-correlation-id",
    "x-api-key",
}
_GENESYS_AGE_S, _GENESYS_SKEW_S = 10.0, 3.0


def genesys_signed(
    api_key: str, client_secret: str, target: str, authority: str, headers: Mapping[str, str], *, now: float
) -> bool:
    """HTTP message signature ``sig1`` of an AudioHook upgrade (draft 11 of the IETF document, HMAC-SHA256).

    Args:
        client_secret: base64, as Genesys Cloud shows it.
        target: path and query as requested.
        authority: the public host, with its port unless that is the default one.
        headers: of the request; names in lower case.
    """
    inputs = re.fullmatch(r'sig1=(\(((?:"[^"]+" ?)*)\)(.*))', headers.get("signature-input", ""))
    given = re.fullmatch(r"sig1=:([A-Za-z0-9+/=]+):", headers.get("signature", ""))
    if inputs is None or given is None:
        return False
    covered = re.findall(r'"([^"]+)"', inputs[2])
    options = {name: value.strip('"') for name, value in re.findall(r';([a-z]+)=("[^"]*"|[0-9]+)', inputs[3])}
    values = {**headers, "@request-target": target, "@authority": authority.lower()}
    if not _GENESYS_COVERED <= set(covered) or any(name not in values for name in covered):
        return False
    if not same(options.get("keyid", ""), api_key) or not same(headers.get("x-api-key", ""), api_key):
        return False
    try:
        created, expires = float(options["created"]), float(options.get("expires", now))
    except (KeyError, ValueError):
        return False
    if not now - _GENESYS_AGE_S <= created <= now + _GENESYS_SKEW_S or expires + _GENESYS_SKEW_S < now:
        return False
    if options.get("alg", "hmac-sha256") != "hmac-sha256" or len(options.get("nonce", "")) < 22:
        return False
    lines = [f'"{name}": {values[name]}' for name in covered] + [f'"@signature-params": {inputs[1]}']
    digest = hmac.new(base64.b64decode(client_secret), "\n".join(lines).encode(), hashlib.sha256).digest()
    return same(given[1], base64.b64encode(digest).decode())


def _spellings(url: str) -> Iterable[str]:
    parts = urlsplit(url)
    default = {"https": 443, "wss": 443, "http": 80, "ws": 80}.get(parts.scheme)
    host = parts.hostname or ""
    netlocs = [parts.netloc]
    if parts.port == default:
        netlocs.append(host)
    elif parts.port is None:
        netlocs.append(f"{host}:{default}")
    for netloc in netlocs:
        yield parts._replace(netloc=netloc).geturl()
        if parts.scheme in ("ws", "wss"):
            other = parts.path[:-1] if parts.path.endswith("/") else parts.path + "/"
            yield parts._replace(netloc=netloc, path=other).geturl()
