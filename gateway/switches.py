"""The switches and carriers that the configuration names: joining their calls, leading them beside their streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.telnyx.calls import TelnyxCalls
from gateway.carriers.tokens import StreamTokens
from gateway.config import CarriersConfig, LimitsConfig, ServerConfig
from gateway.http.attach import Attach
from gateway.listener.asterisk_channels import AsteriskChannels
from gateway.listener.connection import MediaConnection
from gateway.seams.call_api import OpenCallApi

MakeConnection = Callable[[str, str, Mapping[str, str]], MediaConnection]
"""From dialect, route and parameters to a connection whose socket we open ourselves."""


class Switches:
    """All of them. ``start`` and ``aclose`` those that are connected all the time.

    Args:
        tokens: for the addresses of streams that we have a switch open.
        connection: makes the connections that we open.
    """

    def __init__(
        self,
        carriers: CarriersConfig,
        server: ServerConfig,
        limits: LimitsConfig,
        tokens: StreamTokens,
        connection: MakeConnection,
    ) -> None:
        self.attach: dict[str, Attach] = {}
        """By dialect: joins a call."""
        self.call_apis: dict[str, OpenCallApi] = {}
        """By dialect: leads a call."""
        self._freeswitches: list[FreeSwitchCalls] = []
        if carriers.asterisk.media_url:
            self.attach["asterisk"] = AsteriskChannels(
                carriers.asterisk,
                lambda route, parameters: connection("asterisk", route, parameters),
                max_message_bytes=limits.message_bytes,
            ).attach

        def media_url(dialect: str, base: str) -> Callable[[str, Mapping[str, str]], str]:
            def url(route: str, parameters: Mapping[str, str]) -> str:
                token = tokens.make(dialect, route, now=time.time())
                address = (base or server.public_url or f"http://{server.host}:{server.port}").rstrip("/")
                return f"{address.replace('http', 'ws', 1)}/media/{dialect}/{route}/{token}?{urlencode(parameters)}"

            return url

        self._telnyx: TelnyxCalls | None = None
        if carriers.telnyx.api_key is not None:
            self._telnyx = TelnyxCalls(carriers.telnyx)
            self.call_apis["telnyx"] = self._telnyx.open
        stream, fork = carriers.freeswitch, carriers.freeswitch_fork
        if stream.esl is not None:
            binary = stream.playback == "binary"
            rate = stream.sample_rate
            self._add(
                "freeswitch",
                FreeSwitchCalls(
                    stream.esl,
                    "uuid_audio_stream",
                    sample_rate=rate,
                    flush_command="uuid_audio_stream {uuid} break" if binary else "uuid_break {uuid} all",
                    start_options="",
                    variables={"STREAM_PLAYBACK": "true", "STREAM_SAMPLE_RATE": str(rate)} if binary else {},
                    media_url=media_url("freeswitch", stream.esl.media_url),
                ),
            )
        if fork.esl is not None:
            both_ways = f"true {str(fork.streaming).lower()} {fork.sample_rate}"
            self._add(
                "freeswitch-fork",
                FreeSwitchCalls(
                    fork.esl,
                    "uuid_audio_fork",
                    sample_rate=fork.sample_rate,
                    flush_command="",
                    # The last three count only where all ten arguments are given.
                    start_options=f"talkspurt {{}} {both_ways}",
                    variables={},
                    media_url=media_url("freeswitch-fork", fork.esl.media_url),
                ),
            )

    def _add(self, dialect: str, switch: FreeSwitchCalls) -> None:
        self._freeswitches.append(switch)
        self.attach[dialect] = switch.attach
        self.call_apis[dialect] = switch.open

    def start(self) -> None:
        """Connect to those that are connected all the time."""
        for switch in self._freeswitches:
            switch.esl.start()

    async def aclose(self) -> None:
        """Disconnect; what was told to them before gets its time."""
        for switch in self._freeswitches:
            await switch.esl.aclose()
        if self._telnyx is not None:
            await self._telnyx.aclose()
