"""Signed, short-lived tokens that any worker can check: for stream addresses from our webhooks, and for browsers
instead of an API key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gateway.errors import Rejected

# A stream's token has 42 bytes: a multiple of three, so that base64 needs no padding.
_EXPIRY_BYTES, _ID_BYTES, _CALL_BYTES, _MAC_BYTES = 8, 8, 8, 18
STREAM_TOKEN_S = 60.0
"""Life of the signed token that a webhook puts into a stream address, seconds. Each token opens one call."""

_SIGNED_BYTES = _EXPIRY_BYTES + _ID_BYTES + _CALL_BYTES
_ANY_CALL = bytes(_CALL_BYTES)

GRANT = "tst_"
"""Prefix of every browser's token, which distinguishes it from an API key."""
_GRANTS = b"grant\0"  # signed data of streams begins with a time, whose first byte is 0
_GRANT_FIELDS = 5
_KEYS = b"key\0"
_REQUESTS = b"request\0"
_UPGRADES = b"upgrade\0"
_SIGNATURE_AGE_S = 600.0  # no carrier's signed time is good for longer
_NONCES = b"nonces\0"

GrantScope = Literal["call", "read", "lead", "session"]
"""``call``: a browser may call. ``lead``: it may also speak as the dialogue manager of its call. ``read``: it sees
calls and events. ``session``: all rights of the key, for a signed-in browser."""


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A valid token that has not expired. The directory knows whether it is spent."""

    id: bytes
    expires: int
    """Seconds since the epoch."""
    call: bytes
    """Digest of the call's id; zeros: any call."""
    signature: bytes = b""
    """Id of the carrier's signature that came with the token, and is spent with it. Empty: none of its own came."""

    @property
    def ids(self) -> tuple[bytes, ...]:
        """All ids that the stream spends."""
        return (self.id, self.signature) if self.signature else (self.id,)

    def check_call(self, call_sid: str) -> None:
        """Raise ``Rejected`` (403) unless the token was made for the call of this id, or for any."""
        if self.call not in (_ANY_CALL, _digest(call_sid)):
            raise Rejected("stream token belongs to another call", status=403, code="bad_token", param="token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The rights of a browser's token."""

    id: bytes
    key: bytes
    """``Tokens.mark`` of the API key that made the token. The token is invalid when the key is."""
    scope: GrantScope
    expires: float
    """Seconds since the epoch."""
    route: str = ""
    call: str = ""
    """The only call of the token. Empty: all calls of the route."""
    tenant: str = ""
    """The tenant, if the token was made with a JSON Web Token, of which nothing is kept. Empty: the API key's."""
    scopes: tuple[str, ...] = ()
    """The scopes of the JSON Web Token."""


class Tokens:
    """Makes and checks tokens. Times are seconds since the epoch, since other machines may check them.

    Args:
        secret: the key; None: a random one, valid in one process.
        lifetime_s: time for which a token opens a stream.
    """

    def __init__(self, secret: str | None, *, lifetime_s: float) -> None:
        self._key = secret.encode() if secret else secrets.token_bytes(32)
        self._lifetime_s = lifetime_s

    # --- streams ---------------------------------------------------------------------------------------------------

    def id_of(self, request: bytes) -> bytes:
        """Return the common id of all tokens made for the same request."""
        return self._mac(_REQUESTS + request)[:_ID_BYTES]

    def of_signature(self, dialect: str, covered: bytes, *, now: float) -> StreamToken:
        """Return the token that stands for a carrier's signed upgrade, so that the signature opens one stream."""
        expires = int(now + max(self._lifetime_s, _SIGNATURE_AGE_S))
        return StreamToken(self.id_of(_UPGRADES + dialect.encode() + b"\0" + covered), expires, _ANY_CALL)

    def fresh_id(self) -> bytes:
        """Return a unique token id."""
        return secrets.token_bytes(_ID_BYTES)

    def make(self, dialect: str, route: str, *, now: float, call: str = "", token_id: bytes = b"") -> str:
        """Return a token for one stream address; URL-safe, 56 characters. It opens one call.

        Args:
            call: the call id that the stream's start will name; empty: any.
            token_id: from ``id_of``; of all tokens with this id one opens a call. Empty: a unique id.
        """
        expiry = int(now + self._lifetime_s).to_bytes(_EXPIRY_BYTES, "big")
        signed = expiry + (token_id or self.fresh_id()) + (_digest(call) if call else _ANY_CALL)
        return base64.urlsafe_b64encode(signed + self._stream_mac(signed, dialect, route)).decode()

    def check(self, token: str, dialect: str, route: str, *, now: float) -> StreamToken:
        """Return a valid token. Raise ``Rejected`` (403) if it is not ours, has expired, or is for another dialect or
        route."""
        raw = _decoded(token)
        signed, mac = raw[:_SIGNED_BYTES], raw[_SIGNED_BYTES:]
        if not hmac.compare_digest(mac, self._stream_mac(signed, dialect, route)):
            raise Rejected("stream token is missing or not ours", status=403, code="bad_token", param="token")
        expires = int.from_bytes(signed[:_EXPIRY_BYTES], "big")
        if expires < now:
            raise Rejected(f"stream token is older than {self._lifetime_s:g} s", status=403, code="expired_token")
        own = signed[_EXPIRY_BYTES:]
        return StreamToken(own[:_ID_BYTES], expires, own[_ID_BYTES:])

    def _stream_mac(self, signed: bytes, dialect: str, route: str) -> bytes:
        return self._mac(b"\0".join((signed, dialect.encode(), route.encode())))

    def nonce_key(self, worker: int) -> bytes:
        """Return the key of the nonces of a worker's SIP challenges, the same in all gateways."""
        return self._mac(_NONCES + bytes([worker]))

    # --- browsers --------------------------------------------------------------------------------------------------

    def mark(self, credential: bytes) -> bytes:
        """Return a token's identifier of an API key, from the key's digest. The key cannot be derived from it."""
        return self._mac(_KEYS + credential)[:_CALL_BYTES]

    def grant(
        self,
        credential: bytes,
        scope: GrantScope,
        *,
        expires: float,
        route: str = "",
        call: str = "",
        tenant: str = "",
        scopes: Iterable[str] = (),
    ) -> str:
        """Return a token for a browser, valid until ``expires``. No text has a zero byte."""
        expiry = int(expires).to_bytes(_EXPIRY_BYTES, "big")
        said = "\0".join((scope, route, call, tenant, " ".join(scopes))).encode()
        said += b" " * (-len(said) % 3)  # so that there is no padding, which a cookie would have to quote
        signed = expiry + secrets.token_bytes(_ID_BYTES) + self.mark(credential) + said
        return GRANT + base64.urlsafe_b64encode(signed + self._mac(_GRANTS + signed)).decode()

    def check_grant(self, token: str, *, now: float) -> Grant:
        """Return a browser's valid token. Raise ``Rejected`` (401) if it is not ours or has expired."""
        raw = _decoded(token.removeprefix(GRANT))
        signed, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(_GRANTS + signed)):
            raise Rejected("the token is not ours", status=401, code="bad_token")
        expires = int.from_bytes(signed[:_EXPIRY_BYTES], "big")
        if expires < now:
            raise Rejected("the token has expired", status=401, code="expired_token")
        own = signed[_EXPIRY_BYTES:]
        said = own[_ID_BYTES + _CALL_BYTES :].decode().split("\0")
        if len(said) != _GRANT_FIELDS:
            raise Rejected("the token is of another version", status=401, code="bad_token")
        scope, route, call, tenant, scopes = said
        return Grant(
            id=own[:_ID_BYTES],
            key=own[_ID_BYTES : _ID_BYTES + _CALL_BYTES],
            scope=scope,  # type: ignore[arg-type]  # it is signed
            expires=expires,
            route=route,
            call=call,
            tenant=tenant,
            scopes=tuple(scopes.split()),
        )

    def _mac(self, message: bytes) -> bytes:
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_MAC_BYTES]


def _decoded(token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(token)
    except ValueError:
        return b""


def _digest(call_sid: str) -> bytes:
    return hashlib.sha256(call_sid.encode()).digest()[:_CALL_BYTES]
