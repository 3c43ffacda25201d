"""Starts the recognisers that the configuration's routes name, and the turn model.

It is also the main program of a recogniser on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
from aiohttp import web

from gateway.config import EndOfThoughtConfig, RecogniserConfig, RouteConfig
from gateway.recognition import moonshine, whisper
from gateway.recognition.client import ListenRecogniser
from gateway.recognition.process import EmbeddedRecogniser, knows, socket_beside
from gateway.recognition.server import ListenServer, Transcribe
from gateway.recognition.smart_turn import TurnModelError, model_file
from gateway.recognition.turn_model import TurnModelThread
from gateway.recognition.words import Words
from gateway.seams.recogniser import Recogniser
from gateway.seams.turn_model import TurnModel
from gateway.uplink.suppressor import PACKAGE, HushNetwork, models_folder
from talkspurt.invocation import pip_install
from talkspurt.log import configure_as_parent
from tts_engine.service.child import die_with, yield_cpu

log = logging.getLogger(__name__)

_NICE = 1
"""Niceness of the recogniser's process and of the turn model's thread, below the gateway."""

EXTRA = "talkspurt[recogniser]"


def problem(route: RouteConfig, config: RecogniserConfig) -> str:
    """Return the reason why a route cannot have the recogniser that it names. Empty: it can."""
    if route.recogniser == "external" and not config.url:
        return "external needs recogniser.url"
    if route.recogniser == "embedded":
        if not moonshine.installed():
            return f"embedded needs the extra [recogniser]: {pip_install(EXTRA)}"
        if not knows(route.language):
            return f"embedded knows English only, the route's language is {route.language}"
    if route.recogniser == "whisper":
        if not config.whisper.folder:
            return "whisper needs recogniser.whisper.folder"
        if lacking := whisper.missing_file(Path(config.whisper.folder)):
            return f"recogniser.whisper.folder has no {lacking}"
        if not whisper.installed():
            return f"whisper needs the extra [whisper]: {pip_install('talkspurt[whisper]')}"
        if not whisper.knows(route.language):
            return f"whisper does not know the route's language, {route.language}"
    return ""


def noise_problem(route: RouteConfig) -> str:
    """Return the reason why a route cannot reduce noise as it asks for. Empty: it can, or does not ask for it."""
    if route.background_noise_reduction is None or models_folder() is not None:
        return ""
    return f"needs a package: {pip_install(PACKAGE, '--no-deps')}"


def chosen(route: RouteConfig) -> str:
    """Return the kind of recogniser that a route gets, or nothing, with ``auto`` resolved."""
    if route.recogniser == "auto":
        return "embedded" if moonshine.installed() and knows(route.language) else ""
    return route.recogniser


def deaf_routes(routes: Mapping[str, RouteConfig]) -> dict[str, str]:
    """Return the routes on which no ``prompt`` will ever come, with the reason. Routes with ``recogniser: ""`` are left
    out."""
    return {name: why for name, route in routes.items() if (why := _why_deaf(name, route))}


def _why_deaf(name: str, route: RouteConfig) -> str:
    if "recogniser" not in route.model_fields_set:
        return f"it has no recogniser, so no prompt will come; set routes.{name}.recogniser, e.g. to auto"
    if route.recogniser != "auto":
        return ""
    if not knows(route.language):
        return f"the embedded recogniser knows English only, the route's language is {route.language}; see external"
    return "" if moonshine.installed() else f"the recogniser is not installed: {pip_install(EXTRA)}"


@asynccontextmanager
async def recognisers_for_gateway(
    routes: Mapping[str, RouteConfig], config: RecogniserConfig
) -> AsyncIterator[dict[str, Recogniser]]:
    """Start the recognisers that routes name, and yield them by route."""
    made: dict[str, Recogniser] = {}
    async with AsyncExitStack() as stack:
        wanted = {chosen(route) for route in routes.values()}
        if "embedded" in wanted:
            embedded = EmbeddedRecogniser("talkspurt.recognisers", config)
            stack.push_async_callback(embedded.aclose)
            embedded.begin()
            made["embedded"] = embedded
        if "whisper" in wanted:
            of_whisper = EmbeddedRecogniser("talkspurt.recognisers", config, of_whisper=True)
            stack.push_async_callback(of_whisper.aclose)
            of_whisper.begin()
            made["whisper"] = of_whisper
        if "external" in wanted:
            external = ListenRecogniser(config.url, config, ready=False)
            stack.push_async_callback(external.aclose)
            language = next(route.language for route in routes.values() if chosen(route) == "external")
            reaching = asyncio.create_task(external.reach(language), name="reach the recogniser")
            stack.callback(reaching.cancel)
            made["external"] = external
        yield {name: made[kind] for name, route in routes.items() if (kind := chosen(route))}


@asynccontextmanager
async def turn_model_for_gateway(
    routes: Mapping[str, RouteConfig], config: EndOfThoughtConfig
) -> AsyncIterator[TurnModel | None]:
    """Load the turn model, and yield it. None: no listening route wants one, or none is installed.

    Raises:
        TurnModelError: the file that the configuration names cannot be used.
    """
    file = Path(config.model) if config.model else model_file()
    if file is None or not any(route.end_of_thought and chosen(route) for route in routes.values()):
        yield None
        return
    model = TurnModelThread(nice=_NICE)
    try:
        try:
            await model.load(file)
        except TurnModelError as exc:
            if config.model:
                raise
            log.warning("without a turn model", extra={"why": str(exc)})
            yield None
        else:
            yield model
    finally:
        model.close()


def suppressing_network(routes: Mapping[str, RouteConfig]) -> HushNetwork | None:
    """Load the network that takes other voices from what the VAD hears. None: no route may use it.

    Raises:
        SuppressorError: its files cannot be used.
    """
    folder = models_folder() if any(route.background_noise_reduction is not None for route in routes.values()) else None
    return None if folder is None else HushNetwork(folder)


def _english(model: moonshine.Moonshine) -> Transcribe:
    return lambda pcm, language, begun: Words(model(pcm))


async def _serve(socket: str, whisper_folder: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # The network is loaded before a client can connect. Until then, caller speech waits in the gateway.
    if whisper_folder:
        server = ListenServer(whisper.Whisper(Path(whisper_folder)), hang_s=whisper.HANG_S, knows=whisper.knows)
    else:
        server = ListenServer(_english(moonshine.Moonshine()))
    runner = web.AppRunner(server.app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.UnixSite(runner, socket).start()
        await stop.wait()
    finally:
        await runner.cleanup()


def main(arguments: list[str]) -> int:
    """Run the child process. Arguments: the file with its configuration, and its parent's process id."""
    configure_as_parent()
    file, parent_pid = arguments
    die_with(int(parent_pid))
    yield_cpu(_NICE)
    settings = orjson.loads(Path(file).read_bytes())
    asyncio.run(_serve(str(socket_beside(Path(file))), settings["whisper"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
