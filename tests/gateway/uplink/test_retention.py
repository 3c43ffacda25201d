"""Old recordings: which files go, when, and that no other file does. The day is a number."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.uplink.retention import delete_old

DAY_S = 86_400.0
CALL = "VX" + "0a" * 16


def put(folder: Path, name: str, *, at: float) -> Path:
    path = folder / name
    path.write_bytes(b"sound")
    os.utime(path, (at, at))
    return path


@pytest.mark.virtual_time
async def test_a_recording_goes_when_its_days_are_over(tmp_path: Path) -> None:
    now = asyncio.get_running_loop().time
    begun = now()
    old = put(tmp_path, f"{CALL}.wav", at=begun - 31 * DAY_S)
    sealed = put(tmp_path, f"{CALL[:-1]}b.wav.enc", at=begun - 29.5 * DAY_S)
    left_by_a_crash = put(tmp_path, f"{CALL[:-1]}c.part", at=begun - 28.5 * DAY_S)
    task = asyncio.create_task(delete_old(tmp_path, keep_days=30, clock=now))
    await asyncio.sleep(1)
    assert not old.exists() and sealed.exists() and left_by_a_crash.exists()
    await asyncio.sleep(DAY_S)
    assert not sealed.exists() and left_by_a_crash.exists()
    await asyncio.sleep(DAY_S)
    assert not left_by_a_crash.exists()
    task.cancel()


@pytest.mark.virtual_time
async def test_files_that_we_did_not_write_stay(tmp_path: Path) -> None:
    names = ["notes.wav", "VX1.wav", f"{CALL}.wav.bak", f"my {CALL}.wav", f"{CALL}.mp3", f"{CALL.upper()}.wav", ".wav"]
    for name in names:
        put(tmp_path, name, at=0.0)
    (tmp_path / f"{CALL}.wav").mkdir()
    elsewhere = put(tmp_path, "elsewhere", at=0.0)
    (tmp_path / f"{CALL}.part").symlink_to(elsewhere)
    before = sorted(path.name for path in tmp_path.iterdir())
    task = asyncio.create_task(delete_old(tmp_path, keep_days=1, clock=lambda: 1000 * DAY_S))
    await asyncio.sleep(3 * DAY_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    task.cancel()


@pytest.mark.virtual_time
async def test_a_folder_that_is_missing_is_told_and_looked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "recordings"
    task = asyncio.create_task(delete_old(folder, keep_days=1, clock=lambda: 1000 * DAY_S))
    await asyncio.sleep(1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    folder.mkdir()
    late = put(folder, f"{CALL}.wav", at=0.0)
    await asyncio.sleep(DAY_S)
    assert not late.exists()
    task.cancel()
