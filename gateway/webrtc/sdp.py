"""Reads and answers a browser's offer (RFC 8866, RFC 9429): one audio stream, one data channel, one transport."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiortc import RTCIceCandidate, RTCIceParameters, RTCRtpCodecParameters, RTCRtpParameters
from aiortc.rtcdtlstransport import RTCDtlsFingerprint, RTCDtlsParameters
from aiortc.rtcsctptransport import RTCSctpCapabilities
from aiortc.sdp import (
    GroupDescription,
    MediaDescription,
    SessionDescription,
    SsrcDescription,
    candidate_from_sdp,
    grouplines,
)

from gateway.errors import ProtocolError
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
    """Index of the data channel section. None: there is none on the same transport."""
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


def _bad(message: str) -> ProtocolError:
    return ProtocolError(message, field="sdp", code="invalid_sdp")


def read_offer(text: str) -> Offer:
    """Read and check an offer.

    Raises:
        ProtocolError: the offer is invalid. Nothing else is raised for any input.
    """
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
    audio = next((i for i, m in enumerate(media) if m.kind == "audio" and m.port and "SAVPF" in m.profile), None)
    if audio is None:
        kinds = ", ".join(f"{m.kind} {m.profile}" for m in media[:8]) or "nothing"
        raise _bad(f"SDP offers {kinds}, expected an audio section of UDP/TLS/RTP/SAVPF")
    section = media[audio]
    codecs = _codecs(section)
    if not codecs:
        names = ", ".join(str(codec) for codec in section.rtp.codecs[:12]) or f"payload types {section.fmt[:12]}"
        raise ProtocolError(
            f"SDP offers audio as {names}, expected opus/48000/2, PCMU/8000 or PCMA/8000",
            field="sdp", code="no_common_codec",
        )  # fmt: skip
    direction = _DIRECTIONS.get(section.direction or "sendrecv")
    if direction is None:
        raise _bad(f"SDP offers audio as {section.direction}, expected sendrecv, sendonly or recvonly")
    if not section.rtcp_mux:
        raise _bad("SDP offers audio without a=rtcp-mux")
    if section.dtls is None or not any(f.algorithm.lower() == "sha-256" for f in section.dtls.fingerprints):
        raise _bad("SDP offers audio without a=setup and a=fingerprint:sha-256")
    ice = section.ice
    if (
        ice is None
        or not _ICE_TEXT.fullmatch(ice.usernameFragment or "")
        or len(ice.password or "") not in range(22, 257)
    ):
        raise _bad("SDP offers audio without a=ice-ufrag (4 to 256 characters) and a=ice-pwd (22 to 256)")
    if len(section.ice_candidates) > MAX_CANDIDATES:
        raise _bad(f"SDP has {len(section.ice_candidates)} candidates, expected at most {MAX_CANDIDATES}")
    bundled = next((group.items for group in description.group if group.semantic == "BUNDLE"), [])
    # A section with bundle-only has port 0 too (RFC 9143 section 6), but it is offered.
    sections = grouplines(text)[1]
    channel = next(
        (
            i for i, m in enumerate(media)
            if m.kind == "application" and (m.port or "a=bundle-only" in sections[i])
            and m.sctp_port and {m.rtp.muxId, section.rtp.muxId} <= set(bundled)
        ),
        None,
    )  # fmt: skip
    return Offer(
        media=media,
        audio=audio,
        channel=channel,
        bundled=section.rtp.muxId in bundled,
        codecs=codecs,
        direction=direction,
        dtls_role="server" if section.dtls.role == "client" else "client",
        candidates=section.ice_candidates,
        ice=ice,
        dtls=section.dtls,
    )


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


def read_fragment(text: str) -> tuple[str, list[RTCIceCandidate]]:
    """Read trickled candidates (RFC 8840). Return their user fragment (empty: not given) and the candidates.

    Raises:
        ProtocolError: the fragment is invalid. Nothing else is raised.
    """
    if len(text) > MAX_BYTES:
        raise _bad(f"SDP fragment is {len(text)} characters, expected at most {MAX_BYTES}")
    fragment, candidates = "", []
    for line in text.splitlines():
        if line.startswith("a=ice-ufrag:"):
            fragment = line.partition(":")[2].strip()
        elif line.startswith("a=candidate:"):
            try:
                candidates.append(candidate_from_sdp(line.partition(":")[2]))
            except (AssertionError, ValueError) as exc:
                raise _bad(f"SDP fragment has an unreadable candidate: {line[:80]!r}") from exc
        if len(candidates) > MAX_CANDIDATES:
            raise _bad(f"SDP fragment has over {MAX_CANDIDATES} candidates")
    return fragment, candidates


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
    channel: bool,
) -> str:
    """Return the answer to an offer. Sections that are not used are refused with port 0 (RFC 3264 section 6).

    Args:
        candidates: all our candidates.
        label: name of the stream and the sender (CNAME).
        max_message_bytes: largest data channel message that we read.
        channel: True: accept the offered data channel.
    """
    description = SessionDescription()
    description.origin = f"- {ssrc} 1 IN IP4 0.0.0.0"
    taken: list[int | str] = []
    for index, offered in enumerate(offer.media):
        mine = MediaDescription(offered.kind, 9, offered.profile, list(offered.fmt))
        mine.ice = RTCIceParameters()
        mine.host = "0.0.0.0"  # Firefox wants a c= line in refused sections too
        mine.rtp = RTCRtpParameters(muxId=offered.rtp.muxId)
        description.media.append(mine)
        is_audio = index == offer.audio
        if not is_audio and not (channel and index == offer.channel):
            mine.port = 0
            mine.direction = "inactive" if offered.kind in ("audio", "video") else None
            continue
        taken.append(offered.rtp.muxId)
        mine.host = candidates[0].ip if candidates else mine.host
        mine.port = candidates[0].port if candidates else 9
        mine.ice = ice
        mine.ice_options = "trickle"
        mine.dtls = RTCDtlsParameters(fingerprints=list(fingerprints), role=offer.dtls_role)
        mine.ice_candidates = list(candidates)
        mine.ice_candidates_complete = True
        if is_audio:
            mine.direction = offer.direction
            mine.rtcp_port, mine.rtcp_host, mine.rtcp_mux = 9, "0.0.0.0", True
            mine.rtp.codecs = _answered(codec)
            mine.fmt = [c.payloadType for c in mine.rtp.codecs]
            if "send" in offer.direction:
                mine.msid = f"{label} {label}"
                mine.ssrc = [SsrcDescription(ssrc=ssrc, cname=label)]
        else:
            mine.sctp_port = 5000
            mine.sctpCapabilities = RTCSctpCapabilities(maxMessageSize=max_message_bytes)
    if offer.bundled:
        description.group = [GroupDescription("BUNDLE", taken)]
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
