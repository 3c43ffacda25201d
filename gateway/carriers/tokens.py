"""Stream tokens: what our webhook puts into a stream address, so that nobody else can open one. Signed, not stored,
so that any worker can check one; short-lived, and bound to dialect and route."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from gateway.errors import Rejected

_MAC_BYTES = 16


class StreamTokens:
    """Makes and checks tokens. Times are seconds since the epoch, since other machines may check them.

    Args:
        secret: the key; None takes a random one, good for one process.
        lifetime_s: how long a token opens a stream.
    """

    def __init__(self, secret: str | None, *, lifetime_s: float) -> None:
        self._key = secret.encode() if secret else secrets.token_bytes(32)
        self._lifetime_s = lifetime_s

    def make(self, dialect: str, route: str, *, now: float) -> str:
        """A token for one stream address; URL-safe, 32 characters."""
        expiry = int(now + self._lifetime_s).to_bytes(8, "big")
        return base64.urlsafe_b64encode(expiry + self._mac(expiry, dialect, route)).decode().rstrip("=")

    def check(self, token: str, dialect: str, route: str, *, now: float) -> None:
        """Raises ``Rejected`` (403) for anything but a fresh token of ours for this dialect and route."""
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError:
            raw = b""
        if len(raw) != 8 + _MAC_BYTES or not hmac.compare_digest(raw[8:], self._mac(raw[:8], dialect, route)):
            raise Rejected("stream token is missing or not ours", status=403, code="bad_token", param="token")
        if int.from_bytes(raw[:8], "big") < now:
            raise Rejected("stream token has expired (server.stream_token_s)", status=403, code="expired_token")

    def _mac(self, expiry: bytes, dialect: str, route: str) -> bytes:
        message = b"\0".join((expiry, dialect.encode(), route.encode()))
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_MAC_BYTES]
