"""The configured switches and carriers: attaches to their calls, and controls calls besides their streams."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import urlencode

from gateway.carriers.carrier import ConfiguredCarrier
from gateway.carriers.switch import SwitchTools
from gateway.config import ServerConfig
from gateway.seams.call_api import Attach, OpenCallApi
from gateway.tokens import Tokens

OpenStream = Callable[[str, str, str, Mapping[str, str], float], Awaitable[None]]
"""``SwitchTools.open_stream`` with the name of the dialect as first argument."""


class Switches:
    """All configured switches. ``start`` connects those with permanent connections, and ``aclose`` disconnects.

    Args:
        tokens: makes tokens for the addresses of streams that a switch must open.
        open_stream: opens a stream from our side.
    """

    def __init__(
        self,
        carriers: Mapping[str, ConfiguredCarrier],
        server: ServerConfig,
        tokens: Tokens,
        open_stream: OpenStream,
    ) -> None:
        self._server = server
        self._tokens = tokens
        made = {
            name: configured.vendor.switch(
                configured.settings,
                SwitchTools(media_url=partial(self._media_url, name), open_stream=partial(open_stream, name)),
            )
            for name, configured in carriers.items()
        }
        self._switches = {name: switch for name, switch in made.items() if switch is not None}
        self.attach: dict[str, Attach] = {
            name: switch.attach for name, switch in self._switches.items() if switch.attach is not None
        }
        """The function that joins a call, by dialect."""
        self.call_apis: dict[str, OpenCallApi] = {
            name: switch.open for name, switch in self._switches.items() if switch.open is not None
        }
        """The function that opens the control of a call, by dialect."""

    def _media_url(self, dialect: str, base: str, route: str, parameters: Mapping[str, str]) -> str:
        token = self._tokens.make(dialect, route, now=time.time())
        own = self._server.public_url or f"http://{self._server.host}:{self._server.port}"
        address = (base or own).rstrip("/").replace("http", "ws", 1)
        return f"{address}/media/{dialect}/{route}/{token}?{urlencode(parameters)}"

    def start(self) -> None:
        """Connect to the switches with permanent connections."""
        for switch in self._switches.values():
            switch.start()

    async def aclose(self) -> None:
        """Disconnect, after the switches had time for running commands."""
        for switch in self._switches.values():
            await switch.aclose()
