"""The last frame at a cut: speech fades to silence instead of stopping with a click."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voicecodecs import g722, opus
from voicecodecs.pcm import fade_out, to_float32, to_int16
from voicecodecs.registry import AudioFormat, decoder, encoder

_STATELESS = frozenset({"PCMU", "PCMA", "L16"})

HEARD_FRAMES = 5
"""Frames that bring a fresh decoder or encoder near to the state of the stream's own."""
_DELAY_S = {"G722": 22 / g722.SAMPLE_RATE, "OPUS": 0.0025}
"""Delay of the encoder that makes the fade, seconds."""


def faded(fmt: AudioFormat, payload: bytes, ms: float = 5, *, heard: Sequence[bytes] = ()) -> bytes | None:
    """Return a frame that fades to zero within ``ms`` milliseconds, followed by silence.

    Of PCMU, PCMA and L16 it is ``payload`` itself, faded. G722 and OPUS continue a state of the far decoder, and the
    stream's own encoder is already past the frame that is cut. Their fade follows the frames ``heard`` and is these
    frames' end played backwards, which joins without a step. G722 is encoded after the frames that were heard, since
    the state depends on little more than these. Opus gets a frame without prediction.

    Args:
        payload: the frame to fade.
        heard: the last ``HEARD_FRAMES`` frames that the far decoder gets before the fade, oldest first.

    Returns:
        The frame. None: G722 or OPUS, and nothing is known of what was heard.

    Raises:
        ValueError: ``payload`` is empty or not a whole number of frames.
    """
    if fmt.encoding in _STATELESS:
        pcm = to_float32(decoder(fmt).decode(payload))
        return encoder(fmt).encode(to_int16(fade_out(pcm, fmt.sample_rate, ms)))
    if not heard:
        return None
    hear, size, rate = decoder(fmt), fmt.frame_samples, fmt.sample_rate
    pcm = to_float32(np.concatenate([hear.decode(frame) for frame in heard]))
    delay = round(_DELAY_S[fmt.encoding] * rate)
    ahead = np.concatenate((pcm, fade_out(pcm[::-1][:size], rate, ms), np.zeros(delay, np.float32)))[delay:]
    parts = to_int16(np.ascontiguousarray(ahead)).reshape(-1, size)
    if fmt.encoding == "OPUS":
        return opus.Encoder(rate, bitrate=_OPUS_BITRATE, alone=True).encode(parts[-1])
    own = encoder(fmt)
    return [own.encode(part) for part in parts][-1]


_OPUS_BITRATE = 48000
