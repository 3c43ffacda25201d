"""Attention joined into one node: the same numbers, on the network of the embedded voice."""

from pathlib import Path

import numpy as np
import pytest
from hibari.voices import voice_path

from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.onnx.attention import join_attention
from tts_engine.embedded.onnx.cut import cut
from tts_engine.embedded.onnx.messages import messages
from tts_engine.onnx_runtime import onnxruntime as ort

STEPS, F0, FIRST_LAYER = "/CumSum_output_0", "f0", "/Reshape_19_output_0"
INPUTS = {"ids": 7, "speed": 1}


@pytest.fixture(scope="module")
def model() -> bytes:
    return Path(voice_path("heart", download_missing=False)).read_bytes()


def session(model: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(cut(model, inputs=INPUTS, outputs=[STEPS, F0, FIRST_LAYER]))


def operators(model: bytes) -> list[str]:
    return [node.op_type for node in messages()["Model"].FromString(model).graph.node]


@pytest.mark.parametrize("text", ["Hello.", "Your order was shipped on Friday, and it will arrive by Monday morning."])
def test_joined_layers_compute_what_the_exported_ones_do(model: bytes, text: str) -> None:
    feed = {"ids": np.asarray([PhonemeReader().read(text)[0].ids], np.int64), "speed": np.ones(1, np.float32)}
    steps, f0, layer = session(model).run(None, feed)
    joined_steps, joined_f0, joined_layer = session(join_attention(model, heads=2)).run(None, feed)
    np.testing.assert_allclose(joined_layer, layer, atol=1e-5)
    np.testing.assert_array_equal(joined_steps, steps)
    # Layers on, some of these differences round 8-bit activations to another step: cents, where the voice is.
    voiced = f0 > 60
    assert np.median(np.abs(1200 * np.log2(joined_f0[voiced] / f0[voiced]))) < 10


def test_two_nodes_of_each_layer_are_left(model: bytes) -> None:
    before = operators(cut(model, inputs=INPUTS, outputs=[STEPS, F0]))
    after = operators(cut(join_attention(model, heads=2), inputs=INPUTS, outputs=[STEPS, F0]))
    layers = before.count("Softmax")
    assert layers > 4
    assert after.count("Softmax") == 0
    assert after.count("MultiHeadAttention") == layers
    assert len(after) < len(before) - 30 * layers


def test_a_softmax_that_is_no_attention_is_named() -> None:
    types = messages()
    node = types["Node"](op_type="Softmax", name="mixture", input=["x"], output=["y"])
    with pytest.raises(ValueError, match="mixture"):
        join_attention(types["Model"](graph=types["Graph"](node=[node])).SerializeToString(), heads=2)
