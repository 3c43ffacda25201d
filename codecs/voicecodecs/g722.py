"""G.722 at 64 kbit/s: 16 kHz audio, two samples per byte (ITU-T G.722 mode 1).

This is sub-band ADPCM: encoder and decoder adapt to every sample. Use one of each per direction and call, and feed them
everything in order. The coder's pair of band-splitting filters delays audio by 22 samples (1.4 ms).
"""

from __future__ import annotations

import numpy as np
from G722 import G722
from numpy.typing import NDArray

from voicecodecs.pcm import require

SAMPLE_RATE = 16000
_BIT_RATE = 64000


class Encoder:
    """One direction of G.722. Not thread-safe."""

    def __init__(self) -> None:
        self._codec = G722(SAMPLE_RATE, _BIT_RATE)

    def encode(self, pcm: NDArray[np.int16]) -> bytes:
        """Encode the next samples to ``len(pcm) // 2`` bytes.

        Args:
            pcm: shape ``(samples,)``, int16, 16000 Hz, an even number.

        Raises:
            ValueError: the type or shape is wrong, or the number of samples is odd.
        """
        require(pcm, np.int16)  # the library would silently read bytes as a list of small numbers
        if len(pcm) % 2:
            raise ValueError(f"G722 was given {len(pcm)} samples, expected an even number (2 a byte)")
        return bytes(self._codec.encode(np.ascontiguousarray(pcm)))


class Decoder:
    """One direction of G.722. Not thread-safe."""

    def __init__(self) -> None:
        self._codec = G722(SAMPLE_RATE, _BIT_RATE)

    def decode(self, payload: bytes) -> NDArray[np.int16]:
        """Decode the next bytes to int16, 16000 Hz, shape ``(2 * len(payload),)``. Every byte is a valid code."""
        return np.array(self._codec.decode(payload), np.int16)
