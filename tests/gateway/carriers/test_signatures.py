"""Carriers' proofs, each against a signer of another make."""

import base64
import hashlib
import hmac
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.carriers.jambonz.proof import jambonz_signed
from gateway.carriers.plivo.proof import plivo_signature, plivo_signed
from gateway.carriers.proof import Upgrade
from gateway.carriers.signalwire.proof import signalwire_signed
from gateway.carriers.table import CARRIERS as SERVED
from gateway.carriers.table import CarriersConfig
from gateway.carriers.telnyx.proof import telnyx_signed
from gateway.carriers.vonage.proof import vonage_signed
from gateway.errors import Rejected
from gateway.tokens import Tokens
from talkspurt.simulator.carriers import CARRIERS

SECRET = "a-secret-of-at-least-thirty-two-bytes"
NOW = 1_772_446_830.0


def b64_hmac(message: str) -> str:
    return base64.b64encode(hmac.new(SECRET.encode(), message.encode(), hashlib.sha256).digest()).decode()


def test_telnyx_signs_time_and_body_with_ed25519() -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    stamp = str(int(NOW))
    signature = base64.b64encode(key.sign(stamp.encode() + b"|{}")).decode()
    assert telnyx_signed(public, stamp, signature, b"{}", now=NOW + 299)
    assert not telnyx_signed(public, stamp, signature, b"{}", now=NOW + 301)
    assert not telnyx_signed(public, stamp, signature, b"{ }", now=NOW)
    assert not telnyx_signed(public, "soon", "%", b"{}", now=NOW)


@pytest.mark.parametrize(
    ("url", "form", "base"),
    [
        ("https://h.example/v", {"B": ["2"], "A": ["1"]}, "https://h.example/v?A1B2"),
        ("https://h.example/v?z=1&y=2", {"A": ["1"]}, "https://h.example/v?y=2&z=1.A1"),
        ("https://h.example/v?z=1&y=2", None, "https://h.example/v?y=2&z=1"),
        ("https://h.example/v", {}, "https://h.example/v"),
        ("https://h.example/v", None, "https://h.example/v"),
    ],
)
def test_plivo_signs_url_query_form_and_nonce(url: str, form: dict[str, list[str]] | None, base: str) -> None:
    signature = b64_hmac(f"{base}.n1")
    assert plivo_signature(SECRET, url, "n1", form) == signature
    assert plivo_signed(SECRET, url, f"x, {signature}", "n1", form)
    assert not plivo_signed(SECRET, url, signature, "n2", form)


def test_signalwire_takes_both_hashes_that_are_likely() -> None:
    message = "https://h.example/vA1"
    for signature in (
        base64.b64encode(hmac.new(SECRET.encode(), message.encode(), hashlib.sha1).digest()).decode(),
        hmac.new(SECRET.encode(), message.encode(), hashlib.sha256).hexdigest(),
    ):
        assert signalwire_signed(SECRET, "https://h.example/v", signature, {"A": ["1"]})
        assert not signalwire_signed(SECRET, "https://h.example/v", signature, {"A": ["2"]})


def test_vonage_tokens_hold_for_one_body_and_five_minutes() -> None:
    claims: dict[str, Any] = {"iat": int(NOW), "payload_hash": hashlib.sha256(b"{}").hexdigest()}
    bearer = f"Bearer {jwt.encode(claims, SECRET)}"
    assert vonage_signed(SECRET, bearer, b"{}", now=NOW + 10)
    assert not vonage_signed(SECRET, bearer, b"[]", now=NOW + 10)
    assert not vonage_signed(SECRET, bearer, b"{}", now=NOW + 301)
    assert not vonage_signed(SECRET[::-1], bearer, b"{}", now=NOW)
    assert not vonage_signed(SECRET, "Bearer x", b"{}", now=NOW)
    assert not vonage_signed(SECRET, f"Bearer {jwt.encode(claims, '', algorithm='none')}", b"{}", now=NOW)


