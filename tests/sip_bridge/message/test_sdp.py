"""Session descriptions: what PBXs write, what we answer, what we offer."""

import base64
import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.errors import NotAcceptable, SipProtocolError
from sip_bridge.message.sdp import SUITES, Codec, Direction, Negotiation, parse


def described(media: str, session: str = "c=IN IP4 192.0.2.4") -> bytes:
    return f"v=0\r\no=ann 42 7 IN IP4 192.0.2.4\r\ns=-\r\n{session}\r\nt=0 0\r\n{media}".replace("\n\n", "\n").encode()


G711 = "m=audio 49170 RTP/AVP 0 8 101\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n"
KEY = base64.b64encode(bytes(range(30))).decode()
SECURE = G711.replace("AVP", "SAVP") + f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}\r\n"


def negotiation(**options: object) -> Negotiation:
    count = itertools.count(1)
    return Negotiation(
        host="192.0.2.9",
        port=16384,
        random_bytes=lambda size: bytes([next(count)] * size),
        **options,  # type: ignore[arg-type]
    )


def lines(body: bytes) -> list[str]:
    return body.decode().split("\r\n")[:-1]


def test_answers_an_ordinary_offer() -> None:
    ours = negotiation()
    body = ours.answer(parse(described(G711)))
    assert lines(body) == [
        "v=0",
        "o=- 282578800148737 1 IN IP4 192.0.2.9",
        "s=-",
        "c=IN IP4 192.0.2.9",
        "t=0 0",
        "m=audio 16384 RTP/AVP 0 101",
        "a=rtpmap:0 PCMU/8000",
        "a=rtpmap:101 telephone-event/8000",
        "a=fmtp:101 0-15",
        "a=ptime:20",
        "a=sendrecv",
    ]
    agreed = ours.agreed
    assert agreed is not None
    assert (agreed.codec.name, agreed.receive_type, agreed.host, agreed.port, agreed.rtcp_port) == (
        "PCMU", 0, "192.0.2.4", 49170, 49171,
    )  # fmt: skip
    assert agreed.events is not None and (agreed.events.payload_type, agreed.events_receive_type) == (101, 101)
    assert not agreed.on_hold


@pytest.mark.parametrize(
    ("media", "codec", "number", "events", "answer"),
    [
        ("m=audio 9 RTP/AVP 96 97\na=rtpmap:96 pcma/8000\na=rtpmap:97 TELEPHONE-EVENT/8000", "PCMA", 96, 97, "96 97"),
        ("m=audio 9000 RTP/AVP 9", "G722", 9, None, "9"),
        ("m=audio 9000 RTP/AVP 96 97 98\na=rtpmap:96 opus/48000/2\na=rtpmap:97 telephone-event/8000\n"
         "a=rtpmap:98 telephone-event/48000", "OPUS", 96, 98, "96 98"),
        ("m=audio 9000 RTP/AVP 96 97\na=rtpmap:96 opus/48000/2\na=rtpmap:97 telephone-event/8000", "OPUS", 96, 97,
         "96 97"),
        # A dynamic number that happens to be ours for something else; a static number mapped to another codec.
        ("m=audio 9000 RTP/AVP 101 8\na=rtpmap:101 iLBC/8000", "PCMA", 8, None, "8"),
        ("m=audio 9000 RTP/AVP 0 8\na=rtpmap:0 G729/8000", "PCMA", 8, None, "8"),
    ],
)  # fmt: skip
def test_codecs_go_by_name(media: str, codec: str, number: int, events: int | None, answer: str) -> None:
    ours = negotiation()
    body = ours.answer(parse(described(media)))
    assert ours.agreed is not None
    assert (ours.agreed.codec.name, ours.agreed.codec.payload_type) == (codec, number)
    assert (ours.agreed.events and ours.agreed.events.payload_type) == events
    assert f"m=audio 16384 RTP/AVP {answer}" in lines(body)


def test_opus_is_answered_with_two_channels_under_their_number() -> None:
    body = negotiation().answer(parse(described("m=audio 9 RTP/AVP 96\na=rtpmap:96 opus/48000/2\na=fmtp:96 stereo=0")))
    assert "a=rtpmap:96 opus/48000/2" in lines(body)
    assert "a=fmtp:96 minptime=10;useinbandfec=1" in lines(body)


@pytest.mark.parametrize(
    ("media", "says"),
    [
        ("m=audio 9000 RTP/AVP 18\na=rtpmap:18 G729/8000", "audio RTP/AVP G729, expected audio in one of PCMU"),
        ("m=audio 9000 RTP/AVP 96\na=rtpmap:96 iLBC/8000", "ILBC"),
        ("m=audio 9000 RTP/AVP x 200 96 97\na=rtpmap:96 Speex\na=rtpmap:97 /8000", "audio RTP/AVP , expected"),
        ("m=audio 9000 RTP/AVP 96\na=rtpmap:96 PCMU/16000", "PCMU"),
        ("m=audio 0 RTP/AVP 0", "refused"),
        ("m=audio 9000 UDP/TLS/RTP/SAVPF 0", "UDP/TLS/RTP/SAVPF"),
        ("m=video 9000 RTP/AVP 31", "video"),
        ("", "no media"),
    ],
)
def test_no_common_codec(media: str, says: str) -> None:
    with pytest.raises(NotAcceptable, match=says):
        negotiation().answer(parse(described(media)))


