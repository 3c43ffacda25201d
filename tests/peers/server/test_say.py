"""`say`, `voices` and `doctor` from outside, on the tone engine where the voice does not matter."""

import asyncio
import io
import json
import socket
import subprocess
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talkspurt.config.settings import load
from talkspurt.doctor.checks import check_ffmpeg, check_files, check_opus, check_port, timer_lateness_ms
from talkspurt.engines import local_engine
from tests.peers.live_server import serve
from tests.peers.server.test_cli import ROOT, environment, talkspurt
from tts_engine.config import EngineConfig
from tts_engine.service.server import SpeechServer
from tts_engine.tone import tone_hz

TONE: dict[str, Any] = {"TALKSPURT__ENGINE__KIND": "tone"}


def read_wav(data: bytes) -> tuple[int, np.ndarray]:
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2")


@pytest.fixture
async def target() -> AsyncIterator[str]:
    """A tone engine behind gRPC in this process."""
    config = EngineConfig(kind="tone")
    async with local_engine(config) as engine:
        server = SpeechServer(config)
        await server.start("127.0.0.1:0")
        await server.serve(engine)
        yield server.address
        await server.drain()
        await server.aclose()


@pytest.mark.parametrize(
    ("codec", "rate"), [("pcmu", 8000), ("pcma", 8000), ("g722", 16000), ("opus", 48000), ("l16", 24000)]
)
def test_every_codec_is_heard_in_a_wav(tmp_path: Path, codec: str, rate: int) -> None:
    path = tmp_path / "a.wav"
    done = talkspurt("say", "Good morning to you.", "--codec", codec, "-o", str(path), "--json", **TONE)
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    heard_rate, pcm = read_wav(path.read_bytes())
    assert heard_rate == figures["sample_rate"] == rate
    assert len(pcm) == figures["audio_ms"] * rate // 1000
    assert figures["first_chunk_ms"] > 0 and figures["realtime_factor"] > 0
    spectrum = np.abs(np.fft.rfft(pcm.astype(float) * np.hanning(len(pcm))))
    assert np.argmax(spectrum) * rate / len(pcm) == pytest.approx(tone_hz("Good morning to you."), abs=3)


def test_standard_output_gets_the_sound_and_standard_error_the_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "talkspurt", "say", "-", "-o", "-", "--json", "--rate", "16000"],
        input=b"Good morning.", capture_output=True, env=environment(**TONE), cwd=ROOT,
    )  # fmt: skip
    rate, pcm = read_wav(done.stdout)
    assert rate == 16000 and json.loads(done.stderr)["audio_ms"] == len(pcm) // 16


