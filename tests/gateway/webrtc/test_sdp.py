"""Answers to a table of offers: any order of sections and any bundle policy, as Chromium and Firefox write them.

Offers with ports have the form of headless Chromium. Bundle-only sections have the form of RFC 8829 section 5.2.1 and
of Firefox, with and without transport attributes.
"""

from dataclasses import dataclass

import pytest
from aiortc import RTCIceCandidate, RTCIceParameters
from aiortc.rtcdtlstransport import RTCDtlsFingerprint

from gateway.errors import ProtocolError
from gateway.webrtc.sdp import Offer, read_offer, write_answer

OPUS = ("111 0 126", "opus/48000/2", "111")
G722 = ("9", "G722/8000", "9")
VP8 = ("96 97", "VP8/90000", "96")


@dataclass(frozen=True)
class Section:
    """One m= section of an offer. Its user fragment is its own, so that the chosen transport can be told."""

    mid: str
    kind: str = "audio"
    port: int = 9
    only: bool = False
    """True: a=bundle-only."""
    bare: bool = False
    """True: without transport attributes."""
    codec: tuple[str, str, str] = OPUS
    direction: str = "sendrecv"

    def __str__(self) -> str:
        lines = [f"m={self.kind} {self.port} "]
        if self.kind == "application":
            lines[0] += "UDP/DTLS/SCTP webrtc-datachannel"
        else:
            fmt, name, payload_type = self.codec
            lines[0] += f"UDP/TLS/RTP/SAVPF {fmt}"
        lines.append("c=IN IP4 0.0.0.0")
        if self.only:
            lines.append("a=bundle-only")
        if not self.bare:
            lines += [f"a=ice-ufrag:frag{self.mid}", "a=ice-pwd:6pXzXH0f1u9VbUkT2R3sQ4wE", "a=setup:actpass"]
            lines.append("a=fingerprint:sha-256 " + ":".join(["AB"] * 32))
        lines.append(f"a=mid:{self.mid}")
        if self.kind == "application":
            lines += ["a=sctp-port:5000", "a=max-message-size:262144"]
        else:
            lines += [f"a={self.direction}", f"a=rtpmap:{payload_type} {name}"]
            if not self.bare:
                lines.append("a=rtcp-mux")
        return "\r\n".join(lines) + "\r\n"


def audio(mid: str, **more: object) -> Section:
    return Section(mid, **more)  # type: ignore[arg-type]


def video(mid: str, **more: object) -> Section:
    return Section(mid, "video", codec=VP8, **more)  # type: ignore[arg-type]


def data(mid: str, **more: object) -> Section:
    return Section(mid, "application", **more)  # type: ignore[arg-type]


ONLY = {"port": 0, "only": True}
BARE = {"port": 0, "only": True, "bare": True}
Offered = tuple[list[Section], list[str], str, str]
"""Sections, BUNDLE groups, the mids of the answer's group in order, the mid of the audio that is taken."""

