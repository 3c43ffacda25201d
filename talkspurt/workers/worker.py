"""One worker of a server, seen from inside: a gateway whose connections the supervisor accepts."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from gateway.call.garbage import keep_what_exists
from gateway.cluster import trial_sharing
from gateway.cluster.manager_relay import ManagerRelay
from gateway.cluster.siblings import FIRST, Siblings, own_socket_of, socket_of
from gateway.cluster.socket_state import SocketState
from gateway.listener.server import raise_open_files
from talkspurt.build import Gateway, Place, gateway
from talkspurt.config.settings import Config
from talkspurt.engines import engine_for_gateway
from talkspurt.log import configure_as_parent
from talkspurt.serving import StopSignal, run
from talkspurt.workers.control import REPORT_S, Channel, Closed, read_config
from talkspurt.workers.supervisor import control_socket, supervisor_socket
from tts_engine.errors import EngineError
from tts_engine.service.child import die_with


class _Worker:
    def __init__(self, made: Gateway, channel: Channel) -> None:
        self._made = made
        self._channel = channel
        self._taken = 0

    def listen(self) -> None:
        """Take the connections that the supervisor gives from now on."""
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._given)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.fileno())

    def _given(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                _, descriptor = received
                if descriptor is not None:
                    self._taken += 1
                    self._made.server.adopt(socket.socket(fileno=descriptor))
        except Closed:
            os._exit(1)  # the supervisor is gone, and nobody would give this process another call

    async def report(self) -> None:
        """Say how this worker does, again and again."""
        while True:
            ready = not self._made.health.why_not_ready()
            calls = len(self._made.directory) + len(self._made.server.opening)
            self._channel.send({"ready": ready, "calls": calls, "taken": self._taken})
            await asyncio.sleep(REPORT_S)


async def _serve(folder: Path, index: int, channel: Channel, config: Config) -> int:
    stop = StopSignal()
    siblings = Siblings(folder, index, config.server.workers, message_bytes=config.limits.message_bytes)
    siblings.relay = ManagerRelay(siblings, ping_s=_ping_s(config)).handle
    place = Place(
        siblings=siblings,
        shared=SocketState(supervisor_socket(folder)),
        socket=socket_of(folder, index),
        metrics=lambda: _metrics_of_all(folder),
    )
    async with engine_for_gateway(config.engine) as engine, gateway(config, engine, place) as made:
        shown = await _tell(made, own_socket_of(folder, index))
        await stop.wait_or(lambda: made.health.engine_is_ready, look_s=0.05)
        keep_what_exists()
        worker = _Worker(made, channel)
        worker.listen()
        tasks = [asyncio.create_task(worker.report(), name="report to the supervisor")]
        if not made.is_first:
            following = trial_sharing.follow(made.trials, own_socket_of(folder, FIRST))
            tasks.append(asyncio.create_task(following, name="follow the trial"))
        await stop.wait()
        await made.drain()
        worker.close()
        for task in tasks:
            task.cancel()
        await shown.cleanup()
    return 0


def _ping_s(config: Config) -> float:
    return min((route.dialogue.ping_s for route in config.routes.values()), default=20.0)


async def _tell(made: Gateway, path: Path) -> web.AppRunner:
    """Tell the server's other processes what is this worker's own. Nobody else reaches the socket."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=made.exposition.own())

    async def routes(request: web.Request) -> web.Response:
        call_sid = request.query["call"]
        return web.json_response([one.call.route for one in made.directory if one.call.call_sid == call_sid])

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/routes", routes)
    if made.is_first:
        app.add_routes([trial_sharing.route(made.trials)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    return runner


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
        channel = Channel.connect(control_socket(folder))
        channel.send({"hello": index})
        return run(_serve(folder, index, channel, read_config(channel.wait())))
    except (EngineError, OSError) as exc:
        print(f"talkspurt serve: {exc}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
