"""One worker of a server: a gateway whose connections the supervisor accepts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from gateway.call.directory import owner_of
from gateway.cluster import trial_sharing
from gateway.cluster.manager_relay import ManagerRelay
from gateway.cluster.siblings import FIRST, Siblings, own_socket_of, socket_of
from gateway.cluster.socket_state import SocketState
from gateway.listener.server import raise_open_files
from sip_bridge.io.shared_address import SharedAddress
from talkspurt.build import Gateway, gateway
from talkspurt.config.settings import Config
from talkspurt.engines import engine_for_gateway
from talkspurt.log import configure_as_parent, print_line
from talkspurt.rooms import WorkerPlace
from talkspurt.serving import StopSignal, run
from talkspurt.workers.announced import AnnouncedCalls, answers
from talkspurt.workers.control import REPORT_S, Closed, ControlChannel, read_config
from talkspurt.workers.supervisor import control_socket, supervisor_socket
from tts_engine.errors import EngineError
from tts_engine.service.child import die_with
from tts_engine.service.garbage import keep_what_exists
from tts_engine.supervision import SUPERVISOR, Need

_NEXT_S = 2.0


class _Worker:
    def __init__(self, made: Gateway, channel: ControlChannel) -> None:
        self._made = made
        self._channel = channel
        self._taken = 0
        self._change = asyncio.Event()
        self._adopting: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """Begin to take connections from the supervisor."""
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._given)
        self._made.call_parts.calling.on_count = self._change.set
        if self._made.sip is not None:
            self._made.sip.on_change = self._change.set

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.fileno())

    def _given(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                message, descriptor = received
                if "connection" in message:
                    self._taken += 1
                    if descriptor is not None:  # else no file was free for it, and the kernel has closed it
                        self._adopt(message["connection"], socket.socket(fileno=descriptor))
                elif "others" in message:
                    self._hear(**message["others"])
        except Closed:
            os._exit(1)  # the supervisor is gone, so this process would get no more calls

    def _adopt(self, port: str, connection: socket.socket) -> None:
        """Serve a connection that came to a port."""
        made = self._made
        if port == "http":
            made.server.adopt(connection)
            return
        if port == "audiosocket":
            assert made.audiosocket is not None
            adopted = made.audiosocket.adopt(connection)
        else:
            assert made.sip is not None
            adopted = made.sip.adopt(connection, tls=port == "sips")
        task = asyncio.create_task(adopted, name="adopt a connection")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def _hear(
        self,
        found: dict[str, Any],
        trunks: dict[str, list[int]],
        routes: dict[str, list[int]],
        keys: dict[str, list[int]],
    ) -> None:
        """Take the knowledge and counts of the other workers."""
        if self._made.sip is not None:
            self._made.sip.hear({name: calls for name, (calls,) in trunks.items()}, found)
        now = asyncio.get_running_loop().time()
        for counters, elsewhere in ((self._made.call_parts.calling, routes), (self._made.http.auth, keys)):
            counters.add({name: (live, placed) for name, (live, placed) in elsewhere.items()}, now=now)

    async def report(self) -> None:
        """Report this worker's state periodically, and at once after a change that others depend on."""
        made, sip = self._made, self._made.sip
        while True:
            self._change.clear()
            calls = len(made.directory) + len(made.server.opening)
            calls += len(sip.outgoing.under_way()) if sip is not None else 0
            calls += made.audiosocket.opening if made.audiosocket is not None else 0
            told = {
                "found": sip.found if sip is not None else {},
                "trunks": {name: [count] for name, count in sip.of_trunk.items()} if sip is not None else {},
                "routes": made.call_parts.calling.tallies(),
                "keys": made.http.auth.tallies(),
            }
            ready = not made.health.why_not_ready()
            self._channel.send({"ready": ready, "calls": calls, "taken": self._taken, "told": told})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), REPORT_S)


