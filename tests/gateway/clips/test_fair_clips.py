"""Clips of many callers: each tenant and call has its turn, and a clip is heard while it is decoded."""

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gateway.clips import clips as module
from gateway.clips.clips import Clips
from gateway.config import ClipsConfig
from gateway.errors import ClipError
from tests.gateway.clips.test_clips import ULAW, WAV, clips_in, encoded, heard, sine
from tests.waiting import PATIENCE_S, until

LONG_S = 600
CLIPS = 12


async def test_a_clip_is_heard_before_all_of_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECODE_S", 0.0)
    (tmp_path / "long.wav").write_bytes(encoded(sine(700, 8000, 60.0), 8000, "wav", "pcm_s16le"))
    async with clips_in(tmp_path) as clips:
        sound = await clips.open("long.wav", ULAW, 1)
        assert clips._growing
        assert len(await heard(sound)) == 60 * 8000
        assert len(await heard(await clips.open("long.wav", ULAW, 1))) == 60 * 8000
        assert not clips._growing


async def test_what_is_damaged_behind_its_beginning_fails_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DECODE_S", 0.0)
    monkeypatch.setattr(module, "CLIP_S", 5)
    (tmp_path / "long.wav").write_bytes(encoded(sine(700, 8000, 10.0), 8000, "wav", "pcm_s16le"))
    async with clips_in(tmp_path) as clips:
        with pytest.raises(ClipError, match="longer than 5 s"):
            await heard(await clips.open("long.wav", ULAW, 1))
        with pytest.raises(ClipError, match="longer than 5 s"):
            await clips.samples("long.wav")


def p95_ms(times: list[float]) -> float:
    return float(np.percentile(times, 95)) * 1000


async def starts(clips: Clips, number: int) -> list[float]:
    """Return the times to the first frames of a cached clip of tenant B, seconds."""
    found = []
    for call in range(number):
        begun = time.perf_counter()
        async with await clips.open("short.wav", ULAW, 1, route="b", call_id=f"b{call}") as sound:
            await anext(aiter(sound))
        found.append(time.perf_counter() - begun)
        await asyncio.sleep(0)
    return found


async def test_a_cached_clip_starts_in_time_while_another_tenant_plays_long_ones(tmp_path: Path) -> None:
    (tmp_path / "short.wav").write_bytes(WAV)
    long = encoded(sine(300, 16000, LONG_S), 16000, "mp3", "libmp3lame")
    for number in range(CLIPS):
        (tmp_path / f"{number}.mp3").write_bytes(long)
    clips = Clips(ClipsConfig(folder=str(tmp_path)), tenants={"a": "A", "b": "B"})
    await starts(clips, 1)
    alone = await starts(clips, 100)
    playing = [
        asyncio.ensure_future(clips.open(f"{number}.mp3", ULAW, 1, route="a", call_id=f"a{number}"))
        for number in range(CLIPS)
    ]
    await asyncio.gather(*playing)  # all twelve are heard, none waits for another
    assert len(clips._growing) == CLIPS
    beside = await starts(clips, 100)
    assert len(clips._growing) == CLIPS  # they are still being decoded
    await clips.aclose()
    assert p95_ms(beside) <= p95_ms(alone) + 50


async def test_what_is_heard_first_waits_for_no_long_work(tmp_path: Path) -> None:
    (tmp_path / "short.wav").write_bytes(WAV)
    async with clips_in(tmp_path) as clips:
        whole = await heard(await clips.open("short.wav", ULAW, 1))
        ends = threading.Event()
        working = asyncio.create_task(clips._later.run(("other", ""), lambda: ends.wait(PATIENCE_S)))
        async with asyncio.timeout(PATIENCE_S), await clips.open("short.wav", ULAW, 1) as sound:
            chunks = aiter(sound)
            begins = [(await anext(chunks)).samples for _ in range(2)]
            assert begins[0] <= 800 and sum(begins) > 2000
            ends.set()
            assert sum([chunk.samples async for chunk in chunks]) + sum(begins) == len(whole)
        assert await working


async def test_the_beginning_of_a_cached_clip_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.clips.clips.FOUND_S", PATIENCE_S)
    (tmp_path / "short.wav").write_bytes(WAV)
    async with clips_in(tmp_path) as clips:
        whole = await heard(await clips.open("short.wav", ULAW, 1))
        ends = threading.Event()
        working = [asyncio.create_task(clips._threads.run(("other", ""), lambda: ends.wait(PATIENCE_S))) for _ in "ab"]
        async with asyncio.timeout(PATIENCE_S), await clips.open("short.wav", ULAW, 1) as sound:
            chunks = aiter(sound)
            first = await anext(chunks)
            ends.set()
            rest = [chunk.samples async for chunk in chunks]
        assert first.samples + sum(rest) == len(whole)
        assert await asyncio.gather(*working) == [True, True]


async def test_slow_fetches_of_one_tenant_leave_places_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    slow = asyncio.Event()

    async def get(self: Clips, url: str) -> tuple[bytes, bool]:
        begun.append(url)
        if "slow" in url:
            await slow.wait()
        return WAV, True

    monkeypatch.setattr(Clips, "_get", get)
    clips = Clips(ClipsConfig(folder=str(tmp_path), fetch=True), tenants={"a": "A", "b": "B"})
    held = [
        asyncio.ensure_future(clips.open(f"https://a.example/slow{number}", ULAW, 1, route="a", call_id=f"{number}"))
        for number in range(module.FETCHES + CLIPS)
    ]
    await until(lambda: len(begun) == module.FETCHES_OF_ONE, "all that one tenant may fetch at once")
    assert len(await heard(await clips.open("https://b.example/quick", ULAW, 1, route="b", call_id="b")))
    assert len(begun) == module.FETCHES_OF_ONE + 1
    slow.set()
    await asyncio.gather(*held)
    assert len(begun) == len(held) + 1
    await clips.aclose()


async def test_a_long_clip_is_decoded_as_far_as_it_is_wanted_and_not_when_no_one_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DECODE_S", 0.0)
    monkeypatch.setattr(module, "AHEAD_S", 2)
    (tmp_path / "long.wav").write_bytes(encoded(sine(700, 8000, 20.0), 8000, "wav", "pcm_s16le"))
    async with clips_in(tmp_path) as clips:
        first, second = [await clips.open("long.wav", ULAW, 1) for _ in range(2)]
        (clip,) = clips._growing.values()
        await until(lambda: clip.samples > 2 * 8000, "as much as is decoded ahead")
        for _ in range(20):
            await asyncio.sleep(0)
        assert clip.samples < 4 * 8000 and clip.listeners == 2
        await first.aclose()
        await first.aclose()
        assert clip.listeners == 1 and clips._growing
        assert len(await heard(second)) == 20 * 8000, "the other one hears all of it"
        await until(lambda: not clips._growing, "the whole clip")
        assert clips._cache

        (tmp_path / "other.wav").write_bytes((tmp_path / "long.wav").read_bytes())
        for _ in range(3):  # one that begins and is cut, again and again, leaves nothing behind
            cut = await clips.open("other.wav", ULAW, 1)
            await cut.aclose()
            await until(lambda: not clips._growing, "the end of the work")
        assert len(clips._cache) == 1
        assert len(await heard(await clips.open("other.wav", ULAW, 1))) == 20 * 8000
