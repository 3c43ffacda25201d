"""A real ``talkspurt serve`` as a child process, and a WebSocket client that obeys no rule it is not asked to."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from talkspurt.bench.server_process import ServerUnderTest
from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.manager import ManagedCall, ManagerTurn, SimulatedManager
from tests.waiting import PATIENCE_S, until

START_S = 300.0
"""The longest start of a server or an engine: it loads networks and warms them up, maybe beside much else."""


@dataclass(slots=True)
class Live:
    """The server, and where it writes its log."""

    address: str
    process: asyncio.subprocess.Process
    log: Path
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with ``metric``, e.g. a key."""

    @property
    def http(self) -> str:
        return f"http://{self.address}"

    @property
    def ws(self) -> str:
        return f"ws://{self.address}"

    def logged(self) -> str:
        """Everything that it has written to its log."""
        return self.log.read_text()

    def engine_pid(self) -> int:
        (pid,) = ServerUnderTest(self.address, self.process.pid).engine_pids()
        return pid

    def worker_pids(self) -> list[int]:
        """The workers' process ids, by their numbers; fewer, while one is being started."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except (OSError, IndexError):
                continue
            if b"talkspurt.workers.worker" in line and parent == str(self.process.pid):
                settings = json.loads(Path(line[-3].decode()).read_text())
                found[settings["index"]] = int(entry.name)
        return [found[index] for index in sorted(found)]

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kb(self) -> int:
        """Memory of the gateway alone."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1])  # type: ignore[index]

    def kept_waiting_s(self) -> float:
        """Return how long the threads of gateway and engine have been ready to run without a core, in sum."""
        pids = [self.process.pid, *ServerUnderTest(self.address, self.process.pid).engine_pids()]
        waits = (file.read_text().split()[1] for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(map(int, waits)) / 1e9

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels; 0 where there is none yet."""
        async with aiohttp.ClientSession(headers=self.headers) as http, http.get(f"{self.http}/metrics") as answer:
            text = await answer.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def metric_is(self, name: str, value: float, **labels: str) -> bool:
        return await self.metric(name, **labels) == value

    async def metric_at_least(self, name: str, value: float, **labels: str) -> bool:
        return await self.metric(name, **labels) >= value

    async def status(self, path: str, *, method: str = "GET", **more: Any) -> int:
        """HTTP status of a request."""
        async with aiohttp.ClientSession() as http, http.request(method, f"{self.http}{path}", **more) as answer:
            return answer.status

    async def status_is(self, path: str, status: int) -> bool:
        try:
            return await self.status(path) == status
        except aiohttp.ClientConnectionError:
            return False

    async def not_ready_is(self, why: str) -> bool:
        """Return True if ``/readyz`` gives this reason."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.http}/readyz") as answer:
            return bool((await answer.json())["status"] == why)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it, wait for its end; returns its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(how)
            await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def serve(
    folder: Path, config: str | Path, environment: Mapping[str, str] | None = None, port: int = 0
) -> AsyncIterator[Live]:
    """Run it until the block is left; whatever happened in it, its log may then hold no bug of the product.

    Args:
        config: a file, or the text of one.
    """
    log, config = _prepare(folder, config)
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talkspurt", "serve", "-c", str(config)),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**child_environment(), "TALKSPURT__SERVER__PORT": str(port), **(environment or {})},
        )
    assert process.stdout is not None
    try:
        first = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
        ready = re.search(r"is ready: https?://([^\s/]+)", first)
        assert ready is not None, f"not ready: {first!r}\n{log.read_text()}"
        live = Live(ready[1].replace("0.0.0.0", "127.0.0.1"), process, log)
        yield live
        await live.stop()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    assert "Traceback" not in log.read_text(), log.read_text()


def _prepare(folder: Path, config: str | Path) -> tuple[Path, Path]:
    """The log and the configuration file in a folder that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(config, str):
        (folder / "talkspurt.yaml").write_text(config)
        config = folder / "talkspurt.yaml"
    return folder / "server.log", config


def child_environment() -> dict[str, str]:
    """The environment in which ``python -m talkspurt`` finds what the tests import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


# --- a call whose two ends behave ------------------------------------------------------------------------------------


class TestCall:
    """A simulated call and its dialogue manager, dialled in. ``async with`` it."""

    __test__ = False

    def __init__(self, live: Live, route: str, *, number: int = 1, path: str = "", uplink: bool = False) -> None:
        self.live = live
        self.route = route
        self.path = path or f"/media/twilio/{route}"
        self.leg = CarrierLeg(TwilioCarrier(number, {}), record=True)
        self.manager = SimulatedManager(self._on_setup)
        self.messages: list[Mapping[str, Any]] = []
        self._uplink = SimulatedUplink() if uplink else None
        self._call: ManagedCall | None = None

    @property
    def call(self) -> ManagedCall:
        assert self._call is not None
        return self._call

    async def __aenter__(self) -> TestCall:
        await self.manager.dial_in(f"{self.live.ws}/v1/dialogue?route={self.route}")
        await self.leg.connect(f"{self.live.ws}{self.path}", timeout_s=PATIENCE_S)
        await until(lambda: self._call is not None, "setup")
        if self._uplink is not None:
            self._uplink.join(self.leg)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._uplink is not None:
            self._uplink.stop()
        await self.leg.aclose()
        if self._call is not None and self.leg.hung_up:
            await until(lambda: self.call.ended, "ended")
        await self.manager.aclose()

    async def spoken(self, text: str, **fields: Any) -> ManagerTurn:
        """Speak a turn to its end."""
        turn = self.call.speak(text, **fields)
        await until(lambda: turn.outcome, "the turn's end")
        return turn

    def _on_setup(self, call: ManagedCall) -> None:
        if self._call is None:
            self._call = call
            call.on_message = lambda message, now: self.messages.append(message)


