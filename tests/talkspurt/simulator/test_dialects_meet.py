"""Every simulated carrier against the gateway's own dialect: two readings of one document have to agree."""

import base64
from collections.abc import Sequence

import pytest

from gateway.carriers.dialect import Dialect
from gateway.carriers.table import CARRIERS as SERVED
from gateway.seams.media_messages import (
    DtmfReceived,
    MarkReached,
    MediaReceived,
    PlayoutCleared,
    Reply,
    StreamStarted,
    StreamStopped,
)
from gateway.seams.media_messages import Message as Decoded
from talkspurt.simulator.carriers import (
    CARRIERS,
    CarrierHangsUp,
    Clear,
    MarkRequest,
    MediaFrame,
    Noted,
    SimulatedCarrier,
    Tones,
    Violation,
)
from talkspurt.simulator.carriers.carrier import Command, Message
from tests.gateway.carriers.made import serializer

every = pytest.mark.parametrize("name", SERVED)


class Meeting:
    """Both ends of one stream, without a socket between them."""

    def __init__(self, name: str) -> None:
        self.carrier: SimulatedCarrier = CARRIERS[name](7, {"bot": "billing"})
        self.dialect: Dialect = serializer(name)
        self.started: StreamStarted
        for message in self.arrive(self.carrier.opening()):
            if isinstance(message, StreamStarted):
                self.started = message

    def arrive(self, messages: Sequence[Message]) -> list[Decoded]:
        """At the gateway, which answers at once."""
        decoded = [message for data in messages for message in self.dialect.decode(data)]
        for message in decoded:
            if isinstance(message, Reply):
                assert not isinstance(self.carrier.read(message.data), Violation), self.carrier.read(message.data)
        return decoded

    def say(self, message: bytes | None) -> Command:
        assert message is not None
        return self.carrier.read(message)


def test_every_dialect_has_its_carrier() -> None:
    assert CARRIERS.keys() == SERVED.keys()


@every
def test_both_ends_agree_on_the_call_and_its_audio(name: str) -> None:
    meeting = Meeting(name)
    carrier, started = meeting.carrier, meeting.started
    assert started.call_sid == carrier.call_sid
    assert started.custom_parameters == {"bot": "billing"}
    for fmt in (started.inbound, started.outbound):
        assert (fmt.encoding, fmt.sample_rate) == (carrier.format.encoding, carrier.format.sample_rate)
    assert bool(carrier.subprotocol) == (carrier.subprotocol in meeting.dialect.subprotocols)


@every
def test_audio_goes_both_ways(name: str) -> None:
    meeting = Meeting(name)
    up = bytes(range(256)) * 16
    up = up[: meeting.carrier.format.frame_bytes]
    assert meeting.arrive([meeting.carrier.media(up), meeting.carrier.media(up)]) == [MediaReceived(up)] * 2
    down = (bytes(range(1, 201)) * 32)[: meeting.started.outbound.frame_bytes]
    sent = meeting.dialect.media(down)
    assert meeting.carrier.read(sent, binary=not meeting.dialect.media_is_text) == MediaFrame(down)


@every
def test_marks_clears_and_keys(name: str) -> None:
    meeting = Meeting(name)
    dialect, carrier = meeting.dialect, meeting.carrier
    if dialect.has_marks:
        assert meeting.say(dialect.mark("0.1")) == MarkRequest("0.1")
        assert meeting.arrive([carrier.mark("0.1")]) == [MarkReached("0.1")]
    if dialect.has_clear:
        assert meeting.say(dialect.clear()) == Clear()
        answers = meeting.arrive(carrier.cleared(["0.1"]))
        assert all(message in (MarkReached("0.1"), PlayoutCleared()) or name == "jambonz" or "fork" in name
                   for message in answers)  # fmt: skip
    assert meeting.arrive([carrier.dtmf("#")]) == [DtmfReceived("#")]
    tones = dialect.dtmf("5")
    assert tones is None or meeting.say(tones) == Tones("5")


def ends(messages: Sequence[object]) -> bool:
    """Return True if one of the messages ends the stream."""
    return any(isinstance(message, StreamStopped) for message in messages)


@every
def test_the_end_from_both_sides(name: str) -> None:
    meeting = Meeting(name)
    hangup = meeting.dialect.hangup("result")
    if hangup is not None:
        command = meeting.say(hangup)
        assert isinstance(command, CarrierHangsUp)
        assert not command.answers or ends(meeting.arrive(command.answers))
    else:
        stop = meeting.carrier.stop()
        assert stop is None or ends(meeting.arrive([stop]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("signalwire", b'{"event":"clear"}'),
        ("telnyx", b'{"event":"clear","stream_id":"x"}'),
        ("telnyx", b'{"event":"media","media":{"payload":"AA=="}}'),
        ("plivo", b'{"event":"playAudio","media":{"contentType":"audio/x-l16","sampleRate":"16000","payload":"AAA="}}'),
        ("plivo", b'{"event":"sendDTMF","dtmf":5}'),
        ("exotel", b'{"event":"media","media":{"payload":"AAA="}}'),
        ("vonage", b'{"action":"notify","payload":{"name":"x","more":1}}'),
        ("genesys", b'{"version":"2","type":"pong","seq":1,"clientseq":1,"id":"x","parameters":{}}'),
        ("jambonz", b'{"type":"mark"}'),
        ("freeswitch", b'{"type":"rawAudio","data":{"sampleRate":16000}}'),
        ("asterisk", b'{"command":"MARK_MEDIA","correlation_id":"' + b"x" * 100 + b'"}'),
        ("asterisk", b'{"command":"flush_media"}'),
    ],
)
def test_what_a_carrier_would_not_take_is_a_violation(name: str, message: bytes) -> None:
    assert isinstance(CARRIERS[name](7, {}).read(message), Violation)


@pytest.mark.parametrize(
    ("name", "size"), [("vonage", 320), ("vonage", 1280), ("asterisk", 100), ("jambonz", 3), ("genesys", 64_002)]
)
def test_binary_audio_of_a_wrong_size_is_a_violation(name: str, size: int) -> None:
    meeting = Meeting(name)
    assert isinstance(meeting.carrier.read(bytes(size), binary=True), Violation)


@pytest.mark.parametrize("size", [3000, 3210])
def test_exotel_takes_no_small_or_crooked_pieces(size: int) -> None:
    meeting = Meeting("exotel")
    message = base64.b64encode(bytes(size)).decode()
    sent = f'{{"event":"media","stream_sid":"{meeting.started.stream_id}","media":{{"payload":"{message}"}}}}'
    assert isinstance(meeting.carrier.read(sent.encode()), Violation)


def test_genesys_takes_nothing_before_opened_and_no_gap_in_the_numbers() -> None:
    assert isinstance(CARRIERS["genesys"](7, {}).read(b"\xff" * 1600, binary=True), Violation)
    meeting = Meeting("genesys")
    meeting.dialect.clear()  # lost on the way
    assert isinstance(meeting.say(meeting.dialect.clear()), Violation)


def test_a_freeswitch_needs_the_announcement_of_binary_audio() -> None:
    assert isinstance(CARRIERS["freeswitch"](7, {}).read(b"\0\0", binary=True), Violation)
    assert CARRIERS["freeswitch"](7, {}).read(b'{"type":"rawAudio","data":{"sampleRate":8000}}') == Noted()
