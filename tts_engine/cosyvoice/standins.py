"""Untrained ONNX networks with the signatures of the official ones, for checkpoints with random weights.

Their outputs depend on their inputs, so that different recordings give different tokens and speaker vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_engine.cosyvoice.models.config import SPEAKER_CHANNELS

_WHISPER_BINS = 128
_FBANK_BINS = 80
_OPSET = 18
_NOTE = "RANDOM WEIGHTS: a stand-in for tests and load tests, not the published network"


def write_speech_tokenizer(path: Path, *, codebook: int, seed: int) -> None:
    """Write a network from log-mel ``(1, 128, T)`` float32 and length ``[1]`` int32 to ids ``(1, T / 4)`` <
    ``codebook``."""
    from onnx import TensorProto, helper

    inputs = [
        helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, _WHISPER_BINS, "T"]),
        helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1]),
    ]
    outputs = [helper.make_tensor_value_info("indices", TensorProto.INT32, [1, "N"])]
    projection = np.random.default_rng(seed).normal(0, codebook, (1, _WHISPER_BINS, 4)).astype(np.float32)
    constants: dict[str, NDArray[Any]] = {
        "zero": np.array([0], np.int64),
        "time": np.array([2], np.int64),
        "channel": np.array([1], np.int64),
        "projection": projection,
        "size": np.array(codebook, np.int32),
    }
    nodes = [
        helper.make_node("Cast", ["feats_length"], ["end"], to=TensorProto.INT64),
        helper.make_node("Slice", ["feats", "zero", "end", "time"], ["given"]),
        helper.make_node("Conv", ["given", "projection"], ["projected"], strides=[4]),
        helper.make_node("Squeeze", ["projected", "channel"], ["flat"]),
        helper.make_node("Cast", ["flat"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Mod", ["whole", "size"], ["indices"]),
    ]
    _save(path, nodes, inputs, outputs, constants)


def write_speaker_encoder(path: Path, *, seed: int) -> None:
    """Write a network from filter banks ``(1, T, 80)`` float32 to a speaker vector ``(1, 192)``."""
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, "T", _FBANK_BINS])]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, SPEAKER_CHANNELS])]
    projection = np.random.default_rng(seed).normal(0, 0.1, (_FBANK_BINS, SPEAKER_CHANNELS)).astype(np.float32)
    constants: dict[str, NDArray[Any]] = {"time": np.array([1], np.int64), "projection": projection}
    nodes = [
        # The mean of the input itself is always zero, because it is normalised over time.
        helper.make_node("Mul", ["input", "input"], ["energy"]),
        helper.make_node("ReduceMean", ["energy", "time"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "projection"], ["output"]),
    ]
    _save(path, nodes, inputs, outputs, constants)


def _save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, NDArray[Any]]
) -> None:
    import onnx
    from onnx import helper, numpy_helper

    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "stand-in", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10, doc_string=_NOTE)
    onnx.checker.check_model(model)
    onnx.save(model, path)
