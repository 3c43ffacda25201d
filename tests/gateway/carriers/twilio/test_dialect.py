"""Twilio's messages, to the letter of facts that a carrier checks."""

import base64
import json

import pytest

from gateway.carriers.twilio.dialect import Twilio
from gateway.errors import ProtocolError
from gateway.seams.media_messages import DtmfReceived, Ignored, MarkReached, MediaReceived, StreamStarted, StreamStopped

START = {
    "event": "start",
    "sequenceNumber": "1",
    "start": {
        "accountSid": "AC1",
        "streamSid": "MZ2",
        "callSid": "CA3",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"bot": "billing"},
    },
    "streamSid": "MZ2",
}


@pytest.fixture
def twilio() -> Twilio:
    made = Twilio()
    (started,) = made.decode(json.dumps(START))
    assert isinstance(started, StreamStarted)
    assert (started.call_sid, started.custom_parameters) == ("CA3", {"bot": "billing"})
    return made


def test_outgoing_messages_hold_exactly_the_documented_keys(twilio: Twilio) -> None:
    payload = bytes(range(160))
    assert json.loads(twilio.media(payload)) == {
        "event": "media",
        "streamSid": "MZ2",
        "media": {"payload": base64.b64encode(payload).decode()},
    }
    assert json.loads(twilio.mark("0.1")) == {"event": "mark", "streamSid": "MZ2", "mark": {"name": "0.1"}}
    assert json.loads(twilio.clear()) == {"event": "clear", "streamSid": "MZ2"}


def test_incoming_messages(twilio: Twilio) -> None:
    media = {"event": "media", "streamSid": "MZ2", "media": {"track": "inbound", "payload": "f39/fw=="}}
    assert twilio.decode(json.dumps(media)) == [MediaReceived(b"\x7f\x7f\x7f\x7f")]
    media["media"]["track"] = "outbound"  # type: ignore[index]
    assert twilio.decode(json.dumps(media)) == [Ignored()]
    assert twilio.decode('{"event":"dtmf","streamSid":"MZ2","dtmf":{"digit":"4"}}') == [DtmfReceived("4")]
    assert twilio.decode('{"event":"mark","streamSid":"MZ2","mark":{"name":"u"}}') == [MarkReached("u")]
    assert twilio.decode('{"event":"stop","streamSid":"MZ2","stop":{}}') == [StreamStopped()]


@pytest.mark.parametrize(
    "data",
    [
        '{"event":"media","streamSid":"MZ2","media":{"payload":"%%%%"}}',
        '{"event":"media","streamSid":"MZ2","media":{"payload":7}}',
        '{"event":"media","streamSid":"MZ2"}',
        '{"event":"media","streamSid":"other","media":{"payload":"f39/fw=="}}',
        '{"event":"dtmf","streamSid":"MZ2","dtmf":{"digit":"12"}}',
        '{"event":"mark","streamSid":"MZ2","mark":{"name":null}}',
        b"\x00\x01",
    ],
)
def test_malformed_messages_raise_protocol_error(twilio: Twilio, data: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        twilio.decode(data)


def test_the_quick_look_finds_media_and_nothing_else(twilio: Twilio) -> None:
    assert twilio.is_media(memoryview(b'{"event":"media","sequenceNumber":"2"}'))
    assert not twilio.is_media(memoryview(b'{"event":"mark","mark":{}}'))
