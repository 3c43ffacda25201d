"""What strangers, callers and neighbours can do to calls: each attack beside talking calls, and all of them at once.

    python benchmarks/hostile.py --json benchmarks/results/hostile.json
    python benchmarks/hostile.py --calls 20 --seconds 3 --only pings --only sip-flood

A real server runs on a core of its own where there are two; callers, engine and attackers share the other. The calls
speak the hummed voice of the `tone` engine all the time. The attackers are a process of lower priority. Everything
stays on 127.0.0.0/8, whose addresses are the sources. The gateway may open 1024 files.

Each attack is a row, measured in turns: some seconds calm, some seconds attacked, and that `--rounds` times. So what
the machine itself does to the calls shows in the calm windows of the same row; medians and worst of both are beside
each other. A window in which another machine on the same hardware had our cores says nothing. So one in which the
kernel counts stolen time, a core stood still for everybody, or the gateway's core takes much longer for a fixed piece
of work than it can, is measured again, up to five times; `again` says how often. Where other programs run, every
window is disturbed: `--again 0` takes each as it is. A row is written to the file of `--json` as soon as it is there,
and a run skips the rows that the file has; another commit or other settings begin anew. All rows take half an
hour. The exit code is 1 if a figure is missed.

`secrets` is a step without calls: it asks servers with the shipped configurations for tokens, as strangers, and looks
for seeded secrets in what the servers say, log and show. `scopes` is another: it asks every route for which a scope is
stated, without a key, with a wrong one, and with keys of all other scopes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import uvloop
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from hostile import freezes
from hostile.attacks import (
    ATTACKS,
    LET_IN,
    LONG_CLIPS,
    MEDIA,
    RTP_PORTS,
    SECRET,
    UNAUTHENTICATED,
    WEBHOOKS,
    WEBRTC_PORTS,
    Target,
    ask,
    hurtful_sounds,
    sip_request,
    webhooks,
)

from gateway.config import SCOPES
from gateway.http.request.access import ACCESS
from gateway.listener.server import raise_open_files
from talkspurt.bench.calls import ROUTE as BENCH_ROUTE
from talkspurt.bench.calls import CallLoad, CallLoadSettings, Talking
from talkspurt.bench.load import STANDARD, read_load
from talkspurt.bench.ports import free_port
from talkspurt.bench.results import commit, machine, write
from talkspurt.bench.server_process import ServerUnderTest, dies_with_us, overrides, serving
from talkspurt.simulator.audiosocket_leg import SimulatedAudioSocketLeg
from talkspurt.simulator.carrier_leg import CarrierLeg, Leg, SimulatedUplink
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.carriers.audiosocket import AudioSocketCarrier
from talkspurt.simulator.carriers.sip import SipCarrier
from talkspurt.simulator.figures import pacing_errors_ms, summary
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.simulator.peer_socket import PeerSocketError
from talkspurt.simulator.sip_leg import SipLeg

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent / "hostile"
SCRIPT = Path(__file__).parent / "load/talk.yaml"
DESCRIPTORS = 1024
ALL, SECRETS, SCOPED = "all", "secrets", "scopes"
_CLIP_S, _LONG_CLIP_S = 1.0, 595.0  # with the frame of an encoder not above the longest that is played
_SETTLE_S = 1.5
"""Pause behind a window, since what it left behind is not the next one's."""
_STOLEN_S = 0.005
"""Most time of a window that the hypervisor may have taken from the cores."""
_FROZEN_S = 0.005
"""For so long at most a core may have run nothing, not even a process with real-time priority."""
_SLOWER = 1.3
"""By how much the fixed piece of work of ``clock.py`` may take longer than in the best window so far."""
_HONEST = 5_000_000
"""Number of the address that honest requests come from; no attacker has it."""
_SERVICE = ("health", "speech", "media", "sip", "sips", "audiosocket", "browser")
_WAIT_S = 5.0
"""An honest request or call that takes longer has failed."""

_CONFIG = """
server: {{host: 127.0.0.1}}
engine: {{kind: tone}}
clips: {{folder: {folder}/clips}}
carriers: {{twilio: {{verify: false}}, signalwire: {{signing_key: {secret}}}, jambonz: {{webhook_secret: {secret}}}}}
sip:
  port: {sip}
  tls: {{port: {sips}, certificate: {folder}/certificate.pem, key: {folder}/key.pem}}
  rtp_ports: {rtp[0]}-{rtp[1]}
  trunks:
    phones: {{addresses: [127.0.0.1], codecs: [PCMU], route: phone}}
audiosocket: {{port: {audiosocket}, route: phone}}
webrtc: {{addresses: [127.0.0.1], ports: {webrtc[0]}-{webrtc[1]}}}
routes:
  hostile: {{}}
  neighbour: {{}}
  clip: {{}}
  phone: {{dialogue: {{script: {script}}}}}
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    calls: int
    seconds: float
    rounds: int
    pinned: bool
    again: int


Figures = dict[str, Any]


# --- honest peers ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """How often an honest peer asked for something, and got it."""

    tried: int = 0
    served: int = 0
    longest_ms: float = 0.0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count one try, served unless ``PeerSocketError`` ends the block. A try that is cancelled does not count."""
        began = time.monotonic()
        try:
            yield
            self.served += 1
        except PeerSocketError:
            pass
        self.tried += 1
        self.longest_ms = max(self.longest_ms, (time.monotonic() - began) * 1000)


