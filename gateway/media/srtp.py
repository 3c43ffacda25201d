"""Encryption of RTP and RTCP (RFC 3711, RFC 7714) with libsrtp, with one error type. Pure."""

from __future__ import annotations

from collections.abc import Callable

import pylibsrtp

from gateway.errors import ProtocolError

_PROFILES = {
    "AES_CM_128_HMAC_SHA1_80": pylibsrtp.Policy.SRTP_PROFILE_AES128_CM_SHA1_80,
    "AES_CM_128_HMAC_SHA1_32": pylibsrtp.Policy.SRTP_PROFILE_AES128_CM_SHA1_32,
    "AEAD_AES_128_GCM": pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_128_GCM,
    "AEAD_AES_256_GCM": pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM,
}
"""libsrtp's profiles by the names of RFC 4568 and RFC 7714."""


class Srtp:
    """Both directions of one leg. A new key begins a new count of packets; see ``keep``.

    Args:
        outgoing, incoming: libsrtp's sessions with their keys, from a DTLS handshake or from ``keyed``.
    """

    def __init__(self, outgoing: pylibsrtp.Session, incoming: pylibsrtp.Session) -> None:
        self._out = outgoing
        self._in = incoming

    @classmethod
    def keyed(cls, suite: str, *, send_key: bytes, receive_key: bytes) -> Srtp:
        """Return both directions with keys from the signalling (RFC 4568).

        Args:
            suite: a name of RFC 4568 section 6.2 or RFC 7714 section 14.
            send_key, receive_key: master key and salt of each direction.

        Raises:
            ValueError: the suite is unknown, or a key is too short for it.
        """
        if suite not in _PROFILES:
            raise ValueError(f"SRTP suite is {suite!r}, expected one of {', '.join(_PROFILES)}")
        profile = _PROFILES[suite]
        policy = pylibsrtp.Policy
        return cls(
            pylibsrtp.Session(policy(key=send_key, ssrc_type=policy.SSRC_ANY_OUTBOUND, srtp_profile=profile)),
            pylibsrtp.Session(policy(key=receive_key, ssrc_type=policy.SSRC_ANY_INBOUND, srtp_profile=profile)),
        )

    def keep(self, before: Srtp, *, outgoing: bool, incoming: bool) -> None:
        """Continue the directions whose keys stay the same. Their counts of packets (rollover counters) must not
        restart: both sides derive keys from them (RFC 3711 section 3.3.1; issue 2682 of pjsip/pjproject)."""
        if outgoing:
            self._out = before._out
        if incoming:
            self._in = before._in

    def protect(self, packet: bytes) -> bytes:
        """Encrypt an RTP packet."""
        return self._out.protect(packet)

    def protect_rtcp(self, packet: bytes) -> bytes:
        """Encrypt a compound RTCP packet."""
        return self._out.protect_rtcp(packet)

    def unprotect(self, packet: bytes) -> bytes:
        """Check and decrypt an RTP packet.

        Raises:
            ProtocolError: the packet is not authentic, a repetition, or not SRTP. Drop it.
        """
        return self._open(self._in.unprotect, packet)

    def unprotect_rtcp(self, packet: bytes) -> bytes:
        """Check and decrypt a compound RTCP packet.

        Raises:
            ProtocolError: as in ``unprotect``.
        """
        return self._open(self._in.unprotect_rtcp, packet)

    def _open(self, unprotect: Callable[[bytes], bytes], packet: bytes) -> bytes:
        try:
            return unprotect(packet)
        except (pylibsrtp.Error, ValueError) as error:
            raise ProtocolError(f"SRTP packet of {len(packet)} bytes refused: {error}") from error
