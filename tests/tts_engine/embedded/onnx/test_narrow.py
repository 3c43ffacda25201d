"""A last layer with fewer columns: the same first values, and refusals that name what is missing."""

from pathlib import Path

import numpy as np
import pytest
from hibari.voices import voice_path

from tts_engine.embedded.onnx.cut import cut
from tts_engine.embedded.onnx.narrow import narrow
from tts_engine.onnx_runtime import onnxruntime as ort

FEATURES = "/Concat_43_output_0"
PARTS = ("lh", "theta", "ln", "lr", "phi")
LAST = ("/head/Transpose_output_0_quantized", "m.head.bias")


@pytest.fixture(scope="module")
def decoder() -> bytes:
    model = Path(voice_path("heart", download_missing=False)).read_bytes()
    return cut(model, inputs={FEATURES: 1}, outputs=PARTS)


def test_the_first_values_of_every_part_are_what_they_were(decoder: bytes) -> None:
    features = np.random.default_rng(1).standard_normal((1, 130, 40), dtype=np.float32)
    whole = ort.InferenceSession(decoder).run(None, {FEATURES: features})
    few = ort.InferenceSession(narrow(decoder, tensors=LAST, parts=PARTS, width=201)).run(None, {FEATURES: features})
    for part, first in zip(whole, few, strict=True):
        assert first.shape == (1, 201, 40)
        np.testing.assert_allclose(first, part[:, :201], atol=1e-5)


@pytest.mark.parametrize(
    ("tensors", "parts", "width", "says"),
    [
        (("missing",), PARTS, 201, "missing"),
        (LAST, ("lh", "ln"), 201, "split into lh, ln"),
        (LAST, PARTS, 700, "601 wide, cannot keep 700"),
    ],
)
def test_what_does_not_fit_is_named(decoder: bytes, tensors, parts, width: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        narrow(decoder, tensors=tensors, parts=parts, width=width)