@dataclass(slots=True)
class Honest:
    """Peers that go on as usual during a step."""

    target: Target
    health: Asked = field(default_factory=Asked)
    speech: Asked = field(default_factory=Asked)
    media: Asked = field(default_factory=Asked)
    sip: Asked = field(default_factory=Asked)
    sips: Asked = field(default_factory=Asked)
    audiosocket: Asked = field(default_factory=Asked)
    browser: Asked = field(default_factory=Asked)
    late_ms: float = 0.0
    """How late this process itself was at most. Its measurements are not better than this."""
    over: bool = False

    async def run(self) -> None:
        """Ask until ``over``, or cancelled."""
        text = json.dumps({"text": "Hello.", "format": "pcm"})
        speech = "POST /v1/tts HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
        speech += f"Content-Length: {len(text)}\r\n\r\n{text}"
        health = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(0.1, lambda: self._request(self.health, health.encode())))
            group.create_task(self._again(0.5, lambda: self._request(self.speech, speech.encode())))
            group.create_task(self._again(0.5, self._media_call))
            group.create_task(self._again(0.1, self._sip_call))
            group.create_task(self._again(0.2, self._trunk_over_tls))
            group.create_task(self._again(0.5, self._audiosocket_call))
            group.create_task(self._again(1.0, self._browser_call))
            group.create_task(self._watch_self())

    async def _again(self, every_s: float, what: Callable[[], Any]) -> None:
        while not self.over:  # Python 3.11's wait_for may lose a cancellation
            await what()
            await asyncio.sleep(every_s)

    async def _watch_self(self) -> None:
        while not self.over:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            self.late_ms = max(self.late_ms, (time.monotonic() - before - 0.005) * 1000)

    async def _request(self, asked: Asked, request: bytes) -> None:
        with asked.one():
            status, _ = await ask(self.target, request, _HONEST, wait_s=_WAIT_S)
            if status != "200":
                raise PeerSocketError(f"the answer is {status}")

    async def _media_call(self) -> None:
        host, port = self.target.http
        leg = CarrierLeg(TwilioCarrier(time.monotonic_ns(), {}))
        await self._call(self.media, leg, f"ws://{host}:{port}/media/twilio/phone")

    async def _audiosocket_call(self) -> None:
        leg = SimulatedAudioSocketLeg(AudioSocketCarrier(time.monotonic_ns(), {}))
        await self._call(self.audiosocket, leg, f"audiosocket://127.0.0.1:{self.target.audiosocket}")

    async def _sip_call(self) -> None:
        leg = SipLeg(SipCarrier(time.monotonic_ns(), {}))
        await self._call(self.sip, leg, f"sip:1@127.0.0.1:{self.target.sip}")

    async def _trunk_over_tls(self) -> None:
        """Connect as the trunk, and wait for the answer to a request."""
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
        request = sip_request("OPTIONS", time.monotonic_ns()).replace(b"SIP/2.0/UDP", b"SIP/2.0/TLS")
        with self.sips.one():
            try:
                async with asyncio.timeout(_WAIT_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.target.sips, ssl=plain)
                    writer.write(request.replace(b"\r\n\r\n", b"\r\nl:0\r\n\r\n"))
                    answer = await reader.readuntil(b"\r\n")
                    writer.close()
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as exc:
                raise PeerSocketError("no answer over TLS") from exc
            if not answer.startswith(b"SIP/2.0 "):  # 503 too: a machine under load says that it takes no call
                raise PeerSocketError(f"the answer is {answer!r}")

    async def _browser_call(self) -> None:
        """Call as a browser does, wait for the first sound, hang up."""
        browser = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        browser.addTransceiver("audio", direction="recvonly")
        tracks: asyncio.Queue[MediaStreamTrack] = asyncio.Queue()
        browser.on("track", tracks.put_nowait)
        try:
            with self.browser.one():
                await browser.setLocalDescription(await browser.createOffer())
                sdp = browser.localDescription.sdp.encode()
                head = "POST /whip/phone HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                head += f"Content-Type: application/sdp\r\nContent-Length: {len(sdp)}\r\n\r\n"
                try:
                    async with asyncio.timeout(_WAIT_S):
                        status, answer = await ask(self.target, head.encode() + sdp, _HONEST, wait_s=_WAIT_S)
                        if status != "201":
                            raise PeerSocketError(f"the answer is {status}")
                        await browser.setRemoteDescription(RTCSessionDescription(answer.decode(), "answer"))
                        track = await tracks.get()
                        while not (await track.recv()).to_ndarray().any():
                            pass
                except (TimeoutError, MediaStreamError) as exc:
                    raise PeerSocketError("no sound") from exc
        finally:
            await browser.close()

    async def _call(self, asked: Asked, leg: Leg, url: str) -> None:
        """Call, wait for the first sound, hang up."""
        heard = asyncio.Event()
        leg.on_audible = lambda now: heard.set()
        try:
            with asked.one():
                await leg.connect(url, timeout_s=_WAIT_S)
                try:
                    await asyncio.wait_for(heard.wait(), _WAIT_S)
                except TimeoutError as exc:
                    raise PeerSocketError("no sound") from exc
        finally:
            await leg.aclose()  # also at the end of a window, or these calls would talk on beside the next ones


