"""Stream tokens: what our webhook puts into a stream address, so that nobody else can open one. Signed, so that any
worker can check one; short-lived, good for one call, bound to dialect, route and the carrier's call where known.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from gateway.errors import Rejected

# 42 bytes in all: a multiple of three, so that each character of the token counts in full.
_EXPIRY_BYTES, _ID_BYTES, _CALL_BYTES, _MAC_BYTES = 8, 8, 8, 18
_SIGNED_BYTES = _EXPIRY_BYTES + _ID_BYTES + _CALL_BYTES
_ANY_CALL = bytes(_CALL_BYTES)


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A token that is ours and fresh. Whether it is spent, the directory knows."""

    id: bytes
    expires: int
    """Seconds since the epoch."""
    call: bytes
    """Digest of the call's id; zeros: any call."""

    def check_call(self, call_sid: str) -> None:
        """Raises ``Rejected`` (403) unless the token was made for the call of this id, or for any."""
        if self.call not in (_ANY_CALL, _digest(call_sid)):
            raise Rejected("stream token belongs to another call", status=403, code="bad_token", param="token")


class StreamTokens:
    """Makes and checks tokens. Times are seconds since the epoch, since other machines may check them.

    Args:
        secret: the key; None takes a random one, good for one process.
        lifetime_s: how long a token opens a stream.
    """

    def __init__(self, secret: str | None, *, lifetime_s: float) -> None:
        self._key = secret.encode() if secret else secrets.token_bytes(32)
        self._lifetime_s = lifetime_s

    def make(self, dialect: str, route: str, *, now: float, call: str = "") -> str:
        """A token for one stream address; URL-safe, 56 characters.

        Args:
            call: the id that the stream's start will name; empty: any.
        """
        expiry = int(now + self._lifetime_s).to_bytes(_EXPIRY_BYTES, "big")
        signed = expiry + secrets.token_bytes(_ID_BYTES) + (_digest(call) if call else _ANY_CALL)
        return base64.urlsafe_b64encode(signed + self._mac(signed, dialect, route)).decode()

    def check(self, token: str, dialect: str, route: str, *, now: float) -> StreamToken:
        """Raises ``Rejected`` (403) for anything but a fresh token of ours for this dialect and route."""
        try:
            raw = base64.urlsafe_b64decode(token)
        except ValueError:
            raw = b""
        signed, mac = raw[:_SIGNED_BYTES], raw[_SIGNED_BYTES:]
        if len(mac) != _MAC_BYTES or not hmac.compare_digest(mac, self._mac(signed, dialect, route)):
            raise Rejected("stream token is missing or not ours", status=403, code="bad_token", param="token")
        expires = int.from_bytes(signed[:_EXPIRY_BYTES], "big")
        if expires < now:
            raise Rejected("stream token has expired (server.stream_token_s)", status=403, code="expired_token")
        own = signed[_EXPIRY_BYTES:]
        return StreamToken(own[:_ID_BYTES], expires, own[_ID_BYTES:])

    def _mac(self, signed: bytes, dialect: str, route: str) -> bytes:
        message = b"\0".join((signed, dialect.encode(), route.encode()))
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_MAC_BYTES]


def _digest(call_sid: str) -> bytes:
    return hashlib.sha256(call_sid.encode()).digest()[:_CALL_BYTES]
