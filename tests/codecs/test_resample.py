"""The resampler by tones, sweeps, clicks and counts, between all rates that voices, legs and recognisers use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import firwin, upfirdn

from tests.codecs.codec_signals import amplitude_at, tone
from voicecodecs.resample import Resampler

RATES = (8000, 16000, 22050, 24000, 48000)
PAIRS = [(a, b) for a in RATES for b in RATES if a != b]


def resample(pcm: NDArray[np.float32], rate_in: int, rate_out: int, chunk: int = 1 << 30) -> NDArray[np.float32]:
    resampler = Resampler(rate_in, rate_out)
    pieces = [resampler.process(pcm[at : at + chunk]) for at in range(0, len(pcm), chunk)]
    return np.concatenate([*pieces, resampler.flush()])


def response(rate_in: int, rate_out: int, hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gain of the filter at input frequencies: spectrum of the output for clicks at every input phase, interleaved.

    A click's output holds one phase of the filter; clicks at all distances from the output grid, put together in
    order, are the filter itself on the fine grid.
    """
    up = rate_out // np.gcd(rate_in, rate_out)
    down = rate_in // np.gcd(rate_in, rate_out)
    times, values = [], []
    for shift in range(down):  # clicks at input samples 0..down-1 meet every phase
        pcm = np.zeros(rate_in // 50 + down, np.float32)
        at = rate_in // 100 + shift
        pcm[at] = 1.0
        heard = resample(pcm, rate_in, rate_out)
        around = at * up // down
        reach = 32 * rate_out // min(rate_in, rate_out)
        n = np.arange(around - reach, around + reach)
        times.append(n / rate_out - at / rate_in)
        values.append(heard[n])
    t, h = np.concatenate(times), np.concatenate(values).astype(np.float64)
    return np.array([np.abs(np.sum(h * np.exp(-2j * np.pi * f * t))) for f in hz]) / h.sum()


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_pass_band_is_flat_and_stop_band_is_closed(rate_in: int, rate_out: int) -> None:
    low = min(rate_in, rate_out)
    passed = 20 * np.log10(response(rate_in, rate_out, np.linspace(0, 0.425 * low, 60)))
    assert np.abs(passed).max() <= 0.1
    fine_grid = rate_in * rate_out // np.gcd(rate_in, rate_out)
    stopped = response(rate_in, rate_out, np.linspace(low / 2, min(fine_grid / 2, 4 * low), 400))
    assert 20 * np.log10(stopped.max()) <= -70


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_filter_is_a_kaiser_low_pass_of_scipy(rate_in: int, rate_out: int) -> None:
    divisor = int(np.gcd(rate_in, rate_out))
    up, down, low = rate_out // divisor, rate_in // divisor, min(rate_in, rate_out)
    half = int(28.8 * rate_in * up / low)
    taps = up * firwin(2 * half + 1, 0.45625 * low, window=("kaiser", 6.9), fs=rate_in * up)
    noise = np.random.default_rng(11).uniform(-1, 1, rate_in // 5).astype(np.float32)
    ahead = -half % down  # zeros that put the middle of the filter on an output sample
    filtered = upfirdn(np.concatenate((np.zeros(ahead), taps)), noise.astype(np.float64), up, down)
    heard = resample(noise, rate_in, rate_out)
    expected = filtered[(half + ahead) // down :][: len(heard)]
    # Here each phase is scaled to pass a constant exactly; firwin scales the filter as a whole.
    assert np.abs(heard - expected).max() < 5e-4


@pytest.mark.parametrize("rate_in", [16000, 22050, 24000, 48000])
def test_tones_below_3400_hz_keep_their_level_at_8_khz(rate_in: int) -> None:
    for hz in (50, 300, 1000, 2000, 3000, 3400):
        heard = resample(tone(hz, 1.0, rate_in), rate_in, 8000)
        assert 20 * np.log10(amplitude_at(heard[200:-200], hz, 8000) / 0.5) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("rate_in", [16000, 22050, 24000, 48000])
def test_tones_above_4_khz_do_not_come_back_at_8_khz(rate_in: int) -> None:
    for hz in range(4050, rate_in // 2, 300):
        heard = resample(tone(hz, 0.5, rate_in), rate_in, 8000)[200:-200]
        # All that is heard of it, wherever in the band it lands: RMS against the tone's own.
        assert 20 * np.log10(np.sqrt(2 * np.mean(heard.astype(np.float64) ** 2)) / 0.5) < -70


@pytest.mark.parametrize("rate_in", [22050, 24000, 48000])
def test_sweep_is_heard_up_to_4_khz_and_no_further(rate_in: int) -> None:
    seconds, top = 4.0, 10000
    t = np.arange(int(seconds * rate_in)) / rate_in
    sweep = (0.5 * np.sin(np.pi * top / seconds * t**2)).astype(np.float32)  # at second t: top * t / seconds Hz
    heard = resample(sweep, rate_in, 8000)

    def level(start: float, end: float) -> float:
        return float(np.sqrt(2 * np.mean(heard[int(start * 8000) : int(end * 8000)] ** 2)) / 0.5)

    assert 20 * np.log10(level(0.1, 3400 / top * seconds - 0.02)) == pytest.approx(0, abs=0.1)
    assert 20 * np.log10(level(4000 / top * seconds + 0.02, seconds)) < -70


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_any_chunking_gives_the_same_bits_and_the_exact_length(rate_in: int, rate_out: int) -> None:
    noise = np.random.default_rng(7).uniform(-1, 1, rate_in // 3 + 11).astype(np.float32)
    whole = resample(noise, rate_in, rate_out)
    assert len(whole) == round(len(noise) * rate_out / rate_in)
    for chunk in (rate_in // 50, 97, 1999):
        np.testing.assert_array_equal(resample(noise, rate_in, rate_out, chunk), whole)


@given(
    pair=st.sampled_from(PAIRS),
    cuts=st.lists(st.integers(0, 700), min_size=1, max_size=12),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=100, deadline=None)
def test_random_chunks_give_the_same_bits(pair: tuple[int, int], cuts: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(-1, 1, sum(cuts)).astype(np.float32)
    resampler = Resampler(*pair)
    pieces = [resampler.process(piece) for piece in np.split(noise, np.cumsum(cuts)[:-1])]
    pieces.append(resampler.flush())
    whole = resample(noise, *pair)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert len(whole) == round(len(noise) * pair[1] / pair[0])


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_first_chunk_answers_at_once_but_for_the_stated_delay(rate_in: int, rate_out: int) -> None:
    resampler = Resampler(rate_in, rate_out)
    assert resampler.delay_s <= 0.0036
    heard = resampler.process(np.ones(rate_in // 50, np.float32))
    assert len(heard) == pytest.approx((0.02 - resampler.delay_s) * rate_out, abs=2)


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_a_click_keeps_its_time(rate_in: int, rate_out: int) -> None:
    pcm = np.zeros(rate_in // 2, np.float32)
    at = rate_in // 4
    pcm[at] = 1.0
    heard = resample(pcm, rate_in, rate_out, rate_in // 50).astype(np.float64)
    centre = np.sum(np.arange(len(heard)) * heard**2) / np.sum(heard**2)
    assert centre / rate_out == pytest.approx(at / rate_in, abs=0.5 / rate_out)


def test_flush_starts_a_new_stream() -> None:
    noise = np.random.default_rng(3).uniform(-1, 1, 5000).astype(np.float32)
    resampler = Resampler(24000, 8000)
    first = np.concatenate((resampler.process(noise), resampler.flush()))
    second = np.concatenate((resampler.process(noise), resampler.flush()))
    np.testing.assert_array_equal(first, second)
    assert len(resampler.flush()) == 0


def test_equal_rates_pass_through_as_a_copy() -> None:
    pcm = tone(440, 0.1, 8000)
    resampler = Resampler(8000, 8000)
    heard = resampler.process(pcm)
    np.testing.assert_array_equal(heard, pcm)
    assert not np.shares_memory(heard, pcm)
    assert (resampler.delay_s, len(resampler.flush())) == (0.0, 0)


def test_a_constant_stays_a_constant() -> None:
    heard = resample(np.full(22050, 0.25, np.float32), 22050, 8000)[100:-100]
    np.testing.assert_allclose(heard, 0.25, atol=1e-6)


@pytest.mark.parametrize("wrong", [np.zeros(10), np.zeros(10, np.int16), np.zeros((2, 5), np.float32)])
def test_wrong_type_or_shape_is_named(wrong: NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match="expected one-dimensional float32"):
        Resampler(24000, 8000).process(wrong)


@pytest.mark.parametrize(
    ("rates", "says"), [((0, 8000), "positive"), ((8000, -1), "positive"), ((8000, 47999), "47999")]
)
def test_impossible_rates_are_named(rates: tuple[int, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Resampler(*rates)
