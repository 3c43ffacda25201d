"""Touch tones at the limits of ITU-T Q.24 table A-1, over a mu-law line, and speech that must not dial."""

import numpy as np
import pytest
from hibari import Hibari
from numpy.typing import NDArray

from tests.codecs.codec_signals import amplitude_at
from voicecodecs.dtmf import HIGH_HZ, LOW_HZ, Detector, tones
from voicecodecs.g711 import decode_ulaw, encode_ulaw
from voicecodecs.pcm import dbov, gain_db, to_float32, to_int16
from voicecodecs.resample import Resampler

KEYS = "123A456B789C*0#D"


def detect(pcm: NDArray[np.float32], sample_rate: int = 8000, chunk: int = 160) -> str:
    detector = Detector(sample_rate)
    return "".join(detector.process(pcm[at : at + chunk]) for at in range(0, len(pcm), chunk))


def over_the_line(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    return to_float32(decode_ulaw(encode_ulaw(to_int16(pcm))))


def sine(hz: float, ms: float, dbm0: float, phase: float) -> NDArray[np.float32]:
    t = np.arange(round(8 * ms)) / 8000
    return (10 ** ((dbm0 - 3.17) / 20) * np.sin(2 * np.pi * hz * t + phase)).astype(np.float32)


def keyed(
    key: str, ms: float, seed: int, *, low=-10.0, high=-10.0, low_off=0.0, high_off=0.0, snr_db: float | None = None
) -> NDArray[np.float32]:
    """One key as a bad telephone sends it: no ramps, any phase, any place among the detector's windows."""
    rng = np.random.default_rng(seed)
    row, column = divmod(KEYS.index(key), 4)
    tone = sine(LOW_HZ[row] * (1 + low_off), ms, low, rng.uniform(0, 6))
    tone += sine(HIGH_HZ[column] * (1 + high_off), ms, high, rng.uniform(0, 6))
    line = np.concatenate((np.zeros(rng.integers(100, 300), np.float32), tone, np.zeros(600, np.float32)))
    if snr_db is not None:
        line += (10 ** (dbov(tone) / 20 - snr_db / 20) * rng.standard_normal(len(line))).astype(np.float32)
    return over_the_line(line)


def heard(ms: float, **kwargs: float) -> list[str]:
    """Return the digits detected when each key is pressed a few times for ``ms``."""
    return [detect(keyed(key, ms, seed, **kwargs)) for key in KEYS for seed in range(4)]


EACH = [key for key in KEYS for _ in range(4)]
NONE = [""] * len(EACH)


@pytest.mark.parametrize("sample_rate", [8000, 16000, 24000, 48000])
@pytest.mark.parametrize("chunk", [1, 160, 100_000])
def test_own_tones_are_found_in_any_chunks(sample_rate: int, chunk: int) -> None:
    if chunk == 1:
        assert detect(tones("5#", sample_rate, tone_ms=60, pause_ms=40), sample_rate, 1) == "5#"
    else:
        dialled = KEYS + KEYS[::-1] + "1122"
        assert detect(tones(dialled, sample_rate, tone_ms=40, pause_ms=40), sample_rate, chunk) == dialled


def test_a_digit_is_390_ms_of_two_tones_and_w_half_a_second_of_silence() -> None:
    pcm = tones("7", 8000)
    assert len(pcm) == 3120
    for hz, dbm0 in ((852, -9), (1209, -7)):
        assert 20 * np.log10(amplitude_at(pcm[200:1800], hz, 8000)) == pytest.approx(dbm0 - 3.17, abs=0.1)
    assert not pcm[2000:].any()
    assert len(tones("7w7", 8000)) == 3120 * 2 + 4000
    assert not tones("w", 8000).any()
    assert len(tones("", 8000)) == 0
    assert np.abs(tones(KEYS, 8000)).max() < 1
    np.testing.assert_array_equal(tones("a", 8000), tones("A", 8000))


def test_40_ms_are_a_digit_and_23_ms_are_not() -> None:
    assert heard(40) == EACH
    assert heard(23) == NONE


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1), (1, 0), (0, -1)])
def test_frequencies_1_5_percent_off_are_taken_and_3_5_percent_off_refused(signs: tuple[int, int]) -> None:
    low, high = signs
    assert heard(60, low_off=0.015 * low, high_off=0.015 * high) == EACH
    assert heard(60, low_off=0.035 * low, high_off=0.035 * high) == NONE


