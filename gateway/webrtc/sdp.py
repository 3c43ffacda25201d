"""Reads and answers a browser's offer (RFC 8866, RFC 9429): one audio stream, one data channel, one transport."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiortc import RTCIceCandidate, RTCIceParameters, RTCRtpCodecParameters, RTCRtpParameters
from aiortc.rtcdtlstransport import RTCDtlsFingerprint, RTCDtlsParameters
from aiortc.rtcsctptransport import RTCSctpCapabilities
from aiortc.sdp import (
    GroupDescription,
    MediaDescription,
    SessionDescription,
    SsrcDescription,
    candidate_from_sdp,
    candidate_to_sdp,
    grouplines,
)

from gateway.errors import ProtocolError
from gateway.seams.plain_text import plain_lines
from voicecodecs.registry import AudioFormat

MAX_BYTES = 64_000
MAX_LINES = 700
"""Most lines of an offer. A browser's offer of audio, video and data has about 300. The parser takes quadratic time for
some lines."""

MAX_CANDIDATES = 32
"""Most remote candidates of one call. Each causes checks to an address that the peer names."""

_INBOUND_OPUS_HZ = 24_000
"""Rate to which callers' Opus is decoded. Opus decodes to any of its rates, and no consumer needs more than 24 kHz."""

_ICE_TEXT = re.compile(r"[A-Za-z0-9+/]{4,256}")
_DIRECTIONS = {"sendrecv": "sendrecv", "recvonly": "sendonly", "sendonly": "recvonly"}
_PAUSED = {"inactive": "inactive"}
_STATIC = {0: "PCMU", 8: "PCMA"}  # RFC 3551 table 4: these need no rtpmap


