"""Two phones and a whole gateway between them: each phone says a tone, and what it hears is looked at by its
spectrum."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gateway.call.session import Session
from gateway.seams.messages import Error, Inbound, LegEvent, Outbound, TurnEvent
from sip_bridge.message.sdp import parse as parse_sdp
from sip_bridge.message.sip import Request, Response
from talkspurt.build import Gateway
from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.mixing.legs import level_of, tone
from tests.peers.ports import free_port
from tests.sip_bridge.phone import Phone, offer
from tests.sip_bridge.test_outgoing import fresh, reply
from tests.waiting import until
from tts_engine.pipeline.engine import Engine
from voicecodecs.g711 import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw

_RATE = 8000


class Talker(Phone):
    """A phone that says a tone and keeps what it hears, PCMU or PCMA."""

    def __init__(self, server: int, *, codec: int = 0, port: int = 0) -> None:
        super().__init__(server)
        if port:
            self.sip.close()
            self.sip = self._socket(port)
        self.codec = codec
        self.heard: list[bytes] = []
        """Payloads of PCMU and PCMA, decoded to s16le."""
        self.keys: list[int] = []
        """Events of keys whose end has come."""
        self._tasks: list[asyncio.Task[None]] = []

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self.rtp.fileno(), self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = self.rtp.recv(4096)
                kind, payload = packet[1] & 0x7F, packet[12:]
                if kind in (0, 8):
                    self.heard.append((decode_ulaw if kind == 0 else decode_alaw)(payload).tobytes())
                elif kind == 101 and payload[1] & 0x80 and packet[4:8] + payload[:1] not in self._ended:
                    self._ended.add(packet[4:8] + payload[:1])
                    self.keys.append(payload[0])

    def talk(self, hz: float) -> None:
        """Say a tone until the phone is closed."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._talk(hz)))

    async def _talk(self, hz: float) -> None:
        loop = asyncio.get_running_loop()
        encode = encode_ulaw if self.codec == 0 else encode_alaw
        pcm, begun = tone(hz, _RATE, 1.0), loop.time()
        for number in range(1_000_000):
            frame = pcm[number * 160 % _RATE :][:160]
            self.speak(encode(frame), payload_type=self.codec, sequence=number & 0xFFFF, timestamp=number * 160)
            await asyncio.sleep(max(0.0, begun + (number + 1) * 0.02 - loop.time()))

    def press(self, key: int) -> None:
        """A touch tone: its first packet and three ends (RFC 4733)."""
        for number, end in enumerate((0, 0x80, 0x80, 0x80)):
            self.speak(
                struct.pack("!BBH", key, end | 10, 1600),
                payload_type=101,
                sequence=40_000 + 10 * key + number,
                timestamp=900_000 + 2000 * key,
            )

    def hears(self, hz: float) -> float:
        """The amplitude at which the last half second has a tone."""
        pcm = np.frombuffer(b"".join(self.heard[-25:]), np.int16)
        return level_of(pcm, hz, _RATE) if len(pcm) >= 4000 else 0.0

    def loudness(self) -> float:
        """The mean amplitude of the last half second."""
        pcm = np.frombuffer(b"".join(self.heard[-25:]), np.int16)
        return float(np.abs(pcm.astype(np.float32)).mean()) if len(pcm) else 0.0

    async def until_hears(self, *hz: float) -> None:
        await until(lambda: all(self.hears(each) > 0.1 for each in hz), f"{hz} Hz")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self.rtp.fileno())
        super().close()

    _ended: set[bytes]

    def __enter__(self) -> Talker:
        self._ended = set()
        self.listen()
        return self

    # --- the person called -------------------------------------------------------------------------------------------

    def replies(self, invite: Request, status: int, *, early: bool = False) -> Response:
        body = offer(self.rtp_port, codecs=f"{self.codec} 101") if status == 200 or early else b""
        response = reply(self, invite, status, body=body)
        if body:
            self.invite = invite
            self.media = parse_sdp(invite.body).media[0]
        return response

    async def rings(self) -> Request:
        """The INVITE of a second leg, ringing."""
        invite = await fresh(self, "INVITE")
        self.replies(invite, 180)
        return invite

    async def answers(self) -> Request:
        invite = await self.rings()
        self.replies(invite, 200)
        await fresh(self, "ACK")
        return invite

    @property
    def uri(self) -> str:
        return f"sip:ann@127.0.0.1:{self.port}"

    async def next(self, method: str) -> Request:
        return await fresh(self, method)


