"""Signature functions that several carriers share. Pure. Comparison takes constant time; times are epoch seconds."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

MAX_AGE_S = 300.0
"""Maximum age of a signed webhook (Telnyx's own bound, also used for the JWTs of Vonage)."""

Form = Mapping[str, Sequence[str]]
"""Form parameters: all values of each name."""


def same(given: str, expected: str) -> bool:
    """Compare two texts in constant time."""
    # Bytes, because ``compare_digest`` refuses non-ASCII strings, and a header may have any characters.
    return hmac.compare_digest(given.encode(errors="backslashreplace"), expected.encode(errors="backslashreplace"))


def twilio_signature(token: str, url: str, form: Form | None = None, *, digest: str = "sha1") -> str:
    """Compute ``X-Twilio-Signature``: base64 of HMAC-SHA1 over the URL and the sorted form (Twilio, *Webhooks
    security*).

    Args:
        token: the account's auth token.
        url: exactly as configured at Twilio: scheme, host, port if written, path, query.
        form: body parameters. Several values of a name are sorted and deduplicated.
        digest: the hash, ``sha1`` or ``sha256``.
    """
    return base64.b64encode(hmac.new(token.encode(), twilio_message(url, form), digest).digest()).decode()


def twilio_message(url: str, form: Form | None) -> bytes:
    """Return the text that Twilio and similar carriers sign: the URL and the sorted form."""
    message = url
    for name in sorted(form or {}):
        for value in sorted(set((form or {})[name])):
            message += name + value
    return message.encode()


def basic_auth(username: str, password: str) -> str:
    """Return the value of ``Authorization`` for these (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def one_spelling(url: str) -> str:
    """Return a URL without its port and with its host in lower case. All ``spellings`` of a URL, and all URLs that have
    a spelling in common, have one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts._replace(netloc=f"[{host}]" if ":" in host else host).geturl()


def spellings(url: str) -> Iterable[str]:
    """Yield the spellings of a URL that Twilio is known to sign: with and without its port (as Twilio's own validators
    accept), and for WebSockets with and without a trailing slash."""
    parts = urlsplit(url)
    default = {"https": 443, "wss": 443, "http": 80, "ws": 80}.get(parts.scheme)
    host = parts.hostname or ""
    netlocs = [parts.netloc]
    if ":" in host:  # an IPv6 address
        host = f"[{host}]"
    netlocs.append(f"{host}:{default}" if parts.port is None else host)
    for netloc in netlocs:
        yield parts._replace(netloc=netloc).geturl()
        if parts.scheme in ("ws", "wss"):
            other = parts.path[:-1] if parts.path.endswith("/") else parts.path + "/"
            yield parts._replace(netloc=netloc, path=other).geturl()
