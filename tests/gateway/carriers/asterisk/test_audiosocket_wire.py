"""AudioSocket's frames, from the protocol's own numbers."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.carriers.asterisk.audiosocket import END, RATES, AudioSocketWire
from gateway.errors import ProtocolError
from gateway.seams.media_messages import DtmfReceived, MediaReceived, Message, PeerError, StreamStarted, StreamStopped
from voicecodecs.registry import AudioFormat

UUID_FRAME = bytes.fromhex("01 00 10 0a1b2c3d4e5f40618293a4b5c6d7e8f9")
CALL = UUID("0a1b2c3d-4e5f-4061-8293-a4b5c6d7e8f9")
AUDIO = bytes.fromhex("10 01 40") + bytes(range(160)) * 2


def read(wire: AudioSocketWire, data: bytes) -> list[Message]:
    wire.push(data)
    return [message for message in wire.messages() if isinstance(message, READ)]


READ = (StreamStarted, MediaReceived, DtmfReceived, StreamStopped, PeerError)


@given(cuts=st.lists(st.integers(0, 700), max_size=8))
def test_frames_come_in_any_pieces(cuts: list[int]) -> None:
    stream = UUID_FRAME + AUDIO + bytes.fromhex("03 00 01 35") + AUDIO + END
    wire = AudioSocketWire()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    messages = [message for a, b in zip(edges, edges[1:], strict=False) for message in read(wire, stream[a:b])]
    payload = AUDIO[3:]
    fmt = AudioFormat("L16", 8000)
    assert wire.uuid == CALL
    assert messages == [
        StreamStarted(stream_id=str(CALL), call_sid=str(CALL), inbound=fmt, outbound=fmt),
        MediaReceived(payload),
        DtmfReceived("5"),
        MediaReceived(payload),
        StreamStopped(),
    ]


@pytest.mark.parametrize(("kind", "rate"), [(0x10, 8000), (0x12, 16000), (0x16, 48000), (0x18, 192000)])
def test_the_first_audio_tells_the_rate_of_both_directions(kind: int, rate: int) -> None:
    wire = AudioSocketWire()
    started, heard = read(wire, UUID_FRAME + bytes((kind, 0, 2, 1, 2)))
    assert isinstance(started, StreamStarted) and started.inbound.sample_rate == rate == RATES[kind]
    assert heard == MediaReceived(b"\x01\x02")
    size = started.outbound.frame_bytes or 0
    assert size == rate // 50 * 2
    assert wire.audio(bytes(size)) == bytes((kind,)) + size.to_bytes(2, "big") + bytes(size)


@pytest.mark.parametrize(
    "wrong",
    [
        bytes.fromhex("10 00 02 0000"),  # audio before the UUID
        bytes.fromhex("01 00 02 0000"),  # a UUID of two bytes
        UUID_FRAME + bytes.fromhex("10 00 03 000000"),  # half a sample
        UUID_FRAME + bytes.fromhex("03 00 01 7a"),  # no key
        UUID_FRAME + bytes.fromhex("10 00 02 0000 12 00 02 0000"),  # another rate
    ],
)
def test_what_makes_no_sense_is_an_error_and_what_follows_is_read(wrong: bytes) -> None:
    wire = AudioSocketWire()
    with pytest.raises(ProtocolError):
        read(wire, wrong)
    assert read(wire, b"" if wire.uuid else UUID_FRAME) == []
    assert wire.uuid == CALL
    assert read(wire, bytes.fromhex("03 00 01 23")) == [DtmfReceived("#")]


def test_errors_and_strangers() -> None:
    wire = AudioSocketWire()
    assert read(wire, UUID_FRAME + bytes.fromhex("ff 00 01 02")) == [PeerError("error 0x02")]
    assert read(wire, bytes.fromhex("ff 00 01 01")) == [StreamStopped()]
    assert read(wire, bytes.fromhex("77 00 02 0102 03 00 01 2a")) == [DtmfReceived("*")]
