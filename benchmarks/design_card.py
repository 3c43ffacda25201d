"""Costs of the packages of the design card: import times, memory, WebSocket frames, 20 ms frames, whole sounds.

    python benchmarks/design_card.py            # a minute; prints Markdown

The figures are in ``docs/dependencies.md``. Each import runs in a fresh interpreter and counts what the package
itself imports. A WebSocket frame is one text message of 230 bytes, the size of Twilio's ``media``, sent to an echo and
read back; the processor time of the client counts, for both directions together. Frames of sound have 160 samples.
The first line says how busy the machine was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "codecs")]

import aiohttp
import numpy as np
import uvloop
import websockets
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_connect, ws_create_server

from voicecodecs import g711
from voicecodecs.mixing import amplified, mixed
from voicecodecs.pcm import audioop
from voicecodecs.resample import resample

PACKAGES = (
    "numpy", "audioop", "yaml", "prometheus_client", "websockets", "aiohttp", "picows", "scipy.signal",
    "aiortc", "torch", "vllm",
)  # fmt: skip

MESSAGE = "m" * 230

COST_OF_IMPORT = """
import sys, time, warnings
warnings.simplefilter("ignore")
def pages():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1])
begun, before = time.process_time(), pages()
__import__(sys.argv[1])
print(time.process_time() - begun, (pages() - before) * 4096 / 1e6)
"""


def cost_of_import(package: str) -> tuple[float, float]:
    """Return seconds of processor time and megabytes of resident memory of an import in a fresh interpreter. Linux."""
    done = subprocess.run(
        [sys.executable, "-c", COST_OF_IMPORT, package], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, megabytes = done.stdout.split()[-2:]
    return float(seconds), float(megabytes)


class Echo(WSListener):
    """Answers each message with itself."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        transport.send(frame.msg_type, frame.get_payload_as_bytes())


class Reader(WSListener):
    """Keeps a future for the next message."""

    def __init__(self) -> None:
        self.came: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.came.set_result(frame.get_payload_as_utf8_text())


async def be_echo() -> None:
    """Serve until the standard input ends."""

    def echo(request: WSUpgradeRequest) -> WSListener:
        return Echo()

    server = await ws_create_server(echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def best_of(turn: Callable[[], Awaitable[object]], messages: int) -> float:
    """Return the least processor time of a message there and back, microseconds, of five rounds."""
    rounds = []
    for _ in range(5):
        begun = time.process_time()
        for _ in range(messages):
            await turn()
        rounds.append((time.process_time() - begun) / messages * 1e6)
    return min(rounds)


async def cost_of_frames(url: str, messages: int) -> dict[str, float]:
    """Return the microseconds of a message there and back by client."""
    costs = {}
    transport, reader = await ws_connect(Reader, url)

    async def by_picows() -> None:
        reader.came = asyncio.get_running_loop().create_future()
        transport.send(WSMsgType.TEXT, MESSAGE.encode())
        await reader.came

    costs["picows"] = await best_of(by_picows, messages)
    transport.disconnect()
    async with aiohttp.ClientSession() as http, http.ws_connect(url, compress=0) as by_http:

        async def by_aiohttp() -> None:
            await by_http.send_str(MESSAGE)
            await by_http.receive()

        costs["aiohttp"] = await best_of(by_aiohttp, messages)
    async with websockets.connect(url, compression=None, proxy=None) as connection:

        async def by_websockets() -> None:
            await connection.send(MESSAGE)
            await connection.recv()

        costs["websockets"] = await best_of(by_websockets, messages)
    return costs


def microseconds(work: Callable[[], object], number: int = 5000) -> float:
    """Return the best time of one call, of seven rounds."""
    return min(timeit.repeat(work, number=number, repeat=7)) / number * 1e6


def cost_of_sound() -> list[tuple[str, float, float]]:
    """Return for each piece of work its name, and the microseconds by NumPy and by audioop."""
    noise = np.random.default_rng(1)
    frames = [noise.integers(-9000, 9000, 160).astype(np.int16) for _ in range(3)]
    payload = g711.encode_ulaw(frames[0])
    table = np.array(g711.decode_ulaw(bytes(range(256))))
    return [
        (
            "decode PCMU",
            microseconds(lambda: table[np.frombuffer(payload, np.uint8)]),
            microseconds(lambda: g711.decode_ulaw(payload)),
        ),
        (
            "encode PCMU (audioop: 508 other codes)",
            microseconds(lambda: g711.encode_ulaw(frames[0])),
            microseconds(lambda: audioop.lin2ulaw(frames[0], 2)),
        ),
        (
            "sum of three legs",
            microseconds(lambda: np.clip(np.sum(frames, axis=0, dtype=np.int32), -32768, 32767).astype(np.int16)),
            microseconds(lambda: mixed(frames)),
        ),
        (
            "gain",
            microseconds(lambda: np.clip(frames[0] * np.float32(0.7), -32768, 32767).astype(np.int16)),
            microseconds(lambda: amplified(frames[0], 0.7)),
        ),
        (
            "level",
            microseconds(lambda: np.sqrt(np.mean(np.square(frames[0], dtype=np.float32)))),
            microseconds(lambda: audioop.rms(frames[0], 2)),
        ),
    ]


def cost_of_whole_sound() -> list[tuple[str, float, float]]:
    """Return for each pair of rates the milliseconds for a minute of sound, by our resampler and by scipy."""
    from scipy.signal import resample_poly

    rows = []
    for rate_in, rate_out in ((24000, 8000), (44100, 8000), (8000, 16000)):
        pcm = np.random.default_rng(1).uniform(-1, 1, 60 * rate_in).astype(np.float32)
        up, down = rate_out // np.gcd(rate_in, rate_out), rate_in // np.gcd(rate_in, rate_out)
        ours = min(timeit.repeat(lambda: resample(pcm, rate_in, rate_out), number=1, repeat=5))  # noqa: B023
        theirs = min(timeit.repeat(lambda: resample_poly(pcm, up, down), number=1, repeat=5))  # noqa: B023
        rows.append((f"{rate_in} to {rate_out} Hz", ours * 1e3, theirs * 1e3))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3000, help="of a round")
    parser.add_argument("--be-echo", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be_echo:
        uvloop.run(be_echo())
        return
    print(f"Load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    print("| import | processor time, ms | MB |\n|---|---|---|")
    for package in PACKAGES:
        if find_spec(package.partition(".")[0]) is None:
            print(f"| `{package}` | not installed | |")
            continue
        seconds, megabytes = cost_of_import(package)
        print(f"| `{package}` | {seconds * 1e3:.0f} | {megabytes:.0f} |", flush=True)
    command = [sys.executable, __file__, "--be-echo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdin is not None and echo.stdout is not None
        port = int(echo.stdout.readline())
        print("\n| WebSocket message there and back | us |\n|---|---|")
        for name, cost in uvloop.run(cost_of_frames(f"ws://127.0.0.1:{port}/", args.messages)).items():
            print(f"| {name} | {cost:.0f} |", flush=True)
        echo.stdin.close()
    print("\n| frame of 20 ms at 8 kHz | NumPy, us | audioop, us |\n|---|---|---|")
    for name, by_numpy, by_audioop in cost_of_sound():
        print(f"| {name} | {by_numpy:.1f} | {by_audioop:.1f} |", flush=True)
    print("\n| a minute of sound | our resampler, ms | scipy, ms |\n|---|---|---|")
    for name, ours, theirs in cost_of_whole_sound():
        print(f"| {name} | {ours:.0f} | {theirs:.0f} |", flush=True)


if __name__ == "__main__":
    main()