# --- a peer without manners ------------------------------------------------------------------------------------------

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


class Refused(Exception):
    """The upgrade was answered with another status."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status} {body}")
        self.status = status


class RawSocket:
    """A WebSocket on a plain TCP socket (RFC 6455, masked with zeros): sends what it is told to, whole or in pieces."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls,
        address: str,
        path: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        receive_buffer: int = 0,
    ) -> RawSocket:
        """Open and upgrade. Raises ``Refused``."""
        host, _, port = address.rpartition(":")
        plain = socket.socket()
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=plain, limit=receive_buffer or 1 << 20)
        peer = cls(reader, writer)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: {address}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *(f"{k}: {v}" for k, v in headers)]
        peer.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        async with asyncio.timeout(PATIENCE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            status = int(head.split(" ")[1])
            if status != 101:
                body = (await reader.read(4096)).decode()
                peer.abort()
                raise Refused(status, body)
        return peer

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    def frame(self, payload: bytes | str, *, opcode: int | None = None, fin: bool = True) -> None:
        """Send one frame."""
        if opcode is None:
            opcode = TEXT if isinstance(payload, str) else BINARY
        data = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload
        self.raw(self.head(len(data), opcode=opcode, fin=fin) + data)

    @staticmethod
    def head(length: int, *, opcode: int = TEXT, fin: bool = True) -> bytes:
        """A frame's header, with a mask of zeros."""
        first = bytes((opcode | (0x80 if fin else 0),))
        if length < 126:
            return first + bytes((0x80 | length,)) + bytes(4)
        if length < 1 << 16:
            return first + b"\xfe" + struct.pack(">H", length) + bytes(4)
        return first + b"\xff" + struct.pack(">Q", length) + bytes(4)

    def json(self, **message: Any) -> None:
        self.frame(json.dumps(message))

    async def read(self) -> tuple[int, bytes]:
        """The next frame. Raises ``IncompleteReadError`` where the socket is gone."""
        async with asyncio.timeout(PATIENCE_S):
            first, second = await self._reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack(">H", await self._reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", await self._reader.readexactly(8))
            return first & 0x0F, await self._reader.readexactly(length)

    async def next_message(self) -> dict[str, Any]:
        """The next JSON message. Other frames before it are passed over, and pings are not answered."""
        while True:
            opcode, payload = await self.read()
            assert opcode != CLOSE, f"closed with {payload!r}, expected a message"
            if opcode == TEXT:
                body: dict[str, Any] = json.loads(payload)
                return body

    async def message(self, kind: str) -> dict[str, Any]:
        """The next JSON message of a type (``type`` or ``event``); others are skipped."""
        while True:
            body = await self.next_message()
            if kind in (body.get("type"), body.get("event")):
                return body

    async def closed(self) -> int:
        """Read to the end; the close code, or 0 where TCP just ended."""
        code = 0
        try:
            while True:
                opcode, payload = await self.read()
                if opcode == CLOSE:
                    code = struct.unpack(">H", payload[:2])[0] if payload else 1005
                    # Answered as RFC 6455 section 5.5.1 asks; a gateway that waits for it must not wait in vain.
                    self.frame(payload, opcode=CLOSE)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.abort()
        return code

    def close_and_leave(self) -> None:
        """A close frame with 1000, and TCP closed after it without waiting for the answer."""
        self.frame(b"\x03\xe8", opcode=CLOSE)
        self._writer.close()

    def abort(self) -> None:
        """Gone without a close frame: the peer sees a reset."""
        plain = self._writer.get_extra_info("socket")
        if plain is not None and plain.fileno() >= 0:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def start_message(number: int = 7, **fields: Any) -> dict[str, Any]:
    """A Twilio ``start`` as documented; ``fields`` replace parts of its inner object."""
    stream = f"MZ{number:032x}"
    inner = {
        "accountSid": f"AC{0:032x}",
        "streamSid": stream,
        "callSid": f"CA{number:032x}",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {},
    }
    return {"event": "start", "sequenceNumber": "1", "streamSid": stream, "start": inner | fields}


def media_message(payload: str = "/" * 160 + "/" * 52 + "w==", number: int = 7) -> dict[str, Any]:
    return {"event": "media", "streamSid": f"MZ{number:032x}", "media": {"track": "inbound", "payload": payload}}
