"""A caller on baresip, a bot, and the people whom the bot calls: a real server between them, led over its dialogue
protocol. What each end hears is looked at by its spectrum."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.gateway.mixing.legs import level_of, tone
from tests.peers.live_server import Live, serve
from tests.peers.sip.baresip import Baresip, baresip
from tests.waiting import until

CALLER_HZ, AGENT_HZ, MUSIC_HZ = 600, 1000, 1600
MUSIC_LEVEL = 0.25

_PIECE_S = 0.1

_CONFIG = """
engine: {{kind: tone}}
sip:
  port: {port}
  rtp_ports: 29000-29999
  allowed_targets: ["*@127.0.0.1"]
  trunks: {{phones: {{addresses: [127.0.0.1]}}}}
webrtc: {{addresses: [127.0.0.1], allowed_origins: ["*"]}}
clips: {{folder: "{folder}"}}
routes: {{default: {{hold_clip: music.wav}}}}
"""


@asynccontextmanager
async def server(folder: Path, port: int) -> AsyncIterator[Live]:
    """A gateway with music for callers who wait. ``port``: its port of SIP."""
    folder.mkdir()
    write(folder / "music.wav", tone(MUSIC_HZ, 8000, 1.0, level=MUSIC_LEVEL), 8000)
    async with serve(folder, _CONFIG.format(port=port, folder=folder)) as live:
        yield live


def write(path: Path, pcm: NDArray[np.int16], rate: int) -> None:
    """Write a WAV file, mono."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(pcm.tobytes())


class Bot:
    """The application of all calls of a server."""

    def __init__(self, live: Live, http: aiohttp.ClientSession) -> None:
        self.live = live
        self.manager = SimulatedManager(self._begun)
        self.messages: list[Mapping[str, Any]] = []
        """Messages that the present call's application has received."""
        self._http = http
        self._call: ManagedCall | None = None

    def _begun(self, call: ManagedCall) -> None:
        self._call = call
        self.messages.clear()
        call.on_message = lambda message, now: self.messages.append(message)

    @property
    def call(self) -> ManagedCall:
        """The present call."""
        assert self._call is not None
        return self._call

    def transfer(self, target: str, **fields: object) -> None:
        self.messages.clear()
        self.call.send("transfer", target=target, **fields)

    async def told(self, kind: str, event: str) -> Mapping[str, Any]:
        """Wait for a message: its type, and its event, code or reason."""

        def found() -> Mapping[str, Any] | None:
            return next((m for m in self.messages if m["type"] == kind and event in _names(m)), None)

        message: Mapping[str, Any] = await until(found, f"{kind} {event}")
        return message

    async def says(self, text: str) -> None:
        """Say something to the caller, to its end."""
        turn = self.call.speak(text)
        await until(lambda: turn.outcome, "the turn's end")
        assert turn.outcome == "finished"

    async def ask(self, method: str, path: str, **body: object) -> Any:
        async with self._http.request(method, f"{self.live.http}{path}", json=body or None) as answer:
            assert answer.status in (200, 201, 202, 204), await answer.text()
            return await answer.json() if answer.content_type == "application/json" else None

    async def none_left(self) -> None:
        """Wait for the end of all calls."""

        async def none() -> bool:
            return not (await self.ask("GET", "/v1/calls"))["calls"]

        await until(none, "the end of all calls")


def _names(message: Mapping[str, Any]) -> Iterable[Any]:
    return (message.get(name) for name in ("event", "code", "reason"))


@asynccontextmanager
async def bot(live: Live) -> AsyncIterator[Bot]:
    async with aiohttp.ClientSession() as http:
        made = Bot(live, http)
        await made.manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
        try:
            yield made
        finally:
            await made.manager.aclose()


@asynccontextmanager
async def calling(folder: Path, made: Bot, port: int) -> AsyncIterator[Baresip]:
    """A caller on baresip who says a tone, up and with the bot."""
    async with baresip(folder, says=tone(CALLER_HZ, 8000, 60.0).tobytes()) as phone:
        before = len(made.manager.calls)
        phone.command("dial", f"sip:100@127.0.0.1:{port}")
        await phone.until("CALL_ESTABLISHED")
        await until(lambda: len(made.manager.calls) > before, "setup")
        yield phone


def heard(path: Path) -> tuple[NDArray[np.int16], int]:
    """Return the samples of a WAV file that may still be written, and their rate."""
    data = path.read_bytes() if path.exists() else b""
    if len(data) < 44:
        return np.zeros(0, np.int16), 8000
    rate = int.from_bytes(data[24:28], "little")
    return np.frombuffer(data[44 : len(data) // 2 * 2], np.int16), rate


def heard_by(phone: Baresip) -> tuple[NDArray[np.int16], int]:
    """Return what a phone has heard so far."""
    found = list(phone.folder.glob("dump-*-dec.wav"))
    return heard(found[0]) if found else (np.zeros(0, np.int16), 8000)


def levels(sound: tuple[NDArray[np.int16], int], hz: float) -> NDArray[np.float64]:
    """Return a tone's amplitude in every 0.1 s of a sound, 1 for full scale."""
    pcm, rate = sound
    piece = round(rate * _PIECE_S)
    return np.array([level_of(pcm[at : at + piece], hz, rate) for at in range(0, len(pcm) - piece + 1, piece)])


async def hears(phone: Baresip, hz: float, *, after_s: float = 0.0, at_least: float = 0.15) -> None:
    """Wait until a phone has heard a tone for half a second in a row, later than this time of its recording."""
    await until(lambda: _in_a_row(levels(heard_by(phone), hz)[round(after_s / _PIECE_S) :] > at_least) >= 5, f"{hz} Hz")


def heard_s(phone: Baresip) -> float:
    """Return the length of what a phone has heard so far, seconds."""
    pcm, rate = heard_by(phone)
    return len(pcm) / rate


def _in_a_row(flags: NDArray[np.bool_]) -> int:
    longest = now = 0
    for flag in flags:
        now = now + 1 if flag else 0
        longest = max(longest, now)
    return longest
