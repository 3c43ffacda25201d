"""G.711 mu-law and A-law without state: payloads can be cut and joined at any byte.

The reference is ITU-T G.711 (11/88) as the ITU's own software computes it (G.191 Software Tool Library, ``g711.c``):
mu-law takes the upper 14 bits of a sample, A-law the upper 13, and both negate by ones' complement. So -1 is the
smallest negative number, and positive and negative decision values mirror each other. Other encoders in use differ
where a negative sample lies on a decision value. Truncating ``abs(x)`` changes 127 of the 65,536 mu-law codes; the
``x >> 2`` of Sun's ``g711.c`` and of ``audioop`` changes 508; these two differ from each other in 381. All differences
are one code step. So a table encodes. Decoding is the same everywhere, and ``audioop`` decodes a frame of 160 bytes
two to four times as fast as a look-up in NumPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import audioop, require


def _ulaw_codes() -> NDArray[np.uint8]:
    """Return codes by ``uint16`` view of the sample (G.711 tables 2a and 2b)."""
    x = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    # 33 shifts the segment edges to powers of two: 32, 64, ... 4096 on the 14-bit scale.
    biased = np.minimum((np.where(x < 0, ~x, x) >> 2) + 33, 0x1FFF)
    segment = np.frexp(biased)[1] - 6  # 33..63 is segment 0
    code = (segment << 4) | ((biased >> (segment + 1)) & 0x0F)
    encode = ~(code | np.where(x < 0, 0x80, 0)) & 0xFF  # all bits inverted on the line
    codes: NDArray[np.uint8] = encode.astype(np.uint8)
    return codes


def _alaw_codes() -> NDArray[np.uint8]:
    """Return codes by ``uint16`` view of the sample (G.711 tables 1a and 1b)."""
    x = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    magnitude = np.where(x < 0, ~x, x) >> 4
    segment = np.maximum(np.frexp(magnitude)[1] - 4, 0)  # 0..15 is segment 0, 16..31 segment 1
    mantissa = (magnitude >> np.maximum(segment - 1, 0)) & 0x0F
    encode = ((segment << 4) | mantissa | np.where(x < 0, 0, 0x80)) ^ 0x55  # even bits inverted on the line
    codes: NDArray[np.uint8] = encode.astype(np.uint8)
    return codes


_ULAW_ENCODE = _ulaw_codes()
_ALAW_ENCODE = _alaw_codes()


def encode_ulaw(pcm: NDArray[np.int16]) -> bytes:
    """Encode linear PCM to PCMU, one byte per sample.

    Args:
        pcm: shape ``(samples,)``, int16, mono, 8000 Hz.

    Raises:
        ValueError: if ``pcm`` is not one-dimensional int16.

    RFC 3551 section 4.5.14; tables 2a and 2b of ITU-T G.711.
    """
    require(pcm, np.int16)
    return _ULAW_ENCODE[pcm.view(np.uint16)].tobytes()


def decode_ulaw(payload: bytes) -> NDArray[np.int16]:
    """Decode PCMU to int16, shape ``(len(payload),)``, range -32124 to 32124, read-only. Every byte is a valid code."""
    return np.frombuffer(audioop.ulaw2lin(payload, 2), np.int16)


def encode_alaw(pcm: NDArray[np.int16]) -> bytes:
    """Encode linear PCM to PCMA, one byte per sample.

    Args:
        pcm: shape ``(samples,)``, int16, mono, 8000 Hz.

    Raises:
        ValueError: if ``pcm`` is not one-dimensional int16.

    RFC 3551 section 4.5.14; tables 1a and 1b of ITU-T G.711.
    """
    require(pcm, np.int16)
    return _ALAW_ENCODE[pcm.view(np.uint16)].tobytes()


def decode_alaw(payload: bytes) -> NDArray[np.int16]:
    """Decode PCMA to int16, shape ``(len(payload),)``, range -32256 to 32256, read-only. Every byte is a valid code."""
    return np.frombuffer(audioop.alaw2lin(payload, 2), np.int16)


_ALL_CODES = bytes(range(256))

TRANSLATIONS = {
    ("PCMU", "PCMA"): encode_alaw(decode_ulaw(_ALL_CODES)),
    ("PCMA", "PCMU"): encode_ulaw(decode_alaw(_ALL_CODES)),
}
"""Code by code, for ``bytes.translate``: the same as decoding with the first law and encoding with the second."""