@pytest.mark.parametrize("twist_db", [4, -8])
def test_a_line_may_twist_by_plus_4_to_minus_8_db(twist_db: int) -> None:
    assert heard(40, low=-12, high=-12 + twist_db) == EACH


@pytest.mark.parametrize("twist_db", [7, -12])
def test_a_line_does_not_twist_further(twist_db: int) -> None:
    assert heard(40, low=-14, high=-14 + twist_db) == NONE


def test_levels_from_0_to_minus_25_dbm0_are_taken_and_minus_29_refused() -> None:
    assert heard(40, low=0, high=0) == EACH
    assert heard(40, low=-25, high=-25) == EACH
    assert heard(40, low=-29, high=-29) == NONE


def test_noise_15_db_below_does_not_hide_a_digit() -> None:
    assert heard(50, snr_db=15) == EACH


def test_a_drop_out_of_10_ms_does_not_double_a_digit_and_a_pause_of_40_ms_does() -> None:
    silence = np.zeros(400, np.float32)
    for key in KEYS:
        long = tones(key, 8000, tone_ms=120, pause_ms=40)
        long[400:480] = 0
        assert detect(over_the_line(np.concatenate((silence, long)))) == key
        assert detect(over_the_line(tones(key * 2, 8000, tone_ms=40, pause_ms=40))) == key * 2


def test_a_key_held_for_seconds_is_one_digit() -> None:
    assert detect(tones("9", 8000, tone_ms=4000)) == "9"


def test_single_tones_and_dial_tone_are_no_digits() -> None:
    for hz in (*LOW_HZ, *HIGH_HZ, 350, 425, 440, 480, 620, 1100, 2100):
        assert detect(sine(hz, 500, -6, 0)) == ""
    assert detect(sine(350, 1000, -13, 0) + sine(440, 1000, -13, 0)) == ""


def test_noise_at_any_level_is_no_digit() -> None:
    noise = np.random.default_rng(9).standard_normal(8000 * 60).astype(np.float32)
    for dbm0 in (-5, -20, -35):
        assert detect(over_the_line(gain_db(noise, dbm0 - 3.17)), chunk=8000) == ""


@pytest.fixture(scope="module")
def speech() -> NDArray[np.float32]:
    """Some three minutes of a woman's voice, the kind that talks off detectors, at 8000 Hz; speeds move its pitch."""
    voice = Hibari(threads=1)
    texts = [
        "Your order has been shipped and should arrive on Friday. Please have your account number ready.",
        "One two three four five six seven eight nine zero, star, pound. Who are you? We see you too!",
        "Oh no, eleven hundred eighty-nine, mmm, really? I would rather wait until Wednesday evening, thank you.",
        "Ooh, aah, eee! Yellow lorries rolled along a long, low, lonely lane, humming all the while.",
    ]
    clips = [voice(text, speed=speed, seed=1) for text in texts for speed in (0.6, 0.8, 1.0, 1.3, 1.6)]
    down = Resampler(voice.sample_rate, 8000)
    pitched = Resampler(int(voice.sample_rate * 0.75), 8000)  # the same read slower: a deeper voice
    return np.concatenate([down.process(clip) for clip in clips] + [pitched.process(clip) for clip in clips])


@pytest.mark.parametrize("gain", [0, 6])
def test_speech_does_not_dial(speech: NDArray[np.float32], gain: float) -> None:
    assert len(speech) > 150 * 8000
    assert detect(over_the_line(gain_db(speech, gain)), chunk=8000) == ""


def test_digits_are_heard_over_faint_speech(speech: NDArray[np.float32]) -> None:
    dialled = tones(KEYS, 8000, tone_ms=100, pause_ms=60)
    background = gain_db(speech[: len(dialled)], -30 - dbov(speech[: len(dialled)]))
    assert detect(over_the_line(dialled + background)) == KEYS


@pytest.mark.parametrize("digits", ["12x", "1W", "1 2", "１", "é"])
def test_what_is_no_key_is_an_error_that_does_not_repeat_it(digits: str) -> None:
    with pytest.raises(ValueError, match=rf"of {len(digits)} is not a key, expected") as caught:
        tones(digits, 8000)
    assert digits not in str(caught.value)


def test_impossible_durations_rates_and_arrays_are_named() -> None:
    with pytest.raises(ValueError, match="tone_ms is 20"):
        tones("1", 8000, tone_ms=20)
    with pytest.raises(ValueError, match="4000 Hz"):
        Detector(4000)
    with pytest.raises(ValueError, match="expected one-dimensional float32"):
        Detector(8000).process(np.zeros(160, np.int16))  # type: ignore[arg-type]