def test_other_media_are_refused_in_their_place() -> None:
    media = "m=image 4000 udptl t38\r\n" + G711 + "m=video 5000 RTP/AVP 31 34\r\na=sendonly\r\n" + G711
    body = negotiation().answer(parse(described(media)))
    assert [line for line in lines(body) if line.startswith("m=")] == [
        "m=image 0 udptl t38",
        "m=audio 16384 RTP/AVP 0 101",
        "m=video 0 RTP/AVP 31 34",
        "m=audio 0 RTP/AVP 0 8 101",
    ]


@pytest.mark.parametrize(
    ("session", "media", "answered", "held"),
    [
        ("c=IN IP4 192.0.2.4", "a=sendrecv", "sendrecv", False),
        ("c=IN IP4 192.0.2.4", "a=sendonly", "recvonly", True),
        ("c=IN IP4 192.0.2.4", "a=recvonly", "sendonly", False),
        ("c=IN IP4 192.0.2.4", "a=inactive", "inactive", True),
        ("c=IN IP4 0.0.0.0", "", "recvonly", True),
        ("c=IN IP4 0.0.0.0", "a=inactive", "inactive", True),
        ("c=IN IP4 192.0.2.4\r\na=sendonly", "", "recvonly", True),
        ("c=IN IP4 192.0.2.4\r\na=sendonly", "a=sendrecv", "sendrecv", False),
    ],
)
def test_hold(session: str, media: str, answered: str, held: bool) -> None:
    ours = negotiation()
    body = ours.answer(parse(described(G711 + media, session)))
    assert f"a={answered}" in lines(body)
    assert ours.agreed is not None and ours.agreed.on_hold is held


def test_hold_and_resume_move_the_version_and_a_refresh_does_not() -> None:
    ours = negotiation()
    bodies = [ours.answer(parse(described(G711 + more))) for more in ("", "", "a=sendonly", "a=sendonly", "")]
    assert [body.split()[3] for body in bodies] == [b"1", b"1", b"2", b"2", b"3"]


@pytest.mark.parametrize(
    ("media", "answer", "number"),
    [
        ("m=audio 6000 RTP/AVP 0 13\r\n", "m=audio 16384 RTP/AVP 0 13", 13),
        ("m=audio 6000 RTP/AVP 0\r\n", "m=audio 16384 RTP/AVP 0", None),
        ("m=audio 6000 RTP/AVP 96 13\r\na=rtpmap:96 opus/48000/2\r\n", "m=audio 16384 RTP/AVP 96", None),
    ],
)
def test_comfort_noise_is_agreed_where_both_know_it_and_the_clock_fits(
    media: str, answer: str, number: int | None
) -> None:
    side = negotiation()
    assert answer in lines(side.answer(parse(described(media))))
    assert side.agreed and side.agreed.noise_type == number


def test_our_own_wish_counts() -> None:
    ours = negotiation()
    ours.answer(parse(described(G711)), wish=Direction.SENDONLY)
    assert ours.agreed is not None and ours.agreed.direction is Direction.SENDONLY


@pytest.mark.parametrize(
    ("attributes", "ptime_ms"),
    [("", 20), ("a=ptime:30", 30), ("a=ptime:20.0", 20), ("a=ptime:125", 20), ("a=ptime:40\r\na=maxptime:30", 20),
     ("a=maxptime:10", 10), ("a=maxptime:15", 10)],
)  # fmt: skip
def test_ptime_is_theirs_where_we_can(attributes: str, ptime_ms: int) -> None:
    ours = negotiation()
    ours.answer(parse(described(G711 + attributes)))
    assert ours.agreed is not None and ours.agreed.ptime_ms == ptime_ms


def test_rtcp_ports() -> None:
    for attribute, port in (("", 49171), ("a=rtcp:50000", 50000), ("a=rtcp-mux", 49170)):
        ours = negotiation()
        body = ours.answer(parse(described(G711 + attribute)))
        assert ours.agreed is not None and ours.agreed.rtcp_port == port
        assert ("a=rtcp-mux" in lines(body)) == (attribute == "a=rtcp-mux")


def test_media_level_address_and_ipv6() -> None:
    ours = Negotiation(host="2001:db8::9", port=16384)
    body = ours.answer(parse(described(G711 + "c=IN IP6 2001:db8::4")))
    assert ours.agreed is not None and ours.agreed.host == "2001:db8::4"
    assert "c=IN IP6 2001:db8::9" in lines(body)


