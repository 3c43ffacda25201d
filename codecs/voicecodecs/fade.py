"""The last frame at a cut: speech fades to silence instead of stopping with a click."""

from __future__ import annotations

from voicecodecs.pcm import fade_out, to_float32, to_int16
from voicecodecs.registry import AudioFormat, decoder, encoder

_STATELESS = frozenset({"PCMU", "PCMA", "L16"})


def faded(fmt: AudioFormat, payload: bytes, ms: float = 5) -> bytes | None:
    """Return a payload of the same length whose first ``ms`` milliseconds fade to zero, followed by silence.

    Return None for G722 and OPUS. Their payloads continue a state that only the stream's own encoder and the far
    decoder have, and that encoder is already past the frame that is cut. A frame encoded from any other state would be
    louder than the click.

    Raises:
        ValueError: ``payload`` is empty or not a whole number of frames.
    """
    if fmt.encoding not in _STATELESS:
        return None
    pcm = to_float32(decoder(fmt).decode(payload))
    return encoder(fmt).encode(to_int16(fade_out(pcm, fmt.sample_rate, ms)))
