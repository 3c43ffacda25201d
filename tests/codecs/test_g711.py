"""All 65,536 samples and all 256 codes against the tables of ITU-T G.711, read here as decision values."""

import numpy as np
import pytest
from numpy.typing import NDArray

from voicecodecs import g711
from voicecodecs.pcm import audioop

SAMPLES = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)
CODES = bytes(range(256))


def decision_values(segments: list[tuple[int, int, int]]) -> NDArray[np.int64]:
    """x_1, x_2 ... from (first, step, intervals) of each segment, as columns 2 and 3 of the tables list them."""
    return np.concatenate([first + step * np.arange(1, count + 1) for first, step, count in segments])


# Table 2a, 14-bit scale: one interval of 1, fifteen of 2, then seven segments of 16 intervals, each twice as wide.
ULAW_X = decision_values([(0, 1, 1), (1, 2, 15)] + [(31 + 32 * (2**k - 1) * 2, 4 << k, 16) for k in range(7)])
# Table 1a, 13-bit scale: 32 intervals of 2, then six segments of 16 intervals, each twice as wide.
ALAW_X = decision_values([(0, 2, 32)] + [(64 << k, 4 << k, 16) for k in range(6)])


def intervals(x: NDArray[np.int64], scale: int) -> NDArray[np.int64]:
    """Number of the interval of every sample: [x_n, x_n+1) upwards, mirrored to (-x_n+1, -x_n] downwards.

    Mirrored means: -1 is to the negative side what 0 is to the positive (G.191's ones' complement).
    """
    wide = SAMPLES.astype(np.int64)
    magnitude = np.where(wide < 0, -1 - wide, wide)
    return np.minimum(np.searchsorted(x * scale, magnitude, side="right"), 127)


def midpoints(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """y_n = (x_n + x_n+1) / 2, twice over to stay whole."""
    edges = np.concatenate(([0], x))
    return edges[:-1] + edges[1:]


def test_the_tables_end_where_the_recommendation_says() -> None:
    assert (len(ULAW_X), ULAW_X[15], ULAW_X[-1]) == (128, 31, 8159)
    assert (len(ALAW_X), ALAW_X[31], ALAW_X[-1]) == (128, 64, 4096)


def test_every_sample_gets_the_ulaw_code_of_table_2() -> None:
    sign = np.where(SAMPLES < 0, 0x00, 0x80)
    expected = sign | (0x7F - intervals(ULAW_X, 4))
    np.testing.assert_array_equal(np.frombuffer(g711.encode_ulaw(SAMPLES), np.uint8), expected)


def test_every_sample_gets_the_alaw_code_of_table_1() -> None:
    sign = np.where(SAMPLES < 0, 0x00, 0x80)
    expected = (sign | intervals(ALAW_X, 8)) ^ 0x55
    np.testing.assert_array_equal(np.frombuffer(g711.encode_alaw(SAMPLES), np.uint8), expected)


def test_every_ulaw_code_decodes_to_the_value_of_table_2() -> None:
    values = midpoints(ULAW_X) * 2  # twice the 14-bit value, times 2: the 16-bit one
    values[0] = 0  # y_0 is 0, not the middle of the half interval
    expected = np.concatenate((-values[::-1], values[::-1]))  # 0x00 is the largest negative, 0x80 the largest
    np.testing.assert_array_equal(g711.decode_ulaw(CODES), expected)


def test_every_alaw_code_decodes_to_the_value_of_table_1() -> None:
    values = midpoints(ALAW_X) * 4
    by_bits = np.concatenate((-values, values))
    np.testing.assert_array_equal(g711.decode_alaw(CODES), by_bits[np.arange(256) ^ 0x55])


@pytest.mark.parametrize(
    ("sample", "ulaw", "alaw"),
    [(0, 0xFF, 0xD5), (-1, 0x7F, 0x55), (32767, 0x80, 0xAA), (-32768, 0x00, 0x2A), (1000, 0xCE, 0xFA)],
)
def test_known_codes(sample: int, ulaw: int, alaw: int) -> None:
    pcm = np.array([sample], np.int16)
    assert g711.encode_ulaw(pcm) == bytes([ulaw])
    assert g711.encode_alaw(pcm) == bytes([alaw])


def test_codes_survive_decoding_and_encoding() -> None:
    assert g711.encode_alaw(g711.decode_alaw(CODES)) == CODES
    # mu-law has two zeros; the negative one comes back as the positive.
    assert g711.encode_ulaw(g711.decode_ulaw(CODES)) == CODES.replace(b"\x7f", b"\xff")


def test_where_other_encoders_differ_is_as_the_docstring_says() -> None:
    wide = SAMPLES.astype(np.int64)

    def encode(magnitude_14_bit: NDArray[np.int64]) -> NDArray[np.int64]:
        interval = np.minimum(np.searchsorted(ULAW_X, magnitude_14_bit, side="right"), 127)
        return np.where(wide < 0, 0x00, 0x80) | (0x7F - interval)

    ours = np.frombuffer(g711.encode_ulaw(SAMPLES), np.uint8)
    truncating = encode(np.abs(wide) >> 2)
    shifting = encode(np.abs(wide >> 2))  # Sun's g711.c
    np.testing.assert_array_equal(np.frombuffer(audioop.lin2ulaw(SAMPLES.tobytes(), 2), np.uint8), shifting)
    assert np.count_nonzero(ours != truncating) == 127
    assert np.count_nonzero(ours != shifting) == 508
    assert np.count_nonzero(truncating != shifting) == 381
    assert np.abs(ours.astype(int) - shifting).max() == 1


def test_audioop_encodes_alaw_by_the_same_table() -> None:
    assert audioop.lin2alaw(SAMPLES.tobytes(), 2) == g711.encode_alaw(SAMPLES)


@pytest.mark.parametrize("encode", [g711.encode_ulaw, g711.encode_alaw])
@pytest.mark.parametrize(
    "wrong", [np.zeros(160, np.float32), np.zeros((1, 160), np.int16), np.zeros(160, ">i2"), b"\0\0"], ids=str
)
def test_wrong_input_is_named(encode: object, wrong: object) -> None:
    with pytest.raises(ValueError, match="expected (a )?one-dimensional"):
        encode(wrong)  # type: ignore[operator]