def test_srtp_answers_one_line_with_a_key_of_our_own() -> None:
    ours = negotiation()
    more = f"a=crypto:2 AES_CM_128_HMAC_SHA1_32 inline:{KEY}|2^31\r\na=crypto:3 AES_CM_128_HMAC_SHA1_80 inline:{KEY}"
    body = ours.answer(parse(described(SECURE + more)))
    crypto = [line for line in lines(body) if "crypto" in line]
    mine = base64.b64encode(bytes([2] * 30)).decode()
    assert crypto == [f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{mine}"]
    assert "m=audio 16384 RTP/SAVP 0 101" in lines(body)
    agreed = ours.agreed
    assert agreed and agreed.send_crypto and agreed.receive_crypto
    assert (agreed.send_crypto.key, agreed.receive_crypto.key) == (bytes([2] * 30), bytes(range(30)))
    assert KEY not in repr(agreed) and str(bytes(range(30))) not in repr(agreed)
    assert ours.answer(parse(described(SECURE + more))) == body


@pytest.mark.parametrize(
    ("line", "usable"),
    [
        ("1 AES_CM_128_HMAC_SHA1_80 inline:" + KEY, True),
        ("1 AES_CM_128_HMAC_SHA1_32 inline:" + KEY + "|2^20", True),
        ("9 AEAD_AES_128_GCM inline:" + base64.b64encode(bytes(28)).decode().rstrip("="), True),
        ("1 AES_CM_128_HMAC_SHA1_80 inline:" + KEY + "|2^20|1:4", False),
        ("1 AES_CM_128_HMAC_SHA1_80 inline:" + KEY + " UNENCRYPTED_SRTP", False),
        ("1 AES_CM_128_HMAC_SHA1_80 inline:" + KEY[:-4], False),
        ("1 AES_CM_128_HMAC_SHA1_80 inline:!" + KEY[1:], False),
        ("1 F8_128_HMAC_SHA1_80 inline:" + KEY, False),
        ("x AES_CM_128_HMAC_SHA1_80 inline:" + KEY, False),
        ("1 AES_CM_128_HMAC_SHA1_80", False),
    ],
)
def test_crypto_lines(line: str, usable: bool) -> None:
    (media,) = parse(described(G711 + f"a=crypto:{line}")).media
    assert bool(media.cryptos) is usable
    secure = described(G711.replace("AVP", "SAVP") + f"a=crypto:{line}")
    if usable:
        negotiation().answer(parse(secure))
    else:
        with pytest.raises(NotAcceptable, match="without a usable crypto line"):
            negotiation().answer(parse(secure))


def test_srtp_policies() -> None:
    plain, secure, best_effort = G711, SECURE, SECURE.replace("SAVP", "AVP")
    with pytest.raises(NotAcceptable, match="SRTP is off"):
        negotiation(srtp="off").answer(parse(described(secure)))
    with pytest.raises(NotAcceptable, match="without a usable crypto"):
        negotiation(srtp="required").answer(parse(described(plain)))
    for policy, media, encrypted in (
        ("off", best_effort, False),
        ("optional", best_effort, True),
        ("optional", plain, False),
        ("required", best_effort, True),
        ("required", secure, True),
    ):
        ours = negotiation(srtp=policy)
        ours.answer(parse(described(media)))
        assert ours.agreed is not None and bool(ours.agreed.send_crypto) is encrypted


@pytest.mark.parametrize("srtp", ["optional", "required"])
@pytest.mark.parametrize("codecs", [("PCMU",), ("PCMA", "PCMU"), ("OPUS", "PCMU"), ("G722",)])
def test_two_of_us_agree(codecs: tuple[str, ...], srtp: str) -> None:
    """A late offer and its answer: both sides end with the same, mirrored."""
    caller, bot = negotiation(codecs=codecs, srtp=srtp), negotiation(srtp="optional")
    answer = bot.answer(parse(caller.offer()))
    assert caller.offering
    mine = caller.accept(parse(answer))
    theirs = bot.agreed
    assert theirs is not None and not caller.offering
    assert mine.codec.same(theirs.codec)
    assert mine.codec.name == ("PCMU" if "PCMU" in codecs else codecs[0])  # the answerer's order decides
    assert (mine.receive_type, theirs.receive_type) == (theirs.codec.payload_type, mine.codec.payload_type)
    assert mine.events_receive_type == (theirs.events and theirs.events.payload_type)
    assert (mine.send_crypto, mine.receive_crypto) == (theirs.receive_crypto, theirs.send_crypto)
    assert bool(mine.send_crypto) is (srtp == "required")


@pytest.mark.parametrize(("theirs", "encrypted"), [("optional", True), ("off", False), ("required", True)])
def test_best_effort_offers_keys_that_the_peer_may_leave(theirs: str, encrypted: bool) -> None:
    caller, bot = negotiation(srtp="preferred"), negotiation(srtp=theirs)
    offered = caller.offer()
    assert b" RTP/AVP " in offered and b"a=crypto:1 " in offered
    mine = caller.accept(parse(bot.answer(parse(offered))))
    assert bool(mine.send_crypto) is bool(mine.receive_crypto) is encrypted
    again = caller.offer()
    assert (b"a=crypto:" in again) is encrypted
    if encrypted:
        with pytest.raises(NotAcceptable, match="SRTP"):
            caller.accept(parse(described("m=audio 6000 RTP/AVP 0\r\n")))


def test_a_new_offer_keeps_codec_numbers_and_keys() -> None:
    bot = negotiation()
    keys = SECURE[SECURE.index("a=crypto") :]
    media = "m=audio 9000 RTP/AVP 102 107\na=rtpmap:102 opus/48000/2\na=rtpmap:107 telephone-event/48000\n"
    bot.answer(parse(described(media + keys)))
    before = bot.agreed
    assert before is not None
    body = bot.offer(wish=Direction.SENDONLY, refresh=True)
    assert "m=audio 16384 RTP/AVP 102 107" in lines(body)
    assert "a=sendonly" in lines(body)
    peer = negotiation(codecs=("OPUS",))
    after = bot.accept(parse(peer.answer(parse(body))))
    assert (after.codec.payload_type, after.receive_type, after.direction) == (102, 102, Direction.SENDONLY)
    assert after.send_crypto == before.send_crypto


def test_a_refused_offer_leaves_what_was_agreed() -> None:
    ours = negotiation()
    ours.answer(parse(described(G711)))
    before = ours.agreed
    ours.offer()
    with pytest.raises(RuntimeError):
        ours.answer(parse(described(G711)))
    ours.withdraw()
    assert ours.agreed is before and not ours.offering
    ours.offer()
    with pytest.raises(NotAcceptable):
        ours.accept(parse(described("m=audio 0 RTP/AVP 0")))
    assert ours.agreed is before and not ours.offering
    with pytest.raises(RuntimeError):
        ours.accept(parse(described(G711)))


def test_an_answer_without_our_crypto_is_refused() -> None:
    ours = negotiation(srtp="required")
    ours.offer()
    with pytest.raises(NotAcceptable, match="none of the SRTP suites"):
        ours.accept(parse(described(G711)))


def test_only_known_codecs_can_be_configured() -> None:
    for codecs in ((), ("PCMU", "G729")):
        with pytest.raises(ValueError, match="expected some of PCMU"):
            negotiation(codecs=codecs)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "SDP begins ''"),
        (b"v=1\r\n", "SDP begins 'v=1'"),
        (described("m=audio 70000 RTP/AVP 0"), "media port is '70000'"),
        (described("m=audio x RTP/AVP 0"), "media port is 'x'"),
        (described("m=audio 9"), "media is 'audio 9'"),
        (b"v=0\r\no=ann 42 7 IN IP4 host\r\nm=audio 9 RTP/AVP 0\r\n", "without c="),
        (b"v=0\r\nc=IN IP4\r\nm=audio 9 RTP/AVP 0\r\n", "without c="),
        (described("m=audio 9 RTP/AVP 0\n" * 17), "17 media descriptions"),
        (described("a=x\n" * 5000), "expected at most 16384"),
    ],
)
def test_malformed_is_refused_exactly(body: bytes, says: str) -> None:
    with pytest.raises(SipProtocolError, match=says):
        parse(body)


