"""One contract over all dialects: a new one is tested the moment it joins the table.

Per dialect only the peer's words are given; they follow the vendors' documents, with invented ids.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.carriers.dialect import Dialect
from gateway.carriers.table import CARRIERS
from gateway.carriers.telnyx.dialect import InOrder
from gateway.errors import ProtocolError
from gateway.seams.media_messages import (
    DtmfReceived,
    FlowControl,
    Ignored,
    MarkReached,
    MediaReceived,
    Message,
    PeerError,
    PlaybackStarted,
    PlayoutCleared,
    Reply,
    StreamStarted,
    StreamStopped,
    UnknownEvent,
)
from gateway.seams.plain_text import is_plain, plain
from tests.gateway.carriers.made import serializer
from voicecodecs.registry import AudioFormat

Data = str | bytes


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A dialect's peer: its messages, and the messages that it expects."""

    opening: list[Data]
    inbound: AudioFormat
    outbound: AudioFormat
    media: Callable[[bytes], Data]
    """Caller audio as the peer sends it."""
    sent: Callable[[bytes], bytes]
    """The audio within our media message."""
    dtmf: Data = ""
    """Key 5; empty: keys do not reach the socket."""
    mark: Data = ""
    """The answer to our mark ``0.1``; empty: no marks."""
    our_mark: object = None
    our_clear: object = None
    stop: Data = ""
    custom: dict[str, str] = field(default_factory=lambda: {"bot": "billing"})
    call_sid: str = "call-1"


