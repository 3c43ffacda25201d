from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tts_engine.cosyvoice.frontend import features
from tts_engine.cosyvoice.frontend.features import FeatureExtractor, align_prompt, load_wav, resample, with_end_pause
from tts_engine.errors import InvalidRequest, SynthesisFailed

GOLDEN = load_file(Path(__file__).parents[3] / "goldens/cosyvoice/common/io_frontend.safetensors")
MakeWav = Callable[..., bytes]


@pytest.mark.parametrize(("fmax", "name"), [(8000.0, "mel_fmax8000"), (None, "mel_fmaxNone")])
def test_mel_matches_the_golden(fmax: float | None, name: str) -> None:
    mel = features.mel_spectrogram(GOLDEN["wav24"][0], fmax=fmax)
    np.testing.assert_allclose(mel.T, GOLDEN[name][0], rtol=0, atol=1e-5)


def test_whisper_log_mel_matches_the_golden() -> None:
    mel = features.whisper_log_mel(GOLDEN["wav16"][0])
    np.testing.assert_allclose(mel, GOLDEN["whisper_logmel128"][0], rtol=0, atol=1e-4)


def test_kaldi_fbank_matches_the_golden() -> None:
    fbank = features.kaldi_fbank(GOLDEN["wav16"][0])
    np.testing.assert_allclose(fbank, GOLDEN["kaldi_fbank"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(fbank - fbank.mean(axis=0), GOLDEN["kaldi_fbank_meannorm"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("source", "target"), [(24, 16), (16, 24), (48, 16)])
def test_resampling_matches_the_golden(source: int, target: int) -> None:
    out = resample(GOLDEN[f"wav{source}"][0], source * 1000, target * 1000)
    np.testing.assert_allclose(out, GOLDEN[f"resample_{source}k_to_{target}k"][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100, 48_000])
def test_wav_of_any_rate_and_channels_is_read_to_mono(make_wav: MakeWav, rate: int) -> None:
    mono, got = load_wav(make_wav(1.5, rate, 1))
    stereo, _ = load_wav(make_wav(1.5, rate, 2))
    assert got == rate and mono.shape == stereo.shape == (round(1.5 * rate),)
    np.testing.assert_allclose(mono, stereo, atol=1e-6)
    assert np.abs(mono).max() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rate": 8000}, "8000 Hz, expected 16000"),
        ({"seconds": 0.5}, "0.50 s, expected 1 to 30"),
        ({"seconds": 30.5, "rate": 16_000}, "30.50 s, expected 1 to 30 s"),
        ({"gain": 0.0}, "silent"),
    ],
)
def test_unfit_audio_is_refused_with_what_arrived(make_wav: MakeWav, kwargs: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        load_wav(make_wav(**kwargs))
    assert raised.value.field == "wav"


@pytest.mark.parametrize("data", [b"", b"RIFF", b"ID3" + bytes(500), b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/x.ts\n"])
def test_what_is_not_wav_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a readable WAV"):
        load_wav(data)


def test_truncated_wav_is_read_as_far_as_it_goes(make_wav: MakeWav) -> None:
    data = make_wav(3.0)
    pcm, _ = load_wav(data[: len(data) // 2])
    assert 1.4 < pcm.size / 24_000 < 1.6


def prompt(tokens: int, frames: int) -> features.VoiceFeatures:
    mel = np.repeat(np.arange(frames, dtype=np.float32)[:, None], 80, axis=1)
    return align_prompt("t", np.arange(tokens, dtype=np.int32), mel, np.ones(192, np.float32))


@pytest.mark.parametrize(("tokens", "frames", "n", "kept"), [(63, 128, 63, 53), (63, 105, 52, 28), (53, 107, 53, 53)])
def test_prompt_is_aligned_and_cut_at_its_head_to_whole_chunks(tokens: int, frames: int, n: int, kept: int) -> None:
    voice = prompt(tokens, frames)
    assert voice.lm_tokens.tolist() == list(range(n))  # the transcript covers all of it
    assert voice.flow_tokens.tolist() == list(range(n - kept, n))
    assert voice.flow_mel[:, 0].tolist() == list(range(2 * (n - kept), 2 * n))


def test_prompt_below_one_chunk_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="27 speech tokens, expected 28"):
        prompt(27, 60)


@pytest.mark.parametrize("version", [2, 3])
def test_recording_becomes_features(model_folder: Path, make_wav: MakeWav, version: int) -> None:
    extractor = FeatureExtractor(model_folder, version=version)
    voice = extractor.voice(make_wav(2.5, 48_000, 2), "what is said")
    assert voice.lm_tokens.shape == (67,) and voice.lm_tokens.dtype == np.int32
    assert voice.flow_tokens.shape == (53,) and voice.flow_mel.shape == (106, 80)
    assert voice.speaker.shape == (192,) and len(set(voice.lm_tokens.tolist())) > 1
    again = features.VoiceFeatures.from_arrays(extractor.extract(make_wav(2.5, 48_000, 2), ""), "what is said")
    np.testing.assert_array_equal(again.flow_mel, voice.flow_mel)


def test_the_shortest_recording_is_long_enough(model_folder: Path, make_wav: MakeWav) -> None:
    voice = FeatureExtractor(model_folder, version=3).voice(make_wav(1.0, 16_000), "")
    assert voice.flow_tokens.shape == (28,)


@pytest.mark.parametrize(
    ("seconds", "pause_s", "after_s"),
    [(2.0, 0.0, 0.2), (2.0, 0.1, 0.1), (2.0, 0.5, 0.0), (1.0, 0.3, 0.2), (29.9, 0.0, 0.1), (30.0, 0.0, 0.0)],
)
def test_a_recording_ends_with_a_pause(seconds: float, pause_s: float, after_s: float) -> None:
    rate = 16_000
    at = np.arange(round(seconds * rate))
    pcm = (0.3 * np.sin(at / 5) + 1e-4).astype(np.float32)
    pcm[len(pcm) - round(pause_s * rate) :] *= 1e-3
    padded = with_end_pause(pcm, rate)
    assert (len(padded) - len(pcm)) / rate == pytest.approx(after_s, abs=0.011)
    np.testing.assert_array_equal(padded[: len(pcm)], pcm)
    assert not padded[len(pcm) :].any() and len(padded) <= 30 * rate


def test_versions_differ_in_the_upper_edge_of_the_mel(model_folder: Path, make_wav: MakeWav) -> None:
    two, three = (FeatureExtractor(model_folder, version=v).voice(make_wav(), "") for v in (2, 3))
    assert np.abs(two.flow_mel - three.flow_mel).max() > 0.1
    np.testing.assert_array_equal(two.speaker, three.speaker)


def test_missing_network_is_named(tmp_path: Path, make_wav: MakeWav) -> None:
    with pytest.raises(SynthesisFailed, match="speech_tokenizer_v3.onnx is missing"):
        FeatureExtractor(tmp_path, version=3).voice(make_wav(), "")


def test_broken_network_is_named(tmp_path: Path, make_wav: MakeWav) -> None:
    (tmp_path / "speech_tokenizer_v2.onnx").write_bytes(b"not onnx")
    with pytest.raises(SynthesisFailed, match="speech_tokenizer_v2.onnx cannot be loaded"):
        FeatureExtractor(tmp_path, version=2).voice(make_wav(), "")
