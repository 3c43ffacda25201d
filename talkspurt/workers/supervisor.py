"""``server.workers: N``: the process that starts N workers and the engine, and passes each connection to a worker.

It accepts all connections itself and passes each on to the ready worker with the fewest calls. A hash over addresses
(SO_REUSEPORT) would spread few long streams unevenly, and lose the connections in the queue of a worker that dies. One
socket for all workers would give a crowd of connections to the worker that is idle at that moment. After that the
worker alone owns the connection, and the supervisor sees none of its frames. SIP's datagrams are passed on one by one
(``sip_port.py``).

The supervisor keeps the data that must outlive a worker: spent stream tokens, handoffs of calls, counts of dead
workers. It also tells each worker the knowledge and counts of the others (``told``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from pydantic import SecretStr

from gateway.cluster import metrics_sum, socket_state
from gateway.cluster.memory_state import MemoryState
from gateway.cluster.siblings import own_socket_of
from gateway.listener.no_room import NO_ROOM, rest
from gateway.listener.server import raise_open_files
from gateway.metrics import supervisor_text
from sip_bridge.io.ports import share
from talkspurt.config.settings import Config
from talkspurt.engines import engine_for_gateway
from talkspurt.prompts import with_greetings
from talkspurt.serving import StopSignal, greet, run
from talkspurt.workers.control import REPORT_S, Closed, ControlChannel, write_config
from talkspurt.workers.listeners import ServerSockets, close, port_of
from talkspurt.workers.sip_port import SipPort
from tts_engine.service.child import ChildProcess, ChildTimes
from tts_engine.supervision import SUPERVISOR

_START_S = 120.0
_HANG_S = 60.0
_BACKOFF_S = 0.25
_AFTER_DRAIN_S = 15.0
_SCRAPE_S = 3.0
_LOOK_S = 0.02
_AGAIN_S = 0.01
"""Pause of the listeners while the sockets of all workers are full. A worker empties its socket in one turn of its
loop."""


def supervisor_socket(folder: Path) -> Path:
    """Return the socket on which the supervisor answers its workers."""
    return folder / "supervisor.sock"


def control_socket(folder: Path) -> Path:
    """Return the socket on which workers register and get connections."""
    return folder / "control.sock"


@dataclass
class WorkerState:
    """State of a worker, by its latest report."""

    ready: bool = False
    calls: int = 0
    """Live calls, and connections that may become calls."""
    given: int = 0
    """Connections that the worker had not seen at the report, plus those that it got since."""
    at: float = 0.0
    """Time of the report, monotonic seconds. 0: there was none yet."""


class Worker(ChildProcess):
    """One worker, seen from the supervisor."""

    def __init__(self, index: int, config: Config, folder: Path) -> None:
        drain_s = config.server.drain_notice_s + config.server.drain_s
        times = ChildTimes(
            start_s=_START_S, hang_s=_HANG_S, end_s=drain_s + _AFTER_DRAIN_S,
            restart_backoff_s=_BACKOFF_S,
        )  # fmt: skip
        super().__init__(f"worker {index}", "talkspurt.workers.worker", times=times)
        self.index = index
        self.channel: ControlChannel | None = None
        self.standing = WorkerState()
        self.last_metrics = ""
        self.given = 0
        """Number of connections that the running process got."""
        self.told: dict[str, Any] = {}
        """Data of the running process that the others have to know."""
        self.heard: dict[str, Any] = {}
        """Data of the others that it was sent."""
        self._server_folder = folder

    def settings(self) -> str:
        return orjson.dumps({"folder": str(self._server_folder), "index": self.index}).decode()

    async def warm(self) -> None:
        while self.channel is None or not self.standing.at:  # noqa: ASYNC110  # another process changes it
            await asyncio.sleep(_LOOK_S)

    async def answers(self) -> bool:
        return self.channel is not None and time.monotonic() - self.standing.at < _HANG_S / 2

    def give(self, connection: socket.socket, port: str) -> bool:
        """Give the worker a connection that came to a port. False: it takes none now."""
        if self.channel is None or not self.channel.send({"connection": port}, descriptor=connection.fileno()):
            return False
        self.given += 1
        self.standing.given += 1
        return True


def order(standings: list[WorkerState]) -> list[int]:
    """Return the workers in the order in which they are offered a connection: ready ones first, then the one with the
    fewest calls, counting those that it got since its report."""
    return sorted(
        range(len(standings)),
        key=lambda n: (not standings[n].ready, standings[n].calls + standings[n].given, standings[n].calls),
    )


def sums(tallies: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Add up the counts of several workers, by name."""
    added: dict[str, list[int]] = {}
    for tally in tallies:
        for name, counts in tally.items():
            added[name] = [sum(pair) for pair in zip(added.get(name, [0] * len(counts)), counts, strict=True)]
    return added


