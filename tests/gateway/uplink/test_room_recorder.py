"""The recording of a room: the channel of each leg, what is hidden, and what a lost disk costs. Time is a number."""

from __future__ import annotations

import errno
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.uplink.recorded import Recorded
from gateway.uplink.recording_thread import RecordingQueue, RecordingThread
from gateway.uplink.room_recorder import CHANNELS, RoomRecorder
from tests.no_room import needs_seccomp, refused_by_the_kernel
from voicecodecs.dtmf import tones
from voicecodecs.pcm import to_int16

RATE = 8000
KEY = bytes(range(32))


def sound(level: int = 8000) -> NDArray[np.int16]:
    return np.full(160, level, np.int16)


class Room:
    """A recording that is fed tick by tick."""

    def __init__(self, path: Path, key: bytes | None = None) -> None:
        self.path = path
        self.lost: list[str] = []
        self.thread = RecordingThread(hang_s=10.0, clock=lambda: 0.0)
        self.recorder = RoomRecorder(
            path,
            self.thread,
            room="team",
            tenant="shop",
            rate=RATE,
            max_s=60.0,
            started=100.0,
            key=key,
            on_lost=self.lost.append,
        )
        self.ticks = 0

    def passes(self, ticks: int, *legs: str) -> None:
        for _ in range(ticks):
            for leg in legs:
                self.recorder.hear(leg, sound())
            self.recorder.tick(100.0 + self.ticks * 0.02, RATE)
            self.ticks += 1

    def made(self, key: bytes | None = None) -> NDArray[np.int16]:
        """Complete the file and return its samples: shape ``(samples, channels)``."""
        self.recorder.close()
        self.thread.close()
        recorded = Recorded(self.path if key is None else self.path.with_name(f"{self.path.name}.enc"), key)
        data = b"".join(recorded.parts(0, recorded.size))
        recorded.close()
        with wave.open(io.BytesIO(data)) as file:
            assert (file.getnchannels(), file.getframerate()) == (CHANNELS, RATE)
            return np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, CHANNELS)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    yield Room(tmp_path / "RM1.wav")


@pytest.mark.parametrize("key", [None, KEY])
def test_legs_have_channels_and_a_free_one_is_used_again(tmp_path: Path, key: bytes | None) -> None:
    room = Room(tmp_path / "RM1.wav", key)
    room.recorder.hear("a", sound(100), bot=True)
    room.passes(50, "a", "b")
    room.recorder.left("a")
    room.passes(50, "b", "c")
    made = room.made(key)
    assert len(made) == 100 * 160
    assert made[:, 1].all() and made[:, 2].all(), "c has the channel of a"
    assert (made[:160, 0] == 100).all() and not made[160:, 0].any() and not made[:, 3:].any()
    assert json.loads((tmp_path / "RM1.json").read_text()) == {
        "room": "team",
        "tenant": "shop",
        "legs": [
            {"leg": "a", "channel": 2, "fromS": 0.0, "toS": 1.0},
            {"leg": "b", "channel": 3, "fromS": 0.0, "toS": 2.0},
            {"leg": "c", "channel": 2, "fromS": 1.0, "toS": 2.0},
        ],
    }


def test_more_legs_than_channels_share_the_last_one(room: Room) -> None:
    room.passes(10, *(f"leg {number}" for number in range(CHANNELS + 1)))
    made = room.made()
    assert made[0, 1] == 8000 and made[0, CHANNELS - 1] == 3 * 8000


def test_a_process_that_stood_still_leaves_silence(room: Room) -> None:
    room.passes(10, "a")
    room.ticks += 40
    room.passes(10, "a")
    made = room.made()[:, 1]
    assert len(made) == 60 * 160 and not made[10 * 160 : 50 * 160].any() and made[50 * 160 :].all()


def test_keys_are_hidden_in_the_channel_of_their_leg(room: Room) -> None:
    room.passes(50, "a", "b")
    room.recorder.pressed("a")
    room.passes(50, "a", "b")
    digits = to_int16(tones("5", RATE))
    for at in range(0, len(digits) // 160 * 160, 160):
        room.recorder.hear("b", digits[at : at + 160])
        room.recorder.tick(100.0 + room.ticks * 0.02, RATE)
        room.ticks += 1
    room.passes(50, "a")
    made = room.made()
    assert not made[int(0.51 * RATE) : int(1.29 * RATE), 1].any() and made[: int(0.49 * RATE), 1].all()
    assert made[: int(1.5 * RATE), 2].all() and not made[2 * RATE :, 2].any()


def test_a_disk_that_cannot_be_written_costs_the_recording_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    room = Room(tmp_path / "file" / "RM1.wav")
    room.passes(200, "a")
    room.thread.close()
    room.passes(50, "a")
    room.recorder.close()
    assert room.lost == ["unwritable"]


@needs_seccomp
@pytest.mark.parametrize(("what", "error"), [("sync", errno.EIO), ("rename", errno.ENOSPC), ("write", errno.ENOSPC)])
def test_a_disk_that_fails_at_the_end_is_told_and_leaves_no_half_file(tmp_path: Path, what: str, error: int) -> None:
    room = Room(tmp_path / "RM1.wav")
    refused_by_the_kernel(what, error, lambda: room.thread.work_on(RecordingQueue(room.thread)))
    room.passes(10, "a")  # less than is written at a time
    room.recorder.close()
    room.thread.close()
    assert room.lost == ["disk_full" if error == errno.ENOSPC else "unwritable"]
    assert {each.suffix for each in tmp_path.iterdir()} <= {".part"}


def test_a_list_of_legs_that_cannot_be_written_is_told_and_not_left_in_half(tmp_path: Path) -> None:
    room = Room(tmp_path / "RM1.wav")
    room.passes(10, "a" * 9000)
    (tmp_path / "RM1.json").mkdir()  # nothing can take this name
    room.recorder.close()
    room.thread.close()
    assert room.lost == ["unwritable"]
    assert {each.name for each in tmp_path.iterdir()} == {"RM1.wav", "RM1.json"}
