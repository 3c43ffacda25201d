"""Faults in the recording of a voice: each is put into speech and found; all kinds of files are read."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.errors import Rejected
from gateway.http.speech_api import sound_decoder
from gateway.http.speech_api.sound_decoder import sampled
from gateway.http.speech_api.voice_sample import Measured, difference, measure, problems, words_of
from tests.gateway.http.speech_api.test_transcription import encoded
from tests.no_room import needs_seccomp, refused_by_the_kernel
from tests.waiting import until
from tts_engine.supervision import SUPERVISOR

RATE = 24_000
GOOD = Measured(
    seconds=8.0, sample_rate=24_000, channels=1, alike=1.0, missing_s=0.0,
    speech_s=6.0, level_dbfs=-22.0, noise_db=40.0, clipped=0.0001, bandwidth_hz=9000,
)  # fmt: skip
WORDS = "This is my voice, and I speak in my usual way for about six seconds."


def speech_like(seconds: float, rate: int = RATE) -> NDArray[np.float64]:
    """Harmonics with the rhythm of syllables and pauses, and a hiss like that of an s."""
    draw = np.random.default_rng(3)
    at = np.arange(int(seconds * rate)) / rate
    voice = sum(np.sin(2 * np.pi * 140 * k * at + k) / k for k in range(1, 30) if 140 * k < rate / 2)
    syllables = np.clip(np.sin(2 * np.pi * 2.5 * at), 0, 1) * (at % 2.4 < 2.0)
    hiss = draw.normal(size=len(at)) * np.clip(np.sin(2 * np.pi * 2.5 * at + 2.4), 0, 1) ** 4 * 0.2 * (at % 2.4 < 2.0)
    return (voice * syllables + hiss) * 0.12 + draw.normal(size=len(at)) * 1e-4


def as_int16(sound: NDArray[np.float64]) -> NDArray[np.int16]:
    return (np.clip(sound, -1, 1) * 32767).astype(np.int16)


def found(sound: NDArray[np.float64], rate: int = RATE) -> set[str]:
    figures = measure(as_int16(sound), rate)
    measured = replace(
        GOOD, seconds=len(sound) / rate, speech_s=figures.speech_s, level_dbfs=figures.level_dbfs,
        noise_db=figures.noise_db, clipped=figures.clipped, bandwidth_hz=figures.bandwidth_hz,
    )  # fmt: skip
    return {each.code for each in problems(measured, WORDS)} - {"transcript"}


def narrow(sound: NDArray[np.float64]) -> NDArray[np.float64]:
    spectrum = np.fft.rfft(sound)
    spectrum[int(3400 * len(sound) / RATE) :] = 0
    return np.fft.irfft(spectrum, len(sound))


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda sound: sound, None),
        (lambda sound: sound * 0.03, "quiet"),
        (lambda sound: np.clip(sound * 8, -1, 1), "clipped"),
        (lambda sound: np.clip(sound * 8, -1, 1) * 0.3, "clipped"),
        (lambda sound: sound + np.random.default_rng(1).normal(size=len(sound)) * 0.03, "noisy"),
        (narrow, "narrow"),
        (lambda sound: sound[: 2 * RATE], "short"),
        (lambda sound: np.pad(sound[: 5 * RATE], (0, 20 * RATE)), "pauses"),
    ],
)
def test_each_fault_is_found_and_no_other(
    fault: Callable[[NDArray[np.float64]], NDArray[np.float64]], code: str | None
) -> None:
    assert found(fault(speech_like(14.0))) == ({code} if code else set())


def test_silence_and_nothing_are_measured() -> None:
    for length in (0, 10, RATE):
        assert measure(np.zeros(length, np.int16), RATE).speech_s == 0


@pytest.mark.parametrize(
    ("transcript", "heard", "says"),
    [
        (WORDS, "", ""),
        (WORDS, "this is my voice and i speak in my usual way for a bout six second", ""),
        (WORDS, "please hold the line while we connect you", "others than a recogniser heard"),
        ("", "", "no transcript"),
        ("Hi.", "", "too little"),
        (WORDS * 6, "", "too much"),
        ("你好，这是我的声音，我现在用平常的方式说话，大约六秒钟。", "", ""),
        ("0123456789 0123456789", "", ""),
    ],
)
def test_a_transcript_is_compared_with_what_was_heard(transcript: str, heard: str, says: str) -> None:
    wrong = [each.message for each in problems(GOOD, transcript, heard) if each.code == "transcript"]
    assert [says in message for message in wrong] == ([True] if says else [])


def test_words_are_compared_without_case_and_marks() -> None:
    assert words_of("It’s 5, Ann-Marie; 你好!") == ["it's", "5", "ann", "marie", "你", "好"]
    assert difference(["a", "b", "c", "d"], ["a", "c", "d", "e"]) == 0.5
    assert difference(["a"], ["b"] * 9) == 1.0 and difference(["a"], ["a"]) == 0.0


# --- files -----------------------------------------------------------------------------------------------------------


def written(
    sound: NDArray[np.float64], rate: int, container: str, codec: str, layout: str = "mono", form: str = ""
) -> bytes:
    """Return ``sound`` as a file, encoded by FFmpeg."""
    data = io.BytesIO()
    channels = 2 if layout == "stereo" else 1
    with av.open(data, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        if form:
            stream.codec_context.format = form
        resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate, frame_size=stream.frame_size)
        frame = av.AudioFrame.from_ndarray(
            np.repeat(sound.astype(np.float32)[:, None], channels, axis=1).reshape(1, -1), format="flt", layout=layout
        )
        frame.sample_rate = rate
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return data.getvalue()


@pytest.mark.parametrize(
    ("container", "codec", "rate", "layout", "form"),
    [
        ("wav", "pcm_s16le", 8000, "mono", ""),
        ("wav", "pcm_s24le", 47_999, "stereo", ""),
        ("wav", "pcm_f32le", 44_100, "stereo", ""),
        ("wav", "pcm_u8", 11_025, "mono", ""),
        ("wav", "pcm_mulaw", 8000, "mono", ""),
        ("flac", "flac", 96_000, "stereo", "s32"),
        ("flac", "flac", 22_050, "mono", ""),
        ("mp3", "libmp3lame", 44_100, "stereo", ""),
        ("mp3", "libmp3lame", 12_000, "mono", ""),
        ("ogg", "libopus", 48_000, "stereo", ""),
        ("ogg", "libopus", 16_000, "mono", ""),
        ("mp4", "aac", 44_100, "stereo", ""),
        ("webm", "libopus", 48_000, "mono", ""),
    ],
)
async def test_every_file_becomes_a_wav_that_a_model_takes(
    container: str, codec: str, rate: int, layout: str, form: str
) -> None:
    data = written(speech_like(3.0, rate), rate, container, codec, layout, form)
    measured, wav = await sampled(data)
    rate = 48_000 if codec == "libopus" else rate  # Opus decodes to one rate
    assert (measured.sample_rate, measured.channels) == (rate, 2 if layout == "stereo" else 1)
    assert measured.seconds == pytest.approx(3.0, abs=0.15) and measured.alike > 0.9 and not measured.missing_s
    kept = rate if rate in (22_050, 32_000, 44_100, 48_000, 96_000) else 24_000
    assert struct.unpack_from("<HHI", wav, 20) == (1, 1, kept)
    assert (len(wav) - 44) / 2 / kept == pytest.approx(measured.seconds, abs=0.01)
    assert 3000 <= measured.bandwidth_hz <= rate / 2


@pytest.mark.parametrize(
    ("seconds", "fits"),
    [(0.5, False), (0.99, False), (1.0, True), (29.9, True), (30.0, True), (30.1, False), (45, False)],
)
async def test_one_to_thirty_seconds_are_taken(seconds: float, fits: bool) -> None:
    data = written(speech_like(seconds, 16_000), 16_000, "wav", "pcm_s16le")
    if fits:
        measured, wav = await sampled(data)
        assert measured.seconds == seconds and len(wav) == 44 + 2 * round(seconds * 16_000)
    else:
        with pytest.raises(Rejected, match=rf"the audio is {seconds:.2f} s, expected 1 to 30 s") as refused:
            await sampled(data)
        assert refused.value.status == 422


async def test_a_file_of_eleven_minutes_is_refused_with_what_was_expected() -> None:
    data = encoded(np.zeros(660 * 16_000, np.int16), "flac", "flac")
    with pytest.raises(Rejected, match="longer than 600 s, expected 1 to 30 s"):
        await sampled(data)


def wav_of(seconds: float = 3.0) -> bytes:
    return written(speech_like(seconds, 16_000), 16_000, "wav", "pcm_s16le")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Hello, this is a text file and no sound at all.",
        json.dumps({"audio": "no"}).encode(),
        b"\xff\xd8\xff\xe0" + bytes(1000),
        b"RIFF\xff\xff\xff\xffWAVE",
        b"RIFF" + bytes(2000),
        b"fLaC" + bytes(2000),
        b"OggS" + bytes(2000),
        bytes(4) + b"ftypM4A " + bytes(2000),
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/x.ts\n",
    ],
)
async def test_what_is_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(Rejected, match=r"none of wav, mp3|no sound that can be decoded") as refused:
        await sampled(data)
    assert (refused.value.status, refused.value.param) == (422, "audio")


async def test_heads_that_lie() -> None:
    whole = wav_of()
    at = whole.index(b"data") + 4
    huge = whole[:at] + struct.pack("<I", 0xFFFFFFFE) + whole[at + 4 :]
    assert (await sampled(huge))[0].seconds == 3.0
    assert (await sampled(whole[: len(whole) // 2]))[0].seconds == pytest.approx(1.5, abs=0.01)
    flac = written(speech_like(6.0, 16_000), 16_000, "flac", "flac")
    measured, _ = await sampled(flac[: len(flac) // 2])
    assert measured.missing_s == pytest.approx(6.0 - measured.seconds, abs=0.1) and measured.missing_s > 1
    assert "incomplete" in {each.code for each in problems(measured, WORDS)}
    form = whole.index(b"fmt ") + 8
    for channels, rate in ((65_535, 16_000), (1, 4_000_000_000), (0, 16_000), (1, 0)):
        lying = whole[: form + 2] + struct.pack("<HI", channels, rate) + whole[form + 8 :]
        with pytest.raises(Rejected):
            await sampled(lying)


async def test_two_speakers_on_two_channels_are_told() -> None:
    one, other = speech_like(6.0, 16_000), np.roll(speech_like(6.0, 16_000), 3000)[::-1]
    data = io.BytesIO()
    with av.open(data, "w", format="wav") as file:
        stream = file.add_stream("pcm_s16le", rate=16_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(
            as_int16(np.stack((one, other), axis=1).reshape(1, -1)), format="s16", layout="stereo"
        )
        frame.sample_rate = 16_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    measured, _ = await sampled(data.getvalue())
    assert "two_channels" in {each.code for each in problems(measured, WORDS)}


async def test_a_wrong_name_does_not_matter(tmp_path: Path) -> None:
    """The content decides: a client may call an mp3 ``reference.wav``."""
    assert (await sampled(encoded(as_int16(speech_like(3.0, 16_000)), "mp3", "libmp3lame")))[0].channels == 1


def children() -> set[str]:
    """Return the numbers of the processes that the threads of this one have started."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for each in lists for pid in each.read_text().split()}


