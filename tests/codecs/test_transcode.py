"""A tone in one format is the same tone in the other, frame by frame."""

import numpy as np
import pytest

from tests.codecs.codec_signals import peak_hz, snr_db, tone
from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat, decoder, encoder
from voicecodecs.transcode import Transcoder

FORMATS = [AudioFormat("PCMU"), AudioFormat("PCMA"), AudioFormat("G722", 16000), AudioFormat("OPUS", 48000)]


def named(fmt: AudioFormat) -> str:
    return f"{fmt.encoding}-{fmt.sample_rate}-{fmt.ptime_ms}"


@pytest.mark.parametrize("source", FORMATS, ids=named)
@pytest.mark.parametrize("target", [*FORMATS, AudioFormat("OPUS", 16000)], ids=named)
def test_each_frame_gives_one_frame_of_the_same_tone(source: AudioFormat, target: AudioFormat) -> None:
    pcm = to_int16(tone(1000, 1.0, source.sample_rate))
    encode, decode = encoder(source).encode, decoder(target).decode
    transcoder = Transcoder(source, target)
    heard = []
    for frame in pcm.reshape(-1, source.frame_samples):
        (made,) = transcoder.convert(encode(frame))
        heard.append(decode(made))
    sound = np.concatenate(heard)
    assert len(sound) == target.sample_rate
    settled = sound[len(sound) // 4 :]
    assert peak_hz(settled, target.sample_rate) == pytest.approx(1000, abs=5)
    assert np.abs(settled).max() == pytest.approx(np.abs(pcm).max(), rel=0.1)


@pytest.mark.parametrize(("ptime_ms", "frames"), [(10, 100), (30, 33), (60, 16), (20, 50)])
def test_frames_of_another_duration_lose_no_audio(ptime_ms: int, frames: int) -> None:
    source, target = AudioFormat("PCMU"), AudioFormat("PCMA", 8000, ptime_ms)
    pcm = to_int16(tone(440, 1.0, 8000))
    transcoder = Transcoder(source, target)
    made = [new for frame in pcm.reshape(-1, 160) for new in transcoder.convert(encoder(source).encode(frame))]
    assert [len(each) for each in made] == [ptime_ms * 8] * frames
    sound = decoder(target).decode(b"".join(made))
    assert snr_db(pcm[: len(sound)], sound) > 30


def test_a_payload_that_cannot_be_decoded_is_refused_and_disturbs_nothing() -> None:
    transcoder = Transcoder(AudioFormat("PCMU"), AudioFormat("PCMA"))
    with pytest.raises(ValueError, match="0 bytes"):
        transcoder.convert(b"")
    assert len(transcoder.convert(bytes(160))) == 1
