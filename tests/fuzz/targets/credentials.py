"""The credentials that a request shows."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

from gateway.config import SCOPES, JwtConfig
from gateway.credentials.json_web_tokens import JsonWebTokens, looks_like_one
from gateway.errors import Rejected
from tests.fuzz.target import Target, assert_plain, joined, parts

_SECRET = "s" * 32
_TOKENS = JsonWebTokens(JwtConfig(issuer="i", audience="a", algorithms=("HS256",), secret=_SECRET))
_HEADER = {"alg": "HS256", "typ": "JWT", "kid": "1"}
_CLAIMS = {"iss": "i", "aud": ["a"], "exp": 32503680000, "nbf": 1, "iat": 1, "tenant": "shop", "scope": "speak read"}


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def run_token(data: bytes) -> None:
    """A case of two messages is a header and claims that the issuer has signed; any other is a token as it is."""
    found = parts(data)
    token = data
    if len(found) == 2:
        signed = b".".join(map(_encoded, found))
        token = signed + b"." + _encoded(hmac.digest(_SECRET.encode(), signed, hashlib.sha256))
    text = token.decode("utf-8", "replace")
    looks_like_one(text)
    try:
        claims = _TOKENS.check(text)
    except Rejected as exc:
        assert exc.status == 401
        return
    assert_plain(claims)
    assert len(found) == 2, "only the issuer signed it"
    assert 0 < len(claims.tenant) <= 200 and claims.tenant.isprintable()
    assert claims.expires >= time.time() and set(claims.scopes) <= set(SCOPES)


TARGETS = [Target(
    name="json-web-token", run=run_token, covers=("gateway/credentials/json_web_tokens.py",),
    seeds=[
        joined(json.dumps(_HEADER), json.dumps(_CLAIMS)),
        b".".join(_encoded(json.dumps(part).encode()) for part in (_HEADER, _CLAIMS)) + b".AAAA",
    ],
    words=[b'"alg":', b'"none"', b'"HS256"', b'"crit":["b64"]', b'"b64":false', b'"exp":', b"1e999", b"NaN", b'"aud":',
           b"null", b"[[[[", b"\xed\xa0\x80"],
)]  # fmt: skip