class _NotedLeg(CarrierLeg):
    """Notes when it sent each frame of caller audio."""

    def __init__(self) -> None:
        super().__init__(TwilioCarrier(time.monotonic_ns(), {}))
        self.sent: list[float] = []

    def send_uplink(self) -> None:
        self.sent.append(time.monotonic())
        super().send_uplink()


class Neighbour:
    """A call whose manager listens to the caller's audio."""

    def __init__(self) -> None:
        self._leg = _NotedLeg()
        self._samples = 0
        self._delays: list[tuple[float, float]] = []
        """When audio reached the manager, and how long before the caller had sent it, seconds. What was sent before
        the manager listened makes all delays longer by the same time."""

    @contextlib.asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[None]:
        """Call, and note when caller audio reaches the manager."""

        def begin(call: ManagedCall) -> None:
            call.on_audio = self._heard
            call.send("subscribe", media=True)

        manager, uplink = SimulatedManager(begin), SimulatedUplink()
        try:
            await manager.dial_in(f"ws://{address}/v1/dialogue?route=neighbour")
            await self._leg.connect(f"ws://{address}/media/twilio/neighbour")
            uplink.join(self._leg)
            yield
        finally:
            uplink.stop()
            await self._leg.aclose()
            await manager.aclose()

    def _heard(self, pcm: bytes) -> None:
        self._samples += len(pcm) // 2
        now = time.monotonic()
        self._delays.append((now, now - self._leg.sent[self._samples // 160 - 1]))

    def longest_gap_ms(self, since: float, until: float) -> float:
        """Return how much longer than the shortest time of a step caller audio took at most, or stood still."""
        found = [delay for at, delay in self._delays if since <= at <= until] or [0.0]
        still_waiting = until - self._delays[-1][0]
        return max(still_waiting, max(found) - min(found)) * 1000


class ClipPlayer:
    """A call that plays a clip again and again, which is in the cache after the first time."""

    def __init__(self) -> None:
        self._leg = CarrierLeg(TwilioCarrier(time.monotonic_ns(), {}))
        self._starts: list[tuple[float, float]] = []
        """Time of each start, and the time from the message to the first sound, seconds."""
        self._over = False

    @contextlib.asynccontextmanager
    async def playing(self, address: str) -> AsyncIterator[None]:
        """Call, and note how long each start takes."""
        begun: asyncio.Future[ManagedCall] = asyncio.get_running_loop().create_future()
        manager = SimulatedManager(lambda call: None if begun.done() else begun.set_result(call))
        playing: asyncio.Task[None] | None = None
        try:
            await manager.dial_in(f"ws://{address}/v1/dialogue?route=clip")
            await self._leg.connect(f"ws://{address}/media/twilio/clip")
            playing = asyncio.create_task(self._play(await asyncio.wait_for(begun, _WAIT_S)))
            yield
        finally:
            self._over = True
            if playing is not None:
                playing.cancel()
                await asyncio.wait({playing})
            await self._leg.aclose()
            await manager.aclose()

    async def _play(self, call: ManagedCall) -> None:
        number = 0
        while not self._over:  # Python 3.11's wait_for may lose a cancellation
            heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            self._leg.on_audible = lambda now, heard=heard: heard.done() or heard.set_result(now)
            number, asked = number + 1, time.monotonic()
            call.send("play", source="clip.wav", turn=f"clip{number}")
            with contextlib.suppress(TimeoutError):
                self._starts.append((asked, await asyncio.wait_for(heard, _WAIT_S) - asked))
            call.send("cancel")
            await asyncio.sleep(0.1)  # what was sent is played

    def starts_ms(self, since: float, until: float) -> dict[str, float] | None:
        """Return a summary of the starts in a window."""
        found = [took * 1000 for at, took in self._starts if since <= at <= until]
        return summary(np.asarray(found))


# --- a step ----------------------------------------------------------------------------------------------------------


class Bench:
    """A server, its talking calls, and what is measured in each step."""

    def __init__(
        self,
        server: ServerUnderTest,
        folder: Path,
        load: CallLoad,
        neighbour: Neighbour,
        clips: ClipPlayer,
        target: Target,
    ) -> None:
        self._server = server
        self._load = load
        self._neighbour = neighbour
        self._clips = clips
        self._target = target
        self._clock = np.memmap(folder / "clock", np.float64, "r+", shape=(5,))
        self._frozen = freezes.figures(folder / "freezes", new=False)
        self._piece_s = float("inf")

    async def row(self, attacks: Sequence[str], settings: Settings) -> Figures:
        """Measure calm and attacked windows in turn."""
        calm, attacked = list[Figures](), list[Figures]()
        for _ in range(settings.rounds):
            for found, names in ((calm, ()), (attacked, attacks)):
                again = 0
                while _is_disturbed(window := await self._window(names, settings.seconds)) and again < settings.again:
                    again += 1
                    await asyncio.sleep(_SETTLE_S)
                found.append({**window, "again": again})
                await asyncio.sleep(_SETTLE_S)
        return {"calm": calm, "attacked": attacked}

    async def _window(self, attacks: Sequence[str], seconds: float) -> Figures:
        """Run the attacks at once beside the calls; no attack: only measure."""
        target = replace(self._target, seconds=seconds)
        honest = Honest(target)
        attackers = await _attackers(target, attacks)
        errors, gaps = self._errors(), self._gaps()
        rss = highest = self._server.gateway_rss_mb()
        self._clock[:] = self._frozen[:] = 0
        since, stolen_s = time.monotonic(), _stolen_s()
        peers = asyncio.create_task(honest.run())
        attacking = asyncio.create_task(_attack(attackers, seconds))
        while not attacking.done():
            await asyncio.sleep(0.05)
            highest = max(highest, self._server.gateway_rss_mb())
        until = time.monotonic()
        stall, held_up, collection, pieces, count = map(float, self._clock)
        piece_s = max(pieces / max(count, 1.0), 1e-9)  # a window in which no piece ended
        self._piece_s = min(self._piece_s, piece_s)
        honest.over = True
        peers.cancel()
        await asyncio.wait({peers})
        return {
            "attacks": list(attacks),
            "loop_stall_ms": round(stall * 1000, 1),
            "loop_held_up_ms": round(held_up * 1000, 1),
            "longest_collection_ms": round(collection * 1000, 1),
            "stolen_ms": round((_stolen_s() - stolen_s) * 1000),
            "frozen_ms": round(float(max(self._frozen)) * 1000, 1),
            "slower": round(piece_s / self._piece_s, 2),
            "pacing_error_ms": self._pacing(since, until),
            "gaps": self._gaps() - gaps,
            "call_errors": self._errors() - errors,
            "neighbour_gap_ms": round(self._neighbour.longest_gap_ms(since, until), 1),
            "clip_start_ms": self._clips.starts_ms(since, until),
            "rss_growth_mb": round(highest - rss, 1),
            "service": {name: asdict(getattr(honest, name)) for name in _SERVICE},
            "own_lateness_ms": round(honest.late_ms, 1),
            "done": attacking.result(),
        }

    def _gaps(self) -> int:
        return sum(len(call.leg.gaps) for call in self._load.calls)

    def _errors(self) -> int:
        return sum(self._load.errors.values())

    def _pacing(self, since: float, until: float) -> dict[str, float] | None:
        """Return the pacing of the calls' frames in a window, by the kernel's times of arrival."""
        found = []
        for call in self._load.calls:
            for spurt in call.leg.spurts:
                errors = pacing_errors_ms(spurt, 8000)
                arrivals = np.asarray(spurt.arrivals[: len(errors)])
                found.append(errors[(arrivals >= since) & (arrivals <= until)])
        return summary(np.concatenate(found) if found else [])


def _is_disturbed(window: Figures) -> bool:
    """Was the machine not ours alone?"""
    return bool(
        window["stolen_ms"] > _STOLEN_S * 1000 or window["frozen_ms"] > _FROZEN_S * 1000 or window["slower"] > _SLOWER
    )


@contextlib.asynccontextmanager
async def _freezes_noted(file: Path) -> AsyncIterator[None]:
    """Note in a file for how long each core ran nothing."""
    freezes.figures(file, new=True)
    cores = range(min(os.cpu_count() or 1, freezes.CORES))
    watches = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "freezes.py"), str(core), str(file)), preexec_fn=dies_with_us()
        )
        for core in cores
    ]
    try:
        yield
    finally:
        for watch in watches:
            with contextlib.suppress(ProcessLookupError):
                watch.terminate()
            await watch.wait()


