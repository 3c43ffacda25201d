"""Torture messages: what a peer might send, with the answer that is due, put to a whole bridge on the virtual clock."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Headers, Message, Request, Response, parse
from tests.sip_bridge.virtual_bridge import FAR, Far, VirtualBridge, description, played

START = "{} sip:bot@example.com SIP/2.0"


@dataclass(frozen=True)
class Torture:
    """One message.

    Attributes:
        name: the section of the RFC and what it is about.
        answer: the status of our final answer. None: silence.
        why: what the RFC demands, or why we answer so where it leaves the answer open.
        carries: a header of the answer.
    """

    name: str
    answer: int | None
    why: str
    data: bytes
    carries: tuple[str, tuple[str, ...]] | None = None

    @property
    def message(self) -> Message:
        return parse(self.data)

    @property
    def request(self) -> Request:
        message = self.message
        assert isinstance(message, Request)
        return message

    def __str__(self) -> str:
        return self.name


def message(start: str, *lines: str, body: bytes = b"", without: str = "") -> bytes:
    """A message of these header lines, and of the usual ones for what they do not say.

    Args:
        start: the start line, or a method alone.
        without: names of usual headers to leave out.
    """
    method = start.split()[0]
    usual = {
        "Via": "SIP/2.0/UDP host.example.net;branch=z9hG4bK-torture",
        "Max-Forwards": "70",
        "From": "<sip:caller@example.net>;tag=caller",
        "To": "<sip:bot@example.com>",
        "Call-ID": "torture@example.net",
        "CSeq": f"8 {method}",
        "Contact": "<sip:caller@host.example.net>",
        "Content-Type": "application/sdp",
        "Content-Length": str(len(body)),
    }
    given = {line.partition(":")[0].strip().lower() for line in lines} | set(without.lower().split())
    if not body:
        given.add("content-type")
    head = [start if " " in start else START.format(start), *lines]
    head += [f"{name}: {value}" for name, value in usual.items() if name.lower() not in given]
    return "\r\n".join([*head, "", ""]).encode() + body


class Torturer(VirtualBridge):
    """A bridge whose output may be as odd as its input."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.wire: list[bytes] = []

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        self.wire.append(data)
        try:
            super().sendto(data, to)
        except SipProtocolError:
            pass  # a refusal repeats the headers of what it refuses

    def hear(self, data: bytes, source: tuple[str, int]) -> None:
        self.bridge.endpoint._datagrams.datagram_received(data, source)

    def finals(self) -> list[int]:
        statuses = [int(data.split(b" ", 2)[1]) for data in self.wire if data.startswith(b"SIP/2.0 ")]
        return [status for status in statuses if status >= 200]


def _within(answer: Response, method: str, number: int) -> bytes:
    """A request of the caller in the dialog that our answer began."""
    headers = [("Via", f"SIP/2.0/UDP host.example.net;branch=z9hG4bK-{method}-{number}")]
    headers += [(name, answer.headers.get(name) or "") for name in ("From", "To", "Call-ID")]
    return Request(method, "sip:bot@127.0.0.1", Headers([*headers, ("CSeq", f"{number} {method}")])).serialise()


async def put(torture: Torture, caplog: pytest.LogCaptureFixture, *, caller: str = FAR[0], **config: Any) -> None:
    """Send the message from a trunk, and a whole call after it. The answer is the one that is due, no code raises,
    nothing is left."""
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    caplog.set_level(logging.WARNING)
    source = (caller, FAR[1])
    with played():
        world = Torturer(**config)
        world.hear(torture.data, source)
        await world.run(0.1)
        assert world.finals() == ([torture.answer] if torture.answer else []), torture.why
        if torture.carries:
            name, values = torture.carries
            assert parse(world.wire[-1]).headers.all(name) == values
        if torture.answer == 200 and torture.request.method == "INVITE":
            answer = world.replied()
            world.hear(_within(answer, "ACK", answer.cseq.number), source)
            await world.run(1)  # our answer is not repeated: its ACK has found the call
            world.hear(_within(answer, "BYE", answer.cseq.number + 1), source)
            assert world.finals() == [200, 200] and world.replied("BYE").call_id == torture.request.call_id
        far = Far(world)
        world.hear(far.request("INVITE", body=description(host=caller)).serialise(), source)
        await world.run(0.1)
        assert (world.replied().status, world.replied().call_id) == (200, far.call_id)
        world.hear(_within(world.replied(), "ACK", 1), source)
        world.hear(_within(world.replied(), "BYE", 2), source)
        assert (world.replied("BYE").status, world.replied("BYE").call_id) == (200, far.call_id)
        lines = await world.finish()
    assert lines[-1].endswith("kept {}") and not lost
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
