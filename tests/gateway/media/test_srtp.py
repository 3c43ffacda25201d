"""SRTP: a published vector, both directions, and everything that must be refused."""

import pytest

from gateway.errors import ProtocolError
from gateway.media.rtcp import ReceiverReport, serialise
from gateway.media.rtp import OutgoingStream
from gateway.media.srtp import Srtp
from sip_bridge.message.sdp import SUITES

RTP = OutgoingStream(ssrc=7, payload_type=0, clock_hz=8000, frame_s=0.02, sequence=1, timestamp=1).packet(
    bytes(range(160)), now=0.0
)
RTCP = serialise(ReceiverReport(7))


def pair(suite: str) -> tuple[Srtp, Srtp]:
    one, two = bytes(range(SUITES[suite])), bytes(range(1, SUITES[suite] + 1))
    return Srtp.keyed(suite, send_key=one, receive_key=two), Srtp.keyed(suite, send_key=two, receive_key=one)


def test_vector_of_libsrtp() -> None:
    """The reference packet of libsrtp's own driver: AES_CM_128_HMAC_SHA1_80, plaintext of 0xab."""
    key = bytes.fromhex("e1f97a0d3e018be0d64fa32c06de4139 0ec675ad498afeebb6960b3aabe6")
    plain = bytes.fromhex("800f1234 decafbad cafebabe" + "ab" * 16)
    cipher = "800f1234decafbadcafebabe4e55dc4ce79978d88ca4d215949d2402b78d6acc99ea179b8dbb"
    assert Srtp.keyed("AES_CM_128_HMAC_SHA1_80", send_key=key, receive_key=key).protect(plain).hex() == cipher


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_that_is_negotiated_works_both_ways(suite: str) -> None:
    for sender, receiver in (pair(suite), pair(suite)[::-1]):
        secret = sender.protect(RTP)
        assert RTP[12:] not in secret
        assert receiver.unprotect(secret) == RTP
        assert receiver.unprotect_rtcp(sender.protect_rtcp(RTCP)) == RTCP


def test_packets_that_are_not_authentic_are_refused() -> None:
    sender, receiver = pair("AES_CM_128_HMAC_SHA1_80")
    secret = sender.protect(RTP)
    receiver.unprotect(secret)
    for bad in (secret, secret[:-1] + b"\0", RTP, b"", b"x", bytes(3000)):
        with pytest.raises(ProtocolError, match="refused"):
            receiver.unprotect(bad)
    with pytest.raises(ProtocolError):
        receiver.unprotect_rtcp(RTCP)


def test_misuse() -> None:
    with pytest.raises(ValueError, match="expected one of AES_CM"):
        Srtp.keyed("NULL", send_key=bytes(30), receive_key=bytes(30))
    with pytest.raises(ValueError):
        Srtp.keyed("AES_CM_128_HMAC_SHA1_80", send_key=bytes(29), receive_key=bytes(30))
