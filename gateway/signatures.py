"""Carriers' request signatures. Pure: strings in, yes or no out; constant-time comparison."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qs, urlsplit


def twilio_signature(token: str, url: str, form: Mapping[str, Sequence[str]] | None = None) -> str:
    """``X-Twilio-Signature``: base64 of HMAC-SHA1 over the URL and the sorted form (Twilio, *Webhooks security*).

    Args:
        token: the account's auth token.
        url: exactly as configured at Twilio: scheme, host, port if written, path, query.
        form: body parameters; several values of a name: the distinct ones, sorted.
    """
    message = url
    for name in sorted(form or {}):
        for value in sorted(set((form or {})[name])):
            message += name + value
    return base64.b64encode(hmac.new(token.encode(), message.encode(), hashlib.sha1).digest()).decode()


def twilio_signed(
    token: str, url: str, signature: str, form: Mapping[str, Sequence[str]] | None = None, body: bytes = b""
) -> bool:
    """Whether the signature is Twilio's, over any spelling of the URL that Twilio is known to sign.

    With and without the default port; for WebSocket upgrades (no form) also with and without a trailing slash. A
    ``bodySHA256`` in the query stands for a JSON body, which then has to match it.
    """
    digest = parse_qs(urlsplit(url).query).get("bodySHA256")
    if digest is not None:
        if not hmac.compare_digest(digest[0].lower(), hashlib.sha256(body).hexdigest()):
            return False
        form = None
    good = False
    for spelling in _spellings(url):
        # Bytes: two strings cannot be compared where one is not ASCII, and the header may hold anything.
        expected = twilio_signature(token, spelling, form).encode()
        good |= hmac.compare_digest(expected, signature.encode(errors="backslashreplace"))
    return good


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