class WorkerSupervisor:
    """The workers, and the sockets that all of them share.

    Args:
        config: the configuration of the whole server. targets: addresses of the engine.
    """

    def __init__(self, config: Config, targets: tuple[str, ...], folder: Path) -> None:
        self._config = config
        self._for_workers = for_workers(config, targets)
        self._folder = folder
        self.workers = [Worker(index, self._for_workers[index], folder) for index in range(config.server.workers)]
        self._retired: dict[str, str] = {}
        self._state = MemoryState()
        self._listeners: dict[str, list[socket.socket]] = {}
        """Listeners by the name of the port."""
        self._sip: SipPort | None = None
        self._accepting = False
        self._held: tuple[socket.socket, str] | None = None
        """A connection that no worker could take yet, and its port. Further ones wait in the listener's queue."""
        self._again: asyncio.TimerHandle | None = None
        self._channels: set[ControlChannel] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the workers, and accept connections until the block is left. Leaving drains the workers: each takes no
        new calls, and ends after its last one.

        Raises:
            OSError: a port cannot be had.
            Unavailable: a worker does not start.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._close)
            self._listen()
            runner = web.AppRunner(self._app(), access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, str(supervisor_socket(self._folder))).start()
            control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            control.bind(str(control_socket(self._folder)))
            control.listen(len(self.workers))
            control.setblocking(False)
            self._invite(control)
            stack.callback(control.close)
            stack.callback(asyncio.get_running_loop().remove_reader, control.fileno())
            stack.push_async_callback(self._drain)
            await self._start_workers()
            yield

    async def _start_workers(self) -> None:
        """Return when all workers serve. If signals keep ending one before it serves, the others are enough."""
        lost = 0

        async def is_needed() -> bool:
            nonlocal lost
            lost += 1
            while lost < len(self.workers) and not any(each.ready for each in self.workers):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            return not any(each.ready for each in self.workers)

        starts = [asyncio.create_task(worker.start(is_needed=is_needed)) for worker in self.workers]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)

    def is_ready(self) -> bool:
        """Return True if each worker that serves is ready for calls, and at least one serves."""
        ready = [each.standing.ready for each in self.workers if each.ready]
        return bool(ready) and all(ready)

    async def _drain(self) -> None:
        # While they drain, they still get connections: they answer 503, and let managers reconnect to live calls.
        await asyncio.gather(*(worker.aclose() for worker in self.workers))

    # --- connections and datagrams ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        opened = ServerSockets(self._config)
        self._listeners = opened.tcp
        if self._config.sip is not None and opened.udp is not None:
            self._sip = SipPort(self._config.sip, opened.udp, self._living, self._begins_call)

    def port(self, name: str) -> int:
        """Return a bound port: ``http``, ``audiosocket``, ``sip`` or ``sips``. 0: there is none."""
        return port_of(self._listeners.get(name, []))

    def _close(self) -> None:
        self._accept_no_more()
        for listeners in self._listeners.values():
            close(listeners)
        for channel in list(self._channels):
            self._forget(channel, None)
        if self._sip is not None:
            self._sip.close()
        if self._held is not None:
            self._held[0].close()

    def _accept_more(self) -> None:
        if self._sip is not None:
            self._sip.start()
        if self._held is not None and self._give(*self._held):
            self._held = None
        if self._held is not None:
            self._accept_later()
        elif not self._accepting:
            self._accepting = True
            for name, listeners in self._listeners.items():
                for listener in listeners:
                    asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener, name)

    def _accept_later(self) -> None:
        self._accept_no_more()
        self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._accept_more)

    def _accept_no_more(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._accepting:
            self._accepting = False
            for listener in (each for listeners in self._listeners.values() for each in listeners):
                asyncio.get_running_loop().remove_reader(listener.fileno())

    def _accept(self, listener: socket.socket, name: str) -> None:
        if not any(worker.channel is not None for worker in self.workers):
            self._accept_no_more()  # connections wait in the listener's queue until a worker is back
            return
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._accept_no_more()  # until a worker reports
            return  # else the client is gone
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._give(connection, name):  # a crowd has filled their sockets
            self._held = connection, name
            self._accept_later()

    def _give(self, connection: socket.socket, name: str) -> bool:
        """Give a connection to a worker. False: none takes it now."""
        for number in order([worker.standing for worker in self.workers]):
            if self.workers[number].give(connection, name):
                connection.close()  # the worker has its own descriptor
                return True
        return False

    def _living(self) -> list[int]:
        """Return the serving workers, in the order in which they are offered a call."""
        return [
            number for number in order([worker.standing for worker in self.workers]) if self.workers[number].standing.at
        ]

    def _begins_call(self, worker: int) -> None:
        self.workers[worker].standing.given += 1  # until its next report counts the call

    # --- the workers' side -----------------------------------------------------------------------------------------

    def _invite(self, control: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(control.fileno(), self._welcome, control)

    def _welcome(self, control: socket.socket) -> None:
        try:
            connection, _ = control.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                rest(control, partial(self._invite, control))
            return
        channel = ControlChannel(connection)
        self._channels.add(channel)
        asyncio.get_running_loop().add_reader(channel.fileno(), self._heard, channel)

    def _heard(self, channel: ControlChannel) -> None:
        worker = next((worker for worker in self.workers if worker.channel is channel), None)
        try:
            while (received := channel.receive()) is not None:
                message, _ = received
                if "hello" in message:
                    worker = self.workers[message["hello"]]
                    worker.standing, worker.given, worker.told, worker.heard = WorkerState(), 0, {}, {}
                    worker.channel = channel
                    self._equip(worker, channel)
                elif worker is not None:
                    worker.standing = WorkerState(
                        message["ready"], message["calls"], worker.given - message["taken"], time.monotonic()
                    )
                    if message["told"] != worker.told or not worker.heard:
                        worker.told = message["told"]
                        self._tell()
                    self._accept_more()
        except Closed:
            self._forget(channel, worker)

    def _equip(self, worker: Worker, channel: ControlChannel) -> None:
        """Send a new worker its configuration, and its part of the SIP port."""
        descriptor = write_config(self._for_workers[worker.index])
        channel.send({"config": True}, descriptor=descriptor)
        os.close(descriptor)
        if self._sip is not None:
            channel.send({"port": self.port("sip"), "tls_port": self.port("sips")}, descriptor=self._sip.udp.fileno())
            with self._sip.join(worker.index) as theirs:
                channel.send({"dispatcher": True}, descriptor=theirs.fileno())

    def _tell(self) -> None:
        """Send each worker the knowledge and counts of the others, if they have changed."""
        for worker in self.workers:
            others = [other.told for other in self.workers if other is not worker and other.told]
            news = {
                "found": next((told["found"] for told in others if told["found"]), {}),
                "trunks": sums([told["trunks"] for told in others]),
                "routes": sums([told["routes"] for told in others]),
                "keys": sums([told["keys"] for told in others]),
            }
            if worker.standing.at and news != worker.heard and worker.channel is not None:
                if worker.channel.send({"others": news}):
                    worker.heard = news

    def _forget(self, channel: ControlChannel, worker: Worker | None) -> None:
        asyncio.get_running_loop().remove_reader(channel.fileno())
        self._channels.discard(channel)
        channel.close()
        if worker is not None:
            worker.channel, worker.standing, worker.told = None, WorkerState(), {}
            if self._sip is not None:
                self._sip.leave(worker.index)
            self._tell()
            if worker.last_metrics:
                kept = [text for text in (self._retired.get(worker.name), worker.last_metrics) if text]
                self._retired[worker.name] = metrics_sum.add(kept[:1], kept[1:])
                worker.last_metrics = ""

    # --- requests of workers --------------------------------------------------------------------------------------

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.add_routes([*socket_state.routes(self._state), web.get("/metrics", self._metrics)])
        app.router.add_get("/background", self._background)
        app.router.add_post("/next", self._next)
        return app

    async def _next(self, request: web.Request) -> web.Response:
        """Answer with the worker that gets the next call, and count the call."""
        worker = order([worker.standing for worker in self.workers])[0]
        self._begins_call(worker)
        return web.json_response(worker)

    async def _metrics(self, request: web.Request) -> web.Response:
        await asyncio.gather(*(self._scrape(worker) for worker in self.workers))
        texts = [worker.last_metrics for worker in self.workers if worker.last_metrics]
        dropped = self._sip.dropped if self._sip is not None else {}
        texts.append(
            supervisor_text(
                dropped={f"sip_{reason}": count for reason, count in dropped.items()}, restarts=SUPERVISOR.restarts
            )
        )
        return web.Response(text=metrics_sum.add(texts, list(self._retired.values())))

    async def _background(self, request: web.Request) -> web.Response:
        """Answer with the state of this process's own tasks, among them those that keep the workers and the engine."""
        return web.json_response(body=orjson.dumps(SUPERVISOR.states()))

    async def _scrape(self, worker: Worker) -> None:
        connector = aiohttp.UnixConnector(str(own_socket_of(self._folder, worker.index)))
        channel = worker.channel
        if channel is None:
            await connector.close()
            return
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                asyncio.timeout(_SCRAPE_S),
                aiohttp.ClientSession(connector=connector) as http,
                http.get("http://worker/metrics") as answer,
            ):
                text = await answer.text()
                if worker.channel is channel:
                    worker.last_metrics = text


async def _serve(config: Config) -> int:
    """Run the server until SIGTERM or SIGINT. Return the exit code."""
    stop = StopSignal()
    folder = Path(tempfile.mkdtemp(prefix="talkspurt-server-"))  # mode 0700
    try:
        async with engine_for_gateway(with_greetings(config)) as engine:
            supervisor = WorkerSupervisor(config, engine.targets.written, folder)
            async with supervisor.running():
                await stop.wait_or(supervisor.is_ready, look_s=REPORT_S)
                audiosocket, sip = supervisor.port("audiosocket"), (supervisor.port("sip"), supervisor.port("sips"))
                await greet(config, engine, supervisor.port("http"), audiosocket=audiosocket, sip=sip)
                await stop.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return stop.exit_code


def for_workers(config: Config, targets: tuple[str, ...]) -> list[Config]:
    """Return the configuration of each worker: the running engine, one key for all stream tokens, and the worker's
    share of the calls, of AudioSocket's connections and of the ports of SIP's media."""
    server, sip, audiosocket = config.server, config.sip, config.audiosocket
    secret = server.stream_token_secret or SecretStr(secrets.token_hex(32))

    def part(whole: int) -> int:
        return -(-whole // server.workers)

    common = config.model_copy(
        update={
            "server": server.model_copy(update={"stream_token_secret": secret}),
            "engine": config.engine.model_copy(update={"targets": targets}),
            "limits": config.limits.model_copy(update={"calls": part(config.limits.calls)}),
            "audiosocket": audiosocket and audiosocket.model_copy(
                update={"connections": part(audiosocket.connections)}
            ),
        }
    )  # fmt: skip
    if sip is None:
        return [common] * server.workers
    return [
        common.model_copy(update={"sip": sip.model_copy(update={"rtp_ports": f"{low}-{high}"})})
        for low, high in share(*sip.rtp_range, server.workers)
    ]


def serve(config: Config) -> int:
    """Run the server until SIGTERM or SIGINT. Return the exit code."""
    raise_open_files()
    return run(_serve(config))