def _stolen_s() -> float:
    """Return the time that the hypervisor has taken from all cores so far."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


async def _attackers(target: Target, names: Sequence[str]) -> asyncio.subprocess.Process | None:
    """Start a process of lower priority that is ready to attack. None: there are no attacks."""
    if not names:
        return None
    given = {
        "http": target.http, "sip": target.sip, "sips": target.sips, "audiosocket": target.audiosocket,
        "seconds": target.seconds, "names": names,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *("nice", sys.executable, str(HERE / "attacks.py"), json.dumps(given)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        preexec_fn=dies_with_us(),
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def _attack(process: asyncio.subprocess.Process | None, seconds: float) -> Any:
    """Let the attackers begin. Return what each did, when they have ended."""
    if process is None:
        await asyncio.sleep(seconds)
        return {}
    try:
        out, _ = await asyncio.wait_for(process.communicate(b"go\n"), 10 * seconds + 60)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return json.loads(out)


async def _measure(
    settings: Settings, folder: Path, names: Sequence[str], keep: Callable[[str, Figures], None]
) -> None:
    """Measure the rows of these names on one server, and ``keep`` each as soon as it is there."""
    sip, sips, audiosocket = free_port(), free_port(), free_port()
    _make_clips(folder / "clips")
    _make_certificate(folder)
    given = {"rtp": RTP_PORTS, "webrtc": WEBRTC_PORTS, "script": SCRIPT, "secret": SECRET}
    (folder / "config.yaml").write_text(
        _CONFIG.format(folder=folder, sip=sip, sips=sips, audiosocket=audiosocket, **given)
    )
    environment = overrides(
        route=BENCH_ROUTE,
        calls=settings.calls + 100,
        limits__connections_per_address=str(settings.calls + 200),  # the honest peers share one address
    )
    standard = read_load(STANDARD)
    load = CallLoad(
        CallLoadSettings(calls=settings.calls, seconds=3600, tokens_per_s=0),
        standard,
        Talking([standard.long_text(120) for _ in range(40)]),
    )
    program = (str(HERE / "clock.py"), str(folder), str(DESCRIPTORS))
    async with (
        _freezes_noted(folder / "freezes"),
        serving(folder / "config.yaml", environment, program=program) as server,
    ):
        if settings.pinned:
            server.pin(gateway={0}, engine={1})
        neighbour, clips, ready = Neighbour(), ClipPlayer(), asyncio.Event()
        calling = asyncio.create_task(load.run(server.address, measured=lambda begins: ready.set()))
        try:
            await asyncio.wait({calling, waiting := asyncio.create_task(ready.wait())}, return_when="FIRST_COMPLETED")
            waiting.cancel()
            if calling.done():
                calling.result()
            async with neighbour.listening(server.address), clips.playing(server.address):
                host, _, port = server.address.partition(":")
                target = Target((host, int(port)), sip, settings.seconds, sips, audiosocket)
                bench = Bench(server, folder, load, neighbour, clips, target)
                await asyncio.sleep(_SETTLE_S)
                for name in names:
                    keep(name, await bench.row(list(ATTACKS) if name == ALL else [name], settings))
        finally:
            calling.cancel()
            await asyncio.wait({calling})


def _make_clips(folder: Path) -> None:
    """Write the sound files that lie, a short clip, and one of ten minutes under many names."""
    folder.mkdir()
    for name, data in hurtful_sounds().items():
        (folder / name).write_bytes(data)
    _write_tone(folder / "clip.wav", "pcm_s16le", _CLIP_S)
    _write_tone(folder / "long-0.mp3", "libmp3lame", _LONG_CLIP_S)
    for number in range(1, LONG_CLIPS):
        os.link(folder / "long-0.mp3", folder / f"long-{number}.mp3")


def _write_tone(path: Path, codec: str, seconds: float) -> None:
    rate = 16_000
    second = (np.sin(np.arange(rate) * (2 * np.pi * 300 / rate)) * 9_000).astype(np.int16)
    with av.open(str(path), "w") as sink:
        stream = sink.add_stream(codec, rate=rate, layout="mono")
        resampler = av.AudioResampler(stream.format, "mono", rate, frame_size=stream.codec_context.frame_size)
        for _ in range(int(seconds)):
            frame = av.AudioFrame.from_ndarray(second.reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate = rate
            for piece in resampler.resample(frame):
                sink.mux(stream.encode(piece))
        for piece in resampler.resample(None):
            sink.mux(stream.encode(piece))
        sink.mux(stream.encode(None))


def _make_certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


# --- secrets ---------------------------------------------------------------------------------------------------------

SEEDS = {
    name: f"seeded-{number}-9f2c7b41d6e8"
    for number, name in enumerate(("TALKSPURT_API_KEY", "TWILIO_AUTH_TOKEN", "CARRIER_PASSWORD", "MANAGER_KEY"))
}
_SHIPPED = ("demo", "twilio", "callcenter-sip", "mandarin", "gpu-cosyvoice3")
_ALL_DIALECTS = {
    "all-proven": {
        "twilio": {"auth_token": SEEDS["TWILIO_AUTH_TOKEN"]},
        "signalwire": {"signing_key": SEEDS["TWILIO_AUTH_TOKEN"]},
        "telnyx": {"public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="},
        "plivo": {"auth_token": SEEDS["TWILIO_AUTH_TOKEN"]},
        "exotel": {"api_key": "key", "api_token": SEEDS["TWILIO_AUTH_TOKEN"]},
        "vonage": {"signature_secret": SEEDS["TWILIO_AUTH_TOKEN"]},
        "jambonz": {
            "webhook_secret": SEEDS["TWILIO_AUTH_TOKEN"],
            "username": "user",
            "password": SEEDS["CARRIER_PASSWORD"],
        },
    },
    "all-unproven": {dialect: {} for dialect in WEBHOOKS}
    | {"jambonz": {"username": "user", "password": SEEDS["CARRIER_PASSWORD"]}},
}
"""Two configurations more: every dialect with what proves it, and without."""


async def _secrets(folder: Path) -> Figures:
    """Ask a server with each configuration, as a stranger would. Everything that is not refused counts."""
    (folder / "model").mkdir(exist_ok=True)
    environment = {
        **SEEDS,
        "PUBLIC_HOST": "bot.example",
        "KOKORO_VOICES": str(folder / "model"),
        "DIALOGUE_URL": f"wss://manager.invalid/call?api_key={SEEDS['MANAGER_KEY']}",
        **{"SIP_ADDRESS": "127.0.0.1", "PBX_NETWORK": "127.0.0.1", "PBX_HOST": "127.0.0.1"},
    }
    keys = {
        "server__public_url": "https://bot.example",
        "server__insecure": "false",
        "auth__api_keys": json.dumps([{"key": SEEDS["TALKSPURT_API_KEY"]}]),
        "engine__kind": "tone",
        "engine__model_folder": str(folder / "model"),  # must be there, and no engine reads it
    }
    changed = {f"TALKSPURT__{key.upper()}": value for key, value in keys.items()}
    of_sip = {  # it would register at a stranger's, and ping
        "TALKSPURT__SIP__HOST": "127.0.0.1",
        "TALKSPURT__SIP__PORT": "0",
        "TALKSPURT__SIP__REGISTRATIONS__0__REGISTRAR": "sip:127.0.0.1:9",
        "TALKSPURT__SIP__TRUNKS__PBX__PING_S": "0",
    }
    files = {name: ROOT / f"configs/{name}.yaml" for name in _SHIPPED}
    for name, carriers in _ALL_DIALECTS.items():
        files[name] = folder / f"{name}.yaml"
        files[name].write_text(json.dumps({"carriers": carriers}))
    (folder / "log").unlink(missing_ok=True)
    yielded: list[str] = []
    refused: list[str] = []
    said = b""
    answers: Counter[str] = Counter()
    program = (str(HERE / "clock.py"), str(folder), str(DESCRIPTORS))
    for name, file in files.items():
        more = environment | changed | (of_sip if "sip" in name else {})
        shown = await asyncio.to_thread(_shown, file, more)
        said += shown.stdout + shown.stderr
        if shown.returncode:  # nobody can put this one on the internet
            refused.append(name)
            continue
        async with serving(file, more, program=program) as server:
            host, _, port = server.address.partition(":")
            target = Target((host, int(port)), 0, 0)
            for number, (what, request) in enumerate(_anonymous()):
                status, body = await ask(target, request, number)
                answers[status] += 1
                said += body
                if status[0] in "123":
                    yielded.append(f"{name}: {what} {status}")
    said += (folder / "log").read_bytes()
    leaked = {name: said.count(seed.encode()) for name, seed in SEEDS.items() if seed.encode() in said}
    return {
        "configurations": list(files), "refused": refused, "asked": answers.total(), "answers": dict(answers),
        "yielded": yielded, "leaked": leaked,
    }  # fmt: skip


def _anonymous() -> list[tuple[str, bytes]]:
    """Return requests that have to be refused, with names."""
    upgrade = (
        "Host: bot.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    dialects = (*WEBHOOKS, "genesys", "asterisk", "freeswitch", "freeswitch-fork")
    sockets = [f"/media/{dialect}/default{token}" for dialect in dialects for token in ("", "/AAAA")]
    sockets += ["/v1/dialogue?route=default", "/ws/tts"]
    paths = ["/v1/calls", "/v1/events", "/metrics", "/v1/voices", "/openapi.json", "/v1/handoffs/c1"]
    plain = [("GET", path) for path in paths] + [("POST", "/v1/calls"), ("POST", "/v1/tts")]
    return [
        *((f"webhook {dialect} {number}", request)
          for dialect in WEBHOOKS for number, request in enumerate(webhooks(dialect))),
        *((path, f"GET {path} HTTP/1.1\r\n{upgrade}".encode()) for path in sockets),
        *((path, f"{method} {path} HTTP/1.1\r\nHost: bot.example\r\nContent-Length: 0\r\n\r\n".encode())
          for method, path in plain),
    ]  # fmt: skip


def _shown(file: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run ``talkspurt config show``."""
    return subprocess.run(
        [sys.executable, "-m", "talkspurt", "config", "show", str(file)],
        env={**os.environ, **environment}, capture_output=True,
    )  # fmt: skip


