"""The carriers' REST interfaces for outgoing calls, against the requests of the vendors' own SDKs; and their status
callbacks."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from xml.etree.ElementTree import canonicalize

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.carriers.call_control import NextAction
from gateway.carriers.call_status import CarrierStatus, read_status
from gateway.carriers.placing import ApiRequest, CarrierOrder, Placing, call_sid_of, error_code_of
from gateway.carriers.table import CARRIERS

VECTORS = Path(__file__).parents[2] / "vectors/carriers/outgoing"
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))
every = pytest.mark.parametrize("name", NAMES)
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
NOW = 1_795_951_592.0
SECTIONS: dict[str, dict[str, Any]] = {
    "twilio": {"account_sid": "AC" + "a" * 32, "auth_token": "secret"},
    "signalwire": {
        "project_id": "11111111-2222-3333-4444-555555555555",
        "api_token": "secret",
        "api_url": "https://example.signalwire.com",
    },
    "plivo": {"auth_id": "MAXXXXXXXXXXXXXXXXXX", "auth_token": "secret"},
    "vonage": {"application_id": "asdfasdf-asdf-asdf-asdf-asdfasdfasdf", "private_key": PEM},
    "telnyx": {"application_id": "1293384261075731499", "api_key": "KEYsecret"},
}
SDK_EXTRAS = {
    "plivo": {
        "fallback_method", "machine_detection_time", "machine_detection_method", "ring_timeout",
        "error_if_parent_not_found",
    },
}  # fmt: skip
"""Fields that the SDK fills in with the vendor's defaults."""


def placing(name: str) -> tuple[Placing[Any], Any]:
    vendor = CARRIERS[name]
    assert vendor.placing is not None
    return vendor.placing, vendor.settings.model_validate(SECTIONS[name])


def vector(name: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())[kind]
    return found


def ordered(name: str) -> ApiRequest:
    rest, settings = placing(name)
    hook = f"https://voice.example.com/webhooks/{name}/default"
    return rest.place(
        settings,
        CarrierOrder(
            to="+4930123456",
            from_="+4930654321",
            answer_url=f"{hook}?placed=VX01",
            status_url=f"{hook}/status?placed=VX01",
            now=NOW,
        ),
    )


def body_of(request: ApiRequest) -> Any:
    if request.content_type == "application/json":
        return json.loads(request.body)
    return sorted(map(list, parse_qsl(request.body.decode())))


def compare(name: str, kind: str, ours: ApiRequest) -> None:
    theirs = vector(name, kind)
    # The SDK of SignalWire leaves out a prefix that the vendor's document and its examples have.
    assert (ours.method, ours.url.replace("/api/laml/", "/")) == (theirs["method"], theirs["url"])
    if theirs["authorization"] == "Bearer JWT":
        claims = jwt.decode(
            ours.authorization.removeprefix("Bearer "), KEY.public_key(), algorithms=["RS256"],
            options={"verify_exp": False, "verify_iat": False},
        )  # fmt: skip
        assert sorted(claims) == vector(name, "place")["jwt"]["claims"] and claims["exp"] == claims["iat"] + 900
    else:
        assert ours.authorization == theirs["authorization"]
    extras = SDK_EXTRAS.get(name, set())
    if not theirs["body"]:
        assert ours.body in (b"", b"{}")
    elif isinstance(theirs["body"], dict):
        said = {key: value for key, value in theirs["body"].items() if key not in extras | {"command_id"}}
        assert body_of(ours) == said and ours.content_type == theirs["contentType"]
    else:
        assert body_of(ours) == theirs["body"] and ours.content_type == theirs["contentType"]


def test_every_vendor_with_a_rest_interface_has_a_vector() -> None:
    assert NAMES == sorted(name for name, carrier in CARRIERS.items() if carrier.placing is not None)


@every
def test_an_order_is_the_request_of_the_vendors_own_sdk(name: str) -> None:
    compare(name, "place", ordered(name))


@every
def test_the_end_of_a_call_is_the_request_of_the_vendors_own_sdk(name: str) -> None:
    rest, settings = placing(name)
    url = vector(name, "hang_up")["url"].rstrip("/").removesuffix("/actions/hangup")
    compare(name, "hang_up", rest.hang_up(settings, url.rpartition("/")[2].removesuffix(".json"), NOW))


@every
def test_the_answer_to_an_order_names_the_call(name: str) -> None:
    rest, _ = placing(name)
    answer = vector(name, "place")["answer"]
    assert call_sid_of(answer, rest.sid_field) in answer.values()
    assert call_sid_of([], rest.sid_field) == call_sid_of({rest.sid_field: 7}, rest.sid_field) == ""


