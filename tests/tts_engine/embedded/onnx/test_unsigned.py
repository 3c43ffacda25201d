"""Products of 8-bit numbers are those of whole numbers, whatever the processor does with signed weights."""

from pathlib import Path

import numpy as np
import pytest
from hibari.voices import voice_path

from tts_engine.embedded import hibari
from tts_engine.embedded.hibari import HibariVoice, NoisePool
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.onnx.messages import messages
from tts_engine.embedded.onnx.unsigned import a_product, exact, overflows, unsigned
from tts_engine.onnx_runtime import onnxruntime as ort


def run(model: bytes, a: np.ndarray) -> np.ndarray:
    return np.asarray(ort.InferenceSession(model).run(None, {"a": a})[0])


@pytest.mark.parametrize("seed", range(3))
def test_products_are_those_of_whole_numbers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.integers(200, 256, (5, 70), dtype=np.uint8)
    w = draw.integers(100, 128, (70, 33)).astype(np.int8)
    want = a.astype(np.int64) @ w.astype(np.int64)
    np.testing.assert_array_equal(run(unsigned(a_product(w)), a), want)
    np.testing.assert_array_equal(run(exact(a_product(w)), a), want)
    assert overflows() == (run(a_product(w), a) != want).any()


def test_the_voice_sounds_the_same_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    (piece,) = PhonemeReader().read("Where is my order, and when does it arrive?")

    def sound() -> np.ndarray:
        speech = HibariVoice().begin(piece, 1.0, NoisePool().reader(3), 8000)
        return np.concatenate([speech.block(24) for _ in range(4)])

    here = sound()
    monkeypatch.setattr(hibari, "exact", unsigned)
    np.testing.assert_allclose(here, sound(), atol=1e-5)


@pytest.mark.parametrize("constant", [True, False], ids=["another number", "computed"])
def test_a_zero_point_that_is_not_zero_is_named(constant: bool) -> None:
    model = messages()["Model"].FromString(a_product(np.ones((4, 4), np.int8)))
    if constant:
        model.graph.initializer.add(name="zero", data_type=3, raw_data=bytes([1]))
    model.graph.node[0].input.extend(["", "zero"])
    with pytest.raises(ValueError, match="'w' have a zero point"):
        unsigned(model.SerializeToString())


def test_weights_that_are_not_only_multiplied_are_named() -> None:
    model = messages()["Model"].FromString(a_product(np.ones((4, 4), np.int8)))
    model.graph.node.add(op_type="Cast", input=["w"], output=["z"])
    with pytest.raises(ValueError, match="no product's alone"):
        unsigned(model.SerializeToString())


def test_all_products_of_the_voice_get_unsigned_weights() -> None:
    before = Path(voice_path("heart", download_missing=False)).read_bytes()
    graph = messages()["Model"].FromString(unsigned(before)).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(products) == 77
    assert {(types[node.input[1]], types[node.input[3]]) for node in products} == {(2, 2)}
