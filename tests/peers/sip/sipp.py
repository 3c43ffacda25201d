"""sipp, the load generator of the field, with the scenarios beside this file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S
from voicecodecs.g711 import encode_ulaw

SCENARIOS = Path(__file__).parent / "scenarios"


async def sipp(
    scenario: str,
    port: int,
    folder: Path,
    *,
    calls: int = 1,
    concurrent: int = 10,
    rate: float = 10,
    pause_ms: int = 1000,
    service: str = "bot",
    transport: str = "udp",
) -> None:
    """Make calls; fails where one of them does not go as the scenario says.

    Args:
        folder: where it works: its sound, its errors.
        service: whom to call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tone = 8000 * np.sin(2 * np.pi * 440 / 8000 * np.arange(8000))
    (folder / "tone.ulaw").write_bytes(encode_ulaw(tone.astype(np.int16)))
    words = [
        "sipp", f"127.0.0.1:{port}", "-sf", str(SCENARIOS / f"{scenario}.xml"), "-s", service,
        "-i", "127.0.0.1", "-mi", "127.0.0.1", "-p", str(free_port()), "-t", "t1" if transport == "tcp" else "u1",
        "-m", str(calls), "-l", str(concurrent), "-r", str(rate), "-d", str(pause_ms),
        "-nostdin", "-trace_err", "-error_file", str(folder / "errors"),
        "-timeout", f"{PATIENCE_S:g}s", "-timeout_error", "-max_retrans", "12",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await process.communicate()  # it ends itself
    finally:
        if process.returncode is None:
            process.kill()
    errors = folder / "errors"
    told = errors.read_text(errors="replace") if errors.exists() else said.decode(errors="replace")
    assert process.returncode == 0, f"{scenario}: exit code {process.returncode}\n{told[-3000:]}"