@every
def test_keys_that_are_not_set_are_named(name: str) -> None:
    rest, settings = placing(name)
    assert rest.missing(settings) == []
    assert rest.missing(CARRIERS[name].settings()) == list(rest.needs)


@every
def test_a_conference_is_the_verb_of_the_vendors_own_sdk(name: str) -> None:
    control = CARRIERS[name].call_control
    assert control is not None
    ours = control.after(NextAction(conference="talkspurt-VX01")).body.decode()
    theirs = vector(name, "conference")["answer"]
    if name == "vonage":
        assert json.loads(ours) == json.loads(theirs)
    else:
        assert canonicalize(ours, strip_text=True) == canonicalize(theirs, strip_text=True)


def test_no_secret_stands_in_an_address_or_a_body() -> None:
    for name in NAMES:
        request = ordered(name)
        assert "secret" not in request.url and b"secret" not in request.body
    assert base64.b64decode(ordered("twilio").authorization.removeprefix("Basic ")).endswith(b":secret")


@pytest.mark.parametrize(
    ("form", "status"),
    [
        # A real callback: github.com/somleng/somleng-switch issue 7.
        (
            {"CallStatus": "no-answer", "SipResponseCode": "487", "CallbackSource": "call-progress-events"},
            CarrierStatus(event="noAnswer", sip_status=487),
        ),
        # Telnyx, document: developers.telnyx.com/api-reference/callbacks/texml-call-*.
        ({"CallStatus": "initiated", "SequenceNumber": "0"}, CarrierStatus(event="queued")),
        ({"CallStatus": "ringing", "SequenceNumber": "1"}, CarrierStatus(event="ringing")),
        ({"CallStatus": "in-progress"}, CarrierStatus(event="answered")),
        (
            {"CallStatus": "completed", "HangupCause": "normal_clearing"},
            CarrierStatus(event="completed", code="normal_clearing"),
        ),
        # SignalWire sends answered and in-progress: github.com/signalwire/docs-legacy issue 804.
        ({"CallStatus": "answered"}, CarrierStatus(event="answered")),
        # Plivo, believed.
        ({"Event": "Ring", "CallStatus": "ringing"}, CarrierStatus(event="ringing")),
        (
            {"Event": "Hangup", "CallStatus": "busy", "HangupCauseName": "Busy Line"},
            CarrierStatus(event="busy", code="Busy Line"),
        ),
        ({"CallStatus": "cancel"}, CarrierStatus(event="canceled")),
        # Vonage, document: its list of statuses, also in the vendor's SDKs.
        ({"status": "started"}, CarrierStatus(event="queued")),
        ({"status": "timeout"}, CarrierStatus(event="noAnswer")),
        ({"status": "unanswered"}, CarrierStatus(event="noAnswer")),
        ({"status": "rejected"}, CarrierStatus(event="failed", code="rejected")),
        ({"status": "cancelled"}, CarrierStatus(event="canceled")),
        ({"status": "machine"}, CarrierStatus(event="answered", code="machine")),
        # Who answered, by Twilio's own detection; a failed stream.
        ({"AnsweredBy": "machine_start", "CallSid": "CA1"}, CarrierStatus(event="answered", code="machine_start")),
        (
            {"StreamEvent": "stream-error", "StreamError": "31920 - handshake"},
            CarrierStatus(event="failed", code="31920 - handshake", fails_stream=True),
        ),
        ({"StreamEvent": "stream-started"}, None),
        ({"status": "disconnected"}, None),
        ({}, None),
    ],
)
def test_a_status_callback_is_an_event(form: dict[str, str], status: CarrierStatus | None) -> None:
    assert read_status(form) == status


def test_a_code_holds_no_number_of_a_person() -> None:
    status = read_status({"CallStatus": "failed", "ErrorCode": "no route to +4930123456"})
    assert status == CarrierStatus(event="failed")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"code": 21211, "message": "Invalid 'To' Phone Number", "status": 400}, "21211"),
        ({"errors": [{"code": "10009", "title": "Authentication failed"}]}, "10009"),
        ({"type": "https://developer.vonage.com/api-errors#unauthorized", "title": "Unauthorized"},
         "api-errors#unauthorized"),
        ({"error": "x"}, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_refusal_has_the_carriers_code(answer: object, code: str) -> None:
    assert error_code_of(answer) == code