async def _serve(folder: Path, index: int, channel: ControlChannel, config: Config) -> int:
    stop = StopSignal()
    siblings = Siblings(
        folder,
        index,
        config.server.workers,
        message_bytes=config.limits.message_bytes,
        next=lambda: _next(folder, index),
        background=lambda: _background(folder),
    )
    siblings.relay = ManagerRelay(siblings, ping_s=_ping_s(config)).handle
    place = WorkerPlace(
        siblings=siblings,
        shared=SocketState(supervisor_socket(folder)),
        socket=socket_of(folder, index),
        metrics=lambda: _metrics_of_all(folder),
        sip=_sip_address(index, config, channel),
        sip_call=lambda call_id: _sip_call(siblings, call_id),
        announced=AnnouncedCalls(siblings),
    )
    async with engine_for_gateway(config.engine) as engine, gateway(config, engine, place) as made:
        shown = await _tell(made, own_socket_of(folder, index))
        await stop.wait_or(lambda: made.health.all_is_ready, look_s=0.05)
        keep_what_exists()
        worker = _Worker(made, channel)
        worker.listen()
        tasks = [SUPERVISOR.task("report to the supervisor", worker.report, need=Need.CALLS)]
        if not made.is_first:
            following = partial(trial_sharing.follow, made.call_parts.trials, own_socket_of(folder, FIRST))
            tasks.append(SUPERVISOR.task("follow the trial", following))
        await stop.wait()
        await made.drain()
        worker.close()
        for task in tasks:
            task.cancel()
        await shown.cleanup()
    return 0


def _sip_address(index: int, config: Config, channel: ControlChannel) -> SharedAddress | None:
    """Take this worker's part of the SIP port from the supervisor. None: there is no SIP."""
    if config.sip is None:
        return None
    ports, udp = channel.wait()
    _, dispatcher = channel.wait()
    return SharedAddress(
        index, config.server.workers, port=ports["port"], tls_port=ports["tls_port"],
        port_socket=socket.socket(fileno=udp), dispatcher=socket.socket(fileno=dispatcher),
    )  # fmt: skip


def _ping_s(config: Config) -> float:
    return min((route.dialogue.ping_s for route in config.routes.values()), default=20.0)


async def _tell(made: Gateway, path: Path) -> web.AppRunner:
    """Serve this worker's own data to the server's other processes. Only they reach the socket."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=made.http.exposition.own())

    async def routes(request: web.Request) -> web.Response:
        call_sid = request.query["call"]
        return web.json_response([one.call.route for one in made.directory if one.call.call_sid == call_sid])

    async def sip_call(request: web.Request) -> web.Response:
        return web.json_response(made.sip.describe(request.query["id"]) if made.sip is not None else None)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/routes", routes)
    if made.is_first:
        app.add_routes([trial_sharing.route(made.call_parts.trials)])
    app.router.add_get("/sip/call", sip_call)
    if made.audiosocket is not None:
        app.add_routes(answers(made.audiosocket))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    return runner


def _sip_call(siblings: Siblings, call_id: str) -> Awaitable[Any] | None:
    """Ask the worker that has a SIP call for the call's description. None: this worker would have it, or the id is
    wrong."""
    try:
        worker = owner_of(call_id)
    except ValueError:
        return None
    if worker == siblings.index or worker not in siblings.all:
        return None
    return siblings.ask(worker, "/sip/call", id=call_id)


async def _next(folder: Path, index: int) -> int:
    """Ask the supervisor which worker places the next call. Without an answer, this worker does."""
    connector = aiohttp.UnixConnector(str(supervisor_socket(folder)))
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with (
            asyncio.timeout(_NEXT_S),
            aiohttp.ClientSession(connector=connector) as http,
            http.post("http://supervisor/next") as answer,
        ):
            return int(await answer.text())
    return index


async def _background(folder: Path) -> Sequence[dict[str, Any]]:
    """Ask the supervisor for the state of its own tasks. Without an answer there are none."""
    connector = aiohttp.UnixConnector(str(supervisor_socket(folder)))
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with (
            asyncio.timeout(_NEXT_S),
            aiohttp.ClientSession(connector=connector) as http,
            http.get("http://supervisor/background") as answer,
        ):
            tasks: list[dict[str, Any]] = await answer.json()
            return tasks
    return []


async def _metrics_of_all(folder: Path) -> bytes:
    connector = aiohttp.UnixConnector(str(supervisor_socket(folder)))
    async with aiohttp.ClientSession(connector=connector) as http, http.get("http://supervisor/metrics") as answer:
        return await answer.read()


def main(arguments: list[str]) -> int:
    """Run a worker. Arguments: the file with its settings, and its parent's process id."""
    configure_as_parent()
    file, parent_pid = arguments
    die_with(int(parent_pid))
    raise_open_files()
    settings = orjson.loads(Path(file).read_bytes())
    folder, index = Path(settings["folder"]), settings["index"]
    try:
        channel = ControlChannel.connect(control_socket(folder))
        channel.send({"hello": index})
        return run(_serve(folder, index, channel, read_config(channel.wait()[1])))
    except (EngineError, OSError) as exc:
        print_line(f"talkspurt serve: {exc}", sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
