"""Small real parts for the front end: a tokenizer folder and ONNX networks of the official signatures."""

import functools
import io
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tts_engine.cosyvoice.frontend.tokenizer import make_tiny_tokenizer
from tts_engine.cosyvoice.models import hift_causal

CODEBOOK = 729


def write_speech_tokenizer(path: Path) -> None:
    """(1,128,T) log-mel and [T] -> (1,T/4) ids: the mean over bins of every fourth frame, quantised."""
    mel = helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, 128, "T"])
    length = helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1])
    ids = helper.make_tensor_value_info("indices", TensorProto.INT64, [1, "N"])
    constants = {
        "zero": np.array([0], np.int64),
        "axis": np.array([2], np.int64),
        "bins": np.array([1], np.int64),
        "four": np.array([4], np.int64),
        "scale": np.array(100.0, np.float32),
        "size": np.array(CODEBOOK, np.int64),
    }
    nodes = [
        # Cut to the stated length first, so that a wrong length shows in the number of tokens.
        helper.make_node("Cast", ["feats_length"], ["stop"], to=TensorProto.INT64),
        helper.make_node("Slice", ["feats", "zero", "stop", "axis", "four"], ["every4"]),
        helper.make_node("ReduceMean", ["every4", "bins"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mod", ["whole", "size"], ["indices"]),
    ]
    _save(path, nodes, [mel, length], [ids], constants)


def write_speaker_encoder(path: Path) -> None:
    """(1,T,80) filter banks -> (1,192): the mean square over time, through a fixed random matrix."""
    fbank = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, "T", 80])
    vector = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 192])
    constants = {
        "axis": np.array([1], np.int64),
        "matrix": np.random.default_rng(5).standard_normal((80, 192)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Mul", ["input", "input"], ["square"]),
        helper.make_node("ReduceMean", ["square", "axis"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "matrix"], ["output"]),
    ]
    _save(path, nodes, [fbank], [vector], constants)


def _save(path, nodes, inputs, outputs, constants) -> None:  # type: ignore[no-untyped-def]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "stand-in", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)


@pytest.fixture(scope="session", autouse=True)
def one_source_noise() -> Iterator[None]:
    """CosyVoice3's table of noise (65 million numbers, always the same) is drawn once, not for each network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hift_causal, "source_noise", functools.cache(hift_causal.source_noise))
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_tokenizer(folder / "CosyVoice-BlankEN")
    for version in (2, 3):
        write_speech_tokenizer(folder / f"speech_tokenizer_v{version}.onnx")
    write_speaker_encoder(folder / "campplus.onnx")
    return folder


@pytest.fixture(scope="session")
def make_wav() -> Callable[..., bytes]:
    """A WAV file of a rising tone: ``make_wav(seconds, rate, channels)``."""

    def make(seconds: float = 2.0, rate: int = 24_000, channels: int = 1, gain: float = 0.3) -> bytes:
        t = np.arange(round(seconds * rate)) / rate
        tone: NDArray[np.float64] = gain * np.sin(2 * np.pi * (150 + 100 * t) * t)
        pcm = np.repeat((tone * 32767).astype("<i2")[:, None], channels, axis=1)
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(pcm.tobytes())
        return buffer.getvalue()

    return make
