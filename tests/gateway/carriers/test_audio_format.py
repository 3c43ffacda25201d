"""An odd audio format in a stream's start: the call begins with the dialect's default, and a warning says so."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from gateway.carriers.reading import audio_format
from gateway.errors import ProtocolError
from gateway.seams.media_messages import StreamStarted
from tests.gateway.carriers.made import serializer
from voicecodecs.registry import AudioFormat

REAL_EXOTEL = (
    '{"event":"start","stream_sid":"st","sequence_number":"1","start":{"stream_sid":"st","call_sid":"call-1",'
    '"account_sid":"acme1","from":"09990000001","to":"04440000002",'
    '"media_format":{"encoding":"base64","sample_rate":"8000","bit_rate":"128kbps"}}}'
)
"""The start of a real call, ids changed, from a log in a public issue of an independent implementation: the encoding is
the transport's, and 128 kbit/s are 16 bits at 8 kHz."""


def twilio(media: Any) -> dict[str, Any]:
    return {"event": "start", "start": {"streamSid": "st", "callSid": "c", "mediaFormat": media}}


def telnyx(media: Any) -> dict[str, Any]:
    return {"event": "start", "stream_id": "st", "start": {"call_control_id": "c", "media_format": media}}


def plivo(media: Any) -> dict[str, Any]:
    return {"event": "start", "start": {"streamId": "st", "callId": "c", "mediaFormat": media}}


def exotel(media: Any) -> dict[str, Any]:
    return {"event": "start", "stream_sid": "st", "start": {"call_sid": "c", "media_format": media}}


STARTS: dict[str, tuple[Callable[[Any], dict[str, Any]], str, AudioFormat]] = {
    "twilio": (twilio, "sampleRate", AudioFormat("PCMU", 8000)),
    "signalwire": (twilio, "sampleRate", AudioFormat("PCMU", 8000)),
    "telnyx": (telnyx, "sample_rate", AudioFormat("PCMU", 8000)),
    "plivo": (plivo, "sampleRate", AudioFormat("PCMU", 8000)),
    "exotel": (exotel, "sample_rate", AudioFormat("L16", 8000, 200)),
}
"""By dialect: its start around a media format, its key of the rate, and its default."""
ODD: list[Any] = [None, "base64", 7, True, [], ["mulaw"], {}, {"a": 1}, ""]


def inbound(name: str, start: dict[str, Any] | str) -> AudioFormat:
    data = start if isinstance(start, str) else json.dumps(start)
    (started,) = [m for m in serializer(name).decode(data) if isinstance(m, StreamStarted)]
    return started.inbound


def test_the_start_of_a_real_exotel_call_begins_the_call() -> None:
    assert inbound("exotel", REAL_EXOTEL) == AudioFormat("L16", 8000, 200)


@pytest.mark.parametrize("media", [value for value in ODD if value != {}], ids=repr)
@pytest.mark.parametrize("name", STARTS)
def test_a_media_format_of_another_type_is_the_default(name: str, media: Any, caplog: pytest.LogCaptureFixture) -> None:
    start, _, default = STARTS[name]
    with caplog.at_level(logging.WARNING):
        assert inbound(name, start(media)) == default
    assert [record.levelname for record in caplog.records] == (["WARNING"] if media != {"a": 1} else [])


@pytest.mark.parametrize("encoding", ODD, ids=repr)
@pytest.mark.parametrize("name", STARTS)
def test_an_unknown_encoding_is_the_default(name: str, encoding: Any, caplog: pytest.LogCaptureFixture) -> None:
    start, rate, default = STARTS[name]
    with caplog.at_level(logging.WARNING):
        assert inbound(name, start({"encoding": encoding, rate: "8000"})) == default
    (record,) = caplog.records
    assert (vars(record)["dialect"], vars(record)["field"]) == (name, "encoding")


@pytest.mark.parametrize("odd", [*ODD, "fast", 0, -8000, 8, 8000.5, "1e4", 10**9, "११०००"], ids=repr)
@pytest.mark.parametrize("name", STARTS)
def test_an_unknown_rate_is_the_default(name: str, odd: Any, caplog: pytest.LogCaptureFixture) -> None:
    start, rate, default = STARTS[name]
    with caplog.at_level(logging.WARNING):
        assert inbound(name, start({rate: odd})) == default
    (record,) = caplog.records
    assert vars(record)["field"] == "sample rate"


@pytest.mark.parametrize(
    "value", [16000, 16000.0, "16000", "16000.0", "16000Hz", " 16000 hz", "16kHz", "16 k"], ids=repr
)
@pytest.mark.parametrize("name", ["signalwire", "telnyx", "plivo", "exotel"])
def test_a_rate_is_read_with_or_without_its_unit(name: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    start, rate, _ = STARTS[name]
    for media in ({"encoding": "audio/x-l16", rate: value}, {"encoding": f"audio/l16; rate={value}"}):
        fmt = inbound(name, start(media))
        assert (fmt.encoding, fmt.sample_rate) == ("L16", 16000)
    assert not caplog.records


@pytest.mark.parametrize("value", [None, 7, [], {}, "", "base64", "audio/l16;rate=fast", "audio/l16;rate="], ids=repr)
def test_vonage_without_a_readable_content_type_is_l16_at_16_khz(value: Any) -> None:
    start = {"event": "websocket:connected", "content-type": value}
    assert inbound("vonage", start) == AudioFormat("L16", 16000)


def test_vonage_without_a_content_type_is_l16_at_16_khz() -> None:
    assert inbound("vonage", {"event": "websocket:connected"}) == AudioFormat("L16", 16000)
    assert inbound("vonage", {"event": "websocket:connected", "content-type": "audio/x-mulaw"}) == AudioFormat()


@pytest.mark.parametrize("rate", [None, "8000Hz", "", [], True])
def test_genesys_with_an_odd_rate_is_at_8_khz(rate: Any) -> None:
    media = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": rate}
    call = "11111111-0000-4000-8000-000000000003"
    opening = {"conversationId": call, "participant": {"id": call}, "media": [media]}
    start = {"id": "s1", "seq": 1, "type": "open", "parameters": opening}
    assert inbound("genesys", start).sample_rate == 8000


@pytest.mark.parametrize("codec", ["AMR-WB", "audio/amr", "G729", "audio/x-gsm"])
@pytest.mark.parametrize("name", STARTS)
def test_a_codec_that_nothing_decodes_is_refused_by_name(name: str, codec: str) -> None:
    with pytest.raises(ProtocolError, match="expected one of mu-law"):
        inbound(name, STARTS[name][0]({"encoding": codec}))


def test_every_encoding_has_a_rate_of_its_own_where_none_is_said() -> None:
    default = AudioFormat("L16", 16000)
    assert [audio_format("x", {"encoding": name}, default).sample_rate for name in ("PCMU", "G722", "OPUS", "L16")] == [
        8000,
        16000,
        48000,
        16000,
    ]
