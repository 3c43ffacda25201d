"""A simulated Asterisk with an AudioSocket. It announces its call over HTTP, then sends and plays frames on TCP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import ClassVar, cast
from urllib.parse import urlsplit

import aiohttp

from talkspurt.simulator.carrier_leg import Leg
from talkspurt.simulator.carrier_playout import PHONE_BUFFER_S
from talkspurt.simulator.carriers.audiosocket import AudioSocketCarrier
from talkspurt.simulator.carriers.carrier import Command, MediaFrame, Message
from talkspurt.simulator.peer_socket import HTTP_HINT, PeerSocketError, http_server, unreachable

_EARLY_S = 0.3
"""Largest lead of the gateway that is no violation, seconds. Asterisk plays frames as they come, so a stream that is
far ahead is played too fast or loses words. With a smaller bound, a pause of this process would count against the
gateway."""


class SimulatedAudioSocketLeg(Leg, asyncio.Protocol):
    """The switch's end of one connection, with the caller's phone."""

    delay_s: ClassVar = PHONE_BUFFER_S
    """Asterisk passes every frame on at once, so the caller's phone smooths their arrival."""

    def __init__(self, carrier: AudioSocketCarrier, *, record: bool = False) -> None:
        super().__init__(carrier, record=record)
        self._call = carrier
        self._transport: asyncio.Transport | None = None
        self._pending = bytearray()
        self._over = asyncio.Event()

    async def connect(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> None:
        """Connect to ``audiosocket://HOST:PORT[/ROUTE][?http=[HOST:]PORT]``. With a route or parameters, announce
        the call first.

        Args:
            headers: headers of the announcement.
        """
        at = urlsplit(url)
        route = at.path.strip("/")
        try:
            async with asyncio.timeout(timeout_s):
                if route or self._call.parameters:
                    await self._announce(f"http://{http_server(url)}", route, headers)
                await asyncio.get_running_loop().create_connection(lambda: self, at.hostname or "", at.port or 9092)
        except (OSError, TimeoutError, aiohttp.ClientError) as exc:
            raise PeerSocketError(unreachable(url, exc)) from exc

    async def _announce(self, http: str, route: str, headers: Mapping[str, str] | None) -> None:
        body = {"route": route or "default", "customParameters": self._call.parameters}
        url = f"{http}/v1/calls/expected/{self._call.uuid}"
        try:
            async with aiohttp.ClientSession() as session, session.put(url, json=body, headers=headers) as answer:
                if answer.status not in (200, 201):
                    raise PeerSocketError(f"{url} refused the call: HTTP {answer.status}, {await answer.text()}")
        except aiohttp.ClientConnectorError as exc:
            raise PeerSocketError(unreachable(url, exc.os_error) + HTTP_HINT) from exc

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connected()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._pending += data
        while len(self._pending) >= 3:
            size = 3 + int.from_bytes(self._pending[1:3], "big")
            if len(self._pending) < size:
                # Asterisk treats a frame as an error if its payload does not come together with its header.
                self.violations["a frame came in two pieces"] += 1
                return
            frame = bytes(self._pending[:size])
            del self._pending[:size]
            self._obey(self._call.read(frame, binary=True), now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over.set()
        self._disconnected()

    # --- Leg ---

    def _obey(self, command: Command, now: float) -> None:
        super()._obey(command, now)
        if isinstance(command, MediaFrame) and self.playout.runs_dry_at() - now > self.delay_s + _EARLY_S:
            self.violations["audio came faster than it can be played"] += 1

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _write(self, message: Message) -> None:
        assert self._transport is not None and isinstance(message, bytes)
        self._transport.write(message)

    def _shut(self) -> None:
        assert self._transport is not None
        self._transport.close()

    async def _gone(self, timeout_s: float) -> None:
        if self._transport is not None:
            try:
                await asyncio.wait_for(self._over.wait(), timeout_s)
            except TimeoutError:
                self._transport.abort()
