"""JSON Web Tokens: whose they are, and what is not accepted."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import JwtConfig
from gateway.credentials.json_web_tokens import Claims, JsonWebTokens, read_key_set
from gateway.errors import CredentialsError, Rejected
from tts_engine.supervision import SUPERVISOR

SECRET = "a secret of the issuer's, with enough bytes for each of the hashes there is"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = {"ES256": ec.generate_private_key(ec.SECP256R1()), "ES384": ec.generate_private_key(ec.SECP384R1()),
      "ES512": ec.generate_private_key(ec.SECP521R1())}  # fmt: skip
ISSUER = {"issuer": "https://login.example.com", "audience": "talkspurt"}


def claims(**others: Any) -> dict[str, Any]:
    """Good ones. None takes one away."""
    said = {"iss": ISSUER["issuer"], "aud": ["other", "talkspurt"], "exp": int(time.time()) + 600, "tenant": "shop",
            "scope": "openid speak calls", **others}  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


def jwk(key: Any, kid: str, **others: str) -> dict[str, Any]:
    to_jwk = jwt.algorithms.ECAlgorithm.to_jwk if hasattr(key, "curve") else jwt.algorithms.RSAAlgorithm.to_jwk
    return json.loads(to_jwk(key, as_dict=False)) | {"kid": kid} | others


def write(path: Path, *members: dict[str, Any]) -> str:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"keys": members}))
    temporary.replace(path)
    return str(path)


def by_file(tmp_path: Path, *algorithms: str, **others: Any) -> JsonWebTokens:
    members = [jwk(RSA.public_key(), "r"), *(jwk(key.public_key(), name) for name, key in EC.items())]
    path = write(tmp_path / "jwks.json", *members)
    config = ISSUER | {"algorithms": algorithms or ("RS256", "ES256"), "jwks_file": path} | others
    return JsonWebTokens(JwtConfig.model_validate(config))


def by_secret(*algorithms: str, **others: Any) -> JsonWebTokens:
    return JsonWebTokens(JwtConfig.model_validate(ISSUER | {"algorithms": algorithms, "secret": SECRET} | others))


def why(tokens: JsonWebTokens, token: str) -> str:
    with pytest.raises(Rejected) as refused:
        tokens.check(token)
    assert refused.value.status == 401
    return f"{refused.value.code}: {refused.value}"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512"])
def test_a_token_says_tenant_scopes_and_end_by_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    said = claims()
    key: Any = SECRET if algorithm.startswith("HS") else EC.get(algorithm, RSA)
    tokens = by_secret(algorithm) if algorithm.startswith("HS") else by_file(tmp_path, algorithm)
    expected = Claims(tenant="shop", scopes=("speak", "calls"), expires=said["exp"] + 30)
    assert tokens.check(jwt.encode(said, key, algorithm)) == expected


def unsigned(**header: Any) -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims()).encode(), b""]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def nested() -> str:
    """Return a token whose header is nested deeper than Python reads."""
    return base64.urlsafe_b64encode(b'{"a":' + b"[" * 5000).rstrip(b"=").decode() + ".e30.x"


def signed_by_the_public_key() -> str:
    """Return a token of an attacker who hopes that the public key is taken for the secret of an HMAC."""
    import hashlib
    import hmac

    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = unsigned(alg="HS256", typ="JWT", kid="r")[:-1]
    mac = hmac.new(pem, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (lambda: unsigned(alg="none"), "alg is 'none', expected RS256, ES256"),
        (lambda: unsigned(alg="None"), "alg is 'None'"),
        (lambda: unsigned(alg=["RS256"]), "bad_token"),
        (lambda: unsigned(typ="JWT"), "bad_token"),
        (lambda: nested(), "bad_token"),
        (signed_by_the_public_key, "alg is 'HS256'"),
        (lambda: jwt.encode(claims(), RSA, "RS512"), "alg is 'RS512'"),
        (lambda: jwt.encode(claims(), OTHER_RSA, "RS256"), "its signature is not the issuer's"),
        (lambda: jwt.encode(claims(), RSA, "RS256", headers={"kid": "ES256"}), "has 0 keys for RS256 kid 'ES256'"),
        (lambda: jwt.encode(claims(), RSA, "RS256", headers={"kid": "gone"}), "has 0 keys for RS256 kid 'gone'"),
        (lambda: jwt.encode(claims(), RSA, "RS256", headers={"crit": ["x"], "x": 1}), "bad_token"),
        (lambda: jwt.encode(claims(iss="https://evil"), RSA, "RS256"), "its iss is not auth.jwt.issuer"),
        (lambda: jwt.encode(claims(aud="other"), RSA, "RS256"), "its aud is not auth.jwt.audience"),
        (lambda: jwt.encode(claims(aud=None), RSA, "RS256"), "it lacks exp, iss or aud"),
        (lambda: jwt.encode(claims(iss=None), RSA, "RS256"), "it lacks exp, iss or aud"),
        (lambda: jwt.encode(claims(exp=None), RSA, "RS256"), "it lacks exp, iss or aud"),
        (lambda: jwt.encode(claims(nbf=int(time.time()) + 600), RSA, "RS256"), "it is not valid yet"),
        (lambda: jwt.encode(claims(exp=int(time.time()) - 60), RSA, "RS256"), "expired_token: the token has expired"),
        (lambda: jwt.encode(claims(exp=float("inf")), RSA, "RS256"), "bad_token"),
        (lambda: jwt.encode(claims(tenant=None), RSA, "RS256"), "its claim 'tenant' is not a tenant's name"),
        (lambda: jwt.encode(claims(tenant=["shop"]), RSA, "RS256"), "its claim 'tenant' is not a tenant's name"),
        (lambda: jwt.encode(claims(tenant="a\0b"), RSA, "RS256"), "its claim 'tenant' is not a tenant's name"),
        (lambda: jwt.encode(claims(scope=["speak"]), RSA, "RS256"), "its claim 'scope' is not a text"),
        (lambda: jwt.encode(claims(more="x" * 9000), RSA, "RS256"), "expected at most 8192"),
        (lambda: "eyJ.eyJ.x", "bad_token"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_the_reason(token: Callable[[], str], reason: str, tmp_path: Path) -> None:
    assert reason in why(by_file(tmp_path), token())


def test_an_issuer_with_a_secret_is_not_believed_with_public_keys_or_none() -> None:
    tokens = by_secret("HS256")
    for token in (unsigned(alg="none"), jwt.encode(claims(), RSA, "RS256"), jwt.encode(claims(), SECRET, "HS512")):
        assert "expected HS256" in why(tokens, token)


def test_clocks_may_differ_by_the_leeway_and_no_more() -> None:
    late, early = claims(exp=int(time.time()) - 100), claims(nbf=int(time.time()) + 100)
    for said in (late, early):
        token = jwt.encode(said, SECRET, "HS256")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("gateway.credentials.json_web_tokens.LEEWAY_S", 160.0)
            assert by_secret("HS256").check(token).tenant == "shop"
        why(by_secret("HS256"), token)


def test_the_tenant_may_stand_in_another_claim_and_no_scope_means_none() -> None:
    token = jwt.encode(claims(scope=None, org="bank"), SECRET, "HS256")
    found = by_secret("HS256", tenant_claim="org").check(token)
    assert (found.tenant, found.scopes) == ("bank", ())


@given(st.text(max_size=80), st.integers(0, 300), st.characters(max_codepoint=127))
def test_whatever_comes_is_refused_and_nothing_else(text: str, place: int, other: str) -> None:
    good = jwt.encode(claims(), SECRET, "HS256")
    tokens = by_secret("HS256")
    for token in (text, f"eyJ{text}.a.b", good[:place] + text, good[:place] + other + good[place + 1 :]):
        try:
            assert tokens.check(token).tenant == "shop"
            assert jwt.decode(token, SECRET, ["HS256"], audience="talkspurt") == jwt.decode(
                good, SECRET, ["HS256"], audience="talkspurt"
            )
        except Rejected as exc:
            assert exc.status == 401


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "broken",
    [b"half of a", b"[" * 200_000, b"", b"\xff\xfe\x00", b'{"keys": 3}', b'{"keys": [null]}', None],
    ids=["cut", "nested", "empty", "binary", "a number", "a null", "gone"],
)
async def test_new_keys_of_the_issuer_are_taken_old_ones_dropped_and_a_broken_file_is_told_once(
    tmp_path: Path, broken: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = by_file(tmp_path)
    watch = SUPERVISOR.task("keys", tokens.watch)
    before, after = (jwt.encode(claims(), key, "RS256") for key in (RSA, OTHER_RSA))
    assert tokens.check(before) and "signature" in why(tokens, after)
    write(tmp_path / "jwks.json", jwk(OTHER_RSA.public_key(), "new"))
    await asyncio.sleep(2)
    assert tokens.check(after) and "signature" in why(tokens, before)
    if broken is None:
        (tmp_path / "jwks.json").unlink()
    else:
        (tmp_path / "jwks.json").write_bytes(broken)
    await asyncio.sleep(20)
    assert tokens.check(after), "what cannot be read leaves the keys that were"
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message for record in told] == ["changed file cannot be used, its old content stays in effect"]
    write(tmp_path / "jwks.json", jwk(RSA.public_key(), "mended"))
    await asyncio.sleep(2)
    assert tokens.check(before) and "signature" in why(tokens, after)
    assert watch.state.running and not watch.state.restarts
    await watch.aclose()


def test_two_keys_of_one_kind_want_a_kid(tmp_path: Path) -> None:
    write(tmp_path / "jwks.json", jwk(RSA.public_key(), "one"), jwk(OTHER_RSA.public_key(), "two", alg="RS256"))
    config = ISSUER | {"algorithms": ["RS256", "RS384"], "jwks_file": str(tmp_path / "jwks.json")}
    tokens = JsonWebTokens(JwtConfig.model_validate(config))
    assert "has 2 keys for RS256 without kid, expected one" in why(tokens, jwt.encode(claims(), RSA, "RS256"))
    assert tokens.check(jwt.encode(claims(), RSA, "RS256", headers={"kid": "one"}))
    assert tokens.check(jwt.encode(claims(), OTHER_RSA, "RS256", headers={"kid": "two"}))
    token = jwt.encode(claims(), OTHER_RSA, "RS384", headers={"kid": "two"})  # the key is for RS256 only
    assert "has 0 keys for RS384 kid 'two'" in why(tokens, token)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([jwk(rsa.generate_private_key(65537, 1024).public_key(), "weak")], "RSA key of less than 2048 bits"),
        ([jwk(RSA, "private")], "private or secret"),
        ([{"kty": "oct", "k": "c2VjcmV0"}], "private or secret"),
        ([jwk(RSA.public_key(), "e", use="enc")], "no RSA or EC key for signatures"),
        ([{"kty": "RSA", "n": "!"}], "not a JWKS"),
        (["text"], "not a JWKS"),
    ],
)
def test_a_file_that_would_open_a_door_is_refused(members: list[Any], problem: str, tmp_path: Path) -> None:
    write(tmp_path / "jwks.json", *members)
    with pytest.raises(CredentialsError, match=problem):
        read_key_set(tmp_path / "jwks.json")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"algorithms": ["HS256", "RS256"], "secret": SECRET}, "RS256 wants jwks_file"),
        ({"algorithms": ["HS256"], "jwks_file": "x"}, "HS256 wants secret"),
        ({"algorithms": ["RS256"]}, "set either jwks_file"),
        ({"algorithms": ["RS256"], "jwks_file": "x", "secret": SECRET}, "set either jwks_file"),
        ({"algorithms": ["HS512"], "secret": "x" * 63}, "less than the 64 bytes"),
        ({"algorithms": ["none"], "secret": SECRET}, "HS256"),
        ({"algorithms": [], "secret": SECRET}, "at least 1"),
    ],
)
def test_a_configuration_that_would_confuse_algorithms_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        JwtConfig.model_validate(ISSUER | fields)