class Told:
    """The application of the caller's call."""

    def __init__(self, made: Gateway, session: Session) -> None:
        self.made = made
        self.session = session
        self.told: list[Outbound] = []
        session.outbox.connect(self)
        session.on_dialogue_ready()

    def send(self, message: Outbound) -> None:
        self.told.append(message)

    def send_audio(self, pcm: bytes) -> None: ...

    async def aclose(self) -> None: ...

    def say(self, message: Inbound) -> None:
        self.session.on_message(message)

    @property
    def events(self) -> list[str]:
        return [each.event for each in self.told if isinstance(each, LegEvent)]

    @property
    def errors(self) -> list[str]:
        return [each.code for each in self.told if isinstance(each, Error)]

    def turn(self, name: str) -> str:
        """The latest event of a turn."""
        return next(
            (each.event for each in reversed(self.told) if isinstance(each, TurnEvent) and each.turn == name), ""
        )

    async def hears_of(self, event: str) -> None:
        await until(lambda: event in self.events, f"leg {event}: {self.told}")

    async def over(self) -> None:
        await until(lambda: not len(self.made.directory), "the end of all calls")


class World:
    """A gateway, a caller who talks with its bot, and a person who may be called."""

    def __init__(self, made: Gateway, engine: Engine, caller: Talker, person: Talker, app: Told, url: str) -> None:
        self.made = made
        self.engine = engine
        self.url = url
        """The address of the HTTP API."""
        self.caller = caller
        self.person = person
        self.app = app

    @property
    def target(self) -> str:
        return self.person.uri

    @contextmanager
    def another(self, *, codec: int = 0) -> Iterator[Talker]:
        """One more phone."""
        with Talker(self.made.sip.endpoint.port, codec=codec) as phone:  # type: ignore[union-attr]
            yield phone


@asynccontextmanager
async def world(
    folder: Path,
    *,
    codecs: tuple[int, int] = (0, 8),
    allow: str = "INVITE, ACK, CANCEL, BYE, INFO, REFER, NOTIFY",
    sip: dict[str, Any] | None = None,
    person: int = 0,
    **sections: Any,
) -> AsyncIterator[World]:
    """All of it, with the caller's call up. ``allow``: the methods that the caller's phone lists.
    ``person``: port of the person's phone; 0: any."""
    port = free_port()
    sections = {
        "sip": {
            "port": port,
            "rtp_ports": "43000-43999",
            "trunks": {"office": {"addresses": ["127.0.0.0/8"], "answer_at_once": True}},
            "allowed_targets": ["*@127.0.0.1"],
            **(sip or {}),
        },
        **sections,
    }
    async with api_gateway(folder, clones=False, **sections) as (made, engine, url):
        with Talker(port, codec=codecs[0]) as caller, Talker(port, codec=codecs[1], port=person) as called:
            caller.target = f"sip:+4930200@127.0.0.1:{port}"
            await caller.call(("Allow", allow), body=offer(caller.rtp_port, codecs=f"{codecs[0]} 101"))
            await until(lambda: len(made.directory))
            (session,) = made.directory
            (call,) = made.sip
            await until(call.protocol.may_transfer, "the ACK")
            yield World(made, engine, caller, called, Told(made, session), url)
            for each in made.directory:
                each.end("test is over", hang_up=True)
            await until(lambda: not len(made.directory))