def test_jambonz_signs_time_and_body() -> None:
    stamp = str(int(NOW))
    header = f"t={stamp},v1={hmac.new(SECRET.encode(), stamp.encode() + b'.{}', hashlib.sha256).hexdigest()}"
    assert jambonz_signed(SECRET, header, b"{}", now=NOW)
    assert not jambonz_signed(SECRET, header, b"[]", now=NOW)
    assert not jambonz_signed(SECRET, "v1=00", b"{}", now=NOW)


LISTED = CarriersConfig.model_validate(
    {
        "twilio": {"auth_token": SECRET},
        "signalwire": {"stream_token": SECRET},
        "telnyx": {"stream_token": SECRET},
        "exotel": {"api_key": "key", "api_token": "token"},
        "vonage": {"signature_secret": SECRET},
        "genesys": {"api_key": "key", "client_secret": base64.b64encode(SECRET.encode()).decode()},
        "jambonz": {"username": "user", "password": SECRET},
        "freeswitch": {"token": SECRET},
        "freeswitch_fork": {"username": "user", "password": SECRET},
        "asterisk": {"username": "user", "password": SECRET},
        "plivo": {},
    }
).configured()
GIVEN = {
    "twilio": SECRET,
    "signalwire": SECRET,
    "telnyx": SECRET,
    "exotel": "key:token",
    "vonage": SECRET,
    "genesys": f"key:{base64.b64encode(SECRET.encode()).decode()}",
    "jambonz": f"user:{SECRET}",
    "freeswitch": SECRET,
    "freeswitch-fork": f"user:{SECRET}",
    "asterisk": f"user:{SECRET}",
}
TOKENS = Tokens(None, lifetime_s=60)


def upgrade(dialect: str, secret: str, *, url: str = "wss://h.example", now: float | None = None) -> Upgrade:

    target = f"/media/{dialect}/default"
    headers = CARRIERS[dialect].signature(url + target, secret)
    return Upgrade(
        public_url="https://h.example",
        target=target,
        headers={name.lower(): value for name, value in headers.items()},
        now=time.time() if now is None else now,
    )


@pytest.mark.parametrize("dialect", GIVEN)
def test_a_media_socket_opens_by_the_carriers_own_proof(dialect: str) -> None:
    LISTED[dialect].check_upgrade(TOKENS, "default", upgrade(dialect, GIVEN[dialect]))
    wrong = "key:b3RoZXI=" if dialect == "genesys" else "x" * 40
    with pytest.raises(Rejected):
        LISTED[dialect].check_upgrade(TOKENS, "default", upgrade(dialect, wrong))


@pytest.mark.parametrize("dialect", SERVED)
def test_without_a_proof_only_our_token_opens_one(dialect: str) -> None:
    token = TOKENS.make(dialect, "default", now=NOW)
    bare = Upgrade(public_url="https://h.example", target=f"/media/{dialect}/default", headers={}, now=NOW)
    if dialect != "genesys":  # an integration with a key never comes without it
        for target in (f"{bare.target}/{token}", f"{bare.target}?token={token}"):
            good = Upgrade(public_url=bare.public_url, target=target, headers={}, now=NOW)
            LISTED[dialect].check_upgrade(TOKENS, "default", good)
    with pytest.raises(Rejected):
        LISTED[dialect].check_upgrade(TOKENS, "default", bare)


@pytest.mark.parametrize(("url", "late_s"), [("wss://other.example", 0.0), ("wss://h.example", 11.0)])
def test_a_genesys_signature_holds_for_one_host_and_ten_seconds(url: str, late_s: float) -> None:

    given = upgrade("genesys", GIVEN["genesys"], url=url, now=time.time() + late_s)
    with pytest.raises(Rejected):
        LISTED["genesys"].check_upgrade(TOKENS, "default", given)
