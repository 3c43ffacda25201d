"""Compares WebRTC calls per core of the gateway and of plain aiortc, in one run.

This process is the receiver. It connects every call (ICE, DTLS), then only notes the arrival times of packets and reads
their clear RTP headers. The packets of the first call are decrypted and decoded too. A step passes with |gap - 20 ms|
<= 10 ms at p99 and 99.5 % of the packets. Each server gets more calls in each step, until a step fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import secrets
import struct
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import numpy as np
import uvloop
from aiortc import RTCCertificate, RTCDtlsTransport, RTCIceTransport
from aiortc.sdp import SessionDescription

from gateway.webrtc.ice import IceConnection, IceSettings, host_addresses
from talkspurt.bench.results import write
from talkspurt.bench.webrtc_server import MODES
from talkspurt.cli import JobError, UsageError
from talkspurt.simulator.figures import Talkspurt, interarrival_errors_ms, pacing_errors_ms, summary
from voicecodecs.opus import Decoder

LADDERS = {
    "aiortc": (20, 40, 50, 60, 80),
    "aiortc-packets": (80, 160, 200, 240, 320),
    "gateway": (160, 320, 400, 480, 560, 640, 800, 1000),
}
"""Server -> numbers of calls, tried in this order."""

_PASS_P99_MS = 10.0
_PASS_SHARE = 0.995
_SETTLE_S = 1.5
"""Calls begin over the first second."""

_FRAME_S = 0.02
_CLOCK_HZ = 48_000
_TOGETHER = 8
_SECONDS = 5.0
_HEADER = struct.Struct("!BBHII")

_OFFER = """v=0
o=- {session} 1 IN IP4 0.0.0.0
s=-
t=0 0
a=group:BUNDLE 0
a=msid-semantic:WMS *
m=audio 9 UDP/TLS/RTP/SAVPF 96
c=IN IP4 0.0.0.0
a=recvonly
a=mid:0
a=rtcp:9 IN IP4 0.0.0.0
a=rtcp-mux
a=rtpmap:96 opus/48000/2
a=candidate:{foundation} 1 udp {priority} {host} {port} typ host
a=end-of-candidates
a=ice-ufrag:{fragment}
a=ice-pwd:{password}
a=fingerprint:{algorithm} {fingerprint}
a=setup:actpass
"""


class _Path:
    role = "controlling"

    def __init__(self, ice: IceConnection) -> None:
        self._recv, self._send = ice.recv, ice.send


class BenchEar:
    """The receiving end of one call."""

    def __init__(self, certificate: RTCCertificate, address: str, *, decode: bool) -> None:
        self.arrivals: list[float] = []
        self.sequences: list[int] = []
        self.decoded = 0
        self.undecodable = 0
        self._decoder = Decoder(_CLOCK_HZ) if decode else None
        self._ice = IceConnection(IceSettings(addresses=(address,)), on_media=self._received)
        self._ice.ice_controlling = True
        self._dtls = RTCDtlsTransport(cast(RTCIceTransport, _Path(self._ice)), [certificate])

    async def connect(self, http: aiohttp.ClientSession, url: str) -> None:
        """Connect: offer, answer, ICE, DTLS."""
        await self._ice.gather_candidates()
        mine = self._ice.local_candidates[0]
        fingerprint = self._dtls.getLocalParameters().fingerprints[0]
        offer = _OFFER.format(
            session=secrets.randbits(60), foundation=mine.foundation, priority=mine.priority, host=mine.host,
            port=mine.port, fragment=self._ice.local_username, password=self._ice.local_password,
            algorithm=fingerprint.algorithm, fingerprint=fingerprint.value,
        )  # fmt: skip
        async with http.post(f"{url}/offer", data=offer.replace("\n", "\r\n")) as response:
            response.raise_for_status()
            answer = SessionDescription.parse(await response.text())
        media = answer.media[0]
        assert media.ice is not None and media.dtls is not None
        for candidate in media.ice_candidates:
            if ":" not in candidate.ip:
                await self._ice.add(candidate)
        self._ice.remote_username, self._ice.remote_password = media.ice.usernameFragment, media.ice.password
        self._dtls._set_role("client" if media.dtls.role == "server" else "server")
        await self._ice.connect()
        await self._dtls.start(media.dtls)
        if self._dtls.state != "connected":
            raise ConnectionError("DTLS handshake with the server failed")

    def _received(self, data: bytes) -> bool:
        now = time.monotonic()
        if 64 <= data[1] & 0x7F < 96:  # RTCP
            return False
        self.arrivals.append(now)
        self.sequences.append(_HEADER.unpack_from(data)[2])
        if self._decoder is not None:
            clear = self._dtls._rx_srtp.unprotect(data)
            # The packets of aiortc have header extensions; ours have none.
            start = 12 + (4 + 4 * int.from_bytes(clear[14:16], "big") if clear[0] & 0x10 else 0)
            try:
                self._decoder.decode(clear[start:])
                self.decoded += 1
            except ValueError:
                self.undecodable += 1
        return True

    async def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(ConnectionError):
            await self._dtls.stop()
        await self._ice.close()


@asynccontextmanager
async def _server(mode: str, core: int | None) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talkspurt.bench.webrtc_server", mode,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def step(mode: str, calls: int, seconds: float, *, core: int | None) -> dict[str, Any]:
    """Measure one server with ``calls`` calls that speak at the same time."""
    certificate = RTCCertificate.generateCertificate()
    address = next(address for address in host_addresses() if ":" not in address)
    ears = [BenchEar(certificate, address, decode=index == 0) for index in range(calls)]
    gate = asyncio.Semaphore(_TOGETHER)

    async def connect(ear: BenchEar) -> None:
        async with gate:
            await ear.connect(http, url)

    async with _server(mode, core) as url, aiohttp.ClientSession() as http:

        async def state() -> dict[str, float]:
            async with http.get(f"{url}/state") as response:
                return cast(dict[str, float], await response.json())

        await asyncio.gather(*(connect(ear) for ear in ears))
        async with asyncio.timeout(30):
            while (await state())["connected"] < calls:  # noqa: ASYNC110 -- another process's state
                await asyncio.sleep(0.05)
        async with http.post(f"{url}/begin", params={"seconds": seconds + 2 * _SETTLE_S + 1}) as response:
            response.raise_for_status()
        await asyncio.sleep(_SETTLE_S)
        before, ours = await state(), time.process_time()
        begin = time.monotonic()
        await asyncio.sleep(seconds)
        after, end = await state(), time.monotonic()
        share = (time.process_time() - ours) / (end - begin)
        await asyncio.gather(*(ear.close() for ear in ears))
    return _figures(mode, calls, ears, begin, end, after, after["cpu_s"] - before["cpu_s"], share)


def _figures(
    mode: str, calls: int, ears: Sequence[BenchEar], begin: float, end: float, state: dict[str, float], cpu_s: float,
    receiver_share: float,
) -> dict[str, Any]:  # fmt: skip
    errors, gaps, packets = [], [], 0
    for ear in ears:
        arrivals = [at for at in ear.arrivals if begin <= at < end]
        packets += len(arrivals)
        spurt = Talkspurt(dry_samples=0, arrivals=arrivals, samples=[round(_FRAME_S * _CLOCK_HZ)] * len(arrivals))
        errors.append(pacing_errors_ms(spurt, _CLOCK_HZ))
        gaps.append(interarrival_errors_ms(spurt, _CLOCK_HZ) if len(arrivals) > 1 else np.zeros(0))
    expected = calls * (end - begin) / _FRAME_S
    gap = summary(np.concatenate(gaps))
    return {
        "server": mode,
        "calls": calls,
        "passed": gap is not None and gap["p99"] <= _PASS_P99_MS and packets >= _PASS_SHARE * expected,
        "packets_share": round(packets / expected, 4),
        "gap_error_ms": gap,
        "pacing_error_ms": summary(np.concatenate(errors)),
        "cpu_us_per_packet": round(cpu_s / max(packets, 1) * 1e6, 1),
        "cpu_share": round(cpu_s / (end - begin), 3),
        "receiver_cpu_share": round(receiver_share, 3),
        "rss_mb": round(state["rss_mb"]),
        "decoded": ears[0].decoded,
        "undecodable": ears[0].undecodable,
    }


async def compare(
    modes: Sequence[str], seconds: float, *, calls: Sequence[int] = (), tell: Any = lambda step: None
) -> list[dict[str, Any]]:
    """Measure each server with the calls of its ladder, or with ``calls``. A failed step is tried once more."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if len(cores) > 1 else None
    if core is not None:
        os.sched_setaffinity(0, set(cores[1:]))
    steps = []
    try:
        for mode in modes:
            for count in calls or LADDERS[mode]:
                for _ in range(2):
                    steps.append(await step(mode, count, seconds, core=core))
                    tell(steps[-1])
                    if steps[-1]["passed"]:
                        break
                else:
                    break
    finally:
        os.sched_setaffinity(0, set(cores))
    return steps


