"""Carriers' proofs, each against a signer of another make."""

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.carriers.jambonz.proof import jambonz_signed
from gateway.carriers.plivo.proof import plivo_signature, plivo_signed
from gateway.carriers.proof import Hook, Upgrade
from gateway.carriers.signalwire.proof import signalwire_signed
from gateway.carriers.table import CARRIERS as SERVED
from gateway.carriers.table import CarriersConfig
from gateway.carriers.telnyx.proof import telnyx_signed
from gateway.carriers.vonage.proof import vonage_signed
from gateway.errors import Rejected
from gateway.tokens import Tokens
from talkspurt.simulator.carriers import CARRIERS
from tests.gateway.carriers.made import configured

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


def test_signalwire_signs_json_with_the_hex_of_url_and_body() -> None:
    """The scheme is that of SignalWire's own validator, ``SignalWire::Security::WebhookValidator``."""
    url, body = "https://h.example/v", b'{"a":1}'
    signature = hmac.new(SECRET.encode(), url.encode() + body, hashlib.sha1).hexdigest()
    assert signalwire_signed(SECRET, url, signature, {}, body)
    assert not signalwire_signed(SECRET, url, signature, {}, b'{"a":2}')
    assert not signalwire_signed(SECRET, url, hmac.new(SECRET.encode(), url.encode(), hashlib.sha256).hexdigest(), {})


VENDORS = json.loads((Path(__file__).parents[2] / "vectors/carriers/signatures/vendors.json").read_text())
SIGNED = [(name, case) for name in ("twilio", "plivo", "signalwire") for case in VENDORS[name]]
SECRETS = {
    "twilio": {"auth_token": VENDORS["secret"], "shared_key": VENDORS["secret"]},
    "plivo": {"auth_token": VENDORS["secret"]},
    "signalwire": {"signing_key": VENDORS["secret"]},
}
HEADERS = {
    "twilio": ["x-twilio-signature"],
    "plivo": ["x-plivo-signature-v3", "x-plivo-signature-ma-v3"],
    "signalwire": ["x-signalwire-signature", "x-twilio-signature"],
}


@pytest.mark.parametrize(("name", "case"), SIGNED, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_what_a_vendors_own_package_signed_is_accepted_and_a_changed_field_is_not(
    name: str, case: dict[str, Any]
) -> None:
    carrier = configured(name, **SECRETS[name])
    is_get = case.get("method") == "GET" or case["name"] == "a GET"
    for header in HEADERS[name]:
        headers = {header: case["signature"], "x-plivo-signature-v3-nonce": case.get("nonce", "")}
        if case.get("algorithm") == "HMAC_SHA256":
            headers["x-twilio-webhooks-signature-settings"] = "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256"
        form = None if is_get else {key: [value] for key, value in case["form"].items()}
        hook = Hook(url=case["url"], headers=headers, body=b"", form=form, now=NOW)
        assert carrier.vendor.proof.webhook(carrier.settings, hook) is True
        for changed in (replace(hook, url=case["url"] + "x"), replace(hook, form={**(form or {}), "From": ["+1"]})):
            assert carrier.vendor.proof.webhook(carrier.settings, changed) is False


def test_a_shared_key_that_is_not_configured_proves_nothing() -> None:
    case = next(case for case in VENDORS["twilio"] if case["algorithm"] == "HMAC_SHA256")
    settings = {"x-twilio-webhooks-signature-settings": "key=k,algorithm=HMAC_SHA256"}
    form = {key: [value] for key, value in case["form"].items()}
    headers = {"x-twilio-signature": case["signature"], **settings}
    hook = Hook(url=case["url"], headers=headers, body=b"", form=form, now=NOW)
    carrier = configured("twilio", auth_token=VENDORS["secret"])
    assert carrier.vendor.proof.webhook(carrier.settings, hook) is False


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
