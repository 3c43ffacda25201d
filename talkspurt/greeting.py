"""The text that ``serve`` prints when it is ready: addresses, a first call, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.config import is_loopback
from gateway.credentials import api_keys
from talkspurt import __version__
from talkspurt.config.settings import Config
from talkspurt.invocation import command
from talkspurt.recognisers import deaf_routes

_DEFAULT = ("127.0.0.1", 8080)
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def greeting(
    config: Config,
    port: int,
    voices: Sequence[str] | None = None,
    *,
    audiosocket: int | None = None,
    sip: tuple[int, int] | None = None,
) -> Iterator[str]:
    """Yield the lines. The first one contains the address, for programs that wait for it.

    Args:
        port: TCP port of the listener.
        voices: ids of the engine's voices. None: they are not known.
        audiosocket: TCP port of the listener for AudioSocket.
        sip: port of SIP over UDP and TCP, and the one over TLS (0: none).
    """
    listens = config.server.host
    host = _WILDCARDS.get(listens, listens)
    shown = f"{f'[{host}]' if ':' in host else host}:{port}"
    site = f"{'https' if config.server.tls else 'http'}://{shown}"
    yield f"talkspurt {__version__} is ready: {site}/"
    yield f"  console     {site}/"
    yield f"  web phone   {site}/phone"
    twilio = config.carriers.configured().get("twilio")
    if "call" in config.routes and twilio is not None and not twilio.settings.verify:
        scheme = "wss" if config.server.tls else "ws"
        url = "" if (host, port, scheme) == (*_DEFAULT, "ws") else f" {scheme}://{shown}/media/twilio"
        yield f'  first call  {command()} call{url} --text "Hello, this is talkspurt." -o heard.wav'
        yield "              (in another terminal; it plays carrier, caller and dialogue manager)"
    if config.audiosocket is not None and audiosocket is not None:
        yield f"  audiosocket {config.audiosocket.host}:{audiosocket}"
    if config.sip is not None and sip is not None:
        plain, tls = sip
        address = f"[{config.sip.host}]" if ":" in config.sip.host else config.sip.host
        yield f"  sip         {address}:{plain} UDP and TCP" + (f", {address}:{tls} TLS" if tls else "")
    if closed := without_keys(config):
        yield closed
    for name, why in deaf_routes(config.routes).items():
        yield f"route {name} cannot hear: {why}"
    for name, route in config.routes.items():
        if voices is not None and route.voice and route.voice not in voices:
            known = ", ".join(voices) or "none"
            yield f"route {name} names the voice {route.voice!r}, which the engine does not have; it has {known}"


def without_keys(config: Config) -> str:
    """Return a line if pages and API refuse every request, because there is no key that opens them."""
    server, auth = config.server, config.auth
    if auth.keys_file and not auth.api_keys and auth.jwt is None:
        active = any(key.state(time.time()) == "active" for key in api_keys.read(Path(auth.keys_file)))
        make = f"make one with `{command()} keys create`, which counts within two seconds"
        return (
            "" if active else f"auth.keys_file {auth.keys_file} has no key that opens the console and the API: {make}"
        )
    if is_loopback(server.host) or server.insecure or auth.required:
        return ""
    return (
        f"server.host {server.host} can be reached from outside and there are no keys, so the console, the API and the "
        "metrics answer 403: set auth.api_keys, server.host 127.0.0.1, or server.insecure: true"
    )
