"""Depthwise convolutions as images: the same numbers, on the network of the embedded voice and alone."""

from pathlib import Path

import numpy as np
import pytest
from hibari.voices import voice_path

from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.onnx.cut import cut
from tts_engine.embedded.onnx.depthwise import depthwise_as_images
from tts_engine.embedded.onnx.messages import messages
from tts_engine.onnx_runtime import onnxruntime as ort

INPUTS = {"ids": 7, "speed": 1}
FIRST, DENSE = "/convs.0/dw/Conv_output_0", "/dec_in/Conv_output_0"


@pytest.fixture(scope="module")
def model() -> bytes:
    return Path(voice_path("heart", download_missing=False)).read_bytes()


def run(model: bytes, *outputs: str) -> list[np.ndarray]:
    session = ort.InferenceSession(cut(model, inputs=INPUTS, outputs=outputs))
    ids = PhonemeReader().read("Your order was shipped on Friday.")[0].ids
    return session.run(None, {"ids": np.asarray([ids], np.int64), "speed": np.ones(1, np.float32)})


def test_a_layer_computes_what_it_did(model: bytes) -> None:
    (before,), (after,) = run(model, FIRST), run(depthwise_as_images(model), FIRST)
    assert before.ndim == 3
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_the_network_says_the_same(model: bytes) -> None:
    (steps, f0), (new_steps, new_f0) = (run(m, "/CumSum_output_0", "f0") for m in (model, depthwise_as_images(model)))
    np.testing.assert_array_equal(new_steps, steps)
    voiced = f0 > 60
    assert np.median(np.abs(1200 * np.log2(new_f0[voiced] / f0[voiced]))) < 10


def test_only_depthwise_convolutions_become_images(model: bytes) -> None:
    def kernels(model: bytes) -> dict[str, int]:
        graph = messages()["Model"].FromString(model).graph
        attributes = {n.output[0]: n.attribute for n in graph.node if n.op_type == "Conv"}
        return {name: len(next(a.ints for a in all_ if a.name == "kernel_shape")) for name, all_ in attributes.items()}

    before, after = kernels(model), kernels(depthwise_as_images(model))
    assert set(before.values()) == {1}
    assert after[DENSE] == 1
    assert list(after.values()).count(2) > 8
