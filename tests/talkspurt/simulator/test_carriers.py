import base64
import json
from typing import Any

import pytest

from talkspurt.simulator.carriers import (
    CARRIERS,
    Clear,
    MarkRequest,
    MediaFrame,
    SimulatedCarrier,
    TwilioCarrier,
    Violation,
)


@pytest.fixture
def twilio() -> SimulatedCarrier:
    return TwilioCarrier(7, {"bot": "billing"})


def gateway_says(carrier: SimulatedCarrier, event: str, **inner: Any) -> bytes:
    body: dict[str, object] = {"event": event, "streamSid": "MZ" + f"{7:032x}"}
    return json.dumps(body | ({event: inner} if inner else {})).encode()


def test_a_stream_opens_as_twilio_documents_it(twilio: SimulatedCarrier) -> None:
    connected, start = map(json.loads, twilio.opening())
    assert connected == {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    assert start["sequenceNumber"] == "1"
    assert start["start"]["mediaFormat"] == {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    assert start["start"]["customParameters"] == {"bot": "billing"}
    assert start["streamSid"] == start["start"]["streamSid"] == "MZ" + f"{7:032x}"


def test_numbers_travel_as_strings_and_count_all_events_together(twilio: SimulatedCarrier) -> None:
    twilio.opening()
    messages = [json.loads(m) for m in (twilio.media(b"\xff" * 160), twilio.dtmf("#"), twilio.media(b"\x00" * 160))]
    assert [m["sequenceNumber"] for m in messages] == ["2", "3", "4"]
    assert [m["media"]["chunk"] for m in messages if m["event"] == "media"] == ["1", "2"]
    assert base64.b64decode(messages[2]["media"]["payload"]) == b"\x00" * 160
    assert messages[1]["dtmf"] == {"track": "inbound_track", "digit": "#"}


def test_the_three_commands_are_read(twilio: SimulatedCarrier) -> None:
    payload = base64.b64encode(b"\x01\x02").decode()
    assert twilio.read(gateway_says(twilio, "media", payload=payload)) == MediaFrame(b"\x01\x02")
    assert twilio.read(gateway_says(twilio, "mark", name="m")) == MarkRequest("m")
    assert twilio.read(gateway_says(twilio, "clear")) == Clear()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"null",
        b'{"event":"hangup"}',
        b'{"event":"clear"}',
        b'{"event":"clear","streamSid":"MZother"}',
        b'{"event":"clear","streamSid":"MZ00000000000000000000000000000007","x":1}',
        b'{"event":"media","streamSid":"MZ00000000000000000000000000000007","media":{"payload":"*"}}',
        b'{"event":"media","streamSid":"MZ00000000000000000000000000000007","media":{"payload":"AA=="},"a":1}',
        b'{"event":"media","streamSid":"MZ00000000000000000000000000000007","media":{"payload":"AA==","track":"x"}}',
        b'{"event":"mark","streamSid":"MZ00000000000000000000000000000007","mark":{"name":1}}',
    ],
)
def test_what_twilio_would_not_take_is_a_violation(twilio: SimulatedCarrier, message: bytes) -> None:
    assert isinstance(twilio.read(message), Violation)


def test_the_signature_is_the_one_that_twilio_documents() -> None:
    # HMAC-SHA1 of the bare URL with key "12345", computed with openssl.
    assert TwilioCarrier.signature("wss://h.example/v", "12345") == {
        "X-Twilio-Signature": "dYXvwwESnURuXyAKdsoH4f+C3So="
    }


@pytest.mark.parametrize("dialect", CARRIERS)
def test_every_carrier_gives_equal_ids_for_equal_numbers(dialect: str) -> None:
    one, same, other = (CARRIERS[dialect](number, {}) for number in (1, 1, 2))
    assert one.call_sid == same.call_sid != other.call_sid
