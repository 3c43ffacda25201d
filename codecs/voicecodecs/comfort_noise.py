"""Comfort noise (RFC 3389): packets with the level of a silence, and the noise that is played for them.

Only the level is used. The filter that may follow it (section 3.2) shapes the noise like the speaker's room, which
neither a recogniser nor a recording needs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from voicecodecs.registry import AudioFormat, encoder

_LOWEST_DBOV = -127
_NOISE_FRAMES = 10
_STEP_DB = 3


def read_level_dbov(payload: bytes) -> int:
    """Return the noise level in a packet, from -127 (silence) to 0 dBov (section 3.1)."""
    return -(payload[0] & 0x7F) if payload else _LOWEST_DBOV


def write_level_dbov(level_dbov: int) -> bytes:
    """Return a packet with that level and without a filter.

    Raises:
        ValueError: the level is out of range.
    """
    if not _LOWEST_DBOV <= level_dbov <= 0:
        raise ValueError(f"comfort noise level is {level_dbov} dBov, expected {_LOWEST_DBOV} to 0")
    return bytes([-level_dbov])


def noise_frames(fmt: AudioFormat, level_dbov: int) -> tuple[bytes, ...]:
    """Return ten frames of noise within 3 dB of that level, to be sent or decoded in turn.

    The same level always gives the same frames.
    """
    return _noise_frames(fmt, -round(-max(level_dbov, _LOWEST_DBOV) / _STEP_DB) * _STEP_DB)


@lru_cache(maxsize=64)
def _noise_frames(fmt: AudioFormat, level_dbov: int) -> tuple[bytes, ...]:
    # 0 dBov is a full-scale square wave's power (RFC 3389 section 3.1).
    rms = 32767 * 10 ** (level_dbov / 20)
    samples = np.random.default_rng(3389).normal(0.0, rms, (_NOISE_FRAMES, fmt.frame_samples))
    encode = encoder(fmt).encode
    return tuple(encode(frame) for frame in np.clip(np.round(samples), -32768, 32767).astype(np.int16))