def b64(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


def event(name: str, /, **more: Any) -> str:
    return json.dumps({"event": name, **more}, separators=(",", ":"))


def payload_at(*keys: str) -> Callable[[bytes], bytes]:
    def unpack(message: bytes) -> bytes:
        value = json.loads(message)
        for key in keys:
            value = value[key]
        return base64.b64decode(value, validate=True)

    return unpack


def genesys(kind: str, seq: int, **parameters: Any) -> str:
    return json.dumps(
        {"version": "2", "type": kind, "seq": seq, "serverseq": 1, "id": "s1", "position": "PT1S"}
        | {"parameters": parameters}
    )


ULAW, ALAW = AudioFormat("PCMU"), AudioFormat("PCMA")
SIP, PROBE = "11111111-0000-4000-8000-000000000003", "00000000-0000-0000-0000-000000000000"


def l16(rate: int, ptime_ms: int = 20) -> AudioFormat:
    return AudioFormat("L16", rate, ptime_ms)


def l16_media(audio: bytes) -> bytes:
    return audio


def twilio_start(encoding: str, rate: int, **more: Any) -> str:
    start = {"accountSid": "AC1", "streamSid": "st", "callSid": "call-1", "tracks": ["inbound"]}
    media = {"encoding": encoding, "sampleRate": rate, "channels": 1}
    start |= {"mediaFormat": media, "customParameters": {"bot": "billing"}}  # type: ignore[dict-item]
    return event("start", sequenceNumber="1", start=start, **more)


def genesys_open(*media: dict[str, object], conversation: str = SIP, participant: str = SIP) -> str:
    return genesys(
        "open", 1, organizationId="org", conversationId=conversation,
        participant={"id": participant, "ani": "+4930000001", "aniName": "A", "dnis": "+4930000002"},
        media=list(media) or [{"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}],
        language="de-DE", inputVariables={"bot": "billing"},
    )  # fmt: skip


JAMBONZ_START = json.dumps(
    {"callSid": "call-1", "direction": "inbound", "from": "+4930000001", "to": "+4930000002"}
    | {"sampleRate": 16000, "mixType": "mono", "bot": "billing"}
)

PEERS: dict[str, Peer] = {
    "twilio": Peer(
        opening=[
            event("connected", protocol="Call", version="1.0.0"),
            twilio_start("audio/x-mulaw", 8000, streamSid="st"),
        ],
        inbound=ULAW,
        outbound=ULAW,
        media=lambda audio: event(
            "media", sequenceNumber="2", streamSid="st",
            media={"track": "inbound", "chunk": "1", "timestamp": "5", "payload": b64(audio)},
        ),
        sent=payload_at("media", "payload"),
        dtmf=event("dtmf", streamSid="st", sequenceNumber="57", dtmf={"track": "inbound_track", "digit": "5"}),
        mark=event("mark", streamSid="st", sequenceNumber="91", mark={"name": "0.1"}),
        our_mark={"event": "mark", "streamSid": "st", "mark": {"name": "0.1"}},
        our_clear={"event": "clear", "streamSid": "st"},
        stop=event("stop", streamSid="st", sequenceNumber="304", stop={"accountSid": "AC1", "callSid": "call-1"}),
    ),
    "signalwire": Peer(
        opening=[event("connected", protocol="Call", version="0.2.0"), twilio_start("audio/x-L16", 24000)],
        inbound=l16(24000),
        outbound=l16(24000),
        media=lambda audio: event(
            "media", sequenceNumber="2", media={"track": "inbound", "chunk": "1", "payload": b64(audio)}
        ),
        sent=payload_at("media", "payload"),
        dtmf=event("dtmf", streamSid="st", sequenceNumber="40", dtmf={"digit": "5", "duration": 180}),
        mark=event("mark", streamSid="st", mark={"name": "0.1"}),
        our_mark={"event": "mark", "streamSid": "st", "mark": {"name": "0.1"}},
        our_clear={"event": "clear", "streamSid": "st"},
        stop=event("stop", sequenceNumber="88"),
    ),
    "telnyx": Peer(
        opening=[
            event("connected", version="1.0.0"),
            event(
                "start", sequence_number="1", stream_id="st",
                start={
                    "user_id": "u", "call_control_id": "call-1", "call_session_id": "x", "from": "+4930000001",
                    "to": "+4930000002", "tags": [], "client_state": "e30=", "custom_parameters": {"bot": "billing"},
                    "media_format": {"encoding": "PCMA", "sample_rate": 8000, "channels": 1},
                },
            ),
        ],
        inbound=ALAW,
        outbound=ULAW,
        media=lambda audio: event(
            "media", sequence_number="4", stream_id="st",
            media={"track": "inbound", "chunk": "2", "timestamp": "40", "payload": b64(audio)},
        ),
        sent=payload_at("media", "payload"),
        dtmf=event("dtmf", stream_id="st", occurred_at="2026-03-02T10:20:30.123Z", dtmf={"digit": "5"}),
        mark=event("mark", sequence_number="90", stream_id="st", mark={"name": "0.1"}),
        our_mark={"event": "mark", "mark": {"name": "0.1"}},
        our_clear={"event": "clear"},
        stop=event("stop", sequence_number="400", stop={"user_id": "u", "call_control_id": "call-1"}, stream_id="st"),
    ),
    "plivo": Peer(
        opening=[
            event(
                "start", sequenceNumber=1, extra_headers="bot=billing",
                start={
                    "callId": "call-1", "streamId": "st", "accountId": "100000", "tracks": ["inbound"],
                    "mediaFormat": {"encoding": "audio/x-l16", "sampleRate": 16000},
                },
            )
        ],
        inbound=l16(16000),
        outbound=l16(16000),
        media=lambda audio: event(
            "media", sequenceNumber=2, streamId="st", extra_headers="",
            media={"track": "inbound", "timestamp": "1772446830123", "chunk": 1, "payload": b64(audio)},
        ),
        sent=payload_at("media", "payload"),
        dtmf=event("dtmf", sequenceNumber=61, streamId="st", dtmf={"track": "inbound", "digit": "5", "timestamp": "1"}),
        mark=event("playedStream", sequenceNumber=80, streamId="st", name="0.1"),
        our_mark={"event": "checkpoint", "streamId": "st", "name": "0.1"},
        our_clear={"event": "clearAudio", "streamId": "st"},
    ),
    "exotel": Peer(
        opening=[
            event("connected"),
            event(
                "start", sequence_number="1", stream_sid="st",
                start={
                    "stream_sid": "st", "call_sid": "call-1", "account_sid": "acme1", "from": "09000000001",
                    "to": "08000000002", "custom_parameters": {"bot": "billing"},
                    "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", "bit_rate": "16"},
                },
            ),
        ],
        inbound=l16(8000, 200),
        outbound=l16(8000, 200),
        media=lambda audio: event(
            "media", sequence_number="3", stream_sid="st", media={"chunk": "2", "payload": b64(audio)}
        ),
        sent=payload_at("media", "payload"),
        dtmf=event("dtmf", sequence_number="20", stream_sid="st", dtmf={"digit": "5", "duration": "120"}),
        mark=event("mark", sequence_number="31", stream_sid="st", mark={"name": "0.1"}),
        our_mark={"event": "mark", "stream_sid": "st", "mark": {"name": "0.1"}},
        our_clear={"event": "clear", "stream_sid": "st"},
        stop=event("stop", sequence_number="60", stream_sid="st", stop={"call_sid": "call-1", "reason": "callended"}),
    ),
    "vonage": Peer(
        opening=[
            json.dumps(
                {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"}
                | {"bot": "billing", "talkspurt.CallSid": "call-1"}
            )
        ],
        inbound=l16(16000),
        outbound=l16(16000),
        media=l16_media,
        sent=bytes,
        dtmf=event("websocket:dtmf", digit="5", duration=260),
        mark=event("websocket:notify", payload={"name": "0.1"}),
        our_mark={"action": "notify", "payload": {"name": "0.1"}},
        our_clear={"action": "clear"},
    ),
    "genesys": Peer(
        opening=[genesys_open()],
        inbound=ULAW,
        outbound=AudioFormat("PCMU", 8000, 200),
        media=l16_media,
        sent=bytes,
        dtmf=genesys("dtmf", 2, digit="5"),
        our_clear={
            "version": "2", "type": "event", "seq": 2, "clientseq": 1, "id": "s1",
            "parameters": {"entities": [{"type": "barge_in", "data": {}}]},
        },
        stop=genesys("close", 2, reason="end"),
        call_sid=SIP,
    ),
    "jambonz": Peer(
        opening=[JAMBONZ_START],
        inbound=l16(16000),
        outbound=l16(16000, 80),
        media=l16_media,
        sent=bytes,
        dtmf=event("dtmf", dtmf="5", duration="1600"),
        mark=json.dumps({"type": "mark", "data": {"name": "0.1", "event": "playout"}}),
        our_mark={"type": "mark", "data": {"name": "0.1"}},
        our_clear={"type": "killAudio"},
    ),
    "freeswitch": Peer(
        opening=[json.dumps({"uuid": "call-1", "bot": "billing"})],
        inbound=l16(8000),
        outbound=l16(8000),
        media=l16_media,
        sent=bytes,
        dtmf=event("dtmf", digit="5"),
    ),
    "freeswitch-fork": Peer(
        opening=[json.dumps({"callSid": "call-1", "sampleRate": 16000, "bot": "billing"})],
        inbound=l16(16000),
        outbound=l16(16000, 80),
        media=l16_media,
        sent=bytes,
        dtmf=event("dtmf", dtmf="5", duration="1600"),
        mark=json.dumps({"type": "mark", "data": {"name": "0.1", "event": "playout"}}),
        our_mark={"type": "mark", "data": {"name": "0.1"}},
        our_clear={"type": "killAudio"},
    ),
    "asterisk": Peer(
        opening=[
            event(
                "MEDIA_START", connection_id="c-1", channel="WebSocket/b-0001", channel_id="call-1", format="slin16",
                optimal_frame_size=640, ptime=20, channel_variables={"bot": "billing"},
            )
        ],
        inbound=l16(16000),
        outbound=l16(16000),
        media=l16_media,
        sent=bytes,
        dtmf=event("DTMF_END", channel_id="call-1", digit="5"),
        mark=event("MEDIA_MARK_PROCESSED", channel_id="call-1", correlation_id="0.1"),
        our_mark={"command": "MARK_MEDIA", "correlation_id": "0.1"},
        our_clear={"command": "FLUSH_MEDIA"},
    ),
}  # fmt: skip


every = pytest.mark.parametrize("name", CARRIERS)


def fresh(name: str) -> Dialect:
    return serializer(name)


def opened(name: str) -> tuple[Dialect, list[Message]]:
    dialect = fresh(name)
    return dialect, [message for data in PEERS[name].opening for message in dialect.decode(data)]


@every
def test_every_dialect_goes_by_its_name(name: str) -> None:
    assert fresh(name).name == name


@every
def test_the_opening_starts_one_stream_with_both_formats(name: str) -> None:
    peer, (_, messages) = PEERS[name], opened(name)
    (started,) = [message for message in messages if isinstance(message, StreamStarted)]
    assert (started.inbound.encoding, started.inbound.sample_rate) == (peer.inbound.encoding, peer.inbound.sample_rate)
    assert started.outbound == peer.outbound
    assert started.call_sid == peer.call_sid
    assert {name: value for name, value in started.custom_parameters.items() if name != "clientState"} == peer.custom
    assert all(isinstance(message, StreamStarted | Ignored | Reply) for message in messages)


@every
def test_a_name_that_was_cut_within_a_character_costs_no_call(name: str) -> None:
    """JavaScript cuts a string between the halves of a surrogate pair."""
    dialect, peer = fresh(name), PEERS[name]
    cut = [
        f'{data[:-1]},"note":"a\\ud83d"}}' if isinstance(data, str) and data.startswith("{") else data
        for data in peer.opening
    ]
    (started,) = [m for data in cut for m in dialect.decode(data) if isinstance(m, StreamStarted)]
    assert started.call_sid == peer.call_sid and "a\ud83d" not in started.custom_parameters.values()


@pytest.mark.parametrize("name", ["twilio", "telnyx", "plivo", "signalwire"])
def test_the_length_of_our_messages_is_a_setting(name: str) -> None:
    dialect, peer = serializer(name, message_ms=40), PEERS[name]
    messages = [message for data in peer.opening for message in dialect.decode(data)]
    (started,) = [message for message in messages if isinstance(message, StreamStarted)]
    assert (started.inbound.ptime_ms, started.outbound) == (20, replace(peer.outbound, ptime_ms=40))


@every
def test_audio_goes_through_unchanged_both_ways(name: str) -> None:
    peer, (dialect, _) = PEERS[name], opened(name)
    audio = bytes(range(1, 201)) * 8
    received = dialect.decode(peer.media(audio))
    assert b"".join(message.payload for message in received if isinstance(message, MediaReceived)) == audio
    frame = (bytes(range(1, 201)) * 64)[: peer.outbound.frame_bytes]
    assert peer.sent(dialect.media(frame)) == frame


@every
def test_the_quick_look_finds_media_and_nothing_else(name: str) -> None:
    peer, (dialect, _) = PEERS[name], opened(name)

    def looks(data: Data) -> bool:
        return dialect.is_media(
            memoryview(data.encode() if isinstance(data, str) else data), binary=isinstance(data, bytes)
        )

    assert looks(peer.media(b"\x01\x02" * 160))
    assert not any(looks(data) for data in (peer.dtmf, peer.mark, peer.stop) if data)


@every
def test_a_mark_and_a_clear_say_exactly_what_is_documented(name: str) -> None:
    peer, (dialect, _) = PEERS[name], opened(name)
    mark, clear = dialect.mark("0.1"), dialect.clear()
    assert (json.loads(mark) if mark else None) == peer.our_mark
    assert dialect.has_marks == (mark is not None) == bool(peer.mark)
    assert (json.loads(clear) if clear else None) == peer.our_clear
    assert dialect.has_clear == (clear is not None)
    if peer.mark:
        assert dialect.decode(peer.mark) == [MarkReached("0.1")]


@every
def test_a_key_is_reported(name: str) -> None:
    peer, (dialect, _) = PEERS[name], opened(name)
    assert dialect.decode(peer.dtmf) == [DtmfReceived("5")]
    wrong = peer.dtmf.replace('"5"', '"12"') if isinstance(peer.dtmf, str) else b""
    with pytest.raises(ProtocolError):
        dialect.decode(wrong)


@every
def test_a_second_start_changes_nothing(name: str) -> None:
    peer, (dialect, _) = PEERS[name], opened(name)
    dialect.oddities.take()
    assert dialect.decode(peer.opening[-1]) == [Ignored()]
    assert dialect.oddities.take() == {"repeated_start": 1}
    assert dialect.decode(peer.dtmf) == [DtmfReceived("5")]


@every
def test_a_stop_ends_the_stream(name: str) -> None:
    peer, (dialect, _) = PEERS[name], opened(name)
    if peer.stop:
        assert StreamStopped(peer_closes=name == "genesys") in dialect.decode(peer.stop)


@pytest.mark.parametrize(
    "data", ["", "null", "[]", "7", '"x"', "{", "{}", '{"event":7}', '{"event":null,"type":["x"]}']
)
@every
def test_bad_input_raises_protocol_error_and_nothing_else(name: str, data: str) -> None:
    dialect, _ = opened(name)
    with pytest.raises(ProtocolError):
        dialect.decode(data)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))


@every
@settings(deadline=None)  # the shared machine stalls
@given(data=st.one_of(st.text(), st.binary(), values.map(json.dumps)), after_opening=st.booleans())
def test_garbage_never_raises_anything_else(name: str, data: Data, after_opening: bool) -> None:
    dialect = opened(name)[0] if after_opening else fresh(name)
    try:
        messages = dialect.decode(data)
    except ProtocolError:
        return
    assert all(isinstance(message, Message) for message in messages)


@every
@settings(deadline=None)  # the shared machine stalls
@given(seed=st.data())
def test_mutilated_messages_never_raise_anything_else(name: str, seed: st.DataObject) -> None:
    """The peer's own messages with one value replaced anywhere: what fuzzing from nothing does not reach."""
    peer = PEERS[name]
    texts = [data for data in [*peer.opening, peer.media(b"\x01\x02"), peer.dtmf, peer.mark, peer.stop] if data]
    original = seed.draw(st.sampled_from([data for data in texts if isinstance(data, str)]))
    body = json.loads(original)
    places: list[tuple[dict[str, object], str]] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                places.append((node, key))
                walk(value)

    walk(body)
    node, key = seed.draw(st.sampled_from(places))
    node[key] = seed.draw(values)
    dialect = fresh(name) if original in peer.opening else opened(name)[0]
    try:
        dialect.decode(json.dumps(body))
    except ProtocolError:
        pass


# --- what is particular ---


def test_what_a_dialect_answers_only_where_documented() -> None:
    replies = {name: [m.data for m in opened(name)[1] if isinstance(m, Reply)] for name in CARRIERS}
    assert {name for name, answers in replies.items() if answers} == {"genesys", "freeswitch"}
    assert json.loads(replies["freeswitch"][0]) == {"type": "rawAudio", "data": {"sampleRate": 8000}}
    assert json.loads(replies["genesys"][0]) == {
        "version": "2", "type": "opened", "seq": 1, "clientseq": 1, "id": "s1",
        "parameters": {
            "startPaused": False,
            "media": [{"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}],
        },
    }  # fmt: skip


def test_who_can_send_tones_and_hang_up() -> None:
    tones = {name: dialect.dtmf("5") for name in CARRIERS if (dialect := opened(name)[0]).dtmf("5")}
    assert {name: json.loads(message) for name, message in tones.items() if message} == {
        "signalwire": {"event": "dtmf", "streamSid": "st", "dtmf": {"digit": "5"}},
        "plivo": {"event": "sendDTMF", "dtmf": "5"},
    }
    ends = {name: opened(name)[0].hangup('{"next":"agent"}') for name in CARRIERS}
    assert {name: json.loads(message) for name, message in ends.items() if message} == {
        "genesys": {
            "version": "2", "type": "disconnect", "seq": 2, "clientseq": 1, "id": "s1",
            "parameters": {"reason": "completed", "outputVariables": {"handoffData": '{"next":"agent"}'}},
        },
        "jambonz": {"type": "disconnect"},
        "asterisk": {"command": "HANGUP"},
    }  # fmt: skip


def test_genesys_answers_pings_and_the_close_with_its_own_numbers() -> None:
    dialect, _ = opened("genesys")
    (pong,) = dialect.decode(genesys("ping", 2, rtt="PT0.03S"))
    assert isinstance(pong, Reply)
    assert json.loads(pong.data) | {"id": ""} == {
        "version": "2", "type": "pong", "seq": 2, "clientseq": 2, "id": "", "parameters": {},
    }  # fmt: skip
    assert dialect.decode(genesys("playback_started", 3)) == [PlaybackStarted()]
    closed, stopped = dialect.decode(genesys("close", 4, reason="end"))
    assert isinstance(closed, Reply) and stopped == StreamStopped(peer_closes=True)
    answer = json.loads(closed.data)
    assert (answer["type"], answer["seq"], answer["clientseq"]) == ("closed", 3, 4)


def test_a_genesys_probe_is_answered_and_starts_no_call() -> None:
    (opened_,) = fresh("genesys").decode(genesys_open(conversation=PROBE, participant=PROBE))
    assert isinstance(opened_, Reply) and json.loads(opened_.data)["type"] == "opened"


@pytest.mark.parametrize(("encoding", "audio", "caller"), [("PCMU", b"aAbBcC", b"ABC"), ("L16", b"aaAAbbBB", b"AABB")])
def test_of_two_genesys_channels_the_external_one_is_heard(encoding: str, audio: bytes, caller: bytes) -> None:
    dialect = fresh("genesys")
    dialect.decode(
        genesys_open({"type": "audio", "format": encoding, "channels": ["internal", "external"], "rate": 8000})
    )
    assert dialect.decode(audio) == [MediaReceived(caller)]


def test_telnyx_media_is_put_in_order_and_a_lost_piece_is_not_waited_for_without_end() -> None:
    dialect, _ = opened("telnyx")

    def push(chunk: int) -> bytes:
        data = event(
            "media", stream_id="st", media={"track": "inbound", "chunk": str(chunk), "payload": b64(bytes((chunk,)))}
        )
        return b"".join(m.payload for m in dialect.decode(data) if isinstance(m, MediaReceived))

    assert [push(n) for n in (1, 3, 2, 2)] == [b"\1", b"", b"\2\3", b""]
    assert [push(n) for n in (5, 6, 7, 8)] == [b"", b"", b"", b"\5\6\7\x08"]
    assert push(200) == b"\xc8"  # dropped unread without a listener


@pytest.mark.parametrize("behind", [4, 10, 49, 50, 100, 190])
def test_telnyx_media_that_is_numbered_anew_loses_nothing(behind: int) -> None:
    order = InOrder()
    pieces = [piece for n in range(201) for piece in order.push(n, b"old")]
    assert len(pieces) == 201
    first = 201 - behind
    heard = [piece for n in range(first, first + 20) for piece in order.push(n, bytes((n,)))]
    assert heard == [bytes((n,)) for n in range(first, first + 20)]


def test_telnyx_pieces_that_come_twice_or_late_are_not_a_new_numbering() -> None:
    order = InOrder()
    heard = [n for n in (1, 2, 3, 4, 5, 4, 5, 6, 2, 7, 1, 8) if order.push(n, b"")]
    assert heard == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["signalwire", "telnyx"])
def test_the_byte_order_of_l16_is_a_switch(name: str) -> None:
    l16: dict[str, Any] = {"codec": "L16", "sample_rate": 16000} if name == "telnyx" else {}
    dialect = serializer(name, l16_byte_order="big", **l16)
    for data in PEERS[name].opening:
        dialect.decode(str(data).replace('"PCMA","sample_rate":8000', '"L16","sample_rate":16000'))
    assert PEERS[name].sent(dialect.media(b"\x01\x02\x03\x04")) == b"\x02\x01\x04\x03"
    assert dialect.decode(PEERS[name].media(b"\x02\x01")) == [MediaReceived(b"\x01\x02")]


@pytest.mark.parametrize("extra", ["bot=billing;lang=de", "bot=billing,lang=de", '{"bot":"billing","lang":"de"}'])
def test_plivo_extra_headers_in_all_their_spellings(extra: str) -> None:
    start = json.loads(str(PEERS["plivo"].opening[0])) | {"extra_headers": extra}
    (started,) = fresh("plivo").decode(json.dumps(start))
    assert isinstance(started, StreamStarted) and started.custom_parameters == {"bot": "billing", "lang": "de"}


def test_plivo_says_type_and_rate_with_every_frame_and_reports_failures() -> None:
    dialect, _ = opened("plivo")
    media = json.loads(dialect.media(b"\x01\x02"))
    assert media == {
        "event": "playAudio",
        "media": {"contentType": "audio/x-l16", "sampleRate": 16000, "payload": "AQI="},
    }
    assert dialect.decode(event("clearedAudio", sequenceNumber=95, streamId="st")) == [PlayoutCleared()]
    assert dialect.decode(event("played", name="0.1")) == [MarkReached("0.1")]
    assert dialect.decode(event("playFailed", reason="bad")) == [PeerError("playFailed bad")]


def test_exotel_in_camel_case_and_larger_pieces() -> None:
    start = {"streamSid": "st", "callSid": "c", "mediaFormat": {"encoding": "raw/slin", "sampleRate": "16000"}}
    (started,) = fresh("exotel").decode(event("start", start=start))
    assert isinstance(started, StreamStarted) and started.call_sid == "c"
    assert started.outbound.frame_bytes == 3200 and started.outbound.ptime_ms == 100


def test_vonage_clear_is_confirmed() -> None:
    assert opened("vonage")[0].decode(event("websocket:cleared")) == [PlayoutCleared()]


def test_jambonz_tells_played_from_cleared_and_keeps_minus_one_out() -> None:
    dialect, _ = opened("jambonz")
    cleared = json.dumps({"type": "mark", "data": {"name": "0.1", "event": "cleared"}})
    assert dialect.decode(cleared) == [Ignored()]
    assert dialect.media(b"\xff\xff\x01\x00\xff\xfe") == b"\x00\x00\x01\x00\xff\xfe"
    assert dialect.media(b"\x00\xff\xff\x00") == b"\x00\xff\xff\x00"  # the bytes, but not the sample


def test_jambonz_without_streaming_sends_files_and_has_no_marks() -> None:
    dialect = serializer("jambonz", streaming=False)
    dialect.decode(JAMBONZ_START)
    assert dialect.media_is_text and not dialect.has_marks and dialect.mark("0.1") is None
    assert json.loads(dialect.media(b"\x01\x02")) == {
        "type": "playAudio",
        "data": {"audioContent": "AQI=", "audioContentType": "raw", "sampleRate": "16000", "queuePlay": True},
    }


@pytest.mark.parametrize("name", ["freeswitch", "freeswitch-fork"])
def test_freeswitch_starts_without_metadata_at_the_rate_of_the_address(name: str) -> None:
    dialect = serializer(name, {"rate": "16000", "bot": "billing"})
    assert dialect.decode(b"\x01\x02") == [MediaReceived(b"\x01\x02")]
    started, *_ = dialect.without_metadata()
    assert isinstance(started, StreamStarted) and not dialect.without_metadata()
    assert started.inbound.sample_rate == started.outbound.sample_rate == 16000
    assert started.custom_parameters == {"bot": "billing"}
    dialect = serializer(name, {"rate": "fast"})
    started, *_ = dialect.without_metadata()
    assert isinstance(started, StreamStarted) and started.inbound.sample_rate == 8000
    assert dialect.oddities.take() == {"sample_rate": 1}
    started = serializer(name).decode("just words")[0]
    assert isinstance(started, StreamStarted) and started.custom_parameters == {"metadata": "just words"}


@pytest.mark.parametrize("name", ["vonage", "jambonz", "freeswitch", "freeswitch-fork", "asterisk"])
def test_an_odd_byte_waits_for_its_other_half(name: str) -> None:
    dialect, _ = opened(name)
    assert dialect.decode(b"\x01\x02\x03") == [MediaReceived(b"\x01\x02")]
    assert not dialect.is_media(b"\x04\x05\x06\x07", binary=True)
    assert dialect.decode(b"\x04\x05") == [MediaReceived(b"\x03\x04")]


def test_freeswitch_files() -> None:
    dialect = serializer("freeswitch", playback="file")
    (started,) = dialect.decode("{}")
    assert isinstance(started, StreamStarted) and started.outbound.ptime_ms == 200 and dialect.media_is_text
    assert dialect.clear() is None
    assert json.loads(dialect.media(b"\x01\x02")) == {
        "type": "streamAudio",
        "data": {"audioDataType": "raw", "sampleRate": 8000, "audioData": "AQI="},
    }


def test_freeswitch_files_that_we_play_ourselves_have_marks() -> None:
    dialect = serializer("freeswitch", playback="file", esl={"password": "x"})
    dialect.decode("{}")
    assert dialect.has_marks and dialect.has_clear and dialect.max_lead_ms >= 200, "one file is played, one waits"
    assert json.loads(dialect.mark("0.1") or b"") == {"type": "mark", "name": "0.1"}
    assert json.loads(dialect.clear() or b"") == {"type": "clear"}
    other = serializer("freeswitch", playback="file")
    assert not other.has_marks and other.mark("0.1") is None, "no one would report them"


def test_telnyx_client_state_comes_along_where_it_is_text() -> None:
    for state, expected in (("eyJhIjoxfQ==", {"clientState": '{"a":1}'}), ("/w==", {}), ("!", {}), ("", {})):
        start = {"start": {"client_state": state, "media_format": {"encoding": "PCMU", "sample_rate": 8000}}}
        (started,) = fresh("telnyx").decode(json.dumps({"event": "start", "stream_id": "st", **start}))
        assert isinstance(started, StreamStarted) and started.custom_parameters == expected


@pytest.mark.parametrize("bad", ["\x1b[2J", "a\0b", "a\x9bb", "a\r\nb"])
def test_what_a_carrier_packs_is_made_plain_after_it_is_unpacked(bad: str) -> None:
    packed = {
        "client_state": base64.b64encode(bad.encode()).decode(),
        "media_format": {"encoding": "PCMU", "sample_rate": 8000},
    }
    (telnyx,) = fresh("telnyx").decode(json.dumps({"event": "start", "stream_id": "st", "start": packed}))
    start = {"callId": "c", "streamId": "s", "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000}}
    more = f"talkspurtFrom=0x{bad.encode().hex()}"
    (plivo,) = fresh("plivo").decode(json.dumps({"event": "start", "start": start, "extra_headers": more}))
    for started in (telnyx, plivo):
        assert isinstance(started, StreamStarted)
        assert list(started.custom_parameters.values()) == [plain(bad)]
    [complaint] = opened("asterisk")[0].decode(f"ERROR error_text:{bad}")
    assert isinstance(complaint, PeerError) and is_plain(complaint.description)


PLAIN_START = (
    "MEDIA_START connection_id:c-1 channel:WebSocket/x channel_id:17.7 format:ulaw optimal_frame_size:160 ptime:20"
)


def test_asterisk_in_plain_text() -> None:
    dialect = serializer("asterisk", {"bot": "billing"}, answer=True)
    started, answer = dialect.decode(PLAIN_START)
    assert isinstance(started, StreamStarted) and (started.call_sid, started.inbound) == ("17.7", ULAW)
    assert started.custom_parameters == {"bot": "billing"}
    assert answer == Reply(b"ANSWER")
    assert (dialect.mark("0.1"), dialect.clear(), dialect.hangup()) == (b"MARK_MEDIA 0.1", b"FLUSH_MEDIA", b"HANGUP")
    assert dialect.decode("MEDIA_XOFF") == [FlowControl(stopped=True)]
    assert dialect.decode("MEDIA_XON") == [FlowControl(stopped=False)]
    assert dialect.decode("MEDIA_MARK_PROCESSED u3.7") == [MarkReached("u3.7")]
    assert dialect.decode("DTMF_END digit:5 channel_id:17.7") == [DtmfReceived("5")]
    assert dialect.decode("ERROR channel_id:17.7 error_text:not in a mood: try later") == [
        PeerError("not in a mood: try later")
    ]
    assert dialect.decode("STATUS channel_id:17.7 queue_length:43 queue_full:false") == [Ignored()]
    assert dialect.decode("SOMETHING_NEW x:y") == [UnknownEvent("SOMETHING_NEW")]


@pytest.mark.parametrize("fmt", ["opus", "g729", "siren14"])
def test_asterisk_codecs_that_cannot_be_sent_are_refused_with_what_can(fmt: str) -> None:
    with pytest.raises(ProtocolError, match="expected one of ulaw, alaw"):
        fresh("asterisk").decode(PLAIN_START.replace("ulaw", fmt))


@pytest.mark.parametrize(
    ("fmt", "size", "expected"),
    [("slin19", 320, l16(8000)), ("", 160, ULAW), ("?", 640, l16(16000)), ("format:slin16", 640, l16(16000))],
)
def test_without_a_known_format_the_frame_size_of_asterisk_tells_it(fmt: str, size: int, expected: AudioFormat) -> None:
    dialect = fresh("asterisk")
    start = PLAIN_START.replace("ulaw", fmt).replace("size:160", f"size:{size}")
    (started,) = dialect.decode(start)
    assert isinstance(started, StreamStarted) and started.inbound == expected
    assert dialect.oddities.take() == {"encoding": 1}


def test_asterisk_text_stays_within_what_the_peer_reads() -> None:
    dialect, _ = opened("asterisk")
    with pytest.raises(ValueError, match="at most 128"):
        dialect.mark("x" * 100)
