"""All programs of a service of several machines, on this one: two gateways of two workers, two engines, Redis,
PostgreSQL, Envoy for WebSockets and Kamailio for SIP. Each can be stopped, killed and started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gateway.call.directory import number_of
from talkspurt.bench.server_process import ServerUnderTest
from tests.peers.live_server import child_environment
from tests.peers.ports import free_port
from tests.peers.postgres_server import PostgresServer
from tests.peers.programs import ENVOY
from tests.peers.redis_server import RedisServer
from tests.peers.sip.kamailio import words as kamailio_words
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent.parent
KEY = "a-key-of-the-acceptance-0123456789"
TENANT = "shop"
DRAIN_S = 30.0
NOTICE_S = 2.0
"""Longer than Envoy needs to see that a gateway is not ready: it looks once a second."""

_LOOK_S = 0.1
"""Pause between two looks whether a program serves: the calls need the processor."""

_ENGINE = """
engine: {{kind: tone, listen: "127.0.0.1:{port}", metrics_port: {metrics_port}, drain_s: {drain_s}}}
"""
_GATEWAY = """
server:
  workers: 2
  drain_s: {drain_s}
  drain_notice_s: {notice_s}
  trusted_proxies: [127.0.0.1]
  stream_token_secret: the same for all of them
engine: {{targets: [{engines}]}}
carriers: {{twilio: {{verify: false}}}}
auth: {{api_keys: [{{key: "${{TEST_KEY}}", tenant: {tenant}, scopes: [speak, calls, read, admin]}}]}}
routes: {{default: {{tenant: {tenant}, dialogue: {{url: "{manager}", extensions: true}}}}}}
directory: {{redis_url: "{redis}", address: "http://127.0.0.1:{port}"}}
limits:
  calls: 1000
  redis_url: "{redis}"
  tenant: {{calls_at_once: 1000}}
sip:
  port: {sip_port}
  rtp_ports: {rtp_ports}
  trunks: {{front: {{addresses: [127.0.0.1]}}}}
  limits: {{requests_per_s: 1000, calls_per_s: 500}}