OFFERS: dict[str, Offered] = {
    "audio and data": ([audio("0"), data("1")], ["0 1"], "0 1", "0"),
    "audio alone": ([audio("0")], ["0"], "0", "0"),
    "no group": ([audio("0")], [], "", "0"),
    "no group, three kinds": ([video("0"), data("1"), audio("2")], [], "", "2"),
    "video first": ([video("0"), audio("1"), data("2")], ["0 1 2"], "0 1 2", "1"),
    "data first": ([data("0"), audio("1")], ["0 1"], "0 1", "1"),
    "data, video, audio": ([data("0"), video("1"), audio("2")], ["0 1 2"], "0 2", "2"),
    "video last": ([audio("a"), data("d"), video("v")], ["a d v"], "a d", "a"),
    "group in another order": ([video("0"), audio("1"), data("2")], ["2 1 0"], "2 1", "1"),
    "bundle-only data": ([audio("0"), data("1", **ONLY)], ["0 1"], "0 1", "0"),
    "bundle-only audio": ([video("0"), audio("1", **ONLY), data("2", **ONLY)], ["0 1 2"], "0 1 2", "1"),
    "bare bundle-only audio": ([video("0"), audio("1", **BARE), data("2", **BARE)], ["0 1 2"], "0 1 2", "1"),
    "bare bundle-only audio after data": ([data("0"), audio("1", **BARE), video("2", **BARE)], ["0 1 2"], "0 1", "1"),
    "bare audio with a port": ([video("0"), audio("1", bare=True)], ["0 1"], "0 1", "1"),
    "stopped video first": ([video("0", port=0), audio("1"), data("2")], ["0 1 2"], "1 2", "1"),
    "stopped video outside": ([video("0", port=0), audio("1"), data("2")], ["1 2"], "1 2", "1"),
    "stopped audio first": ([audio("0", port=0), audio("1"), data("2")], ["1 2"], "1 2", "1"),
    "stopped data": ([audio("0"), data("1", port=0)], ["0"], "0", "0"),
    "two audio": ([audio("0"), audio("1"), data("2")], ["0 1 2"], "0 2", "0"),
    "inactive audio first": ([audio("0", direction="inactive"), audio("1")], ["0 1"], "0 1", "1"),
    "audio without a common codec first": ([audio("0", codec=G722), audio("1")], ["0 1"], "0 1", "1"),
    "three audio": ([audio("0", codec=G722), audio("1", port=0), audio("2", **BARE)], ["0 2"], "0 2", "2"),
    "two groups": ([video("0"), video("1"), audio("2"), data("3")], ["0 1", "2 3"], "2 3", "2"),
    "data of another group": ([audio("0"), video("1"), data("2")], ["0", "1 2"], "0", "0"),
    "bundle-only data without its group": ([audio("0"), data("1", **ONLY)], ["0"], "0", "0"),
    "group names a missing section": ([video("0"), audio("1")], ["9 0 1"], "0 1", "1"),
}  # fmt: skip


def offer_of(sections: list[Section], groups: list[str]) -> str:
    lines = ["v=0", "o=- 4611731400430051336 2 IN IP4 127.0.0.1", "s=-", "t=0 0"]
    lines += [f"a=group:BUNDLE {group}" for group in groups]
    return "\r\n".join(lines) + "\r\n" + "".join(map(str, sections))


def answer_of(text: str, *, channel: bool = True, again: bool = False) -> tuple[str, list[list[str]]]:
    """Return the answer's BUNDLE group (empty: none) and the lines of each section."""
    offer = read_offer(text, channel=channel, again=again)
    answer = write_answer(
        offer, offer.codecs[0],
        candidates=[RTCIceCandidate(1, "1", "192.0.2.1", 4000, 1, "udp", "host")],
        ice=RTCIceParameters(usernameFragment="ours", password="x" * 22),
        fingerprints=[RTCDtlsFingerprint("sha-256", "AA")],
        ssrc=7, label="x", max_message_bytes=1000,
    )  # fmt: skip
    head, *rest = answer.split("m=")
    groups = [line for line in head.splitlines() if line.startswith("a=group:BUNDLE")]
    assert len(groups) <= 1
    return "".join(groups).removeprefix("a=group:BUNDLE").strip(), [section.splitlines() for section in rest]


@pytest.mark.parametrize(("sections", "groups", "taken", "speaks"), OFFERS.values(), ids=OFFERS)
def test_the_answer_is_valid_for(sections: list[Section], groups: list[str], taken: str, speaks: str) -> None:
    text = offer_of(sections, groups)
    offer = read_offer(text)
    group, answered = answer_of(text)
    assert group == taken
    accepted = taken.split() or [speaks]
    assert offer.ice.usernameFragment == f"frag{accepted[0]}"  # the tagged section's transport is used
    assert len(answered) == len(sections)  # each section keeps its place, kind, profile and mid
    for asked, lines in zip(sections, answered, strict=True):
        kind, port, profile, *_ = lines[0].split()
        assert (kind, profile) == (asked.kind, str(asked).split()[2])
        assert f"a=mid:{asked.mid}" in lines
        assert (port != "0") == (asked.mid in accepted)
        assert not any("bundle-only" in line for line in lines)  # RFC 9143 section 6: offers only
        if port == "0":
            assert not any(line.startswith(("a=ice-", "a=candidate", "a=fingerprint")) for line in lines)
            continue
        assert {"a=ice-ufrag:ours", "a=setup:active", "a=fingerprint:sha-256 AA"} <= set(lines)
        if kind == "application":
            assert "a=sctp-port:5000" in lines
        else:
            assert "a=rtcp-mux" in lines
            assert ("a=inactive" in lines) == (asked.mid != speaks)
            assert ("a=ssrc:7 cname:x" in lines) == (asked.mid == speaks)
            assert set(lines[0].split()[3:]) <= set(asked.codec[0].split())
            assert any(line.startswith(f"a=rtpmap:{lines[0].split()[3]} ") for line in lines)