def test_raw_payloads_have_no_header(tmp_path: Path) -> None:
    path = tmp_path / "a.ulaw"
    done = talkspurt("say", "Good morning.", "--codec", "pcmu", "--raw", "-o", str(path), "--json", **TONE)
    assert path.stat().st_size == json.loads(done.stdout)["audio_ms"] * 8


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["", "-o", "x.wav"], 2, "talkspurt say: TEXT holds nothing that can be spoken"),
        (["a", "--codec", "pcmu", "--rate", "16000"], 2, "talkspurt say: PCMU sample_rate is 16000 Hz, expected 8000"),
        (["a", "--codec", "opus", "--raw"], 2, "talkspurt say: --raw with --codec opus"),
        (["a", "-o", "/nowhere/x.wav"], 1, "talkspurt say: /nowhere/x.wav cannot be written: No such file"),
        (["a", "--engine", "127.0.0.1:1"], 1, "talkspurt say: no engine answers at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_said_is_one_line(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = talkspurt("say", *arguments, cwd=tmp_path, **TONE)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (code, 1, "")
    assert done.stderr.startswith(message)
    assert not list(tmp_path.iterdir())


async def test_a_running_engine_speaks(tmp_path: Path, target: str) -> None:
    import asyncio

    done = await asyncio.to_thread(talkspurt, "say", "Good day.", "--engine", target, "-o", str(tmp_path / "a.wav"))
    assert (done.returncode, done.stderr) == (0, "")
    assert read_wav((tmp_path / "a.wav").read_bytes())[0] == 24000


async def test_voices_of_a_running_engine(target: str) -> None:
    import asyncio

    done = await asyncio.to_thread(talkspurt, "voices", "list", "--json", "--engine", target)
    (voice,) = json.loads(done.stdout)
    done = await asyncio.to_thread(talkspurt, "voices", "show", voice["voice_id"], "--engine", target)
    assert done.returncode == 0 and done.stdout.startswith(voice["voice_id"])
    done = await asyncio.to_thread(talkspurt, "voices", "show", "stranger", "--engine", target)
    assert (done.returncode, done.stderr) == (
        2, f"talkspurt voices show: no voice 'stranger'; there are: {voice['voice_id']}\n"
    )  # fmt: skip
    done = await asyncio.to_thread(talkspurt, "voices", "add", "a", "none.wav", "--transcript", "a", "--engine", target)
    assert (done.returncode, done.stderr) == (
        2,
        "talkspurt voices add: none.wav cannot be read: No such file or directory\n",
    )


# --- doctor ------------------------------------------------------------------------------------------------------


def test_doctor_says_that_serve_works_here() -> None:
    done = talkspurt("doctor", "--json", TALKSPURT__SERVER__PORT="0")
    report = json.loads(done.stdout)
    states = {finding["name"]: finding["state"] for finding in report["findings"]}
    assert (done.returncode, report["ok"], states["voice"], states["opus"]) == (0, True, "ok", "ok"), report
    assert {"GPU", "vLLM", "timer", "clock", "CPU", "ffmpeg", "port"} <= states.keys()


def test_doctor_fails_where_serve_would() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = talkspurt("doctor", TALKSPURT__SERVER__PORT=port, **TONE)
    assert done.returncode == 1
    assert f"fail port          127.0.0.1:{port} (server.host, server.port): another program is there" in done.stdout
    assert done.stdout.endswith("serve does not work here, see `fail`\n")


def test_doctor_misses_an_engine_that_does_not_answer() -> None:
    done = talkspurt("doctor", TALKSPURT__ENGINE__TARGETS="[127.0.0.1:1]", TALKSPURT__SERVER__PORT="0")
    assert done.returncode == 1
    assert "no engine answers at 127.0.0.1:1 (engine.targets)" in done.stdout


def test_doctor_checks_what_the_machine_allows() -> None:
    few = load(None, environment={})
    many = load(None, environment={}, overrides={"limits.calls": "1000000000"})
    assert (check_files(few).state, check_files(many).state) == ("ok", "warn")
    assert check_ffmpeg(few).state == "ok"
    assert check_opus(few).state == "ok"
    assert check_port(load(None, environment={}, overrides={"server.host": "203.0.113.1"})).state == "fail"


async def test_doctor_knows_a_server_of_ours_on_the_port_and_serve_names_the_way_out(tmp_path: Path) -> None:
    async with serve(tmp_path, "engine: {kind: tone}\nroutes: {default: {recogniser: ''}}\n") as live:
        port = live.address.rpartition(":")[2]
        config = load(None, environment={}, overrides={"server.port": port})
        found = await asyncio.to_thread(check_port, config)
        assert (found.state, found.detail) == ("ok", f"127.0.0.1:{port}: a talkspurt serves there already")
        second = await asyncio.to_thread(talkspurt, "serve", "--port", port, **TONE)
        assert second.returncode == 1
        assert f"127.0.0.1:{port} (server.host, server.port) is in use: " in second.stderr
        assert "-m talkspurt serve -c FILE --port N` takes another" in second.stderr
        assert "Traceback" not in second.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        found = await asyncio.to_thread(check_port, load(None, environment={}, overrides={"server.port": port}))
        assert found.state == "fail" and "--port N" in found.detail


def test_the_timer_is_never_early() -> None:
    late_ms = timer_lateness_ms(0.05)
    assert late_ms and min(late_ms) >= 0