calls: {{folder: calls}}
records: {{database_url: "sqlite:///{folder}/records.sqlite3", numbers: true}}
postgres: {{url: "{postgres}", timeout_s: 2}}
"""


@dataclass
class Program:
    """A program that runs as a child process.

    Args:
        words: the command.
        ready: whether it serves.
    """

    name: str
    words: list[str]
    log: Path
    ready: Callable[[], Awaitable[bool]]
    environment: dict[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        await self.launch()
        await until(self._serves, f"{self.name}, which should start; see {self.log}")

    async def launch(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.words, stdout=log, stderr=log, env={**child_environment(), **self.environment},
                start_new_session=True,
            )  # fmt: skip

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        await self.end(signal.SIGTERM)

    async def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(how)
        await self.process.wait()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """End it with all its processes: those of Kamailio outlive the first one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    async def _serves(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, f"{self.name} ended with {self.process.returncode}; see {self.log}"
        return await self.ready()


@dataclass
class GatewayProgram(Program):
    """A gateway: a supervisor and its workers."""

    port: int = 0
    sip_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def number(self) -> str:
        """Four digits of the ids of its calls."""
        return number_of(self.url)

    def worker_pid(self, index: int) -> int:
        """The process of one worker."""
        for pid in ServerUnderTest("", self.pid).gateway_pids()[1:]:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if json.loads(Path(line[-3].decode()).read_text())["index"] == index:
                return pid
        raise AssertionError(f"{self.name} has no worker {index}")


@dataclass
class EnvoyProgram(Program):
    """Envoy, whose next process takes the listening socket over from the last one: its own "hot restart"."""

    admin: int = 0
    epoch: int = 0
    old: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def restart(self) -> None:
        """Start the next process. The old one takes no connections any more, and ends some time later."""
        assert self.process is not None
        self.old.append(self.process)
        self.epoch += 1
        self.words = [*self.words[:-1], str(self.epoch)]
        await self.start()
        await until(self._has_taken_over, f"the next Envoy; see {self.log}")

    async def _has_taken_over(self) -> bool:
        await asyncio.sleep(_LOOK_S)
        async with aiohttp.ClientSession() as http:
            try:
                async with http.get(f"http://127.0.0.1:{self.admin}/server_info") as answer:
                    info = await answer.json()
            except aiohttp.ClientError:  # the admin's port is handed over, too
                return False
        return info["state"] == "LIVE" and int(info["command_line_options"]["restart_epoch"]) == self.epoch

    async def close(self) -> None:
        for process in self.old:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await super().close()


class Service:
    """The service. ``async with`` it.

    Args:
        folder: where everything writes.
        manager: the address of the dialogue manager that all calls get.
        longest_call_s: how long Envoy's old process continues after a restart.
    """

    def __init__(self, folder: Path, manager: str, *, longest_call_s: float) -> None:
        self.folder = folder
        self.redis = RedisServer(folder)
        self.postgres = PostgresServer()
        self._engine_ports = [free_port(), free_port()]
        self.engines = [self._engine(number, port) for number, port in enumerate(self._engine_ports, 1)]
        self.gateways = [self._gateway(number, manager) for number in (1, 2)]
        self.front, self.admin, self.sip_front = free_port(), free_port(), free_port()
        self.envoy = self._envoy(longest_call_s)
        self.kamailio = self._kamailio()

    def _engine(self, number: int, port: int) -> Program:
        metrics_port = free_port()
        config = self.folder / f"engine-{number}.yaml"
        config.write_text(_ENGINE.format(port=port, metrics_port=metrics_port, drain_s=DRAIN_S))
        return Program(
            f"engine {number}", [sys.executable, "-m", "talkspurt", "engine", "-c", str(config)],
            self.folder / f"engine-{number}.log", lambda: answers(f"http://127.0.0.1:{metrics_port}/readyz"),
        )  # fmt: skip

    def _gateway(self, number: int, manager: str) -> GatewayProgram:
        folder = self.folder / f"gateway-{number}"
        folder.mkdir()
        port, sip_port, first_rtp = free_port(), free_port(), 20000 + 1000 * number
        config = folder / "talkspurt.yaml"
        config.write_text(
            _GATEWAY.format(
                drain_s=DRAIN_S,
                notice_s=NOTICE_S,
                tenant=TENANT,
                engines=", ".join(f"127.0.0.1:{engine}" for engine in self._engine_ports),
                manager=manager,
                redis=self.redis.url,
                port=port,
                sip_port=sip_port,
                rtp_ports=f"{first_rtp}-{first_rtp + 999}",
                folder=folder,
                postgres=self.postgres.url("talkspurt"),
            )  # fmt: skip
        )
        return GatewayProgram(
            f"gateway {number}", [sys.executable, "-m", "talkspurt", "serve", "-c", str(config)],
            self.folder / f"gateway-{number}.log", lambda: answers(f"http://127.0.0.1:{port}/readyz"),
            {"TEST_KEY": KEY, "TALKSPURT__SERVER__PORT": str(port)}, port=port, sip_port=sip_port,
        )  # fmt: skip

    def _envoy(self, longest_call_s: float) -> EnvoyProgram:
        addresses = iter([self.front, *(gateway.port for gateway in self.gateways), self.admin])

        def ours(found: re.Match[str]) -> str:
            return f"address: 127.0.0.1, port_value: {next(addresses)}"

        config = self.folder / "envoy.yaml"
        sample = (ROOT / "configs/envoy/envoy.yaml").read_text()
        config.write_text(re.sub(r"address: [\d.]+, port_value: \d+", ours, sample))
        assert not list(addresses), "all addresses of the sample are replaced"
        assert ENVOY is not None
        words = [
            ENVOY, "-c", str(config), "--concurrency", "1", "--log-level", "warning",
            "--base-id", str(random.SystemRandom().randrange(1 << 24)),
            "--drain-time-s", "1", "--parent-shutdown-time-s", str(round(longest_call_s)), "--restart-epoch", "0",
        ]  # fmt: skip
        return EnvoyProgram("Envoy", words, self.folder / "envoy.log", self._envoy_has_both, admin=self.admin)

    def _kamailio(self) -> Program:
        lists = {"GATEWAYS": self.folder / "gateways.list", "TRUNKS": self.folder / "trunks.list"}
        lists["GATEWAYS"].write_text("".join(f"1 sip:127.0.0.1:{each.sip_port}\n" for each in self.gateways))
        lists["TRUNKS"].write_text("1 127.0.0.1 32\n")
        defines = {"LISTEN": f"127.0.0.1:{self.sip_front}", **{name: f'"{path}"' for name, path in lists.items()}}
        words = kamailio_words(ROOT / "configs/kamailio/kamailio.cfg", self.folder, **defines)
        return Program("Kamailio", words, self.folder / "kamailio.log", self._kamailio_has_both)

    async def __aenter__(self) -> Service:
        try:
            await asyncio.gather(self.redis.start(), asyncio.to_thread(self.postgres.start))
            await asyncio.to_thread(self.postgres.make_database, "talkspurt")
            await asyncio.gather(*(engine.start() for engine in self.engines))
            await asyncio.gather(*(gateway.start() for gateway in self.gateways))
            await asyncio.gather(self.envoy.start(), self.kamailio.start())
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for program in (self.envoy, self.kamailio, *self.gateways, *self.engines):
            await program.close()
        if self.redis.process is not None:
            await self.redis.stop()
        await asyncio.to_thread(self.postgres.close)

    async def fronts_have_both(self) -> None:
        """Wait until calls go to both gateways."""
        await until(self._envoy_has_both, "Envoy, which should have both gateways")
        await until(self._kamailio_has_both, "Kamailio, which should have both gateways")

    async def _envoy_has_both(self) -> bool:
        await asyncio.sleep(_LOOK_S)
        try:
            async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{self.admin}/clusters") as answer:
                return (await answer.text()).count("health_flags::healthy") == len(self.gateways)
        except aiohttp.ClientConnectionError:
            return False

    async def _kamailio_has_both(self) -> bool:
        await asyncio.sleep(_LOOK_S)
        words = ("kamcmd", "-s", f"unix:{self.folder}/kamailio_ctl", "dispatcher.list")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
        said, _ = await process.communicate()
        return said.count(b"FLAGS: AP") == len(self.gateways)

    def logged(self) -> str:
        """Everything that our own programs have written to their logs."""
        return "".join(program.log.read_text() for program in (*self.gateways, *self.engines))


async def answers(url: str) -> bool:
    """True if the address answers with 200."""
    await asyncio.sleep(_LOOK_S)
    try:
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientConnectionError:
        return False
