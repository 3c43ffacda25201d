"""``doctor --model`` on whole and broken directories with random weights, and its ears on the embedded voice."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from talkspurt.doctor import model
from talkspurt.doctor.finding import Finding
from talkspurt.doctor.model import SENTENCE, _seams, _sound, findings
from tts_engine.config import ModelConfig
from tts_engine.cosyvoice import checkpoint
from voicecodecs.pcm import to_float32

CPU = ModelConfig(kind="cosyvoice3", device="cpu")
RATE = 24000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "m"
    checkpoint.make(folder, 3, "tiny", 7)
    return folder


@pytest.fixture(scope="module")
def clip() -> bytes:
    return asyncio.run(model._clip())


@pytest.fixture(scope="module")
def speech(clip: bytes) -> NDArray[np.float32]:
    with wave.open(io.BytesIO(clip)) as file:
        assert file.getframerate() == RATE
        return to_float32(np.frombuffer(file.readframes(file.getnframes()), "<i2"))


@pytest.fixture
def copy(made: Path, tmp_path: Path, clip: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def once() -> bytes:
        return clip

    monkeypatch.setattr(model, "_clip", once)  # the embedded voice need not be loaded for each directory
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def failed(folder: Path) -> list[str]:
    found = list(findings(folder, CPU))
    if any(one.state == "fail" for one in found):
        assert found[-1] == Finding("speech", "none", "not tried, because of what is said above")
    assert all("\n" not in one.detail for one in found)
    return [f"{one.name}: {one.detail}" for one in found if one.state == "fail"]


def test_a_whole_directory_speaks_and_nothing_is_said_of_the_words_of_noise(copy: Path) -> None:
    (copy / "spk2info.pt").unlink()  # as some published directories: the test makes a voice of its own
    found = list(findings(copy, CPU))
    states = {one.name: one.state for one in found}
    assert states == {
        "layout": "ok", "weights": "ok", "tokenizer": "ok", "front end": "ok", "voices": "ok", "speech": "ok",
        "seams": states["seams"], "words": "none",
    }  # fmt: skip
    assert Finding("weights", "none", "random weights (cosyvoice3.yaml says so): no words expected") in found
    assert "no spk2info.pt" in next(one.detail for one in found if one.name == "voices")
    assert "on cpu" in next(one.detail for one in found if one.name == "speech")


def test_missing_files_are_named(copy: Path) -> None:
    for name in ("flow.pt", "campplus.onnx", "CosyVoice-BlankEN/merges.txt"):
        (copy / name).unlink()
    said = "\n".join(failed(copy))
    assert "layout: missing: flow.pt (or flow.safetensors)" in said
    assert "layout: missing: campplus.onnx" in said
    assert "lacks merges.txt" in said


def test_a_wrong_shape_is_told_with_the_expected_one(copy: Path) -> None:
    state = torch.load(copy / "flow.pt", weights_only=True)
    state["input_embedding.weight"] = state["input_embedding.weight"][:, :-1].clone()
    torch.save(state, copy / "flow.pt")
    (fault,) = failed(copy)
    assert fault == "weights: flow.pt: input_embedding.weight has shape [6561, 79], expected [6561, 80]"


def test_a_value_that_is_no_number_is_found(copy: Path) -> None:
    state = torch.load(copy / "hift.pt", weights_only=True)
    state["conv_post.bias"][0] = float("nan")
    torch.save(state, copy / "hift.pt")
    assert failed(copy) == ["weights: hift.pt: conv_post.bias holds values that are not finite"]


def test_a_truncated_file_and_a_pointer_in_its_place_are_told_apart(copy: Path) -> None:
    whole = (copy / "llm.pt").read_bytes()
    (copy / "llm.pt").write_bytes(whole[: len(whole) // 2])
    (copy / "hift.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 83364158\n")
    cut, pointer = failed(copy)
    assert cut.startswith(f"weights: llm.pt: not readable as weights ({len(whole) // 2} bytes, perhaps truncated)")
    assert pointer.startswith("weights: hift.pt: is a Git LFS pointer of ") and "git lfs pull" in pointer


def test_the_tokenizer_of_another_model_is_told(copy: Path) -> None:
    path = copy / "CosyVoice-BlankEN/vocab.json"
    vocabulary = json.loads(path.read_text("utf-8"))
    size = len(vocabulary)
    path.write_text(json.dumps({**vocabulary, **{f"word{n}": size + n for n in range(400)}}), "utf-8")
    said = "\n".join(failed(copy))
    assert f"vocab.json: {size + 400} entries, expected {size} (tokenizer_config.json: the id of <|endoftext|>)" in said
    assert "ids with the added ones, expected at most" in said


def test_networks_of_the_front_end_that_cannot_be_loaded_are_told(copy: Path) -> None:
    (copy / "speech_tokenizer_v3.onnx").write_bytes(b"not a network")
    (fault,) = failed(copy)
    assert fault.startswith("front end:") and "speech_tokenizer_v3.onnx cannot be loaded as an ONNX model" in fault


def test_what_is_no_model_is_refused_at_once(tmp_path: Path) -> None:
    assert [one.detail for one in findings(tmp_path / "nowhere", CPU)] == [f"{tmp_path / 'nowhere'} is no directory"]
    assert "missing: cosyvoice2.yaml or cosyvoice3.yaml" in [one.detail for one in findings(tmp_path, CPU)]


# -- ears


def heard(pcm: NDArray[np.float32]) -> dict[str, Finding]:
    return {one.name: one for one in _sound(pcm.astype(np.float32), RATE)}


def test_a_real_voice_passes_and_its_words_are_heard(speech: NDArray[np.float32]) -> None:
    found = heard(speech)
    assert {name: one.state for name, one in found.items()} == {
        "rate": "ok", "silence": "ok", "tail": "ok", "words": found["words"].state,
    }  # fmt: skip
    assert found["words"].state in ("ok", "warn", "none"), found["words"].detail


def test_silence_noise_and_a_cut_end_are_told(speech: NDArray[np.float32]) -> None:
    assert heard(np.zeros(RATE, np.float32))["silence"].state == "fail"
    second = np.zeros(RATE, np.float32)
    assert heard(np.concatenate((second, speech)))["silence"].state == "warn"
    half = len(speech) // 2
    assert heard(np.concatenate((speech[:half], second, speech[half:])))["silence"].state == "warn"
    noise = (0.05 * np.random.default_rng(0).standard_normal(RATE // 5)).astype(np.float32)
    assert heard(np.concatenate((speech, noise)))["tail"].state == "warn"
    assert heard(np.clip(speech * 20, -0.99, 0.99))["level"].state == "warn"
    assert heard(np.repeat(speech, 4))["rate"].state == "warn"


def test_another_sentence_is_not_taken_for_this_one(speech: NDArray[np.float32]) -> None:
    if (plain := heard(speech)["words"]).state == "none":
        pytest.skip(plain.detail)
    wrong = heard(speech[len(speech) * 2 // 3 :])["words"]
    assert wrong.state == "fail" and SENTENCE in wrong.detail


def test_a_click_where_two_pieces_meet_is_found(speech: NDArray[np.float32]) -> None:
    third = len(speech) // 3
    pieces = [speech[:third], speech[third : 2 * third], speech[2 * third :]]
    assert _seams(pieces, RATE).state == "ok"
    assert _seams([speech], RATE).state == "none"
    broken = [pieces[0], pieces[1] + np.float32(0.3), pieces[2]]
    assert _seams(broken, RATE).state == "warn" and "click" in _seams(broken, RATE).detail