def test_suites_and_key_sizes() -> None:
    assert SUITES == {
        "AEAD_AES_256_GCM": 44,
        "AEAD_AES_128_GCM": 28,
        "AES_CM_128_HMAC_SHA1_80": 30,
        "AES_CM_128_HMAC_SHA1_32": 30,
    }


@given(st.integers(0, 300), st.integers(0, 10), st.text(max_size=10))
def test_mutated_bodies_are_answered_or_refused(at: int, cut: int, put: str) -> None:
    text = described(SECURE + "a=ptime:20\r\na=rtcp:49171\r\na=sendrecv\r\n").decode()
    body = (text[:at] + put + text[at + cut :]).encode()
    try:
        answer = negotiation().answer(parse(body))
    except (SipProtocolError, NotAcceptable):
        return
    parse(answer)


@given(st.binary(max_size=200))
def test_garbage_raises_only_protocol_error(body: bytes) -> None:
    for data in (body, b"v=0\r\n" + body, described("") + body):
        try:
            parse(data)
        except SipProtocolError:
            pass


@pytest.mark.parametrize(("srtp", "refused"), [("off", 0), ("required", 1), ("optional", 1)])
def test_of_two_sections_the_one_is_taken_whose_encryption_we_can_have(srtp: str, refused: int) -> None:
    ours = negotiation(srtp=srtp)
    answer = parse(ours.answer(parse(described(SECURE + G711))))
    assert [bool(media.port) for media in answer.media] == [bool(refused), not refused]
    assert ours.agreed and bool(ours.agreed.send_crypto) == bool(refused)


@pytest.mark.parametrize(
    ("later", "ptime_ms"), [("", 30), ("a=ptime:60", 60), ("a=ptime:7", 30), ("a=maxptime:20", 20)]
)
def test_a_later_offer_may_prefer_another_frame_length(later: str, ptime_ms: int) -> None:
    ours = negotiation()
    for attributes in ("a=ptime:30\r\n", later):
        ours.answer(parse(described(G711 + attributes)))
    assert ours.agreed is not None and ours.agreed.ptime_ms == ptime_ms


def test_a_call_keeps_its_codec_and_its_frame_length_while_they_are_offered() -> None:
    ours = negotiation()
    ours.answer(parse(described(G711 + "a=ptime:30\r\n")))
    agreed = ours.agreed
    ours.answer(parse(described(G711.replace("0 8 101", "8 0 101"))))
    assert ours.agreed == agreed and agreed and agreed.ptime_ms == 30
    ours.answer(parse(described(G711.replace("0 8 101", "8 101"))))
    assert ours.agreed.codec.name == "PCMA" and ours.agreed.ptime_ms == 30
    ours.answer(parse(described("m=audio 49170 RTP/AVP 107\r\na=rtpmap:107 opus/48000/2\r\n")))
    assert ours.agreed.codec.name == "OPUS" and ours.agreed.ptime_ms == 20  # Opus has no frames of 30 ms
    with pytest.raises(NotAcceptable, match="expected audio in one of OPUS, PCMU"):
        ours.answer(parse(described("m=audio 49170 RTP/AVP 18\r\n")))
    assert ours.agreed.codec.name == "OPUS"


@pytest.mark.parametrize(
    "host",
    ["media.example.net", "224.0.0.1", "239.1.2.3", "255.255.255.255", "240.0.0.1", "127.0.0.1", "::1", "2001:db8::1",
     "ff02::1", "::ffff:127.0.0.1", "::ffff:224.0.0.1", "1.2.3", "-"],
)  # fmt: skip
def test_audio_that_we_cannot_or_may_not_send_to_is_refused(host: str) -> None:
    ours = Negotiation(host="192.0.2.9", port=40000, peer_host="192.0.2.4")
    with pytest.raises(NotAcceptable, match="audio is at"):
        ours.answer(parse(_at(host)))
    ours.offer()
    with pytest.raises(NotAcceptable, match="audio is at"):
        ours.accept(parse(_at(host)))
    assert ours.agreed is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_address_of_nobody_is_hold(host: str) -> None:
    """RFC 3264 section 8.4."""
    ours = Negotiation(host="192.0.2.9", port=40000)
    ours.answer(parse(_at(host)))
    assert ours.agreed and ours.agreed.on_hold


