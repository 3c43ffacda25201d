"""An odd audio format in a stream's start: the call begins with the dialect's default, and the oddity is counted."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.carriers.oddities import Oddities
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
"""Each dialect with its start around a media format, its key of the rate, and its default."""
ODD: list[Any] = [None, "base64", 7, True, [], ["mulaw"], {}, {"a": 1}, ""]


def read(name: str, start: dict[str, Any] | str) -> tuple[AudioFormat, list[str]]:
    """Return the format of the caller's audio, and the kinds of oddities in the start."""
    data = start if isinstance(start, str) else json.dumps(start)
    dialect = serializer(name)
    (started,) = [m for m in dialect.decode(data) if isinstance(m, StreamStarted)]
    return started.inbound, list(dialect.oddities.take())


def inbound(name: str, start: dict[str, Any] | str) -> AudioFormat:
    return read(name, start)[0]


def test_the_start_of_a_real_exotel_call_begins_the_call() -> None:
    assert inbound("exotel", REAL_EXOTEL) == AudioFormat("L16", 8000, 200)


@pytest.mark.parametrize("media", [value for value in ODD if value != {}], ids=repr)
@pytest.mark.parametrize("name", STARTS)
def test_a_media_format_of_another_type_is_the_default(name: str, media: Any) -> None:
    start, _, default = STARTS[name]
    assert read(name, start(media)) == (default, ["object"] if media != {"a": 1} else [])


@pytest.mark.parametrize("encoding", ODD, ids=repr)
@pytest.mark.parametrize("name", STARTS)
def test_an_unknown_encoding_is_the_default(name: str, encoding: Any) -> None:
    start, rate, default = STARTS[name]
    assert read(name, start({"encoding": encoding, rate: "8000"})) == (default, ["encoding"])


@pytest.mark.parametrize("odd", [*ODD, "fast", 0, -8000, 8, 8000.5, "1e4", 10**9, "११०००"], ids=repr)
@pytest.mark.parametrize("name", STARTS)
def test_an_unknown_rate_is_the_default(name: str, odd: Any) -> None:
    start, rate, default = STARTS[name]
    assert read(name, start({rate: odd})) == (default, ["sample_rate"])


@pytest.mark.parametrize(
    "value", [16000, 16000.0, "16000", "16000.0", "16000Hz", " 16000 hz", "16kHz", "16 k"], ids=repr
)
@pytest.mark.parametrize("name", ["signalwire", "telnyx", "plivo", "exotel"])
def test_a_rate_is_read_with_or_without_its_unit(name: str, value: Any) -> None:
    start, rate, _ = STARTS[name]
    for media in ({"encoding": "audio/x-l16", rate: value}, {"encoding": f"audio/l16; rate={value}"}):
        fmt, oddities = read(name, start(media))
        assert (fmt.encoding, fmt.sample_rate, oddities) == ("L16", 16000, [])


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
    assert [
        audio_format("x", {"encoding": name}, default, Oddities()).sample_rate
        for name in ("PCMU", "G722", "OPUS", "L16")
    ] == [
        8000,
        16000,
        48000,
        16000,
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("L16@24000h", AudioFormat("L16", 24000)),
        ("audio/x-L16;rate=16000", AudioFormat("L16", 16000)),
        ("audio/L16; channels=1; rate=16000", AudioFormat("L16", 16000)),
        ("PCMU/8000", AudioFormat()),
        ("pcm_s16le", AudioFormat("L16", 16000)),
        ("pcm_16000", AudioFormat("L16", 16000)),
        ("pcm_24k", AudioFormat("L16", 24000)),
        ("linear16", AudioFormat("L16", 16000)),
        ("LINEAR-16", AudioFormat("L16", 16000)),
        ("g711_ulaw", AudioFormat()),
        ("ulaw_8000", AudioFormat()),
        ("mulaw8000", AudioFormat()),
        ("g711-alaw", AudioFormat("PCMA")),
        ("audio/basic", AudioFormat()),
        ("raw/slin", AudioFormat("L16", 16000)),
        ("slin16", AudioFormat("L16", 16000)),
        ("L16_24000", AudioFormat("L16", 24000)),
        ("audio/PCMA", AudioFormat("PCMA")),
        ("G722/8000", AudioFormat("G722", 16000)),
        ("opus/48000/2", AudioFormat("OPUS", 48000)),
    ],
)
def test_the_names_of_an_encoding(name: str, expected: AudioFormat) -> None:
    oddities = Oddities()
    assert audio_format("x", {"encoding": name}, AudioFormat("L16", 16000), oddities) == expected
    assert not oddities.take()
