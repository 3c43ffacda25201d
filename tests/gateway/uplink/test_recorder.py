"""The recording of a call: who is heard when, what is kept of pauses, and when the file is there. Time is a number."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.uplink.recorder import Recorder
from tests.no_room import needs_seccomp, refused_by_the_kernel, room_for

RATE = 8000
FRAME = 160
BEGAN = 500.0


def loud(samples: int = FRAME, level: float = 0.5) -> NDArray[np.float32]:
    return np.full(samples, level, np.float32)


def sides(path: Path) -> NDArray[np.float64]:
    """The file: shape ``(samples, 2)``, caller and bot, full scale 1."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, RATE)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2) / 32768


def seconds(side: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return start and end of each sound."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], side != 0, [0])))) / RATE
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "VX1.wav"


def recorder(path: Path, max_s: float = 3600.0) -> Recorder:
    return Recorder(path, rate=RATE, max_s=max_s, started=BEGAN)


def test_the_caller_is_left_before_the_packet_came_and_the_bot_right_from_when_it_was_sent(path: Path) -> None:
    recording = recorder(path)
    recording.caller(loud(), at=BEGAN + 1.0)
    recording.bot(loud(level=0.25), at=BEGAN + 2.0)
    recording.close()
    made = sides(path)
    assert seconds(made[:, 0]) == [(0.98, 1.0)]
    assert seconds(made[:, 1]) == [(2.0, 2.02)]
    assert np.abs(made).max(axis=0) == pytest.approx([0.5, 0.25], abs=0.001)


def test_jitter_neither_cuts_nor_doubles_sound_and_a_pause_stays_one(path: Path) -> None:
    """The earliest packets, which come 30 ms before the first would have let expect, tell when all were said."""
    recording = recorder(path)
    for number in range(50):
        jitter_s = (-0.03, 0.0, 0.05, 0.02)[number % 4]
        recording.caller(loud(), at=BEGAN + 0.1 + 0.02 * (number + 1) + (jitter_s if number else 0.0))
    recording.caller(loud(), at=BEGAN + 3.02)
    recording.close()
    assert seconds(sides(path)[:, 0]) == [(pytest.approx(0.07), pytest.approx(1.07)), (pytest.approx(3.0), 3.02)]


def test_frames_sent_ahead_of_their_time_follow_each_other(path: Path) -> None:
    """A carrier that buffers gets half a second at once; the phone plays it frame by frame."""
    recording = recorder(path)
    for _ in range(25):
        recording.bot(loud(), at=BEGAN + 1.0)
    recording.close()
    assert seconds(sides(path)[:, 1]) == [(1.0, 1.5)]


def test_one_side_may_be_silent_for_long_and_speak_again_at_its_time(path: Path) -> None:
    """Longer than what is kept in memory: the silent side's past has been written by then."""
    recording = recorder(path)
    recording.bot(loud(), at=BEGAN)
    for number in range(50 * 42):
        recording.caller(loud(), at=BEGAN + 0.02 * (number + 1))
    recording.bot(loud(), at=BEGAN + 41.0)
    recording.close()
    made = sides(path)
    assert seconds(made[:, 0]) == [(0.0, 42.0)]
    assert seconds(made[:, 1]) == [(0.0, 0.02), (41.0, 41.02)]


def test_minutes_of_silence_are_written_as_such(path: Path) -> None:
    recording = recorder(path)
    recording.caller(loud(), at=BEGAN + 300.0)
    recording.close()
    assert seconds(sides(path)[:, 0]) == [(299.98, 300.0)]


def test_what_comes_after_the_longest_recording_is_not_written(path: Path) -> None:
    recording = recorder(path, max_s=0.05)
    for number in range(10):
        recording.caller(loud(), at=BEGAN + 0.02 * (number + 1))
        recording.bot(loud(), at=BEGAN + 0.02 * number)
    recording.close()
    assert len(sides(path)) == 0.05 * RATE


def test_sound_from_before_the_recording_begins_with_it(path: Path) -> None:
    recording = recorder(path)
    recording.caller(loud(), at=BEGAN + 0.005)
    recording.close()
    assert seconds(sides(path)[:, 0]) == [(0.0, 0.02)]


def test_the_name_stands_for_a_complete_recording(path: Path) -> None:
    recording = recorder(path)
    recording.caller(loud(), at=BEGAN + 1.0)
    assert not path.exists()
    assert [other.name for other in path.parent.iterdir()] == ["VX1.part"]
    assert stat.S_IMODE(path.with_suffix(".part").stat().st_mode) == 0o600  # even before it is complete
    recording.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [other.name for other in path.parent.iterdir()] == ["VX1.wav"]


def test_a_call_without_sound_leaves_an_empty_recording(path: Path) -> None:
    recorder(path).close()
    assert len(sides(path)) == 0


def test_a_folder_that_was_removed_is_made_again_for_this_account_alone(tmp_path: Path) -> None:
    recording = recorder(tmp_path / "gone" / "VX1.wav")
    recording.bot(loud(), at=BEGAN + 1.0)
    recording.close()
    assert seconds(sides(tmp_path / "gone" / "VX1.wav")[:, 1]) == [(1.0, 1.02)]
    assert stat.S_IMODE((tmp_path / "gone").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_written_fails_in_the_thread_and_not_where_the_call_begins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recording = recorder(tmp_path / "file" / "VX1.wav")  # made on the gateway's loop
    with pytest.raises(FileExistsError):
        recording.caller(loud(), at=BEGAN + 1.0)  # where the uplink's thread expects it


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from gateway.uplink.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), rate=8000, max_s=60.0, started=0.0)
for number in range(350):
    recorder.caller(np.full(160, 0.5, np.float32), at=0.02 * (number + 1))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_part_that_a_killed_process_leaves_has_a_header_of_its_sound(path: Path) -> None:
    """After 7 s of a call the last 4 s may still move, and two seconds may wait to be written."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=Path(__file__).parents[3])
    assert ended.returncode == -signal.SIGKILL
    made = sides(path.with_suffix(".part"))
    assert RATE <= len(made) <= 3 * RATE
    assert (made[:, 0] > 0.49).all()
    assert path.with_suffix(".part").stat().st_size == 44 + 4 * len(made)


def until_the_disk_is_full(recorder: Recorder) -> None:
    with pytest.raises(OSError):
        for number in range(1000):
            recorder.caller(np.full(160, 0.5, np.float32), at=0.02 * (number + 1))


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
def test_a_disk_that_fills_up_keeps_what_fits_as_a_readable_part_and_no_open_file(
    tmp_path: Path, key: bytes | None
) -> None:
    recorder = Recorder(tmp_path / "VX1.wav", rate=8000, max_s=60.0, started=0.0, key=key)
    with room_for(100_001):
        until_the_disk_is_full(recorder)
        recorder.give_up()
    (part,) = tmp_path.iterdir()
    assert (part.suffix, part.stat().st_size) == (".part", 100_001)
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not any(os.path.realpath(link) == str(part.resolve()) for link in links)
    if key is None:
        with wave.open(str(part)) as file:
            assert file.getnframes() == (100_001 - 44) // 4
            sound = np.frombuffer(file.readframes(25_000), "<i2").reshape(-1, 2)
        assert (sound[-1000:, 0] == sound[-1, 0]).all() and sound[-1, 0] > 16_000


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
def test_a_disk_that_is_full_from_the_first_byte_keeps_no_empty_part(tmp_path: Path, key: bytes | None) -> None:
    recorder = Recorder(tmp_path / "VX1.wav", rate=8000, max_s=60.0, started=0.0, key=key)
    (tmp_path / "VX1.part").symlink_to("/dev/full")  # the kernel answers ENOSPC to each write
    until_the_disk_is_full(recorder)
    recorder.give_up()
    assert list(tmp_path.iterdir()) == []


@needs_seccomp
@pytest.mark.parametrize("key", [None, bytes(32)])
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("sync", errno.EIO),
        ("rename", errno.ENOSPC),
        ("rename", errno.EIO),
    ],
)
def test_a_disk_that_fails_at_any_step_leaves_no_file_of_the_final_name(
    path: Path, what: str, error: int, key: bytes | None
) -> None:
    recording = Recorder(path, rate=RATE, max_s=60.0, started=BEGAN, key=key)

    def record() -> int | None:
        try:
            recording.caller(loud(), at=BEGAN + 1.0)
            recording.close()
        except OSError as exc:
            recording.give_up()
            return exc.errno
        return None

    assert refused_by_the_kernel(what, error, record) == error
    assert {each.suffix for each in path.parent.iterdir()} <= {".part"}
