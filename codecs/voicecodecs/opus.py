"""Opus for telephony: mono speech, one frame a packet (RFC 6716, RFC 7587).

Encoder settings, measured on 9 s of synthetic speech at 48 kHz in 20 ms frames and 24 kbit/s, one core (segmental SNR
against the input, 35 dB at most per frame; log-spectral distance 0.1 to 8 kHz):

==========  ===============  =======  =======
complexity  us per frame     SNR dB   LSD dB
==========  ===============  =======  =======
0           53               6.8      4.8
3           84               7.1      4.8
5           105              7.3      4.7
6           110              7.4      4.7
10          142              7.4      4.6
==========  ===============  =======  =======

So the complexity is 6. It has the SNR of 10 and takes three quarters of its time. Complexity 0 would save 0.3 % of a
core per call and cost 0.6 dB. 24 kbit/s codes wide-band speech in 56 bytes a frame; 32 kbit/s added 0.2 dB.

The encoder looks 6.5 ms ahead, so decoded speech is that much later than the speech that went in. Any rate that Opus
knows can be encoded directly: 24 kHz speech needs no resampler. The RTP clock stays 48 kHz (RFC 7587 section 4.1).
"""

from __future__ import annotations

import ctypes

import numpy as np
import opuslib_next
from numpy.typing import NDArray
from opuslib_next.api.decoder import libopus_decode

from voicecodecs.pcm import require

SAMPLE_RATES = (8000, 12000, 16000, 24000, 48000)
FRAME_MS = (10, 20, 40, 60)
"""Durations of one Opus frame; the 30 and 50 ms that RTP allows elsewhere do not exist (RFC 6716 section 2.1.4)."""

BITRATE = 24000
COMPLEXITY = 6
_MAX_PACKET_MS = 120


class Encoder:
    """One direction of Opus. Not thread-safe; releases the GIL while it encodes."""

    def __init__(
        self,
        sample_rate: int = 48000,
        *,
        bitrate: int = BITRATE,
        complexity: int = COMPLEXITY,
        fec_loss_percent: int = 0,
        dtx: bool = False,
        alone: bool = False,
    ) -> None:
        """
        Args:
            sample_rate: Hz of the samples to encode, one of ``SAMPLE_RATES``.
            bitrate: bits per second, variable around this mean.
            complexity: 0 to 10.
            fec_loss_percent: above 0, packets carry a coarse copy of the frame before (in-band FEC) when the expected
                loss makes it worth the bits; for links that lose packets.
            alone: code each frame without prediction from the one before (CELT), with 2.5 ms of delay. A decoder fades
                over to such a frame from speech within 5 ms (RFC 6716 section 4.5).
            dtx: send 1-byte packets while there is silence. Off by default, because a bot's stream stops between turns
                anyway, and timing is simpler without.

        Raises:
            ValueError: Opus does not have that sample rate.
        """
        _require_rate(sample_rate)
        self._frame_samples = {sample_rate * ms // 1000 for ms in FRAME_MS}
        application = opuslib_next.APPLICATION_RESTRICTED_LOWDELAY if alone else opuslib_next.APPLICATION_VOIP
        self._codec = opuslib_next.Encoder(sample_rate, 1, application)
        self._codec.bitrate = bitrate
        self._codec.complexity = complexity
        self._codec.signal = opuslib_next.SIGNAL_VOICE
        self._codec.inband_fec = int(fec_loss_percent > 0)
        self._codec.packet_loss_perc = fec_loss_percent
        self._codec.dtx = int(dtx)

    def encode(self, pcm: NDArray[np.int16]) -> bytes:
        """Encode one frame to one packet.

        Args:
            pcm: shape ``(samples,)``, int16; 10, 20, 40 or 60 ms.

        Raises:
            ValueError: wrong type, shape or number of samples.
        """
        require(pcm, np.int16)
        if len(pcm) not in self._frame_samples:
            raise ValueError(f"Opus was given {len(pcm)} samples, expected one of {sorted(self._frame_samples)}")
        return bytes(self._codec.encode(pcm.tobytes(), len(pcm)))


class Decoder:
    """One direction of Opus. Not thread-safe; releases the GIL while it decodes."""

    def __init__(self, sample_rate: int = 48000) -> None:
        """
        Args:
            sample_rate: Hz of the samples to return, one of ``SAMPLE_RATES``, whatever the sender encoded.

        Raises:
            ValueError: Opus does not have that sample rate.
        """
        _require_rate(sample_rate)
        self._codec = opuslib_next.Decoder(sample_rate, 1)
        self._max_samples = sample_rate * _MAX_PACKET_MS // 1000

    def decode(self, payload: bytes) -> NDArray[np.int16]:
        """Decode one packet of any duration, mono or stereo, to mono int16.

        Raises:
            ValueError: not an Opus packet. An empty payload is refused too; call :meth:`conceal` for a loss.
        """
        if not payload:
            raise ValueError("Opus payload is 0 bytes, expected a packet of at least 1")
        return self._decode(payload, self._max_samples)

    def conceal(self, samples: int, next_payload: bytes = b"") -> NDArray[np.int16]:
        """Return samples that replace a lost packet.

        Args:
            samples: how many samples were lost, a multiple of 2.5 ms.
            next_payload: the packet after the lost one, if that has arrived. Its FEC copy is used if it has one. Decode
                the packet as usual afterwards.

        Raises:
            ValueError: ``samples`` is not such a multiple, or ``next_payload`` is not an Opus packet.
        """
        return self._decode(next_payload, samples, fec=bool(next_payload))

    def _decode(self, payload: bytes, samples: int, *, fec: bool = False) -> NDArray[np.int16]:
        # The binding's own decode() builds a list of Python integers per packet: twice the time, and under the GIL.
        pcm = np.empty(samples, np.int16)
        decoded: int = libopus_decode(
            self._codec.decoder_state,
            payload,
            len(payload),
            pcm.ctypes.data_as(ctypes.POINTER(ctypes.c_int16)),
            samples,
            int(fec),
        )
        if decoded < 0:
            reason = opuslib_next.OpusError(decoded)
            raise ValueError(f"cannot decode {len(payload)} bytes as Opus into {samples} samples: {reason}")
        return pcm[:decoded]


def _require_rate(sample_rate: int) -> None:
    if sample_rate not in SAMPLE_RATES:
        raise ValueError(f"Opus has no {sample_rate} Hz, expected one of {SAMPLE_RATES}")


def packet_s(payload: bytes) -> float:
    """Return the length of a packet's audio in seconds, from its first bytes (RFC 6716 section 3.1). 0 if it is empty
    or ends before its number of frames."""
    if not payload or (payload[0] & 3 == 3 and len(payload) < 2):
        return 0.0
    config, code = payload[0] >> 3, payload[0] & 3
    if config < 12:
        frame_ms = (10.0, 20.0, 40.0, 60.0)[config % 4]
    elif config < 16:
        frame_ms = (10.0, 20.0)[config % 2]
    else:
        frame_ms = (2.5, 5.0, 10.0, 20.0)[config % 4]
    frames = payload[1] & 0x3F if code == 3 else min(code, 1) + 1
    return frames * frame_ms / 1000