# --- no process ------------------------------------------------------------------------------------------------------


@needs_seccomp
@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_without_memory_for_a_process_a_file_is_refused_for_now_and_counted(error: int) -> None:
    before, data = SUPERVISOR.restarts["sound decoder"], written(speech_like(1.0, 8000), 8000, "wav", "pcm_s16le")

    def sampled_without_processes() -> None:
        loop = asyncio.new_event_loop()  # ``asyncio.run`` ends with a thread of its own
        try:
            loop.run_until_complete(sampled(data))
        finally:
            loop.close()

    with pytest.raises(Rejected) as refused:
        refused_by_the_kernel("process or thread", error, sampled_without_processes)
    assert (refused.value.status, refused.value.code) == (503, "unavailable") and refused.value.retry_after_s > 0
    assert SUPERVISOR.restarts["sound decoder"] > before + 1, "it was tried again"


async def test_a_process_that_the_system_kills_is_no_fault_of_the_file() -> None:
    data = written(speech_like(2.0, 8000), 8000, "wav", "pcm_s16le")
    decoding = asyncio.create_task(sampled(data))
    before = children()
    pid = await until(lambda: next(iter(children() - before), ""), "the process")
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(Rejected) as refused:
        await decoding
    assert refused.value.status == 503
    measured, _ = await sampled(data)
    assert measured.seconds == pytest.approx(2.0, abs=0.1)


async def test_a_process_without_processor_time_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_decoder, "_WALL_S", 0.001)
    with pytest.raises(Rejected) as refused:
        await sampled(written(speech_like(2.0, 8000), 8000, "wav", "pcm_s16le"))
    assert (refused.value.status, refused.value.code) == (503, "unavailable") and refused.value.retry_after_s > 0