def verdict(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the most calls that passed, the median cost of a packet, and the ratios to plain aiortc."""
    found: dict[str, Any] = {}
    for mode in MODES:
        own = [step for step in steps if step["server"] == mode]
        if own:
            cost = float(np.median([step["cpu_us_per_packet"] for step in own]))
            found[mode] = {
                "calls": max((step["calls"] for step in own if step["passed"]), default=0),
                "cpu_us_per_packet": round(cost, 1),
            }
    ratios = {}
    for mode in ("aiortc", "aiortc-packets"):
        if mode in found and "gateway" in found:
            ratios[mode] = {
                "calls": round(found["gateway"]["calls"] / max(found[mode]["calls"], 1), 1),
                "cpu": round(found[mode]["cpu_us_per_packet"] / found["gateway"]["cpu_us_per_packet"], 1),
            }
    return {"servers": found, "gateway_against": ratios}


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt bench gateway --transport webrtc``.

    Raises:
        UsageError: the options are wrong together.
        JobError: a server or a connection failed.
    """
    if args.what != "gateway" or args.idle or args.server:
        raise UsageError("--transport webrtc belongs to `bench gateway`, which starts its own servers")
    try:
        calls = [int(number) for number in args.calls.split(",")] if args.calls else []
        if any(number < 1 for number in calls):
            raise ValueError
    except ValueError as exc:
        raise UsageError(f"--calls has to be whole numbers above 0 with commas, got {args.calls!r}") from exc
    seconds = args.seconds or _SECONDS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def tell(done: dict[str, Any]) -> None:
        print(f"{done['server']} {done['calls']} calls: {'passed' if done['passed'] else 'failed'}", file=sys.stderr)

    try:
        steps = uvloop.run(compare(tuple(reversed(MODES)), seconds, calls=calls, tell=tell))
    except (OSError, ConnectionError, TimeoutError, aiohttp.ClientError) as exc:
        raise JobError(f"webrtc bench: {exc or type(exc).__name__}") from exc
    judged = verdict(steps)
    compared = [
        f"gateway against {other}: {ratio['calls']} times the calls, {ratio['cpu']} times less CPU a packet"
        for other, ratio in judged["gateway_against"].items()
    ]
    settings = {"what": "gateway", "transport": "webrtc", "seconds": seconds, "calls": calls}
    result = {"settings": settings, "steps": steps, "verdict": judged}
    write(result, args.json, "\n".join([table(steps), *compared]))
    return 0


def table(steps: Sequence[dict[str, Any]]) -> str:
    """Return the steps as text."""
    lines = [f"{'server':15} {'calls':>5} {'gap p99 ms':>10} {'packets':>8} {'CPU us/packet':>13} {'core':>5}  passed"]
    for one in steps:
        gap = one["gap_error_ms"]["p99"] if one["gap_error_ms"] else float("nan")
        lines.append(
            f"{one['server']:15} {one['calls']:5} {gap:10.1f} {one['packets_share']:8.3f} "
            f"{one['cpu_us_per_packet']:13.1f} {one['cpu_share']:5.2f}  {'yes' if one['passed'] else 'no'}"
        )
    return "\n".join(lines)