@pytest.mark.parametrize(
    ("ours", "peer", "named", "sent_to"),
    [
        ("192.0.2.9", "127.0.0.1", "127.0.0.1", "127.0.0.1"),  # a switch on our own machine
        ("127.0.0.1", "127.0.0.1", "127.0.0.5", "127.0.0.5"),
        ("192.0.2.9", "::ffff:127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("192.0.2.9", "192.0.2.4", "::ffff:192.0.2.4", "192.0.2.4"),
        ("192.0.2.9", "192.0.2.4", "10.1.2.3", "10.1.2.3"),  # behind a translator
        ("2001:db8::9", "2001:db8::4", "2001:DB8::4", "2001:db8::4"),
        ("2001:db8::9", "192.0.2.4", "::ffff:192.0.2.4", "::ffff:c000:204"),
    ],
)
def test_audio_goes_where_the_peer_says(ours: str, peer: str, named: str, sent_to: str) -> None:
    negotiation = Negotiation(host=ours, port=40000, peer_host=peer)
    negotiation.answer(parse(_at(named)))
    assert negotiation.agreed and negotiation.agreed.host == sent_to


def test_port_zero_refuses_audio_and_keeps_what_was_agreed() -> None:
    """RFC 3264 sections 6 and 8.2: nothing is left to talk about, so the offer is refused, and the call continues."""
    ours = Negotiation(host="192.0.2.9", port=40000)
    ours.answer(parse(_at("192.0.2.4")))
    before = ours.agreed
    with pytest.raises(NotAcceptable, match="refused"):
        ours.answer(parse(_at("192.0.2.4").replace(b"audio 6000", b"audio 0")))
    assert ours.agreed is before


def _at(host: str) -> bytes:
    return f"v=0\r\no=- 1 1 IN IP4 x\r\ns=-\r\nc=IN IP4 {host}\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\n".encode()


# --- which codec is sent, and which ones are accepted --------------------------------------------------------------

MAPS = """a=rtpmap:0 PCMU/8000
a=rtpmap:8 PCMA/8000
a=rtpmap:9 G722/8000
a=rtpmap:107 opus/48000/2
a=rtpmap:96 opus/48000/2
a=rtpmap:101 telephone-event/8000
a=rtpmap:102 telephone-event/48000
a=rtpmap:97 telephone-event/8000
"""


def audio(formats: str, maps: str = MAPS, *, port: int = 49170) -> bytes:
    return described(f"m=audio {port} RTP/AVP {formats}\r\n{maps}")


OURS = {0: "PCMU", 8: "PCMA", 9: "G722", 107: "OPUS"}


@pytest.mark.parametrize("late", [False, True], ids=["outgoing call", "late offer"])
@pytest.mark.parametrize(
    ("answer", "sent", "also"),
    [
        ("0 101", ("PCMU", 0), {}),
        ("8 0 101", ("PCMA", 8), {}),
        ("8 0 9 107 101 102", ("PCMA", 8), {}),
        ("9 8 0", ("G722", 9), {}),
        ("107 0 102", ("OPUS", 107), {}),
        ("96 0 102", ("OPUS", 96), {96: "OPUS"}),
        ("18 8 0", ("PCMA", 8), {}),
        ("101 8", ("PCMA", 8), {}),
        ("13 8 0 101", ("PCMA", 8), {}),
    ],
)
def test_sent_is_the_first_codec_of_the_answer_and_all_that_was_offered_is_accepted(
    answer: str, sent: tuple[str, int], also: dict[int, str], late: bool
) -> None:
    """RFC 3264 sections 5.1, 6.1 and 7."""
    ours = negotiation()
    ours.offer()
    agreed = ours.accept(parse(audio(answer)))
    assert (agreed.codec.name, agreed.codec.payload_type) == sent
    assert {number: fmt.encoding for number, fmt in agreed.received_formats.items()} == OURS | also


def test_an_answer_may_leave_out_the_names_of_our_payload_types() -> None:
    ours = negotiation()
    ours.offer()
    agreed = ours.accept(parse(audio("107 102 101", "")))
    assert (agreed.codec.name, agreed.codec.payload_type) == ("OPUS", 107)
    assert agreed.events is not None and agreed.events.clock_hz == 48000


def test_an_answer_with_nothing_that_was_offered_is_refused() -> None:
    for codecs, answer in ((("PCMU",), "8 9"), (("PCMU", "PCMA"), "9"), (("PCMA",), "101"), (("PCMA",), "18")):
        ours = negotiation(codecs=codecs)
        ours.offer()
        with pytest.raises(NotAcceptable, match="no common codec"):
            ours.accept(parse(audio(answer)))


def test_after_an_offer_everything_that_it_lists_and_we_know_is_accepted() -> None:
    ours = negotiation(codecs=("PCMU", "PCMA"))
    ours.answer(parse(audio("8 0 9 96 101 97")))
    assert ours.agreed is not None and ours.agreed.codec.name == "PCMU"
    assert {number: fmt.encoding for number, fmt in ours.agreed.received_formats.items()} == {0: "PCMU", 8: "PCMA"}
    assert ours.agreed.received_events == {101: 8000, 97: 8000}


def test_touch_tones_are_accepted_with_the_payload_types_of_both_sides() -> None:
    ours = negotiation()
    ours.offer()
    agreed = ours.accept(parse(audio("0 97")))
    assert agreed.events is not None and agreed.events.payload_type == 97
    assert agreed.received_events == {101: 8000, 102: 48000, 97: 8000}


def test_each_answer_to_an_offer_is_read_alone() -> None:
    """RFC 3261 section 13.2.2.4: another fork, or a 200 after early media."""
    ours = negotiation()
    ours.offer()
    early = copy.copy(ours)
    ours.agreed = early.accept(parse(audio("0 101")))
    agreed = ours.accept(parse(audio("8 101", port=5000)))
    assert (agreed.codec.name, agreed.port) == ("PCMA", 5000)


@pytest.mark.parametrize(("early_keys", "keys"), [(True, False), (False, True)])
def test_another_answer_may_decline_the_keys_that_an_early_one_took(early_keys: bool, keys: bool) -> None:
    ours = negotiation(srtp="preferred")
    offered = parse(ours.offer())
    answers = [negotiation(srtp="optional" if each else "off").answer(offered) for each in (early_keys, keys)]
    ours.agreed = copy.copy(ours).accept(parse(answers[0]))
    assert bool(ours.agreed.send_crypto) is early_keys
    assert bool(ours.accept(parse(answers[1])).send_crypto) is keys


def test_another_codec_in_mid_call_and_old_packets_under_way_are_still_known() -> None:
    ours = negotiation()
    ours.answer(parse(audio("0 101")))
    body = ours.answer(parse(audio("8 97")))
    assert "m=audio 16384 RTP/AVP 8 97" in lines(body)
    agreed = ours.agreed
    assert agreed is not None and agreed.codec.name == "PCMA"
    assert {number: fmt.encoding for number, fmt in agreed.received_formats.items()} == {0: "PCMU", 8: "PCMA"}
    assert agreed.received_events == {101: 8000, 97: 8000}


def test_the_codec_of_the_session_comes_back_when_it_is_offered_again() -> None:
    """A call in G.722, hold music in PCMA, and the resume with all codecs."""
    ours = negotiation()
    ours.answer(parse(audio("9 101")))
    assert ours.agreed is not None
    ours.preferred = ours.agreed.codec
    for formats, answered in (("8", "8"), ("0 8", "8"), ("0 8 9 101", "9 101"), ("0 8", "0")):
        assert f"m=audio 16384 RTP/AVP {answered}" in lines(ours.answer(parse(audio(formats))))


def test_a_later_description_may_give_a_payload_type_another_meaning() -> None:
    ours = negotiation()
    ours.answer(parse(audio("107 102")))
    ours.answer(parse(audio("8 107", "a=rtpmap:107 telephone-event/8000\r\n")))
    assert ours.agreed is not None
    assert 107 not in ours.agreed.received_formats and ours.agreed.received_events[107] == 8000


def test_a_new_offer_in_mid_call_has_all_codecs_with_one_meaning_for_each_payload_type() -> None:
    """The answer to a re-INVITE without an offer: another party may take over the call."""
    ours = negotiation()
    theirs = "a=rtpmap:101 opus/48000/2\r\na=rtpmap:107 telephone-event/48000\r\n"
    ours.answer(parse(audio("101 107", theirs)))
    offered = parse(ours.offer()).media[0].codecs
    assert [codec.name for codec in offered][0] == "OPUS" and offered[0].payload_type == 101
    assert {codec.name for codec in offered} == {"OPUS", "PCMU", "PCMA", "G722", "CN", "TELEPHONE-EVENT"}
    numbers = [codec.payload_type for codec in offered]
    assert len(set(numbers)) == len(numbers)
    assert {codec.payload_type for codec in offered if codec.clock_hz == 48000} == {101, 107}
    agreed = ours.accept(parse(audio("8")))
    assert agreed.codec.name == "PCMA" and agreed.received_formats[101].encoding == "OPUS"


# --- descriptions that are not well-formed, but clear --------------------------------------------------------------

PLAIN = (
    "v=0\r\no=ann 42 7 IN IP4 192.0.2.4\r\ns=-\r\nc=IN IP4 192.0.2.4\r\nt=0 0\r\nm=audio 49170 RTP/AVP 0 107 101\r\n"
    "a=rtpmap:0 PCMU/8000\r\na=rtpmap:107 opus/48000/2\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n"
    "a=ptime:20\r\na=sendonly\r\n"
)

ODD = {
    "as it should be": PLAIN,
    "leading line breaks": "\r\n\r\n" + PLAIN,
    "byte order mark": "\ufeff" + PLAIN,
    "NUL at the end": PLAIN + "\0",
    "LF only": PLAIN.replace("\r\n", "\n"),
    "CR only": PLAIN.replace("\r\n", "\r"),
    "empty lines": PLAIN.replace("\r\n", "\r\n\r\n"),
    "no line break at the end": PLAIN.rstrip(),
    "spaces in the user name of o=": PLAIN.replace("o=ann", "o=Ann of the Front Desk"),
    "no user name in o=": PLAIN.replace("o=ann 42", "o=42"),
    "o= with words for numbers": PLAIN.replace("o=ann 42 7", "o=ann x y"),
    "o= with a name": PLAIN.replace("o=ann 42 7 IN IP4 192.0.2.4", "o=ann 42 7 IN IP4 pbx"),
    "no o=": PLAIN.replace("o=ann 42 7 IN IP4 192.0.2.4\r\n", ""),
    "no s=": PLAIN.replace("s=-\r\n", ""),
    "empty s=": PLAIN.replace("s=-", "s="),
    "no t=": PLAIN.replace("t=0 0\r\n", ""),
    "no c=": PLAIN.replace("c=IN IP4 192.0.2.4\r\n", ""),
    "c= in the media only": PLAIN.replace("c=IN IP4 192.0.2.4\r\n", "") + "c=IN IP4 192.0.2.4\r\n",
    "c= with spaces": PLAIN.replace("c=IN IP4 192.0.2.4", "c= IN  IP4\t192.0.2.4 "),
    "c= in lower case": PLAIN.replace("c=IN IP4", "c=in ip4"),
    "c= with a time to live": PLAIN.replace("c=IN IP4 192.0.2.4", "c=IN IP4 192.0.2.4/127"),
    "c= with the address alone": PLAIN.replace("c=IN IP4 192.0.2.4", "c=192.0.2.4"),
    "c= without an address, o= with one": PLAIN.replace("c=IN IP4 192.0.2.4", "c=IN IP4"),
    "spaces around the equals sign": PLAIN.replace("=", " = ", 12),
    "indented": PLAIN.replace("\r\n", "\r\n  "),
    "a line of another kind": PLAIN + "nonsense\r\nab=cd\r\n",
    "upper case": PLAIN.replace("a=", "A=").replace("sendonly", "SENDONLY").replace("rtpmap", "RTPMAP"),
    "codec names in odd case": PLAIN.replace("PCMU", "pcmu")
    .replace("opus", "Opus")
    .replace("telephone-", "Telephone-"),
    "profile in lower case": PLAIN.replace("RTP/AVP", "rtp/avp"),
    "many spaces in m=": PLAIN.replace("m=audio 49170 RTP/AVP 0 107", "m=audio  49170\tRTP/AVP  0   107"),
    "commas between the formats": PLAIN.replace("0 107 101", "0,107, 101"),
    "rtpmap with a semicolon": PLAIN.replace("PCMU/8000", "PCMU/8000;").replace("event/8000", "event/8000; "),
    "rtpmap without channels": PLAIN.replace("PCMU/8000", "PCMU/8000/0").replace("event/8000", "event/8000/"),
    "another name of the codec": PLAIN.replace("PCMU", "mu-law").replace("telephone-event", "telephone-events"),
    "a third name of the codec": PLAIN.replace("PCMU", "G.711u"),
    "unreadable formats": PLAIN.replace("107 101", "107 101 * 200 x"),
    "a number of ports": PLAIN.replace("49170 ", "49170/1 "),
    "spaces in rtpmap": PLAIN.replace("rtpmap:0 PCMU/8000", "rtpmap: 0  PCMU / 8000 ").replace(
        "rtpmap:107 ", "rtpmap:107\t\t"
    ),
    "spaces around the attribute's name": PLAIN.replace("a=rtpmap:", "a= rtpmap : "),
    "rtpmap with a channel": PLAIN.replace("PCMU/8000", "PCMU/8000/1"),
    "rtpmap with an odd channel": PLAIN.replace("PCMU/8000", "PCMU/8000/mono"),
    "rtpmap without a clock": PLAIN.replace("PCMU/8000", "PCMU").replace("event/8000", "event"),
    "no rtpmap for a static type": PLAIN.replace("a=rtpmap:0 PCMU/8000\r\n", ""),
    "opus without channels": PLAIN.replace("opus/48000/2", "opus/48000"),
    "opus with one channel": PLAIN.replace("opus/48000/2", "OPUS/48000/1"),
    "opus with another clock": PLAIN.replace("opus/48000/2", "opus/16000/2"),
    "unreadable ptime and rtcp": PLAIN.replace("ptime:20", "ptime:20.0") + "a=rtcp:x\r\na=rtcp:\r\na=maxptime:\r\n",
    "two addresses, one of each family": PLAIN.replace("c=IN IP4", "c=IN IP6 2001:db8::4\r\nc=IN IP4"),
    "two addresses in the media": PLAIN + "c=IN IP6 2001:db8::4\r\nc=IN IP4 192.0.2.4\r\n",
    "rtpmap with more after it": PLAIN.replace("PCMU/8000", "PCMU/8000 (G.711)").replace(
        "event/8000", "event/8000 0-15"
    ),
    "attributes before the media": PLAIN.replace("t=0 0\r\n", "t=0 0\r\na=foo\r\na=bar:baz\r\n"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_description_with_a_clear_meaning_is_read(case: str) -> None:
    (media,) = parse(ODD[case].encode()).media
    assert "192.0.2.4" in (media.host, *media.other_hosts)
    found = [(codec.payload_type, codec.name, codec.clock_hz, codec.channels) for codec in media.codecs]
    assert found == [(0, "PCMU", 8000, 1), (107, "OPUS", 48000, 2), (101, "TELEPHONE-EVENT", 8000, 1)]
    assert (media.kind, media.port, media.direction) == ("audio", 49170, Direction.SENDONLY)
    ours = negotiation()
    assert b"m=audio 16384 " in ours.answer(parse(ODD[case].encode()))
    assert ours.agreed is not None and ours.agreed.host == "192.0.2.4"
    assert ours.agreed is not None and ours.agreed.on_hold and ours.agreed.codec.name == "PCMU"


@pytest.mark.parametrize("rtpmap", ["G722/8000", "G722/16000", "g722/16000/1", "G722"])
def test_g722_has_one_clock_whatever_is_written(rtpmap: str) -> None:
    for number in (9, 96):
        (media,) = parse(described(f"m=audio 9 RTP/AVP {number}\na=rtpmap:{number} {rtpmap}")).media
        assert media.codecs == (Codec(number, "G722", 8000),)


HOLDS = {
    "sendonly": ("a=sendonly", Direction.RECVONLY),
    "inactive": ("a=inactive", Direction.INACTIVE),
    "no address": ("c=IN IP4 0.0.0.0", Direction.RECVONLY),
    "no address and sendonly": ("c=IN IP4 0.0.0.0\r\na=sendonly", Direction.RECVONLY),
    "no address and inactive": ("c=IN IP4 0.0.0.0\r\na=inactive", Direction.INACTIVE),
    "no IPv6 address": ("c=IN IP6 ::", Direction.RECVONLY),
}


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("resume", ["", "a=sendrecv", "a=recvonly"])
def test_hold_and_resume_in_every_form(hold: str, resume: str) -> None:
    """RFC 3264 section 8.4, and RFC 2543's address of zeros."""
    lines_of, direction = HOLDS[hold]
    ours = negotiation()
    ours.answer(parse(described(G711)))
    assert f"a={direction.value}" in lines(ours.answer(parse(described(G711 + lines_of))))
    assert ours.agreed is not None and ours.agreed.on_hold
    ours.answer(parse(described(G711 + resume)))
    assert not ours.agreed.on_hold and (ours.agreed.host, ours.agreed.port) == ("192.0.2.4", 49170)
    # The description of the session counts too.
    ours.answer(parse(described(G711, "c=IN IP4 192.0.2.4\r\na=inactive")))
    assert ours.agreed.on_hold


@pytest.mark.parametrize(
    ("others", "answered"),
    [
        ("m=video 9000 RTP/AVP 99\r\na=rtpmap:99 H264/90000\r\n", ["m=video 0 RTP/AVP 99"]),
        ("m=image 9000 udptl t38\r\na=T38FaxVersion:0\r\n", ["m=image 0 udptl t38"]),
        (
            "m=application 9 UDP/BFCP *\r\nm=text 9 RTP/AVP 98\r\n",
            ["m=application 0 UDP/BFCP *", "m=text 0 RTP/AVP 98"],
        ),
        ("m=audio 0 RTP/AVP 0\r\n", ["m=audio 0 RTP/AVP 0"]),
        ("m=video 0 RTP/AVP\r\n", ["m=video 0 RTP/AVP 0"]),
        ("m=audio 0 RTP/AVP\r\n", ["m=audio 0 RTP/AVP 0"]),
        ("m=image 0 udptl\r\n", ["m=image 0 udptl 0"]),
        ("m=video 0 RTP/AVP 255\r\nc=IN IP4 x\r\n", ["m=video 0 RTP/AVP 255"]),
        ("m=video 99999 RTP/AVP 96\r\nm=application -1 x *\r\n", ["m=video 0 RTP/AVP 96", "m=application 0 x *"]),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_other_media_are_refused_and_the_audio_is_not_harmed(others: str, answered: list[str], before: bool) -> None:
    """RFC 3264 section 6: one section in the answer for each one of the offer, in the same order."""
    ours = negotiation()
    ours.answer(parse(described(G711)))
    body = ours.answer(parse(described(others + G711 if before else G711 + others)))
    sections = [line for line in lines(body) if line.startswith("m=")]
    audio_section = ["m=audio 16384 RTP/AVP 0 101"]
    assert sections == (answered + audio_section if before else audio_section + answered)


def test_fax_alone_is_refused_and_the_call_continues() -> None:
    ours = negotiation()
    ours.answer(parse(described(G711)))
    before = ours.agreed
    for media in ("m=image 9000 udptl t38\r\n", "m=audio 0 RTP/AVP 0\r\nm=image 9000 udptl t38\r\n"):
        with pytest.raises(NotAcceptable, match="image"):
            ours.answer(parse(described(media)))
        assert ours.agreed is before


@pytest.mark.parametrize(
    ("line", "is_used"),
    [
        ("AES_CM_128_HMAC_SHA1_80 inline:{key}|2^31 WSH=128", True),
        ("AES_CM_128_HMAC_SHA1_80 inline:{key} KDR=0 -x=y", True),
        ("aes_cm_128_hmac_sha1_80 inline:{key}", True),
        ("AES_CM_128_HMAC_SHA1_80 inline:{key} UNENCRYPTED_SRTP", False),
        ("AES_CM_128_HMAC_SHA1_80 inline:{key} KDR=24", False),
        ("AES_CM_128_HMAC_SHA1_80 inline:{key}|2^31|1:1", False),
    ],
)
def test_a_key_is_used_unless_its_parameters_change_the_packets(line: str, is_used: bool) -> None:
    """RFC 4568 section 6.3."""
    media = parse(described(f"m=audio 9 RTP/SAVP 0\r\na=crypto:1 {line.format(key='A' * 40)}\r\n")).media[0]
    assert [crypto.suite for crypto in media.cryptos] == (["AES_CM_128_HMAC_SHA1_80"] if is_used else [])