# --- scopes ----------------------------------------------------------------------------------------------------------


async def _scopes(folder: Path) -> Figures:
    """Ask every route that wants a scope, with each credential that lacks it. Everything but 401 and 403 counts."""
    keys = {scope: f"key-of-{scope}-{'0123456789' * 2}" for scope in SCOPES}
    listed = [{"key": key, "tenant": "shop", "scopes": [scope]} for scope, key in keys.items()]
    config = {
        "engine": {"kind": "tone"},
        "carriers": {"twilio": {"verify": False}},
        "routes": {"default": {"tenant": "shop"}},
        "audiosocket": {"port": 0},  # has routes of its own
        "auth": {"api_keys": listed},
    }
    (folder / "scopes.yaml").write_text(json.dumps(config))
    headers = {"no key": "", "a wrong key": "Authorization: Bearer tsk_wrong\r\n"}
    headers |= {scope: f"Authorization: Bearer {key}\r\n" for scope, key in keys.items()}
    answers: Counter[str] = Counter()
    yielded: list[str] = []
    async with serving(folder / "scopes.yaml", overrides(route=BENCH_ROUTE, calls=10)) as server:
        host, _, port = server.address.partition(":")
        target, number = Target((host, int(port)), 0, 0), 0
        for (method, pattern), access in ACCESS.items():
            path = re.sub(r"\{\w+\}", "VX" + 32 * "0", pattern)
            for credential, header in headers.items():
                if access.scope is None or credential in (access.scope, "admin"):  # admin means every scope
                    continue
                number += 1
                request = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{header}"
                request += "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                status, _ = await ask(target, request.encode(), number)
                answers[status] += 1
                if status not in ("401", "403"):
                    yielded.append(f"{method} {pattern} with {credential}: {status}")
    return {"asked": number, "answers": dict(answers), "yielded": yielded}


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A figure to reach."""

    measure: str
    wanted: str
    measured: str
    met: bool


def _of(row: Figures, kind: str, figure: Callable[[Figures], float]) -> list[float]:
    return [figure(window) for window in row[kind]]


def _served(row: Figures, kinds: Sequence[str]) -> tuple[int, int]:
    """Return how often honest peers were served beside an attack, and how often they asked."""
    asked = [window["service"][kind] for window in row["attacked"] for kind in kinds]
    return sum(each["served"] for each in asked), sum(each["tried"] for each in asked)


def _pacing(window: Figures) -> float:
    return float((window["pacing_error_ms"] or {}).get("p99", 0.0))


def rows(steps: Mapping[str, Figures], secrets: Figures | None, scopes: Figures | None) -> list[Row]:
    """Return the figures to reach, of what was measured."""
    found: list[Row] = []

    def largest(
        measure: str, names: Sequence[str], figure: Callable[[Figures], float], bound: float, unit: str
    ) -> None:
        there = [name for name in names if name in steps]
        if there:
            value, name = max((max(_of(steps[name], "attacked", figure)), name) for name in there)
            calm = [each for name in there for each in _of(steps[name], "calm", figure)]
            noise = f"calm {max(calm):g}" + ("" if max(calm) < bound else ": this machine is too busy to tell")
            found.append(Row(measure, f"< {bound:g}{unit}", f"{value:g}{unit} ({name}; {noise})", value < bound))

    def stall(window: Figures) -> float:
        return float(window["loop_stall_ms"])

    largest("longest loop stall, unauthenticated input to 64 kB", tuple(UNAUTHENTICATED), stall, 20, " ms")
    largest("the same, one media socket at 1 MB/s", tuple(MEDIA), stall, 20, " ms")
    largest("the same, others who are let in", tuple(LET_IN), stall, 20, " ms")
    largest("the same, all attacks at once", (ALL,), stall, 20, " ms")
    largest("a neighbour's caller-audio gap", tuple(ATTACKS), lambda w: float(w["neighbour_gap_ms"]), 100, " ms")
    largest("RSS growth from one hostile media socket", tuple(MEDIA), lambda w: float(w["rss_growth_mb"]), 5, " MB")
    if alone := [row for name, row in steps.items() if name != ALL]:
        beside = [statistics.median(_of(row, "attacked", _pacing)) for row in alone]
        calm = statistics.median(value for row in alone for value in _of(row, "calm", _pacing))
        gaps = sum(window["gaps"] for row in alone for window in row["attacked"])
        calm_gaps = sum(window["gaps"] for row in alone for window in row["calm"])
        measured = f"p99 {max(beside):.1f} ms, calm {calm:.1f}; gaps {gaps}, calm {calm_gaps}"
        # A window of some seconds has few frames over its p99, so a millisecond is no difference.
        met = max(beside) <= 1.5 * calm + 1 and gaps <= max(calm_gaps, 0)
        found.append(Row("pacing beside each attack, median of rounds", "as calm", measured, met))
    for measure, names, kinds, least in (
        ("service beside idle and dripping sockets", ("idle", "slow", "crowd"), ("health", "speech", "media"), 100.0),
        ("legitimate SIP accepted beside a flood", ("sip-flood", "sip-worst"), ("sip",), 99.0),
        ("a trunk's SIP and TLS beside a crowd of one address", ("sip-crowd",), ("sip", "sips"), 100.0),
        ("Asterisk's calls beside a crowd at their port", ("audiosocket-crowd",), ("audiosocket",), 100.0),
        ("SIP calls beside strangers' datagrams at RTP ports", ("rtp",), ("sip",), 100.0),
        ("browsers' calls beside strangers' STUN, DTLS and RTP", ("webrtc",), ("browser",), 100.0),
    ):
        each = [_served(steps[name], kinds) for name in names if name in steps]
        if tried := sum(asked for _, asked in each):
            served = sum(got for got, _ in each)
            share = 100 * served / tried
            found.append(Row(measure, f">= {least:g} %", f"{share:.1f} % ({served} of {tried})", share >= least))
    ran = [window["done"] for row in steps.values() for window in row["attacked"]]
    early = sorted(
        {
            f"{name}: {said}"
            for done in ran
            for name, each in done.items()
            for said in each["answers"]
            if "early" in said
        }
    )
    if ran:
        found.append(Row("attacks that did not run to their end", "0", "; ".join(early) or "0", not early))
    if "sip-flood" in steps:
        floods = [window["done"]["sip-flood"] for window in steps["sip-flood"]["attacked"]]
        ratio = sum(each["bytes_received"] for each in floods) / sum(each["bytes_sent"] for each in floods)
        found.append(Row("SIP reply bytes per request byte to strangers", "<= 1", f"{ratio:.2f}", ratio <= 1))
    if "sites" in steps:
        sites = [window["done"]["sites"] for window in steps["sites"]["attacked"]]
        accepted = sum(each["accepted"] for each in sites)
        measured = f"{accepted} of {sum(each['tried'] for each in sites)}"
        found.append(Row("foreign Origin or Host accepted", "0", measured, not accepted))
    if "replays" in steps:
        copied = [window["done"]["replays"] for window in steps["replays"]["attacked"]]
        accepted = sum(each["accepted"] for each in copied)
        measured = f"{accepted} of {sum(each['tried'] for each in copied)}"
        found.append(Row("copied proofs that start something", "0", measured, not accepted))
    if "long-clips" in steps:
        beside, alone_ms = (
            float(np.median(_of(steps["long-clips"], kind, lambda w: float((w["clip_start_ms"] or {})["p95"]))))
            for kind in ("attacked", "calm")
        )
        measured = f"{beside:.1f} ms, calm {alone_ms:.1f}"
        found.append(
            Row(
                "start of a cached clip beside twelve long ones, p95",
                "<= calm + 50 ms",
                measured,
                beside <= alone_ms + 50,
            )
        )
    if scopes is not None:
        count = len(scopes["yielded"])
        found.append(
            Row("requests beyond a key's scope that were let in", "0", f"{count} of {scopes['asked']}", not count)
        )
    if secrets is not None:
        count = len(secrets["yielded"]) + secrets["answers"].get("none", 0)
        leaks = sum(secrets["leaked"].values())
        measured = f"{count} of {secrets['asked']}"
        found.append(Row("anonymous requests that yield a token or secret", "0", measured, not count))
        found.append(Row("seeded secrets in logs, answers, `config show`", "0", f"{leaks}", not leaks))
    return found


def _lines(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(" | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def table(steps: Mapping[str, Figures], found: Sequence[Row]) -> str:
    """Return the rows, and the figures to reach, as lines for people. Of each figure: attacked, then calm, each the
    median of the windows and the worst."""

    def both(row: Figures, figure: Callable[[Figures], float]) -> list[str]:
        windows = [_of(row, kind, figure) for kind in ("attacked", "calm")]
        return [f"{statistics.median(values):.1f} {max(values):.1f}" for values in windows]

    figures: dict[str, Callable[[Figures], float]] = {
        "stall ms": lambda window: float(window["loop_stall_ms"]),
        "pacing p99 ms": _pacing,
        "neighbour ms": lambda window: float(window["neighbour_gap_ms"]),
        "own ms": lambda window: float(window["own_lateness_ms"]),
    }
    head = [
        "attack", *(cell for name in figures for cell in (name, "calm")), "gaps", "calm", "RSS +MB", "served", "again"
    ]  # fmt: skip
    cells = []
    for name, row in steps.items():
        served, asked = _served(row, _SERVICE)
        cells.append([
            name, *(cell for figure in figures.values() for cell in both(row, figure)),
            *(str(sum(window["gaps"] for window in row[kind])) for kind in ("attacked", "calm")),
            f"{max(window['rss_growth_mb'] for window in row['attacked']):.1f}", f"{served}/{asked}",
            str(sum(window["again"] for kind in ("attacked", "calm") for window in row[kind])),
        ])  # fmt: skip
    met = [[row.measure, row.wanted, row.measured, "yes" if row.met else "NO"] for row in found]
    parts = [_lines([head, *cells])] if cells else []
    return "\n\n".join([*parts, _lines([["measure", "wanted", "measured", "met"], *met])])


class Kept:
    """The rows so far, in the file that a later run goes on with. No path: they are kept nowhere."""

    def __init__(self, path: str | None, settings: Settings) -> None:
        self._path = Path(path) if path and path != "-" else None
        self._head = {"commit": commit(), "settings": asdict(settings)}
        self.steps: dict[str, Figures] = {}
        self.secrets: Figures | None = None
        self.scopes: Figures | None = None
        if self._path is not None and self._path.exists():
            before = json.loads(self._path.read_text())
            if all(before.get(key) == value for key, value in self._head.items()):
                self.steps, self.secrets, self.scopes = before["steps"], before["secrets"], before["scopes"]

    def figures(self) -> Figures:
        """Return everything, with the figures to reach."""
        found = [asdict(row) for row in rows(self.steps, self.secrets, self.scopes)]
        return {
            "settings": self._head["settings"], "rows": found, "steps": self.steps, "secrets": self.secrets,
            "scopes": self.scopes,
        }  # fmt: skip

    def keep(self, name: str, row: Figures) -> None:
        """Add a row."""
        if name == SECRETS:
            self.secrets = row
        elif name == SCOPED:
            self.scopes = row
        else:
            self.steps[name] = row
            print(table({name: row}, []).splitlines()[1], file=sys.stderr)
        if self._path is not None:
            self._path.write_text(json.dumps({"machine": machine(), **self.figures(), **self._head}) + "\n")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="talking calls (default 100)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each window (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="calm and attacked windows of each row (default 3)")
    parser.add_argument("--again", type=int, default=5,
                        help="how often a disturbed window is measured again at most (default 5)")  # fmt: skip
    names = (*ATTACKS, ALL, SECRETS, SCOPED)
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="ATTACK",
                        help=f"only this one, may be repeated: {', '.join(names)}")  # fmt: skip
    parser.add_argument("--json", help="keep the rows here, and go on after those that it has; -: print all as JSON")
    given = parser.parse_args()
    raise_open_files()
    settings = Settings(given.calls, given.seconds, given.rounds, (os.cpu_count() or 1) > 1, given.again)
    kept = Kept(given.json, settings)
    wanted = [name for name in (*ATTACKS, ALL) if (not given.only or name in given.only) and name not in kept.steps]
    with tempfile.TemporaryDirectory() as name:
        if settings.pinned:
            os.sched_setaffinity(0, {1})
        if wanted:
            uvloop.run(_measure(settings, Path(name), wanted, kept.keep))
        if (not given.only or SECRETS in given.only) and kept.secrets is None:
            kept.keep(SECRETS, uvloop.run(_secrets(Path(name))))
        if (not given.only or SCOPED in given.only) and kept.scopes is None:
            kept.keep(SCOPED, uvloop.run(_scopes(Path(name))))
    found = rows(kept.steps, kept.secrets, kept.scopes)
    write(kept.figures(), "-" if given.json == "-" else None, table(kept.steps, found))
    return 0 if all(row.met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