@pytest.mark.parametrize(
    ("sections", "groups"),
    [
        ([video("0"), audio("1", **ONLY)], []),
        ([video("0"), audio("1", **ONLY)], ["0"]),
        ([video("0", port=0), audio("1", **BARE)], ["0 1"]),  # no section has a transport
        ([video("0"), audio("1", port=0)], ["0 1"]),
        ([video("0"), data("1")], ["0 1"]),
        ([audio("0", direction="inactive")], ["0"]),
        ([video("0", bare=True), audio("1", bare=True)], ["0 1"]),
    ],
)
def test_an_offer_without_audio_or_transport_is_refused(sections: list[Section], groups: list[str]) -> None:
    with pytest.raises(ProtocolError):
        read_offer(offer_of(sections, groups))


def test_an_unwanted_data_channel_is_refused_unless_it_carries_the_transport() -> None:
    group, answered = answer_of(offer_of([audio("0"), data("1")], ["0 1"]), channel=False)
    assert group == "0" and answered[1][0].startswith("application 0 ")
    group, answered = answer_of(offer_of([data("0"), audio("1", **BARE)], ["0 1"]), channel=False)
    assert group == "0 1" and not answered[0][0].startswith("application 0 ")


def test_transport_attributes_of_the_session_serve_every_section() -> None:
    """Firefox writes the fingerprint once, for the session (RFC 8839 allows the same of ICE)."""
    session = "a=fingerprint:sha-256 " + ":".join(["AB"] * 32) + "\r\na=setup:actpass\r\n"
    session += "a=ice-ufrag:frag\r\na=ice-pwd:6pXzXH0f1u9VbUkT2R3sQ4wE\r\n"
    text = offer_of([video("0", bare=True), audio("1", **BARE)], ["0 1"]).replace("t=0 0\r\n", "t=0 0\r\n" + session)
    text = text.replace("a=mid:0\r\n", "a=mid:0\r\na=rtcp-mux\r\n")
    assert answer_of(text)[0] == "0 1"


ORIGINAL = {"ufrag": "frag", "session": "7", "version": 2, "print": "AB"}


@pytest.mark.parametrize(
    ("change", "continues"),
    [
        ({}, True),  # repeated
        ({"version": 3}, True),  # renegotiation
        ({"ufrag": "next", "version": 3}, True),  # ICE restart
        ({"session": "8", "version": 3}, True),  # aiortc's renegotiation: each offer has a session of its own
        ({"ufrag": "next", "session": "8", "version": 3}, False),  # a new connection with the same certificate
        ({"ufrag": "next"}, False),  # a device that began again, whose o= line is always the same
        ({"ufrag": "next", "version": 1}, False),  # a late one
        ({"ufrag": "next", "version": "x"}, False),
        ({"ufrag": "next", "version": 3, "print": "CD"}, False),
        ({"version": 3, "print": "CD"}, False),
    ],
)
def test_a_further_offer_of_a_connection_is_known_by_certificate_and_session(
    change: dict[str, object], continues: bool
) -> None:
    def offer(ufrag: str, session: str, version: object, print: str) -> Offer:
        text = f"v=0\r\no=- {session} {version} IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n{audio('0')}"
        return read_offer(text.replace("frag0", ufrag).replace("AB", print))

    assert offer(**(ORIGINAL | change)).continues(offer(**ORIGINAL)) is continues  # type: ignore[arg-type]


def test_only_a_call_that_exists_may_offer_inactive_audio() -> None:
    text = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"
    paused = text + str(audio("0", direction="inactive"))
    with pytest.raises(ProtocolError, match="inactive"):
        read_offer(paused)
    assert read_offer(paused, again=True).direction == "inactive"
    assert read_offer(paused + str(audio("1")), again=True).audio == 1


@pytest.mark.parametrize("direction", ["inactive", "sendonly", "recvonly"])
def test_paused_audio_keeps_its_stream(direction: str) -> None:
    _, (lines,) = answer_of(offer_of([audio("0", direction=direction)], ["0"]), again=True)
    assert {"a=ssrc:7 cname:x", "a=msid:x x"} <= set(lines)
