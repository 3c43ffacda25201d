"""RTP encoding names and clocks (RFC 3551 table 4, RFC 7587) to codecs. The audio format of a leg, as a value."""

from __future__ import annotations

from dataclasses import dataclass

RTP_CLOCK_HZ = {"PCMU": 8000, "PCMA": 8000, "G722": 8000, "OPUS": 48000}
"""RTP timestamp clock per encoding. G722 says 8000 although it samples at 16000 (RFC 3551 section 4.5.2)."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """One direction of a leg's audio: how it is encoded, sampled and cut into frames. Always mono."""

    encoding: str = "PCMU"
    """RTP encoding name in upper case: PCMU, PCMA, G722, OPUS or L16 (s16le here; RTP swaps it on the wire)."""

    sample_rate: int = 8000
    """Hz of the audio that is encoded: 8000 for PCMU and PCMA, 16000 for G722, 48000 for OPUS, any for L16."""

    ptime_ms: int = 20
    """Audio per frame, milliseconds (RFC 8866 section 6.4)."""

    @property
    def frame_samples(self) -> int:
        """Samples per frame at ``sample_rate``."""
        return self.sample_rate * self.ptime_ms // 1000

    @property
    def rtp_clock_hz(self) -> int:
        """Clock of the RTP timestamp, Hz."""
        return RTP_CLOCK_HZ.get(self.encoding, self.sample_rate)