@dataclass(frozen=True, slots=True)
class WebRtcCodec:
    """A codec of both sides."""

    encoding: str
    payload_type: int
    event_type: int | None
    """Payload type of telephone-event. None: the peer does not offer it."""
    event_hz: int = 8000
    """Clock of telephone-event: the codec's (RFC 4733 section 2.1), else the 8000 Hz that Firefox offers with Opus."""

    @property
    def outbound(self) -> AudioFormat:
        """The format of sent audio: Opus encoded from 48 kHz mono, or G.711."""
        return AudioFormat("OPUS", 48_000) if self.encoding == "OPUS" else AudioFormat(self.encoding)

    @property
    def inbound(self) -> AudioFormat:
        """The format to which received audio is decoded."""
        return AudioFormat("OPUS", _INBOUND_OPUS_HZ) if self.encoding == "OPUS" else AudioFormat(self.encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The parts of an offer that are used."""

    media: Sequence[MediaDescription]
    audio: int
    """Index of the chosen audio section."""
    channel: int | None
    """Index of the data channel section. None: there is none on the same transport, or it is not wanted."""
    transport: int
    """Index of the section whose ICE and DTLS parameters carry the call: the tagged section of the BUNDLE group, else
    the audio section. It is accepted; media other than the chosen audio as inactive."""
    bundled: bool
    """True if the audio section is in a BUNDLE group. An answer must not have a group that was not offered."""
    codecs: Sequence[WebRtcCodec]
    """The codecs of both sides, in the peer's order; never empty."""
    direction: str
    """Our direction: sendrecv, sendonly or recvonly."""
    dtls_role: str
    """Our DTLS role: client or server."""
    candidates: Sequence[RTCIceCandidate]

    ice: RTCIceParameters
    """The peer's user fragment and password."""
    dtls: RTCDtlsParameters
    """The fingerprints that the peer's certificate must match."""
    session: str
    """User name and session id of the o= line: the same in all offers of a peer connection (RFC 9429 section 5.2.2)."""
    version: int
    """Version of the o= line. It grows with each offer of a peer connection."""

    @property
    def taken(self) -> list[int]:
        """Indices of the accepted sections, the one of the transport first."""
        used = [self.transport, self.audio, *([] if self.channel is None else [self.channel])]
        return list(dict.fromkeys(used))

    def continues(self, earlier: Offer) -> bool:
        """Return True for a further offer of the same peer connection: it expects that DTLS continues.

        The certificate alone does not tell, because a page may give the same one to several connections. With the same
        ICE credentials it is a renegotiation, with others an ICE restart.
        """
        if _fingerprints(self.dtls) != _fingerprints(earlier.dtls):
            return False
        return self.ice == earlier.ice or (self.session == earlier.session and self.version > earlier.version)

    def replaces(self, other: Offer) -> bool:
        """Return True if another offer of the same peer connection is an older one, which came late."""
        return (
            _fingerprints(self.dtls) == _fingerprints(other.dtls)
            and self.session == other.session
            and self.version > other.version
        )


def _fingerprints(dtls: RTCDtlsParameters) -> set[tuple[str, str]]:
    return {(each.algorithm.lower(), each.value.upper()) for each in dtls.fingerprints}


def _bad(message: str) -> ProtocolError:
    return ProtocolError(message, field="sdp", code="invalid_sdp")


def read_offer(text: str, *, channel: bool = True, again: bool = False) -> Offer:
    """Read and check an offer.

    Args:
        channel: False: an offered data channel is refused.
        again: True: the offer is for a call that exists, so its audio may be inactive for a while.

    Raises:
        ProtocolError: the offer is invalid. Nothing else is raised for any input.
    """
    text = plain_lines(text)
    # Count lines as the parser does: they also end at a lone CR, a form feed or a line separator.
    lines = len(text[: MAX_BYTES + 1].splitlines())
    if len(text) > MAX_BYTES or lines > MAX_LINES:
        raise _bad(f"SDP is {len(text)} characters in {lines} lines, expected at most {MAX_BYTES} in {MAX_LINES}")
    if not text.startswith("v=0"):
        raise _bad(f"SDP of {len(text)} characters does not start with v=0")
    try:
        description = SessionDescription.parse(text)
    except Exception as exc:  # the parser indexes, asserts and converts, so any error means a bad offer
        raise _bad(f"SDP of {len(text)} characters cannot be read: {type(exc).__name__} {str(exc)[:80]}") from exc
    media = description.media
    groups = [group.items for group in description.group if group.semantic == "BUNDLE"]
    bundles = [next((mids for mids in groups if m.rtp.muxId and m.rtp.muxId in mids), []) for m in media]
    # A section of a group with bundle-only has port 0 but is offered (RFC 9143 section 6).
    offered = [
        bool(m.port) or (bool(mids) and "a=bundle-only" in lines)
        for m, mids, lines in zip(media, bundles, grouplines(text)[1], strict=True)
    ]
    audio = _choose_audio(media, offered, paused=again)
    section = media[audio]
    codecs = _codecs(section)
    mids = bundles[audio]
    data = next(
        (
            i for i, m in enumerate(media)
            if channel and offered[i] and m.kind == "application" and m.sctp_port and m.rtp.muxId in mids
        ),
        None,
    )  # fmt: skip
    transport = _choose_transport(media, mids, audio)
    carrier = media[transport]
    # Only the tagged section needs a=rtcp-mux (RFC 8829 section 5.2.1), and one of data has none.
    if not (section.rtcp_mux or carrier.rtcp_mux or carrier.kind == "application"):
        raise _bad("SDP offers audio without a=rtcp-mux")
    if carrier.dtls is None or not any(f.algorithm.lower() == "sha-256" for f in carrier.dtls.fingerprints):
        raise _bad("SDP offers audio without a=setup and a=fingerprint:sha-256")
    ice = carrier.ice
    if ice is None or not _are_credentials(ice.usernameFragment, ice.password):
        raise _bad("SDP offers audio without a=ice-ufrag (4 to 256 characters) and a=ice-pwd (22 to 256)")
    if len(carrier.ice_candidates) > MAX_CANDIDATES:
        raise _bad(f"SDP has {len(carrier.ice_candidates)} candidates, expected at most {MAX_CANDIDATES}")
    session, version = _origin(description.origin or "")
    return Offer(
        media=media,
        audio=audio,
        channel=data,
        transport=transport,
        bundled=bool(mids),
        codecs=codecs,
        direction=(_DIRECTIONS | _PAUSED)[section.direction or "sendrecv"],
        dtls_role="server" if carrier.dtls.role == "client" else "client",
        candidates=carrier.ice_candidates,
        ice=ice,
        dtls=carrier.dtls,
        session=session,
        version=version,
    )


def _origin(text: str) -> tuple[str, int]:
    """Return the session and the version of an o= line (RFC 8866 section 5.2). What cannot be read is 0."""
    name, session, version = (*text.split(), "", "", "")[:3]
    return f"{name} {session}", int(version) if version.isascii() and version.isdecimal() else 0


def _choose_audio(media: Sequence[MediaDescription], offered: Sequence[bool], *, paused: bool) -> int:
    """Return the index of the first audio section that can be taken.

    Args:
        paused: True: without any other, an inactive section is taken.

    Raises:
        ProtocolError: there is none. It tells the fault of the first.
    """
    fault: ProtocolError | None = None
    inactive: int | None = None
    for index, section in enumerate(media):
        if section.kind != "audio" or not offered[index] or "SAVPF" not in section.profile:
            continue
        if not _codecs(section):
            names = ", ".join(str(codec) for codec in section.rtp.codecs[:12]) or f"payload types {section.fmt[:12]}"
            fault = fault or ProtocolError(
                f"SDP offers audio as {names}, expected opus/48000/2, PCMU/8000 or PCMA/8000",
                field="sdp", code="no_common_codec",
            )  # fmt: skip
        elif paused and section.direction in _PAUSED:
            inactive = index if inactive is None else inactive
        elif (section.direction or "sendrecv") not in _DIRECTIONS:
            fault = fault or _bad(f"SDP offers audio as {section.direction}, expected sendrecv, sendonly or recvonly")
        else:
            return index
    if inactive is not None:
        return inactive
    if fault is None:
        kinds = ", ".join(f"{m.kind} {m.profile}" for m in media[:8]) or "nothing"
        fault = _bad(f"SDP offers {kinds}, expected an audio section of UDP/TLS/RTP/SAVPF")
    raise fault


def _choose_transport(media: Sequence[MediaDescription], mids: Sequence[int | str], audio: int) -> int:
    """Return the index of the section that carries the transport of the audio.

    In a BUNDLE group that is the tagged section: the first with a port (RFC 9143 section 7.3.1). It is
    accepted, whatever its kind: a peer with max-bundle has no other transport. Chromium marks its sections
    alike with every policy, and fails if the answer refuses the tagged section.
    """
    index_of = {m.rtp.muxId: i for i, m in reversed(list(enumerate(media)))}
    for index in (index_of[mid] for mid in mids if mid in index_of):
        section = media[index]
        known = section.sctp_port if section.kind == "application" else "SAVPF" in section.profile
        if section.port and known and section.dtls and section.ice and section.ice.usernameFragment:
            return index
    return audio


def _codecs(section: MediaDescription) -> list[WebRtcCodec]:
    names = {pt: (name, 8000, 1) for pt, name in _STATIC.items()}
    for codec in section.rtp.codecs:
        assert codec.payloadType is not None
        names[codec.payloadType] = (codec.name.upper(), codec.clockRate, codec.channels or 1)
    offered = [(pt, *names[pt]) for pt in section.fmt if pt in names]
    events = {clock: pt for pt, name, clock, _ in reversed(offered) if name == "TELEPHONE-EVENT"}
    known = {("OPUS", 48_000, 2), ("PCMU", 8000, 1), ("PCMA", 8000, 1)}
    return [
        WebRtcCodec(name, pt, events.get(event_hz), event_hz)
        for pt, name, clock, channels in offered
        if (name, clock, channels) in known
        for event_hz in (clock if clock in events else 8000,)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fragment:
    """An SDP fragment of a peer: more candidates, or an ICE restart."""

    user: str
    """The user fragment of the ICE session. Empty: not given."""
    password: str
    candidates: Sequence[RTCIceCandidate]


def read_fragment(text: str) -> Fragment:
    """Read trickled candidates or the credentials of an ICE restart (RFC 8840 section 9, RFC 9725 section 4.3).

    All sections of a bundle have the same credentials, so the first ones are taken.

    Raises:
        ProtocolError: the fragment is invalid. Nothing else is raised.
    """
    if len(text) > MAX_BYTES:
        raise _bad(f"SDP fragment is {len(text)} characters, expected at most {MAX_BYTES}")
    user, password, candidates = "", "", []
    for line in plain_lines(text).splitlines():
        name, _, value = line.partition(":")
        if name == "a=ice-ufrag":
            user = user or value.strip()
        elif name == "a=ice-pwd":
            password = password or value.strip()
        elif name == "a=candidate":
            try:
                candidates.append(candidate_from_sdp(value))
            except (AssertionError, ValueError) as exc:
                raise _bad(f"SDP fragment has an unreadable candidate: {line[:80]!r}") from exc
        if len(candidates) > MAX_CANDIDATES:
            raise _bad(f"SDP fragment has over {MAX_CANDIDATES} candidates")
    if password and not _are_credentials(user, password):
        raise _bad("SDP fragment has an invalid a=ice-ufrag (4 to 256 characters) or a=ice-pwd (22 to 256)")
    return Fragment(user, password, candidates)


def _are_credentials(user: str | None, password: str | None) -> bool:
    """Return True if a user fragment and a password have the form of RFC 8839 section 5.4."""
    return bool(_ICE_TEXT.fullmatch(user or "")) and len(password or "") in range(22, 257)


def write_fragment(offer: Offer, *, candidates: Sequence[RTCIceCandidate], ice: RTCIceParameters) -> str:
    """Return the answer to an ICE restart by fragment: credentials and candidates of our side (RFC 9725 section 4.3.3).

    Args:
        offer: the offer whose transport restarts.
    """
    section = offer.media[offer.transport]
    lines = ["a=ice-options:trickle"]
    if offer.bundled:
        lines.append(f"a=group:BUNDLE {' '.join(str(offer.media[index].rtp.muxId) for index in offer.taken)}")
    lines += [f"m={section.kind} 9 {section.profile} {' '.join(str(each) for each in section.fmt)}"]
    if section.rtp.muxId:
        lines.append(f"a=mid:{section.rtp.muxId}")
    lines += [f"a=ice-ufrag:{ice.usernameFragment}", f"a=ice-pwd:{ice.password}"]
    lines += [f"a=candidate:{candidate_to_sdp(candidate)}" for candidate in candidates]
    return "\r\n".join([*lines, "a=end-of-candidates", ""])


def write_answer(
    offer: Offer,
    codec: WebRtcCodec,
    *,
    candidates: Sequence[RTCIceCandidate],
    ice: RTCIceParameters,
    fingerprints: Sequence[RTCDtlsFingerprint],
    ssrc: int,
    label: str,
    max_message_bytes: int,
    version: int = 1,
) -> str:
    """Return the answer to an offer. Sections that are not used are refused with port 0 (RFC 3264 section 6).

    The BUNDLE group holds the accepted sections, the one of the transport first (RFC 9143 section 7.3). Paused audio
    keeps its stream and SSRC, like Chromium's own answers. Without them Chromium forgets the stream, and a page that
    reads the track's samples hears silence after the pause.

    Args:
        candidates: all our candidates.
        label: name of the stream and the sender (CNAME).
        max_message_bytes: largest data channel message that we read.
        version: number of the answer within its connection.
    """
    description = SessionDescription()
    description.origin = f"- {ssrc} {version} IN IP4 0.0.0.0"
    taken = offer.taken
    for index, offered in enumerate(offer.media):
        mine = MediaDescription(offered.kind, 9, offered.profile, list(offered.fmt))
        mine.ice = RTCIceParameters()
        mine.host = "0.0.0.0"  # Firefox wants a c= line in refused sections too
        mine.rtp = RTCRtpParameters(muxId=offered.rtp.muxId)
        description.media.append(mine)
        if index not in taken:
            mine.port = 0
            mine.direction = "inactive" if offered.kind in ("audio", "video") else None
            continue
        mine.host = candidates[0].ip if candidates else mine.host
        mine.port = candidates[0].port if candidates else 9
        mine.ice = ice
        mine.ice_options = "trickle"
        mine.dtls = RTCDtlsParameters(fingerprints=list(fingerprints), role=offer.dtls_role)
        mine.ice_candidates = list(candidates)
        mine.ice_candidates_complete = True
        if offered.kind == "application":
            mine.sctp_port = 5000
            mine.sctpCapabilities = RTCSctpCapabilities(maxMessageSize=max_message_bytes)
            continue
        mine.rtcp_port, mine.rtcp_host, mine.rtcp_mux = 9, "0.0.0.0", True
        if index != offer.audio:
            mine.direction = "inactive"
            mine.fmt = offered.fmt[:1]
            mine.rtp.codecs = [
                replace(c, rtcpFeedback=[]) for c in offered.rtp.codecs if c.payloadType == offered.fmt[0]
            ]
            continue
        mine.direction = offer.direction
        mine.rtp.codecs = _answered(codec)
        mine.fmt = [c.payloadType for c in mine.rtp.codecs]
        mine.msid = f"{label} {label}"
        mine.ssrc = [SsrcDescription(ssrc=ssrc, cname=label)]
    if offer.bundled:
        description.group = [GroupDescription("BUNDLE", [offer.media[i].rtp.muxId for i in taken])]
    description.msid_semantic = [GroupDescription("WMS", ["*"])]
    return str(description)


def _answered(codec: WebRtcCodec) -> list[RTCRtpCodecParameters]:
    if codec.encoding == "OPUS":
        audio = RTCRtpCodecParameters(
            mimeType="audio/opus", clockRate=48_000, channels=2, payloadType=codec.payload_type,
            parameters={"minptime": 10, "useinbandfec": 1},
        )  # fmt: skip
    else:
        audio = RTCRtpCodecParameters(
            mimeType=f"audio/{codec.encoding}", clockRate=8000, channels=1, payloadType=codec.payload_type
        )
    if codec.event_type is None:
        return [audio]
    events = RTCRtpCodecParameters(
        mimeType="audio/telephone-event", clockRate=codec.event_hz, channels=1, payloadType=codec.event_type,
        parameters={"0-15": None},
    )  # fmt: skip
    return [audio, events]
